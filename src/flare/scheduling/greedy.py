"""Policy `greedy`: Algorithm 1 of the paper, the scheduling of SPF and SP, without its K binary searches.

Line 10 of Algorithm 1 asks, for each candidate y, for the earliest common finish t_y of the devices chosen so far with
y added; line 13 takes the y of the smallest. Both follow from one picture. Let b_y(t) be the least bandwidth of y for
finishing by t, and G(t) the sum over the devices chosen. t_y is where G(t) + b_y(t) falls to B, so the smallest t_y is
where G(t) + min_y b_y(t) does, and the wanted device is the one of least b_y there (erratum 2).

Where exactly that is need not be known. Two curves b_y and b_z cross at most once: u_y(b) - u_z(b), the difference of
their upload times on equal bandwidth b, is monotone in b, because d^2 u / (d snr d b) has one sign. So if one device
has the least b_y at two times with the wanted t between them, it has it at the wanted t. The policy keeps probes,
times at which b_y is known for all devices, and adds one only when the probes around the wanted t disagree. The
deadline itself is a probe, and answers line 12. In large cells `greedy_windows` does the same with fewer devices at a
time.

With unequal payloads two curves may cross more than once, and with deadlines of their own or whole blocks they are not
even smooth: what two probes agree on then says nothing of the time between them. There `greedy_exchange` finds t_y of
one candidate after another, each sooner than the one before, until nobody is sooner. It is Algorithm 1 all the same,
device by device.

Devices that must send are chosen before the first of them; more than `max_devices` are never chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.greedy_exchange import Exchange
from flare.scheduling.greedy_windows import Chooser
from flare.scheduling.objective import p2_objective
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.types import Floats, Indices

_LARGE = 4_000  # devices from which on looking at all of them for every choice takes longer than windows do


@dataclass
class _Probe:
    """A time, the least bandwidth of every device for finishing by it (infinite once chosen), and their sum."""

    time_s: float
    free_hz: Floats  # (devices,)
    chosen_hz: float = 0.0

    def choose(self, device: int) -> None:
        self.chosen_hz += float(self.free_hz[device])
        self.free_hz[device] = np.inf


@policy("greedy", by_objective=True)
def greedy(problem: RoundProblem) -> Indices:
    """Algorithm 1 of the paper: add the device that delays the round least while that lowers the objective."""
    order = problem.reachable_in_order
    if not problem.possible:
        return order[:0]
    nu = problem.cost[order]  # ascending
    # Alg. 1, line 2, and erratum 3: the largest tau among those that can meet the deadline
    chosen = np.flatnonzero(np.isin(order, problem.must)).tolist() if problem.must.size else [_first(problem, order)]
    chosen_nu = float(sum(nu[chosen].tolist()))
    candidates = _candidates(problem, order)
    for device in chosen:
        candidates.choose(device)
    while len(chosen) < problem.device_limit:
        if isinstance(candidates, Exchange) and problem.coding_noise is not None:
            wanted = candidates.next_device(_improving(problem, order, chosen))
        else:
            improving = int(np.searchsorted(nu, _threshold(len(chosen), chosen_nu, problem.gamma)))
            wanted = candidates.next_device(improving)
        if wanted is None:
            break
        candidates.choose(wanted)
        chosen.append(wanted)
        chosen_nu += float(nu[wanted])
    # The running sum may have rounded below the exact one.
    while len(chosen) > len(problem.must) and not problem.fits(order[chosen]):
        chosen.pop()
    return order[chosen]


def _candidates(problem: RoundProblem, order: Indices) -> _Probes | Chooser | Exchange:
    """The devices of a round, and the quickest way to say who delays it least."""
    one_crossing = problem.one_payload is not None and problem.due_s is None and problem.block_hz is None
    if not one_crossing or problem.coding_noise is not None:
        return Exchange(problem, order)
    if len(order) < _LARGE or problem.must.size:
        return _Probes(problem, order)
    return Chooser(problem, order, problem.min_latency(order[:1]))


def _first(problem: RoundProblem, order: Indices) -> int:
    """The device that alone has the least objective."""
    if problem.coding_noise is None:
        return 0
    return int(p2_objective(1, problem.cost[order], problem.coding_noise[order], problem.gamma).argmin())


def _improving(problem: RoundProblem, order: Indices, chosen: list[int]) -> NDArray[np.bool_]:
    """Which devices would lower the objective: Theorem 4 with the coding noise in it."""
    assert problem.coding_noise is not None
    cost, noise = problem.cost[order], problem.coding_noise[order]
    costs, noises = math.fsum(cost[chosen]) + cost, math.fsum(noise[chosen]) + noise
    with_each = p2_objective(len(chosen) + 1, costs, noises, problem.gamma)
    lower: NDArray[np.bool_] = with_each < problem.objective(order[chosen])
    return lower


def _threshold(num_chosen: int, chosen_nu: float, gamma: float) -> float:
    """Theorem 4: adding a device lowers the objective exactly if its 1/tau is below this."""
    q = float(num_chosen)
    return (q * q + (2.0 * gamma + 1.0) * q + gamma) / (q * q * (q + gamma + 1.0)) * chosen_nu


class _Probes:
    """The probes over all devices, which `order` lists: `lower` lies before the wanted time, those `later` ascend, the
    deadline last. Those that the round has passed are dropped."""

    def __init__(self, problem: RoundProblem, order: Indices) -> None:
        self.problem, self.order = problem, order
        self.chosen: list[int] = []
        self.lower = _Probe(0.0, np.full(len(order), np.inf))
        self.later = [_Probe(problem.deadline_s, problem.needed_hz[order])]

    def choose(self, device: int) -> None:
        """Add a device to those chosen."""
        for probe in (self.lower, *self.later):
            probe.choose(device)
        self.chosen.append(device)

    def next_device(self, improving: int) -> int | None:
        """Alg. 1, lines 5-13: the device among the first `improving` that delays the round least, None if none fits."""
        left = np.flatnonzero(self.later[-1].free_hz[:improving] < np.inf)
        if len(left) == 1:  # nobody to compare with
            needed_hz = self.later[-1].chosen_hz + float(self.later[-1].free_hz[left[0]])
            return int(left[0]) if needed_hz <= self.problem.capacity_hz else None
        band = self.problem.total_bandwidth_hz
        while True:
            lower, upper = self.lower, self.later[0]
            after = int(upper.free_hz[:improving].argmin()) if improving else 0
            least = float(upper.free_hz[after])
            if len(self.later) == 1:
                if improving == 0 or upper.chosen_hz + least > self.problem.capacity_hz:
                    return None
            elif upper.chosen_hz + least > band:  # the wanted time lies after this probe
                self.lower = self.later.pop(0)
                continue
            before = int(lower.free_hz[:improving].argmin())
            settled = before == after and lower.free_hz[before] < np.inf
            middle = 0.5 * (lower.time_s + upper.time_s)
            if settled or not lower.time_s < middle < upper.time_s:  # no double between them: candidates are equal
                return after
            self.later.insert(0, self._between(lower, upper, improving))

    def _between(self, lower: _Probe, upper: _Probe, improving: int) -> _Probe:
        """A new probe near the wanted time: where the inverse of the bandwidth asked for, interpolated, meets 1/B."""
        start = 1.0 / (lower.chosen_hz + float(lower.free_hz[:improving].min()))
        end = 1.0 / (upper.chosen_hz + float(upper.free_hz[:improving].min()))
        part = (1.0 / self.problem.total_bandwidth_hz - start) / (end - start) if end > start else 0.5
        part = min(max(part, 0.1), 0.9)  # close in from both sides
        time_s = lower.time_s + part * (upper.time_s - lower.time_s)
        if not lower.time_s < time_s < upper.time_s:  # a few doubles apart, it rounds to one of them
            time_s = 0.5 * (lower.time_s + upper.time_s)
        probe = _Probe(time_s, self.problem.min_bandwidth_hz(time_s)[self.order])
        probe.chosen_hz = float(probe.free_hz[self.chosen].sum())
        probe.free_hz[self.chosen] = np.inf
        return probe
