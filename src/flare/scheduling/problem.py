"""The question that a base station asks every round: problem P2 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling.bandwidth import optimal_split
from flare.types import Floats, Indices
from flare.wireless.rate import bandwidth_for

BAND_TOLERANCE = 1e-12
"""A set fits if its least bandwidths sum to at most B (1 + this): room for rounding, not for devices."""
SAME = 1e-12
"""Objectives and utilities that differ by less than this share are equal: sums of them differ by rounding alone."""
ADDITION_ERROR = 1.2e-16
"""Bounds the relative error that one addition leaves in a sum of bandwidths."""

ABSURD = 1e100
"""No quantity of a round is larger, or smaller than its inverse: beyond, products leave the range of a double."""
WIDEST_HZ = 1e15
"""No band is wider: that is the frequency of light, and a slip of the unit."""


@dataclass(frozen=True, eq=False)
class RoundProblem:
    """One round of device selection and bandwidth division, problem P2:

        minimise    (1/M + gamma/M^2) sum_{i in Q} 1/tau_i        over sets Q of M >= 1 devices
        subject to  compute_s_i + payload_bits / rate_i(b_i) <= deadline_s   for i in Q
                    sum_{i in Q} b_i <= total_bandwidth_hz

    The problem knows its quantities and solves nothing; `flare.solve` does. The division of the band can be taken
    out of P2: Q is feasible exactly when the least bandwidths of its devices sum to at most the band (erratum 2).

    Parameters
    ----------
    tau : local steps that each device can do this round, >= 1, shape (devices,).
    compute_s : time that those steps take, >= 0, shape (devices,).
    snr_hz : p h^2 / N_0, > 0, shape (devices,).
    payload_bits : size of an update, > 0.
    total_bandwidth_hz : the band to divide, > 0.
    deadline_s : when the round must be over, > 0.
    gamma : weight of participation, >= 0.
    distance_m, angle_rad : where the devices stand, seen from the base station, shape (devices,); for pictures alone,
        no answer depends on them. None: not known.

    Raises ValueError that names the argument, the device and the reason.
    """

    tau: Floats
    compute_s: Floats
    snr_hz: Floats
    payload_bits: float
    total_bandwidth_hz: float
    deadline_s: float
    gamma: float
    distance_m: Floats | None
    angle_rad: Floats | None

    def __init__(
        self,
        tau: ArrayLike,
        compute_s: ArrayLike,
        snr_hz: ArrayLike,
        payload_bits: float,
        total_bandwidth_hz: float,
        deadline_s: float,
        gamma: float = 10.0,
        *,
        distance_m: ArrayLike | None = None,
        angle_rad: ArrayLike | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "tau", _vector("tau", tau, at_least=1.0))
        put(self, "compute_s", _vector("compute_s", compute_s, at_least=0.0))
        put(self, "snr_hz", _vector("snr_hz", snr_hz, positive=True))
        put(self, "payload_bits", _scalar("payload_bits", payload_bits))
        put(self, "total_bandwidth_hz", _scalar("total_bandwidth_hz", total_bandwidth_hz, at_most=WIDEST_HZ))
        put(self, "deadline_s", _scalar("deadline_s", deadline_s))
        put(self, "gamma", _scalar("gamma", gamma, zero_allowed=True))
        put(self, "distance_m", None if distance_m is None else _vector("distance_m", distance_m, at_least=0.0))
        put(self, "angle_rad", None if angle_rad is None else _vector("angle_rad", angle_rad))
        for name in ("compute_s", "snr_hz", "distance_m", "angle_rad"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.tau):
                raise ValueError(f"{name} has {len(values)} devices, tau has {len(self.tau)}: give one value a device")

    def __repr__(self) -> str:
        from flare.scheduling.showing import problem_in_a_line  # here: it knows what a problem is

        return problem_in_a_line(self)

    def _repr_html_(self) -> str:
        from flare.scheduling.showing import problem_as_html

        return problem_as_html(self)

    @property
    def num_devices(self) -> int:
        """K, the devices in the cell."""
        return len(self.tau)

    def weight(self, num_selected: int) -> float:
        """1/M + gamma/M^2."""
        return (num_selected + self.gamma) / num_selected**2

    def objective(self, selected: Indices) -> float:
        """Eq. (19a) of a set of devices; infinite for the empty set. Independent of the order of the devices."""
        if len(selected) == 0:
            return math.inf
        return self.weight(len(selected)) * math.fsum(1.0 / self.tau[selected])

    def min_bandwidth_hz(self, deadline_s: float | None = None) -> Floats:
        """The least bandwidth with which each device finishes by `deadline_s` (by default the round's own), shape
        (devices,); infinite where the device cannot, however much it gets (Theorem 3 and erratum 1)."""
        if deadline_s is None:
            return self.needed_hz
        return bandwidth_for(self.payload_bits, deadline_s - self.compute_s, self.snr_hz)

    @cached_property
    def needed_hz(self) -> Floats:
        """c_i, the least bandwidth of each device at the round's own deadline, shape (devices,)."""
        needed = bandwidth_for(self.payload_bits, self.deadline_s - self.compute_s, self.snr_hz)
        needed.setflags(write=False)
        return needed

    @property
    def capacity_hz(self) -> float:
        """The band with its rounding tolerance; what sums of `needed_hz` are compared with."""
        return self.total_bandwidth_hz * (1.0 + BAND_TOLERANCE)

    def fits(self, selected: Indices) -> bool:
        """Whether the devices can all finish before the deadline on the band there is."""
        return math.fsum(self.needed_hz[selected]) <= self.capacity_hz

    @cached_property
    def reachable(self) -> Indices:
        """The devices that could meet the deadline if they had the whole band for themselves, ascending."""
        return np.flatnonzero(self.needed_hz <= self.capacity_hz)

    @cached_property
    def reachable_in_order(self) -> Indices:
        """The same devices in canonical order."""
        order = self.canonical_order
        return order[self.needed_hz[order] <= self.capacity_hz]

    def min_latency(self, selected: Indices) -> float:
        """t_r* of P3: the earliest time at which all of `selected` can have finished, in seconds."""
        return optimal_split(
            self.compute_s[selected], self.snr_hz[selected], self.payload_bits, self.total_bandwidth_hz
        ).latency_s

    @cached_property
    def canonical_order(self) -> Indices:
        """The devices sorted by what they are (tau descending, then least bandwidth, computing time and channel), so
        that whoever breaks ties or draws by it gets the same answer in whatever order the devices were listed."""
        return np.lexsort((self.snr_hz, self.compute_s, self.needed_hz, -self.tau))


def blocks(problems: Sequence[RoundProblem], max_numbers: int = 1 << 14) -> list[slice]:
    """The problems in blocks of consecutive ones: many enough for one array operation to be worth it, and few enough
    for the memory next to the processor. An array with a row for each problem of a block, as long as its largest cell,
    has at most `max_numbers` entries, unless one problem alone has more."""
    edges, widest = [0], 0
    for at, problem in enumerate(problems):
        widest = max(widest, problem.num_devices)
        if at > edges[-1] and (at + 1 - edges[-1]) * widest > max_numbers:
            edges.append(at)
            widest = problem.num_devices
    return [slice(start, end) for start, end in pairwise([*edges, len(problems)]) if start < end]


def prepare(problems: Sequence[RoundProblem]) -> None:
    """Compute `needed_hz` and `canonical_order` of many problems at once, as each would for itself when asked."""
    new = [problem for problem in problems if "needed_hz" not in problem.__dict__]
    if len(new) < 2:
        return
    counts = [problem.num_devices for problem in new]

    def each(name: str) -> Floats:
        return np.repeat([getattr(problem, name) for problem in new], counts)

    compute_s, snr_hz = (np.concatenate([getattr(one, name) for one in new]) for name in ("compute_s", "snr_hz"))
    needed = bandwidth_for(each("payload_bits"), each("deadline_s") - compute_s, snr_hz)
    ends = np.cumsum(counts)
    for problem, own in zip(new, np.split(needed, ends[:-1]), strict=True):
        own = own.copy()  # a view would keep all the others alive
        own.setflags(write=False)
        problem.__dict__["needed_hz"] = own
    by_count: dict[int, list[RoundProblem]] = {}
    for problem in new:
        by_count.setdefault(problem.num_devices, []).append(problem)
    for same in by_count.values():
        keys = [np.array([getattr(one, name) for one in same]) for name in ("snr_hz", "compute_s", "needed_hz", "tau")]
        keys[-1] = -keys[-1]
        for problem, order in zip(same, np.lexsort(keys), strict=True):
            problem.__dict__["canonical_order"] = order.copy()


def _vector(name: str, values: ArrayLike, *, at_least: float | None = None, positive: bool = False) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers, one for each device: {error}") from None
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must hold one number for each of at least one device, got shape {array.shape}")
    bad = ~(np.abs(array) <= ABSURD)
    why = f"must be finite (and at most {ABSURD:g})"
    if at_least is not None and not bad.any():
        bad, why = array < at_least, f"must be at least {at_least:g}"
    if positive and not bad.any():
        bad, why = array <= 0.0, "must be greater than 0"
    if positive and not bad.any():
        bad, why = array < 1.0 / ABSURD, f"must be at least {1.0 / ABSURD:g}"
    if bad.any():
        device = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name} of device {device} is {array[device]:g}; it {why}")
    array.setflags(write=False)
    return array


def _scalar(name: str, value: Any, *, zero_allowed: bool = False, at_most: float = ABSURD) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r:.80}") from None
    if not (number == 0.0 and zero_allowed) and not 1.0 / ABSURD <= number <= at_most:
        least = "at least 0" if zero_allowed else f"greater than 0 (at least {1.0 / ABSURD:g})"
        raise ValueError(f"{name} is {number:g}; it must be {least} and finite (at most {at_most:g})")
    return number
