"""Algorithm 1 for large cells: who is wanted next, without looking at all devices each time.

`greedy` tells what is wanted: the device of the least b_y(t) at the time t where  G(t) + min_y b_y(t) = B,  G being
the sum of the b of the devices chosen. That time only grows. So the devices are looked at in windows of time, [lo, hi]:
from the values at both ends it follows which few can be wanted within. b_y falls in t: a device which needs more
at `hi` than another needs at `lo` comes after it. Of those few the values between the ends are known well enough from
their values and slopes at the ends: b_y and all sums of it have a third derivative below zero, so that of the two
parabolas through both ends with the slope of one of them

    the one with the slope at lo lies below b_y,   the one with the slope at hi lies above,

and the cubic with both slopes lies between them, off by at most  |a_3| x (1 - x),  where a_3 is its leading coefficient
and x the part of the window that has passed. Where that does not tell two devices apart, they are compared at times
evaluated for the purpose (`_resolve`), as `greedy` compares all devices of a small cell.

An outer window holds the devices for some hundreds of choices, an inner window, cut from it, those for a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.problem import RoundProblem
from flare.types import Floats, Indices
from flare.wireless.rate import bandwidth_and_slope

_OUTER_CHOICES = 1000  # choices that an outer window is made for, at most
_ROUNDING = 1e-13  # relative error of sums of bandwidths, with room to spare


class Chooser:
    """Devices in canonical order (`order`), of which some are chosen; `next_device` says who follows."""

    def __init__(self, problem: RoundProblem, order: Indices, first_s: float) -> None:
        self.problem, self.band = problem, problem.total_bandwidth_hz
        self.compute_s, self.snr_hz = problem.compute_s[order], problem.snr_hz[order]
        self.free = np.ones(len(order), dtype=bool)
        self.chosen = np.zeros(len(order), dtype=np.intp)
        self.num_chosen = 0
        self.now_s = min(first_s, problem.deadline_s)  # the wanted time lies after it
        self.reach = 1  # how many times more devices than expected a window is made for
        self.last_sums = (math.nan, 0, 0.0, 0.0)  # time, number, and what `chosen_values` said
        self.outer: _Outlook | None = None
        self.inner: _Window | None = None

    def choose(self, device: int) -> None:
        """Add a device to those chosen."""
        self.chosen[self.num_chosen] = device
        self.num_chosen += 1
        self.free[device] = False
        if self.inner is not None:
            self.inner.choose(device)

    def next_device(self, improving: int) -> int | None:
        """Alg. 1, lines 5-13: the device among the first `improving` that delays the round least, None if none fits."""
        stale = 0
        while True:
            if self.inner is None and not self._open(improving):
                return None
            assert self.inner is not None
            wanted = self.inner.wanted(self, improving)
            if wanted is _Answer.NOBODY:
                return None
            if wanted is _Answer.LATER:
                self.now_s = self.inner.hi_s
                self.inner = None
                if self.outer is not None and self.now_s >= self.outer.hi_s:
                    self.outer = None
            elif wanted is _Answer.UNKNOWN:  # the window was made for other devices, or for fewer choices
                self.inner = None
                stale += 1
                if stale > 1 or self.outer is None or improving > self.outer.end:
                    self.outer = None
                    self.reach *= 2
            else:
                self.reach = 1
                return int(wanted)

    def values(self, time_s: float, devices: Indices) -> tuple[Floats, Floats]:
        """The least bandwidth of these devices for finishing by a time, and its slope."""
        slack_s = time_s - self.compute_s[devices]
        return bandwidth_and_slope(self.problem.payload(), slack_s, self.snr_hz[devices])

    def chosen_values(self, time_s: float) -> tuple[float, float]:
        """The sum of the least bandwidths of those chosen, and its slope."""
        if self.last_sums[:2] != (time_s, self.num_chosen):
            hz, slope = self.values(time_s, self.chosen[: self.num_chosen])
            self.last_sums = (time_s, self.num_chosen, float(hz.sum()), float(slope.sum()))
        return self.last_sums[2:]

    def _open(self, improving: int) -> bool:
        """Open an inner window from now on; False where no device is left to choose."""
        if self.outer is None or improving > self.outer.end:
            if not self.free[:improving].any():
                return False
            end = min(improving + improving // 8 + 64, len(self.free))  # more may come to improve while it lasts
            number = self.reach * min(max(self.num_chosen // 2, 8), _OUTER_CHOICES)
            everyone = _Outlook(self.problem.deadline_s, end, math.inf, np.flatnonzero(self.free[:end]))
            self.outer = self._narrowed(everyone, number, improving)[0]
        # The cubics are off by about (number / chosen)^3; that shall stay small beside the distance of two devices.
        number = self.reach * max(min(self.num_chosen // 40, 24), int(self.num_chosen ** (2.0 / 3.0) / 10.0), 1)
        there = self.outer.devices[self.free[self.outer.devices]]
        outlook, hz, hi_hz = self._narrowed(replace(self.outer, devices=there), number, improving)
        sums = [self.chosen_values(time_s) for time_s in (self.now_s, outlook.hi_s)]
        chosen = _Curve.between(outlook.hi_s - self.now_s, *(np.atleast_1d(one) for ends in sums for one in ends))
        self.inner = _Window(self.now_s, outlook, hz, hi_hz, chosen, sums[1][0], self.snr_hz[outlook.devices])
        return True

    def _narrowed(self, wide: _Outlook, number: int, improving: int) -> tuple[_Outlook, _Curve, Floats]:
        """The devices of an outlook that can be wanted in the next `number` choices or so, with what they need from now
        to its end, and at its end."""
        lo_s, hi_s, cut_hz = self.now_s, wide.hi_s, wide.cut_hz
        at_lo, slope_lo = self.values(lo_s, wide.devices)
        near = at_lo[: int(np.searchsorted(wide.devices, improving))]
        room = 3 * number + 8
        if len(near) > room:
            cut_hz = min(cut_hz, float(np.partition(near, room - 1)[room - 1]))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # So much later the choices will have used up what those chosen can spare by then.
            step_s = number * near.min(initial=math.inf) / -self.chosen_values(lo_s)[1]
        if lo_s < lo_s + step_s < hi_s:
            hi_s = float(lo_s + step_s)
        at_hi, slope_hi = self.values(hi_s, wide.devices)
        kept = (at_hi <= cut_hz) & np.isfinite(slope_hi)
        hz = _Curve.between(hi_s - lo_s, at_lo[kept], slope_lo[kept], at_hi[kept], slope_hi[kept])
        return _Outlook(hi_s, wide.end, cut_hz, wide.devices[kept]), hz, at_hi[kept]


@dataclass(frozen=True)
class _Outlook:
    """Who can be wanted up to a time: of the first `end` devices `devices` holds, ascending in canonical order, all
    that need at most `cut_hz` at that time, but for those chosen before."""

    hi_s: float
    end: int
    cut_hz: float
    devices: Indices


class _Answer:
    """What a window may say beside a device."""

    NOBODY = "nobody fits before the deadline"
    LATER = "the wanted time lies after the window"
    UNKNOWN = "the device may be one that the window does not hold"


@dataclass
class _Curve:
    """Cubics over a window, by the part x of it that has passed; arrays of shape (devices,).

    Where a bandwidth is infinite at the start of the window, the straight line along its slope at the end stands for
    it, which lies below it everywhere (`known` is False there).
    """

    a0: Floats
    a1: Floats
    a2: Floats
    a3: Floats
    known: NDArray[np.bool_]

    @classmethod
    def between(cls, width_s: float, lo: Floats, lo_slope: Floats, hi: Floats, hi_slope: Floats) -> _Curve:
        known = np.isfinite(lo) & np.isfinite(lo_slope)
        with np.errstate(invalid="ignore", over="ignore"):
            d0, d1 = width_s * lo_slope, width_s * hi_slope
            a0 = np.where(known, lo, hi - d1)
            a1 = np.where(known, d0, d1)
            a2 = np.where(known, 3.0 * (hi - lo) - 2.0 * d0 - d1, 0.0)
            a3 = np.where(known, 2.0 * (lo - hi) + d0 + d1, 0.0)
        return cls(a0, a1, a2, a3, known)

    def at(self, x: float, first: int) -> Floats:
        """The values of the first so many."""
        value: Floats = ((self.a3[:first] * x + self.a2[:first]) * x + self.a1[:first]) * x + self.a0[:first]
        return value

    def one(self, at: int) -> tuple[float, float, float, float]:
        return float(self.a0[at]), float(self.a1[at]), float(self.a2[at]), float(self.a3[at])

    def add(self, other: _Curve, at: int) -> None:
        """Add one curve of others to this one, which stands alone."""
        self.a0[0] += other.a0[at]
        self.a1[0] += other.a1[at]
        self.a2[0] += other.a2[at]
        self.a3[0] += other.a3[at]
        self.known[0] &= other.known[at]


@dataclass
class _Window:
    """The devices that can be wanted between two times, and what they need.

    hz         their needs over the window; `hi_hz` at its end, infinite once chosen
    chosen     what those chosen need together; `chosen_hi_hz` at the end of the window
    """

    lo_s: float
    outlook: _Outlook
    hz: _Curve
    hi_hz: Floats
    chosen: _Curve
    chosen_hi_hz: float
    snr_hz: Floats

    def __post_init__(self) -> None:
        self.hi_s, self.cut_hz, self.devices = self.outlook.hi_s, self.outlook.cut_hz, self.outlook.devices
        self.x = 0.5  # the part of the window that has passed at the last choice
        self.bend, self.fall = np.abs(self.hz.a3), np.abs(self.hz.a1)
        self.rounding = _ROUNDING * self.hz.a0 * (1.0 + self.hz.a0 / self.snr_hz)

    def choose(self, device: int) -> None:
        """Move a device of the window to those chosen."""
        at = int(np.searchsorted(self.devices, device))
        self.chosen_hi_hz += float(self.hi_hz[at])
        self.chosen.add(self.hz, at)
        self.hz.a0[at] = math.inf
        self.hi_hz[at] = math.inf

    def wanted(self, chooser: Chooser, improving: int) -> int | str:
        """The device that is wanted next, or what else there is to say."""
        if improving > self.outlook.end:
            return _Answer.UNKNOWN
        first = int(np.searchsorted(self.devices, improving))
        least_hz = float(self.hi_hz[:first].min(initial=math.inf))
        if least_hz > self.cut_hz:
            return _Answer.UNKNOWN
        problem = chooser.problem
        needed_hz = self.chosen_hi_hz + least_hz
        if self.hi_s >= problem.deadline_s:
            if not needed_hz <= problem.capacity_hz:
                return _Answer.NOBODY
        elif needed_hz > chooser.band:
            return _Answer.LATER
        at, need_hz = self._least(chooser, first)
        return int(self.devices[at]) if need_hz <= self.cut_hz else _Answer.UNKNOWN

    def _least(self, chooser: Chooser, first: int) -> tuple[int, float]:
        """Which of the first devices has the least need at the wanted time, and an upper bound on that need."""
        x, at = self.x, -1
        for _ in range(6):
            need = self.hz.at(x, first)
            best = int(need.argmin())
            if best == at:
                break
            at, x = best, self._when(chooser.band, best, x)
        else:
            need = self.hz.at(x, first)
            at = int(need.argmin())
        self.x = x
        _, g1, g2, g3 = self.chosen.one(0)
        _, a1, a2, a3 = self.hz.one(at)
        bend = x * (1.0 - x)
        slope = -((3.0 * (g3 + a3) * x + 2.0 * (g2 + a2)) * x + g1 + a1)
        late = (abs(g3) + abs(a3)) * bend + _ROUNDING * chooser.band  # by so much the sum may be off
        off_x = late / slope if slope > 0.0 else 1.0
        doubt = self.bend[:first] * bend + self.fall[:first] * off_x + self.rounding[:first]
        rivals = np.flatnonzero(need - doubt <= need[at] + doubt[at])
        trusted = self.chosen.known[0] and self.hz.known[at] and off_x < 1.0
        if trusted and (len(rivals) == 1 or self._same(chooser, rivals)):
            return int(rivals[0]), float(need[at] + doubt[at])
        if not trusted:
            rivals = np.flatnonzero(self.hi_hz[:first] < math.inf)
            off_x = 1.0
        around = (x - 2.0 * off_x, x + 2.0 * off_x)
        found, need_hz = _resolve(chooser, self.devices[rivals], self.lo_s, self.hi_s, around)
        return int(rivals[found]), need_hz

    def _when(self, band: float, at: int, x: float) -> float:
        """The part of the window after which those chosen and this device need just the band, by their cubics."""
        c0, c1, c2, c3 = (g + a for g, a in zip(self.chosen.one(0), self.hz.one(at), strict=True))
        low, high = 0.0, 1.0
        for _ in range(60):
            over = ((c3 * x + c2) * x + c1) * x + c0 - band
            low, high = (x, high) if over > 0.0 else (low, x)
            slope = (3.0 * c3 * x + 2.0 * c2) * x + c1
            after = x - over / slope if slope < 0.0 else math.nan
            if not low <= after <= high:
                after = 0.5 * (low + high)
            if abs(after - x) <= 1e-16 + 1e-15 * x:
                return after
            x = after
        return x

    def _same(self, chooser: Chooser, rivals: Indices) -> bool:
        """Whether devices are one like the other."""
        devices = self.devices[rivals]
        compute_s, snr_hz = chooser.compute_s[devices], chooser.snr_hz[devices]
        return bool((compute_s == compute_s[0]).all() and (snr_hz == snr_hz[0]).all())


def _resolve(
    chooser: Chooser, rivals: Indices, lo_s: float, hi_s: float, around: tuple[float, float]
) -> tuple[int, float]:
    """Which of the rivals has the least need at the wanted time, and an upper bound on it; by evaluating times between
    the ends of the window, first those around the place (as parts of the window) where it is expected."""
    before_hz, after_hz = (chooser.values(time_s, rivals)[0] for time_s in (lo_s, hi_s))
    tries = [lo_s + part * (hi_s - lo_s) for part in around if 0.0 < part < 1.0]
    while True:
        before, after = int(before_hz.argmin()), int(after_hz.argmin())
        if before == after and before_hz[before] < math.inf:
            return after, float(before_hz[after])
        time_s = tries.pop() if tries else 0.5 * (lo_s + hi_s)
        if not lo_s < time_s < hi_s:
            if lo_s < 0.5 * (lo_s + hi_s) < hi_s:
                continue
            return after, float(after_hz[after])  # no double between them: the candidates are equal
        hz = chooser.values(time_s, rivals)[0]
        if chooser.chosen_values(time_s)[0] + float(hz.min()) > chooser.band:
            lo_s, before_hz = time_s, hz
        else:
            hi_s, after_hz = time_s, hz
