"""The policies that the paper compares with, and the usual ones beside them.

All but `dm` divide the band by Theorem 3. All pass over devices that could not meet the deadline with the whole band
for themselves: a base station that knows the channel does not call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from flare.config.option import Limits
from flare.scheduling.admission import admit
from flare.scheduling.orders import by, canonical, remembered, shuffled
from flare.scheduling.problem import BAND_TOLERANCE, RoundProblem
from flare.scheduling.registry import Choice, Memory, policy
from flare.scheduling.scheduler import solve_many
from flare.types import Floats, Indices
from flare.wireless.rate import upload_s

_AT_LEAST_ONE = Limits(at_least=1.0, finite=False)
Number = Annotated[int, "how many devices are to send at most", _AT_LEAST_ONE]
NumberOrNone = Annotated[int | None, "how many devices are to send at most; none: as many as fit", _AT_LEAST_ONE]
GROUP_PROBABILITIES = (0.05, 0.15, 0.2, 0.6)
"""How often a device of each of the four groups is called (Fig. 4)."""


@policy("ps")
def ps(problem: RoundProblem, *, rng: np.random.Generator, num_selected: Number = 10) -> Indices:
    """Pre-tuned random: devices in random order while the deadline holds, up to a tuned number of them."""
    return admit(problem, shuffled(problem, rng), max_devices=num_selected)


def lacks_number(policy: str, options: Mapping[str, Any]) -> bool:
    """Whether a policy is to be tuned to a number of devices (`tune_num_selected`) and its options give none."""
    return policy == "ps" and "num_selected" not in options


def tune_num_selected(
    problems: Sequence[RoundProblem],
    rng: Callable[[int], np.random.Generator],
    *,
    score: Callable[[int], float] | None = None,
) -> int:
    """The `num_selected` of policy `ps` with the least score, from a sweep over every number of devices.

    By default the score of a number is P2's objective averaged over `problems`, rounds of the cell; pass `score` to
    tune by something else (an accuracy: return its negative). `rng(round)` gives the stream of a round, the same for
    every number, so that the numbers are compared on equal draws. A round with nobody counts as the worst objective
    that a round of one device can have.
    """
    if not problems:
        raise ValueError("problems is empty; pass some rounds of the cell")

    worst = [p.participation(1) * float(p.cost.max()) for p in problems]

    def mean_objective(num_selected: int) -> float:
        drawn = solve_many(problems, "ps", rng=list(map(rng, range(len(problems)))), num_selected=num_selected)
        return float(np.mean([min(s.objective, w) for s, w in zip(drawn, worst, strict=True)]))

    max_selected = max(p.num_devices for p in problems)
    return min(range(1, max_selected + 1), key=score or mean_objective)


@policy("cp")
def cp(problem: RoundProblem) -> Indices:
    """Best channels first: one after another until the deadline is reached (channel proportion)."""
    return admit(problem, by(problem, -problem.snr_hz), stop_at_first=True)


@policy("dm", split_evenly=True)
def dm(problem: RoundProblem) -> Indices:
    """Least delay, even split: add the device that delays the round least until the deadline (device maximisation)."""
    # On an even share of B/m device i makes the deadline exactly if c_i <= B/m, and the one that delays the round
    # least is the one that finishes first. Finishing times only grow as the share shrinks: a time computed for a larger
    # share is a lower bound, and only devices whose bound lies under a time that is reached need a new one.
    order = problem.reachable_in_order
    bound_s = _finish_s(problem, order, 1)
    chosen = np.flatnonzero(np.isin(order, problem.must)).tolist()
    bound_s[chosen] = np.inf
    dearest_hz = float(problem.needed_hz[order[chosen]].max(initial=0.0))
    if chosen and dearest_hz > _even_capacity_hz(problem, len(chosen)):
        return order[:0]  # on even shares not even those who must send meet the deadline
    while len(chosen) < min(len(order), problem.device_limit):
        sharing = len(chosen) + 1
        nearest = int(bound_s.argmin())
        # Where uploads are negligible beside computing, a time may round to less than it was on a larger share.
        reached_s = max(_finish_s(problem, order[[nearest]], sharing)[0], bound_s[nearest])
        rivals = np.flatnonzero(bound_s <= reached_s)
        bound_s[rivals] = _finish_s(problem, order[rivals], sharing)
        first = int(rivals[bound_s[rivals].argmin()])
        dearest_hz = max(dearest_hz, float(problem.needed_hz[order[first]]))
        if dearest_hz > _even_capacity_hz(problem, sharing):
            break
        chosen.append(first)
        bound_s[first] = np.inf
    return order[chosen]


def _finish_s(problem: RoundProblem, devices: Indices, sharing: int) -> Floats:
    """When devices finish on an even share of the band among `sharing` of them."""
    share_hz = np.asarray(problem.even_share_hz(sharing))
    return problem.compute_s[devices] + upload_s(problem.payload_bits[devices], share_hz, problem.snr_hz[devices])


def _even_capacity_hz(problem: RoundProblem, sharing: int) -> float:
    """What a device may need where so many of them share the band evenly."""
    return problem.even_share_hz(sharing) * (1.0 + BAND_TOLERANCE)


@policy("cm")
def cm(problem: RoundProblem) -> Indices:
    """Fastest computing first: the largest set that meets the deadline (computation minimisation)."""
    fastest = by(problem, problem.compute_s)
    fastest = problem.able(fastest)
    forced = np.isin(fastest, problem.must)
    fastest = np.concatenate((fastest[forced], fastest[~forced]))
    # The needed bandwidth grows with every device: a binary search for the largest set that fits.
    low, high = 0, min(len(fastest), problem.device_limit)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if problem.fits(fastest[:middle]) else (low, middle - 1)
    return fastest[:low]


@policy("random")
def random(problem: RoundProblem, *, rng: np.random.Generator, num_selected: Number = 10) -> Indices:
    """Uniform draw: blind to channel and speed; of those drawn, the ones that fit send."""
    return admit(problem, shuffled(problem, rng)[:num_selected], max_devices=num_selected)


@policy("grouped")
def grouped(problem: RoundProblem, *, rng: np.random.Generator, memory: Memory, num_selected: Number = 10) -> Choice:
    """Draw from four groups: fixed, called with probability 0.05, 0.15, 0.2 and 0.6 (Fig. 4)."""
    # The groups are drawn once, "before training".
    drawn_before = remembered(memory, "device_group")
    if drawn_before is None:
        drawn_before = np.empty(problem.num_devices)
        drawn_before[shuffled(problem, rng)] = np.arange(problem.num_devices) * 4 // problem.num_devices
    group = drawn_before.astype(np.intp)
    chance = np.array(GROUP_PROBABILITIES)[group] / np.bincount(group, minlength=4)[group]
    order = canonical(problem, drawn_before)
    drawn = rng.choice(order, size=min(num_selected, len(order)), replace=False, p=chance[order] / chance.sum())
    selected = admit(problem, drawn, max_devices=num_selected)
    return Choice(selected, memory={"device_group": drawn_before})


@policy("round-robin")
def round_robin(
    problem: RoundProblem, *, rng: np.random.Generator, memory: Memory, num_selected: NumberOrNone = None
) -> Choice:
    """Longest wait first: while the deadline holds."""
    # Each device's place in the queue is drawn once; whoever was served goes to its end.
    place_before = remembered(memory, "device_place")
    queue = shuffled(problem, rng) if place_before is None else np.argsort(place_before)
    selected = admit(problem, queue, max_devices=num_selected)
    served = np.isin(queue, selected)
    place = np.empty(problem.num_devices)
    place[np.concatenate((queue[~served], queue[served]))] = np.arange(problem.num_devices)
    return Choice(selected, memory={"device_place": place})


@policy("proportional-fair")
def proportional_fair(
    problem: RoundProblem,
    *,
    rng: np.random.Generator,
    memory: Memory,
    num_selected: NumberOrNone = None,
    window: Annotated[float, "rounds that the average goes over", _AT_LEAST_ONE] = 10.0,
) -> Choice:
    """Best relative channel first: a channel against its own average, while the deadline holds."""
    # The average is over about `window` rounds. Equal ratios (the first round, or channels that never change) are
    # ordered at random.
    before = remembered(memory, "device_average_snr_hz")
    average = problem.snr_hz.copy() if before is None else before + (problem.snr_hz - before) / window
    order = shuffled(problem, rng, average)
    order = order[np.argsort(-(problem.snr_hz / average)[order], kind="stable")]
    return Choice(admit(problem, order, max_devices=num_selected), memory={"device_average_snr_hz": average})


@policy("all")
def everyone(problem: RoundProblem) -> Indices:
    """As many as fit: the cheapest in bandwidth first."""
    return admit(problem, by(problem, problem.needed_hz), stop_at_first=True)
