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

from heapq import heapify, heappop, heappush

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
    due_s = problem.latest_s[order] * (1.0 + BAND_TOLERANCE)
    forced = np.isin(order, problem.must)
    taken: list[int] = []
    done_s = 0.0
    for group, must in ((np.flatnonzero(forced), True), (np.flatnonzero(~forced), False)):
        candidates = _Candidates(sending_s, computing_s, group)
        while (found := candidates.nearest(done_s)) is not None:
            longer_s, device = found
            # The first one meets the deadline alone, whatever rounding says: it is reachable.
            if must or not taken or done_s + longer_s <= due_s[device]:
                taken.append(device)
                done_s += longer_s
    return order[taken]


class _Candidates:
    """Devices by how much each would lengthen the round. Of those that are done with computing, that is their upload;
    of the others, what they need alone, less the time that has passed: among each kind the order never changes."""

    def __init__(self, sending_s: Floats, computing_s: Floats, devices: Indices) -> None:
        self._sending_s, self._computing_s = sending_s, computing_s
        own = devices.tolist()
        self._computed: list[tuple[float, int]] = []  # upload, device
        self._computing = [(float(sending_s[k] + computing_s[k]), k) for k in own]  # time needed alone, device
        self._by_end = [(float(computing_s[k]), k) for k in own]  # end of computing, device
        self._is_open = set(own)
        heapify(self._computing)
        heapify(self._by_end)

    def nearest(self, done_s: float) -> tuple[float, int] | None:
        """By how much the round would be longer with the device that lengthens it least, and that device, which is no
        candidate any more; None: there is none left."""
        while self._by_end and self._by_end[0][0] <= done_s:
            _, device = heappop(self._by_end)
            if device in self._is_open:
                heappush(self._computed, (float(self._sending_s[device]), device))
        for heap, is_such in ((self._computed, True), (self._computing, False)):
            while heap and (heap[0][1] not in self._is_open or (self._computing_s[heap[0][1]] <= done_s) != is_such):
                heappop(heap)
        first = [(self._longer_s(heap[0][1], done_s), heap[0][1]) for heap in (self._computed, self._computing) if heap]
        if not first:
            return None
        longer_s, device = min(first)
        self._is_open.remove(device)
        return longer_s, device

    def _longer_s(self, device: int, done_s: float) -> float:
        return float(self._sending_s[device] + max(self._computing_s[device] - done_s, 0.0))
