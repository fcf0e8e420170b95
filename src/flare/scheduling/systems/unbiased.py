"""What sampling rules share: each device is drawn with some probability and its update is weighed so that on average
the sum is sum_i p_i update_i over *all* devices, p_i = n_i / n its share of the samples.

That is of updates which do not depend on who else was drawn. With a method whose devices step by what the others do
(`flare`: tau_bar is that of the round; `fednova`, `fedlin`) the average is another one.

That holds only if everybody who is drawn also sends. So the round lasts as long as those drawn take, whatever the
deadline (`Choice.deadline_s`); with the option `wait` off they are drawn among the devices that can meet the deadline,
and one that does not fit beside those drawn before it is left out: the average is then no longer that of all.

Devices that must send are there with certainty and count p_i. Beside them at least one is always drawn, also where as
many must send as are wanted in all: without it the others would count for nothing. Only where no other device may send
(`max_devices`, blocks, `never`) are those that must alone, and their mean is taken, which is not that of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.admission import admit
from flare.scheduling.checks import ABSURD
from flare.scheduling.division import divide
from flare.scheduling.history import History
from flare.scheduling.problem import RoundProblem
from flare.scheduling.systems.known import samples
from flare.types import Floats, Indices
from flare.wireless.rate import upload_s

Wait = Annotated[
    bool, "whether a round lasts until everybody drawn has sent; false: who misses the deadline is left out"
]
_HALVINGS = 200
_ROOM = 1e-9  # for rounding


def shares(history: History) -> Floats:
    """p_i, the share of each device in all samples, shape (devices,)."""
    held = samples(history)
    total = float(held.sum())
    return held / total if total > 0.0 else np.full(len(held), 1.0 / len(held))


def norm_or_largest(norm: Floats) -> Floats:
    """Norms with the largest of the others for a device of which none is known (nan); 1 for all where none is, or all
    are 0."""
    known = np.isfinite(norm)
    largest = float(norm[known].max()) if known.any() else 0.0
    return np.where(known, norm, largest) if largest > 0.0 else np.ones(len(norm))


def norm_heard_last(norm: Floats) -> Floats:
    """`norm_or_largest` of the last updates, with the least of the others in the place of 0: the next update of that
    device may be greater, and nobody would hear of it."""
    filled = norm_or_largest(norm)
    heard: Floats = np.maximum(filled, filled[filled > 0.0].min())
    return heard


def time_on_s(problem: RoundProblem, bandwidth_hz: float) -> Floats:
    """How long each device computes and then sends on a bandwidth, shape (devices,)."""
    band = np.full(problem.num_devices, bandwidth_hz)
    return problem.compute_s + upload_s(problem.payload_bits, band, problem.snr_hz)


def can_be_drawn(problem: RoundProblem, *, wait: bool) -> NDArray[np.bool_]:
    """Which devices may be drawn beside those that must send, shape (devices,)."""
    allowed = np.zeros(problem.num_devices, dtype=bool)
    if wait:
        whole_s = time_on_s(problem, problem.usable_hz)
        allowed = (whole_s <= ABSURD) & (whole_s <= problem.finish_by(math.inf))
        allowed[problem.never] = False
    else:
        allowed[problem.reachable] = True
    allowed[problem.must] = False
    return allowed


def num_draws(problem: RoundProblem, wanted: int) -> int:
    """How many devices are drawn beside those that must send: as many as make up those wanted in all, and at least one,
    which stands for all that were not drawn; but no more than limits let send."""
    places = problem.device_limit if problem.num_blocks is None else min(problem.device_limit, problem.num_blocks)
    number = max(wanted - problem.must.size, 1)
    return max(min(number, places - problem.must.size), 0) if places < problem.num_devices else number


def certain_weights(problem: RoundProblem, share: Floats, num_drawn: int) -> Floats:
    """How much each device that must send counts, in their order: p_i, as those drawn stand for all others. Where none
    is drawn, no weights make up for the others: the mean of those that must send is taken, by their samples."""
    own = share[problem.must]
    if num_drawn or not own.size:
        return own
    return own / own.sum() if own.sum() > 0.0 else np.full(own.size, 1.0 / own.size)


def together(problem: RoundProblem, drawn: Indices, *, wait: bool) -> tuple[Indices, float | None]:
    """Those of the devices drawn (in their order, those that must send among them) that send, and when the round ends;
    None: by its own deadline. Where it waits, that is all of them, unless their own deadlines forbid it."""
    if drawn.size == 0 or problem.fits(drawn) or not wait:
        return (admit(problem, drawn) if problem.possible or not problem.must.size else _nobody()), None
    last_s = float(time_on_s(problem, problem.even_share_hz(drawn.size))[drawn].max())
    if not last_s <= ABSURD / 2.0:  # more devices than blocks, or one that is not done before the world ends
        return (admit(problem, drawn) if problem.possible else _nobody()), None
    late = replace(problem, deadline_s=last_s * (1.0 + _ROOM))
    if problem.due_s is None and problem.block_hz is None:  # divided by P3 they are done sooner
        sooner = replace(problem, deadline_s=divide(problem, np.sort(drawn)).latency_s * (1.0 + _ROOM))
        late = sooner if sooner.fits(drawn) else late
    if not late.possible:  # one that must send has a deadline of its own, which it cannot meet
        return _nobody(), None
    return admit(late, drawn), late.deadline_s


def _nobody() -> Indices:
    return np.zeros(0, dtype=np.intp)


def falling_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function of a number > 0 passes zero, to the last bits: it is not below 0 at `low`, and not above
    at `high`. Halves the ratio of the two, as the root may be of any size."""
    for _ in range(_HALVINGS):
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        if function(middle) >= 0.0:
            low = middle
        else:
            high = middle
    return high
