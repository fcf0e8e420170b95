"""FedCS: one device after another on the whole band, always the one that lengthens the round least.

Nishio, Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge", ICC 2019,
Algorithm 3. Devices compute all at once and upload in turn, each on the whole band; Theta is when the last one is done:

    Theta = 0
    while there are candidates:
        x       the candidate of the least  t_up,x + max(0, t_cmp,x - Theta)
        Theta'  = Theta + t_up,x + max(0, t_cmp,x - Theta)
        if Theta' is within the deadline: x is selected, Theta = Theta'
        x is no candidate any more, either way

t_cmp is `problem.compute_s`, t_up the upload on the whole band with this round's channel; the deadline is the round's,
or the device's own. Times to select, to hand out the model and to aggregate are no part of a `RoundProblem`; a run
counts the download elsewhere.

Left open, and decided here: uploads in turn are the rule's picture of a cell; in this one the chosen send at the
same time on bands by Theorem 3. Mostly that is sooner, as everybody sends with full power all the time. It is not where
a device computes until shortly before the deadline: it then needs nearly the whole band, which in turns is free for
others until it begins. So the devices are taken in the order of the rule while they also fit side by side.
"""

from __future__ import annotations

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.problem import BAND_TOLERANCE, RoundProblem
from flare.scheduling.registry import policy
from flare.types import Floats, Indices
from flare.wireless.rate import upload_s


@policy("fedcs")
def fedcs(problem: RoundProblem) -> Indices:
    """FedCS: uploads in turn on the whole band, next the device that lengthens the round least, until the deadline."""
    return admit(problem, in_turn(problem))


def in_turn(problem: RoundProblem) -> Indices:
    """The devices that Algorithm 3 selects, in the order of their uploads; those that must send come first."""
    order = problem.reachable_in_order
    sending_s = upload_s(problem.payload_bits[order], np.asarray(problem.usable_hz), problem.snr_hz[order])
    computing_s = problem.compute_s[order]
    due_s = np.broadcast_to(problem.finish_by(problem.deadline_s), problem.num_devices)[order] * (1.0 + BAND_TOLERANCE)
    forced = np.isin(order, problem.must)
    taken: list[int] = []
    done_s = 0.0
    candidate = np.ones(order.size, dtype=bool)
    place = np.arange(order.size)
    while True:
        longer_s = _longer_s(sending_s, computing_s, done_s)
        open_now = candidate & forced if (candidate & forced).any() else candidate
        # Devices that lengthen the round less and do not fit are dropped together: nothing changes until one is taken.
        # The first one meets the deadline alone, whatever rounding says: it is reachable.
        fits = open_now & (forced | (done_s + longer_s <= due_s)) if taken else open_now
        if not fits.any():
            return order[taken]
        nearest = int(np.where(fits, longer_s, np.inf).argmin())
        before = (longer_s < longer_s[nearest]) | ((longer_s == longer_s[nearest]) & (place <= nearest))
        candidate &= ~(open_now & before)
        candidate[nearest] = False
        taken.append(nearest)
        done_s += float(longer_s[nearest])


def _longer_s(sending_s: Floats, computing_s: Floats, done_s: float) -> Floats:
    """By how much each device would lengthen a round in which the last upload is done at `done_s`."""
    return sending_s + np.maximum(computing_s - done_s, 0.0)
