"""Plain versions that follow the paper's text line by line: slow, easy to check, and what the fast ones must equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import mpmath
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from flare.scheduling.problem import RoundProblem
from flare.types import Floats, Indices


def bandwidth_50_digits(payload_bits: float, slack_s: float, snr_hz: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """b with b log2(1 + snr/b) slack = payload, in 50 digits, and v = S ln2 / (snr slack): by bisection, then by
    Newton's method from the right, where the concave function lies below its tangents and no step passes the root;
    that the root lies within 1e-40 of the answer is seen from the signs beside it. Differences of nearly equal numbers
    take the other digits."""
    with mpmath.workdps(100):
        payload, slack, snr = mpmath.mpf(payload_bits), mpmath.mpf(slack_s), mpmath.mpf(snr_hz)
        if slack <= 0:
            return mpmath.inf, mpmath.inf
        v = payload * mpmath.log(2) / (snr * slack)
        if v >= 1:
            return mpmath.inf, v

        def miss(s: mpmath.mpf) -> mpmath.mpf:  # s = ln(1 + x); ln(1 + x) - v x
            return s - v * mpmath.expm1(s)

        low, high = mpmath.mpf(10) ** -40, mpmath.mpf(1)
        while miss(high) > 0:
            high *= 2
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if miss(middle) > 0 else (low, middle)
        root = high
        for _ in range(200):
            filled = mpmath.expm1(root)
            step = (root - v * filled) / (v * (filled + 1) - 1)
            root += step
            if abs(step) <= root * mpmath.mpf(10) ** -44:
                break
        near = mpmath.mpf(10) ** -40
        assert miss(root * (1 - near)) > 0 > miss(root * (1 + near))
        return snr / mpmath.expm1(root), v


def min_latency_by_bisection(problem: RoundProblem, devices: list[int]) -> float:
    """Theorem 3: t with sum_i b_i(t) = B, by binary search between the computing time and any feasible time; with
    deadlines of devices and whole blocks the least t with sum_i b_i(t) <= B, infinite where there is none."""
    at = np.array(devices)
    band_hz = problem.total_bandwidth_hz if problem.block_hz is None else problem.capacity_hz  # sums of blocks round
    low = float(problem.compute_s[at].max())
    high = max(1.0, 2.0 * low)
    while problem.min_bandwidth_hz(high)[at].sum() > band_hz:
        high *= 2.0
        if high > 1e100:
            return math.inf
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return high
        if problem.min_bandwidth_hz(middle)[at].sum() > band_hz:
            low = middle
        else:
            high = middle


def greedy_literal(problem: RoundProblem, *, as_printed: bool = False) -> Indices:
    """Algorithm 1, one binary search for each candidate in each iteration; with erratum 3 unless `as_printed`. With
    devices that must send chosen before all others, with line 5 (who lowers the objective) by the objective itself
    where there is coding noise, and with times that differ by rounding alone taken as equal."""
    everyone = [int(i) for i in problem.canonical_order]
    able = everyone if as_printed else [i for i in everyone if problem.needed_hz[i] <= problem.capacity_hz]
    if not able:
        return np.zeros(0, dtype=np.intp)
    nu, gamma = (1.0 if problem.weight is None else problem.weight) / problem.tau, problem.gamma
    chosen = problem.must.tolist() or [min(able, key=lambda i: objective_of(problem, [i]))]
    if problem.must.size and not problem.fits(problem.must):
        return np.zeros(0, dtype=np.intp)
    while problem.max_devices is None or len(chosen) < problem.max_devices:
        q, total = len(chosen), sum(nu[chosen])
        bar = (q**2 + (2 * gamma + 1) * q + gamma) / (q**2 * (q + gamma + 1)) * total
        candidates = [i for i in able if i not in chosen and nu[i] < bar]
        if problem.coding_noise is not None:
            now = objective_of(problem, chosen)
            candidates = [i for i in able if i not in chosen and objective_of(problem, [*chosen, i]) < now]
        if not candidates:
            break
        latency = {y: min_latency_by_bisection(problem, [*chosen, y]) for y in candidates}
        least = min(latency.values())
        rounding = 1e-13 if problem.alike and problem.block_hz is None else 1e-11
        z = next(y for y in candidates if latency[y] <= least * (1.0 + rounding))
        if latency[z] > problem.deadline_s:
            break
        chosen.append(z)
    return np.array(sorted(chosen), dtype=np.intp)


def objective_of(problem: RoundProblem, devices: list[int]) -> float:
    """(1/M + gamma/M^2) sum weight/tau + gamma/M^2 sum n, as it is written."""
    number, gamma = len(devices), problem.gamma
    weight = np.ones(problem.num_devices) if problem.weight is None else problem.weight
    noise = np.zeros(problem.num_devices) if problem.coding_noise is None else problem.coding_noise
    steps, coding = (float(sum(values[i] for i in devices)) for values in (weight / problem.tau, noise))
    return (1.0 / number + gamma / number**2) * steps + gamma / number**2 * coding


def allowed_sets(problem: RoundProblem) -> Iterator[Indices]:
    """All sets of devices that fit and that the round allows."""
    must, never = set(problem.must.tolist()), set(problem.never.tolist())
    for size in range(1, problem.num_devices + 1):
        if problem.max_devices is not None and size > problem.max_devices:
            return
        for one in itertools.combinations(range(problem.num_devices), size):
            if must <= set(one) and not never & set(one) and problem.fits(np.array(one)):
                yield np.array(one)


def brute_force_by_number(problem: RoundProblem) -> dict[int, float]:
    """For each M the least sum of 1/tau over all sets of M devices that fit; infinite where none does."""
    least = {}
    for size in range(1, problem.num_devices + 1):
        sets = map(np.array, itertools.combinations(range(problem.num_devices), size))
        least[size] = min((math.fsum(1.0 / problem.tau[at]) for at in sets if problem.fits(at)), default=math.inf)
    return least


def brute_force(problem: RoundProblem) -> float:
    """The least objective over all sets of devices that fit and that the round allows; infinite where there is none."""
    return min((objective_of(problem, one.tolist()) for one in allowed_sets(problem)), default=math.inf)


def brute_force_utility(problem: RoundProblem, utility: Floats) -> float:
    """The greatest sum of utilities over all sets that fit and that the round allows; 0 of the empty set, where nobody
    must send."""
    sums = [math.fsum(utility[one]) for one in allowed_sets(problem)]
    return max(sums + ([] if problem.must.size else [0.0]), default=0.0)


def brute_force_blocks(problem: RoundProblem, devices: list[int]) -> float:
    """The earliest finish over all divisions of the blocks among devices that keep their own deadlines, by Eqs.
    (5)-(7); infinite where there is none."""
    block_hz = problem.block_hz or math.nan
    num_blocks = int(problem.total_bandwidth_hz / block_hz * (1.0 + 1e-12))
    due_s = np.full(problem.num_devices, math.inf) if problem.due_s is None else problem.due_s

    def finish_s(device: int, blocks: int) -> float:
        band = blocks * block_hz
        rate = band * math.log2(1.0 + problem.snr_hz[device] / band)
        finish = float(problem.compute_s[device] + problem.payload_bits[device] / rate)
        return finish if finish <= due_s[device] * (1.0 + 1e-12) else math.inf

    def best(left: list[int], blocks: int) -> float:
        if not left:
            return 0.0
        most = blocks - len(left) + 1  # one for each of the others
        return min(
            (max(finish_s(left[0], own), best(left[1:], blocks - own)) for own in range(1, most + 1)), default=math.inf
        )

    return best(devices, num_blocks)


def slope_50_digits(payload_bits: float, slack_s: float, snr_hz: float) -> mpmath.mpf:
    """db/dslack from b u(b) slack = S by implicit differentiation, with Appendix D's derivative of the rate."""
    bandwidth, _ = bandwidth_50_digits(payload_bits, slack_s, snr_hz)
    with mpmath.workdps(50):
        x = mpmath.mpf(snr_hz) / bandwidth
        rate = bandwidth * mpmath.log1p(x)  # both in nat/s: the factor 1/ln2 cancels
        rate_slope = mpmath.log1p(x) - x / (1 + x)
        return -rate / (mpmath.mpf(slack_s) * rate_slope)


def highs_by_number(problem: RoundProblem, under: float = math.inf) -> Iterator[Indices]:
    """For each number of devices that can fit, the set that one MILP finds; beside numbers of which no set, however
    much band there were, has an objective `under` this: that of those with the largest tau has not."""
    most = int(np.searchsorted(np.cumsum(np.sort(problem.needed_hz)), problem.capacity_hz))
    best = np.argsort(-problem.tau)
    best = best[problem.needed_hz[best] <= problem.capacity_hz]
    for number in range(1, most + 1):
        if objective_of(problem, best[:number].tolist()) >= under:
            continue
        chosen = highs_fixed_size(problem, number)
        if chosen is not None:
            yield chosen


def highs_fixed_size(problem: RoundProblem, number: int) -> Indices | None:
    """One MILP: min sum nu_i, |Q| = number, sum c_i <= B. The set found, checked to fit.

    HiGHS accepts a constraint that is violated by 1e-6. Where its set overruns the band for that reason, it is asked
    again with a band that is smaller by twice as much; what it then finds fits.
    """
    share = problem.needed_hz / problem.total_bandwidth_hz
    able = np.flatnonzero(share <= 1.0)
    for band in (1.0, 1.0 - 2e-6):
        answer = milp(
            c=1.0 / problem.tau[able],
            integrality=np.ones(len(able)),
            bounds=Bounds(0.0, 1.0),
            constraints=[
                LinearConstraint(np.ones(len(able)), number, number),
                LinearConstraint(share[able], -np.inf, band),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if answer.x is None:
            return None
        chosen: Indices = able[answer.x > 0.5]
        if len(chosen) == number and problem.fits(chosen):
            return chosen
    return None
