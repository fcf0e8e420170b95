"""Who sends when every device has a utility: the set of the greatest total utility that fits.

    maximise  sum_Q u_i   over sets Q with  sum_Q c_i <= B  and  |Q| <= N

c_i is the least bandwidth of device i at the deadline, N is `max_devices`. Devices that must send are taken first, and
B and N are what they leave. Of the others only those with u_i > 0 that could meet the deadline alone are ever taken.
Let p >= 0 be a price of bandwidth, s >= 0 a price of a place among the N, and r_i = u_i - p c_i - s what a device is
worth beyond both. The base is the set of the positive r_i. For every set Q

    sum_Q u_i  =  (p B + s N + sum of the base's r_i)  -  loss(Q),
    loss(Q)    =  sum of |r_i| where Q differs from the base  +  p (B - sum_Q c_i)  +  s (N - |Q|),

and no part of the loss of a set that fits is negative. So the first bracket bounds the utility; the prices that make it
least are found first. A set better than the best one known has a loss of less than the gap between the two: it differs
from the base only in devices with |r_i| < gap. They are gone through in the order of |r_i| / c_i, what a device costs
for the bandwidth by which it changes the set. Kept are the changes that can still lead to a better set: each Hz that
they ask too much, or leave unused, costs at least as much as it does with the devices still to come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.admission import admit
from flare.scheduling.problem import ADDITION_ERROR, SAME, RoundProblem
from flare.types import Floats, Indices

TIME_LIMIT_S = 10.0
"""After so long the best set found is taken, with the bound proven so far."""
_MAX_STATES = 1_000_000  # more changes at once are not gone through: they would take gigabytes


@dataclass(frozen=True, eq=False)
class UtilitySet:
    """Devices, ascending, their total utility, and a proven bound: no set that fits has more. Where the proof is
    complete, the two are equal (to 1e-12 of the utility, which is as close as sums are told apart)."""

    selected: Indices
    utility: float
    bound: float


def best_utility(problem: RoundProblem, utility: Floats, *, time_limit_s: float = TIME_LIMIT_S) -> UtilitySet:
    """The set of the greatest total utility that is feasible; `utility` has shape (devices,). Nobody where the devices
    that must send do not fit."""
    stop_at = time.perf_counter() + time_limit_s
    order, must = problem.reachable_in_order, problem.must
    order = order[utility[order] > 0.0]
    left_hz = problem.capacity_hz
    if must.size:
        if not problem.fits(must):
            return UtilitySet(must[:0], 0.0, 0.0)
        # What they leave, with room for the rounding of the difference: `fits` decides.
        left_hz += 4e-16 * problem.capacity_hz - math.fsum(problem.needed_hz[must])
        order = order[~np.isin(order, must) & (problem.needed_hz[order] <= left_hz)]
    places = min(problem.device_limit - len(must), len(order))
    if places == 0:
        of_must = math.fsum(utility[must])
        return UtilitySet(must, of_must, of_must)
    order = order[np.lexsort((problem.needed_hz[order], -utility[order]))]  # stable: ties in canonical order
    scale = float(utility[order[0]])
    prices = _prices(utility[order] / scale, problem.needed_hz[order], left_hz, places)
    by_worth = order[np.argsort(-prices.worth, kind="stable")]
    first = np.flatnonzero(np.isin(order, admit(problem, by_worth)))
    search = _Search(prices, first, lambda devices: problem.fits(np.append(must, order[devices])), stop_at)
    proven = search.run()
    selected = _filled_up(problem, order, search.best)
    total = math.fsum(utility[selected])
    bound = math.fsum(utility[must]) + prices.bound * scale
    return UtilitySet(np.sort(selected), total, total if proven else max(total, bound))


def _filled_up(problem: RoundProblem, order: Indices, best: Indices) -> Indices:
    """The set with devices that still fit, by utility: those whose utility is too small beside the total to be told
    from rounding."""
    selected = np.append(problem.must, order[best])
    left_hz = problem.capacity_hz - math.fsum(problem.needed_hz[selected])
    rest = np.setdiff1d(np.arange(len(order)), best)
    for device in order[rest[problem.needed_hz[order[rest]] <= left_hz]]:
        if len(selected) < problem.device_limit and problem.fits(np.append(selected, device)):
            selected = np.append(selected, device)
    return selected


@dataclass(frozen=True, eq=False)
class _Prices:
    """The least bound on the utility, and what every device is worth at its prices; arrays of shape (devices,)."""

    utility: Floats
    needed: Floats
    band: float  # what a rounded sum of bandwidths may reach
    places: int
    hz_price: float
    place_price: float
    base: Indices
    bound: float

    @property
    def worth(self) -> Floats:
        """r_i, what a device is worth beyond its bandwidth and its place."""
        return self.utility - self.hz_price * self.needed - self.place_price


def _prices(utility: Floats, needed: Floats, band: float, places: int) -> _Prices:
    """The price of bandwidth at which the bound is least. At each price the base is the `places` devices of the
    greatest positive u - p c; the least bound lies where the base changes from more than the band to less."""
    limit = band * (1.0 + ADDITION_ERROR * (100 + len(utility)))

    def base_at(price: float) -> Indices:
        value = utility - price * needed
        best_first = np.argsort(-value, kind="stable")[:places]
        return best_first[value[best_first] > 0.0]

    def sums(base: Indices) -> tuple[float, float]:
        return math.fsum(utility[base]), math.fsum(needed[base])

    price, base = 0.0, base_at(0.0)
    over = sums(base)
    if over[1] > limit:
        under, low, high = (0.0, 0.0), 0.0, math.inf
        while True:
            price = (over[0] - under[0]) / (over[1] - under[1])  # where the two bases known are equally good
            base = base_at(price)
            total, hz = sums(base)
            known = over[0] + price * (limit - over[1])
            if not low < price < high or total + price * (limit - hz) <= known * (1.0 + 1e-14):
                break
            if hz > limit:
                over, low = (total, hz), price
            else:
                under, high = (total, hz), price
    total, hz = sums(base)
    value = np.sort(utility - price * needed)[::-1]
    full = len(base) == places and places < len(value)
    place_price = max(0.0, 0.5 * float(value[places - 1] + value[places])) if full else 0.0
    return _Prices(utility, needed, limit, places, price, place_price, base, total + price * (limit - hz))


@dataclass(frozen=True, eq=False)
class _States:
    """Changes to the base, shape (states,): what they change in bandwidth, utility and number, and what they cost."""

    hz: Floats
    utility: Floats
    cost: Floats
    count: NDArray[np.int32]

    def at(self, which: NDArray[np.intp]) -> _States:
        return _States(self.hz[which], self.utility[which], self.cost[which], self.count[which])


class _Search:
    """Goes through the devices in doubt, and keeps the best set found."""

    def __init__(self, prices: _Prices, first: Indices, fits: Callable[[Indices], bool], stop_at: float) -> None:
        self.prices, self.fits, self.stop_at = prices, fits, stop_at
        worth = prices.worth
        self.taken = np.zeros(len(worth), dtype=bool)
        self.taken[prices.base] = True
        self.cost = np.where(self.taken, np.maximum(worth, 0.0), np.maximum(-worth, 0.0))  # |r_i|
        self.room_hz = prices.band - math.fsum(prices.needed[prices.base])
        self.base_utility = math.fsum(prices.utility[prices.base])
        self.best, self.best_utility = first, math.fsum(prices.utility[first])
        self.places_matter = True  # whether sets in doubt could ask for more places than there are
        self.steps: list[tuple[int, NDArray[np.int32], NDArray[np.bool_]]] = []  # device, state before, changed?

    @property
    def gap(self) -> float:
        """What a set that is better than the best one known, by more than rounding, loses less than."""
        return self.prices.bound - self.best_utility * (1.0 + SAME)

    def run(self) -> bool:
        """Search until no better set is left (True) or the time is over (False)."""
        zero = np.zeros(1)
        states = _States(zero, zero, zero, np.zeros(1, dtype=np.int32))
        self.take_best(states)
        core = np.flatnonzero(self.cost < self.gap)
        in_doubt = int(np.count_nonzero(~self.taken[core]))
        self.places_matter = len(self.prices.base) + in_doubt > self.prices.places
        rate = self.cost[core] / self.prices.needed[core]
        core, rate = core[by_rate := np.argsort(rate, kind="stable")], rate[by_rate]
        to_come = np.append(rate, math.inf)[1:]
        for device, next_rate in zip(core.tolist(), to_come.tolist(), strict=True):
            if time.perf_counter() > self.stop_at or len(states.hz) > _MAX_STATES:
                return False
            if self.cost[device] < self.gap:
                states = self.change(states, device)
                self.take_best(states)
            self.keep(states, kept := self.promising(states, next_rate))
            states = states.at(kept)
            if len(kept) == 0:
                return True
        return True

    def change(self, states: _States, device: int) -> _States:
        """Every state as it is, and with the device given up or taken."""
        sign = -1 if self.taken[device] else 1
        number = len(states.hz)
        grown = _States(
            np.concatenate((states.hz, states.hz + sign * self.prices.needed[device])),
            np.concatenate((states.utility, states.utility + sign * self.prices.utility[device])),
            np.concatenate((states.cost, states.cost + self.cost[device])),
            np.concatenate((states.count, states.count + np.int32(sign))),
        )
        before = np.tile(np.arange(number, dtype=np.int32), 2)
        self.steps.append((device, before, np.arange(2 * number) >= number))
        return grown

    def keep(self, states: _States, kept: NDArray[np.intp]) -> None:
        """Forget how the other states came about."""
        if self.steps and len(self.steps[-1][1]) == len(states.hz):
            device, before, changed = self.steps[-1]
            self.steps[-1] = (device, before[kept], changed[kept])

    def promising(self, states: _States, next_rate: float) -> NDArray[np.intp]:
        """The states that can still lead to a better set, and are no worse than another in every respect."""
        over_hz = states.hz - self.room_hz
        rate = np.where(over_hz > 0.0, next_rate, min(next_rate, self.prices.hz_price))
        with np.errstate(invalid="ignore"):  # 0 x infinity: exactly full, and nobody to come
            to_come = np.nan_to_num(np.abs(over_hz) * rate, nan=0.0, posinf=math.inf)
        kept = np.flatnonzero(states.cost + to_come < self.gap)
        count = states.count[kept] if self.places_matter else np.zeros(len(kept), dtype=np.int32)
        order = np.lexsort((states.hz[kept], -states.utility[kept], count))
        hz, group = states.hz[kept][order], count[order]
        # Better in utility come first: a state is worth keeping if it needs less bandwidth than all before it.
        starts = np.flatnonzero(np.append(True, np.diff(group) != 0))
        undominated = np.ones(len(hz), dtype=bool)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(hz)], strict=True):
            undominated[start + 1 : end] = hz[start + 1 : end] < np.minimum.accumulate(hz[start:end])[:-1]
        return kept[order[undominated]]

    def take_best(self, states: _States) -> None:
        """Keep the best state that fits, if it beats the best set known."""
        places_left = self.prices.places - len(self.prices.base)
        good = np.flatnonzero((states.hz <= self.room_hz) & (states.count <= places_left))
        for at in good[np.argsort(-states.utility[good], kind="stable")]:
            if self.base_utility + float(states.utility[at]) <= self.best_utility * (1.0 + SAME):
                return
            devices = self.devices_of(int(at))
            if self.fits(devices):
                self.best, self.best_utility = devices, math.fsum(self.prices.utility[devices])
                return

    def devices_of(self, at: int) -> Indices:
        """The base with the changes of a state of the last step."""
        taken = self.taken.copy()
        for device, before, changed in reversed(self.steps):
            if changed[at]:
                taken[device] = not taken[device]
            at = int(before[at])
        return np.flatnonzero(taken)
