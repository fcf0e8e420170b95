"""The question that a base station asks every round: problem P2 of the paper, with what a real network adds to it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.scheduling import checks
from flare.scheduling.checks import ABSURD, WIDEST_HZ
from flare.scheduling.division import divide
from flare.scheduling.objective import p2_objective, participation
from flare.scheduling.resource_blocks import in_whole_blocks
from flare.types import Floats, Indices
from flare.wireless.rate import bandwidth_for

__all__ = ["ABSURD", "ADDITION_ERROR", "BAND_TOLERANCE", "SAME", "WIDEST_HZ", "RoundProblem"]

BAND_TOLERANCE = 1e-12
"""A set fits if its least bandwidths sum to at most B (1 + this): room for rounding, not for devices."""
SAME = 1e-12
"""Objectives and utilities that differ by less than this share are equal: sums of them differ by rounding alone."""
ADDITION_ERROR = 1.2e-16
"""Bounds the relative error that one addition leaves in a sum of bandwidths."""


@dataclass(frozen=True, eq=False)
class RoundProblem:
    """One round of device selection and bandwidth division, problem P2:

        minimise    (1/M + gamma/M^2) sum_{i in Q} cost_i + (gamma/M^2) sum_{i in Q} coding_noise_i
                                                                      over sets Q of M >= 1 devices
        subject to  compute_s_i + payload_bits_i / rate_i(b_i) <= min(deadline_s, due_s_i)   for i in Q
                    sum_{i in Q} b_i <= total_bandwidth_hz
                    Q holds every device of `must` and none of `never`,  M <= max_devices
                    b_i is a whole multiple of block_hz

    with cost_i = weight_i / tau_i. The paper's P2 has one payload, weights 1, no coding noise, and none of the last two
    lines. The problem knows its quantities and solves nothing; `flare.solve` does. The division of the band can be
    taken out of P2: Q is feasible exactly when the least bandwidths of its devices sum to at most the band (erratum 2).

    Parameters
    ----------
    tau : local steps that each device can do this round, >= 1, shape (devices,).
    compute_s : time that those steps take, >= 0, shape (devices,).
    snr_hz : p h^2 / N_0, > 0, shape (devices,).
    payload_bits : size of an update, > 0: one number, or one for each device; kept as an array of shape (devices,).
    total_bandwidth_hz : the band to divide, > 0.
    deadline_s : when the round must be over, > 0.
    gamma : weight of participation, >= 0.
    weight : how much the objective counts each device's 1/tau, > 0, shape (devices,). None: 1 for all.
    due_s : when each device itself must be done, > 0, shape (devices,); the earlier of it and the deadline counts.
    must, never : devices that have to send, and devices that must not.
    max_devices : how many may send at most. None: as many as fit.
    block_hz : the width of a resource block: bandwidths are whole blocks, of which the band has
        floor(total_bandwidth_hz / block_hz). None: any bandwidth.
    coding_noise : what the coding of each device's update adds to the objective, >= 0, shape (devices,). None: nothing.
    distance_m, angle_rad : where the devices stand, seen from the base station, shape (devices,); for pictures alone,
        no answer depends on them. None: not known.

    Raises ValueError that names the argument, the device and the reason.
    """

    tau: Floats
    compute_s: Floats
    snr_hz: Floats
    payload_bits: Floats
    total_bandwidth_hz: float
    deadline_s: float
    gamma: float
    weight: Floats | None
    due_s: Floats | None
    must: Indices
    never: Indices
    max_devices: int | None
    block_hz: float | None
    coding_noise: Floats | None
    distance_m: Floats | None
    angle_rad: Floats | None

    def __init__(
        self,
        tau: ArrayLike,
        compute_s: ArrayLike,
        snr_hz: ArrayLike,
        payload_bits: ArrayLike,
        total_bandwidth_hz: float,
        deadline_s: float,
        gamma: float = 10.0,
        *,
        weight: ArrayLike | None = None,
        due_s: ArrayLike | None = None,
        must: Iterable[int] = (),
        never: Iterable[int] = (),
        max_devices: int | None = None,
        block_hz: float | None = None,
        coding_noise: ArrayLike | None = None,
        distance_m: ArrayLike | None = None,
        angle_rad: ArrayLike | None = None,
    ) -> None:
        put, vector, scalar = object.__setattr__, checks.vector, checks.scalar
        put(self, "tau", vector("tau", tau, at_least=1.0))
        put(self, "compute_s", vector("compute_s", compute_s, at_least=0.0))
        put(self, "snr_hz", vector("snr_hz", snr_hz, positive=True))
        put(self, "payload_bits", checks.payloads(payload_bits, len(self.tau)))
        put(self, "total_bandwidth_hz", scalar("total_bandwidth_hz", total_bandwidth_hz, at_most=WIDEST_HZ))
        put(self, "deadline_s", scalar("deadline_s", deadline_s))
        put(self, "gamma", scalar("gamma", gamma, zero_allowed=True))
        put(self, "weight", None if weight is None else vector("weight", weight, positive=True))
        put(self, "due_s", None if due_s is None else vector("due_s", due_s, positive=True))
        put(self, "must", checks.devices("must", must, len(self.tau)))
        put(self, "never", checks.devices("never", never, len(self.tau)))
        put(self, "max_devices", checks.limit(max_devices))
        put(self, "block_hz", checks.block(block_hz, self.total_bandwidth_hz))
        put(self, "coding_noise", None if coding_noise is None else vector("coding_noise", coding_noise, at_least=0.0))
        put(self, "distance_m", None if distance_m is None else vector("distance_m", distance_m, at_least=0.0))
        put(self, "angle_rad", None if angle_rad is None else vector("angle_rad", angle_rad))
        for name in _OF_DEVICES:
            values = getattr(self, name)
            if values is not None and len(values) != len(self.tau):
                raise ValueError(f"{name} has {len(values)} devices, tau has {len(self.tau)}: give one value a device")
        if self.must.size:
            checks.agreeing(self.must, self.never, self.max_devices)
        if checks.repeated(self.payload_bits):  # known, so that nobody has to ask
            self.__dict__["one_payload"] = float(self.payload_bits[0])
            self.__dict__["alike"] = weight is None and due_s is None and coding_noise is None

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

    @cached_property
    def cost(self) -> Floats:
        """weight_i / tau_i, what a device adds to the sum of the objective, shape (devices,)."""
        cost = (1.0 if self.weight is None else self.weight) / self.tau
        cost.setflags(write=False)
        return cost

    def participation(self, num_selected: int) -> float:
        """1/M + gamma/M^2."""
        return participation(num_selected, self.gamma)

    def objective(self, selected: Indices) -> float:
        """Eq. (19a) of a set of devices; infinite for the empty set. Independent of the order of the devices."""
        number = len(selected)
        if number == 0:
            return math.inf
        noise = 0.0 if self.coding_noise is None else math.fsum(self.coding_noise[selected])
        return p2_objective(number, math.fsum(self.cost[selected]), noise, self.gamma)

    def min_bandwidth_hz(
        self,
        deadline_s: float | None = None,
        devices: Indices | None = None,
        *,
        payload_bits: Floats | None = None,
    ) -> Floats:
        """The least bandwidth with which each of `devices` (None: all) finishes by `deadline_s` (by default the round's
        own) and by its own deadline, shape (devices,), in whole blocks where the round has them; infinite where the
        device cannot, however much it gets (Theorem 3 and erratum 1), and for the devices of `never`. With
        `payload_bits`, shape (..., devices), for these instead of the round's own, of that shape."""
        if deadline_s is None:
            if payload_bits is None:
                return self.needed_hz if devices is None else self.needed_hz[devices]
            deadline_s = self.deadline_s
        bits = self.payload(devices) if payload_bits is None else payload_bits
        compute_s, snr_hz = self.compute_s, self.snr_hz
        if devices is not None:
            compute_s, snr_hz = compute_s[devices], snr_hz[devices]
        return self.permitted(bandwidth_for(bits, self.finish_by(deadline_s, devices) - compute_s, snr_hz), devices)

    @cached_property
    def needed_hz(self) -> Floats:
        """c_i, the least bandwidth of each device at the round's own deadline, shape (devices,)."""
        needed = self.min_bandwidth_hz(self.deadline_s)
        needed.setflags(write=False)
        return needed

    @property
    def is_prepared(self) -> bool:
        """Whether `needed_hz` is known already, and need not be computed."""
        return "needed_hz" in self.__dict__

    def prepare(self, *, needed_hz: Floats | None = None, canonical_order: Indices | None = None) -> None:
        """Keep what was computed elsewhere, exactly as the round would compute it when asked: of many rounds at once,
        that is quicker."""
        if needed_hz is not None:
            needed_hz.setflags(write=False)
            self.__dict__["needed_hz"] = needed_hz
        if canonical_order is not None:
            self.__dict__["canonical_order"] = canonical_order

    @cached_property
    def one_payload(self) -> float | None:
        """The payload that all devices have; None where they differ."""
        bits = self.payload_bits
        return float(bits[0]) if bits.min() == bits.max() else None

    def payload(self, devices: Indices | None = None) -> float | Floats:
        """The bits of devices (None: of all), as one number where all have the same: that is quicker."""
        if self.one_payload is not None:
            return self.one_payload
        return self.payload_bits if devices is None else self.payload_bits[devices]

    def finish_by(self, time_s: float, devices: Indices | None = None) -> float | Floats:
        """When each of the devices (None: of all) has to be done in a round that ends at a time."""
        if self.due_s is None:
            return time_s
        return np.minimum(time_s, self.due_s if devices is None else self.due_s[devices])

    @property
    def latest_s(self) -> Floats:
        """When each of the devices has to be done, shape (devices,)."""
        return np.broadcast_to(self.finish_by(self.deadline_s), self.num_devices)

    def able(self, devices: ArrayLike) -> Indices:
        """Those of the devices that could send alone, on the whole band, in the same order."""
        asked: Indices = np.asarray(devices, dtype=np.intp)
        return asked[self.needed_hz[asked] <= self.capacity_hz]

    def permitted(self, bandwidth_hz: Floats, devices: Indices | None = None) -> Floats:
        """Bandwidths of devices (None: of all), shape (..., devices), as the network gives them: in whole blocks, and
        none at all to those who must not send (infinite: more than there is). The array itself where neither is asked
        for."""
        if self.block_hz is not None:
            bandwidth_hz = in_whole_blocks(bandwidth_hz, self.block_hz) * self.block_hz
        if self.never.size:
            bandwidth_hz[..., self.never if devices is None else self._barred[devices]] = np.inf
        return bandwidth_hz

    @cached_property
    def _barred(self) -> NDArray[np.bool_]:
        """Which devices are in `never`, shape (devices,)."""
        barred = np.zeros(self.num_devices, dtype=np.bool_)
        barred[self.never] = True
        return barred

    @cached_property
    def num_blocks(self) -> int | None:
        """How many blocks the band has; None where bandwidths are any numbers."""
        if self.block_hz is None:
            return None
        return math.floor(self.total_bandwidth_hz / self.block_hz * (1.0 + BAND_TOLERANCE))

    @property
    def usable_hz(self) -> float:
        """The band, or as much of it as whole blocks cover."""
        return self.total_bandwidth_hz if self.block_hz is None else (self.num_blocks or 0) * self.block_hz

    @property
    def capacity_hz(self) -> float:
        """The usable band with its rounding tolerance; what sums of `needed_hz` are compared with."""
        return self.usable_hz * (1.0 + BAND_TOLERANCE)

    def even_share_hz(self, sharing: int) -> float:
        """What each of so many devices gets at least where the band is divided evenly."""
        if self.block_hz is None:
            return self.total_bandwidth_hz / sharing
        return (self.num_blocks or 0) // sharing * self.block_hz

    def fits(self, selected: Indices) -> bool:
        """Whether the devices can all finish before the deadline on the band there is."""
        return math.fsum(self.needed_hz[selected]) <= self.capacity_hz

    @cached_property
    def reachable(self) -> Indices:
        """The devices that may send and could meet the deadline if they had the whole band to themselves, ascending."""
        return np.flatnonzero(self.needed_hz <= self.capacity_hz)

    @cached_property
    def reachable_in_order(self) -> Indices:
        """The same devices in canonical order."""
        return self.able(self.canonical_order)

    @property
    def possible(self) -> bool:
        """Whether any set of devices is feasible: those who must send can, or without them, somebody can."""
        return self.fits(self.must) if self.must.size else self.reachable_in_order.size > 0

    @property
    def device_limit(self) -> int:
        """How many devices may send at most: `max_devices`, or all of them."""
        return self.num_devices if self.max_devices is None else min(self.max_devices, self.num_devices)

    def min_latency(self, selected: Indices) -> float:
        """t_r* of P3: the earliest time at which all of `selected` can have finished, in seconds, whatever the deadline
        of the round; infinite where their own deadlines, or the number of blocks, keep them from it."""
        bound = self.due_s is not None or self.block_hz is not None
        if bound and math.fsum(self.min_bandwidth_hz(ABSURD)[selected]) > self.capacity_hz:
            return math.inf
        return divide(self, selected).latency_s

    @cached_property
    def alike(self) -> bool:
        """Whether devices differ only in tau, computing time and channel, as in the paper: all have one payload, one
        deadline, weight 1 and no coding noise."""
        odd = self.weight is not None or self.due_s is not None or self.coding_noise is not None
        return not odd and self.one_payload is not None

    @cached_property
    def canonical_order(self) -> Indices:
        """The devices sorted by what they are (cost, then least bandwidth, computing time and channel, then what else
        tells them apart), so that whoever breaks ties or draws by it gets the same answer in whatever order the devices
        were listed."""
        keys = [self.snr_hz, self.compute_s, self.needed_hz, -self.tau]
        if not self.alike:
            more = (self.due_s, self.coding_noise, self.weight, self.payload_bits)
            keys = [*(values for values in more if values is not None), *keys, self.cost]
        return np.lexsort(keys)


_OF_DEVICES = ("compute_s", "snr_hz", "payload_bits", "weight", "due_s", "coding_noise", "distance_m", "angle_rad")
