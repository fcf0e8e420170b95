"""The devices that are worth most beside the energy that they take, and the band among them.

Every device has a worth, and each joule that it radiates a cost; the band is divided so that the set loses least. With
a price of a hertz each device is worth, on its own,

    v_i(price)  =  worth_i - min_b (cost_i E_i(b) + price b)

and by weak duality no set of m devices is worth more than the m greatest v_i plus price x band, at any price. At the
price with the least such bound, a set with other devices than those m has a bound that is lower by what their v_i are
smaller. Sets are tried in the order of their bounds until none that is left can be better, which proves the best one.
After `MAX_TRIED` sets, or many more that do not fit, the best so far is taken, and the bound says how far it may be
off.

The least bound of m devices is concave in m: at a price, the sum of the m greatest of some numbers is, and so is the
least over all prices. So numbers of devices are gone through from the best bound up and down until one is no better.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.systems.lowered_power import Senders, least_energy
from flare.types import Floats, Indices

MAX_TRIED = 24
"""Sets whose band is divided to find the best one."""
_MAX_LISTED = 1_000  # sets that are looked at, those that do not fit among them
_MAX_LISTED_IN_VAIN = 20 * _MAX_LISTED  # where none of them fits
_PRICE_STEP = 1e-4  # of the logarithm of a price: any price gives a bound, and this one is within 1e-8 of the least


@dataclass(frozen=True, eq=False)
class Group:
    """Devices that send, their bands in the same order, what they are worth in all, and a bound on that of any."""

    members: Indices
    bandwidth_hz: Floats
    value: float
    bound: float


def best_group(
    senders: Senders, worth: Floats, total_hz: float, *, forced: NDArray[np.bool_], max_devices: int
) -> Group:
    """The set that maximises  sum worth_i - cost_i E_i(b_i)  on a band; those `forced` are in it. All fit alone.

    `Group.bound` is `value` where that is proven to be the greatest.
    """
    best = Group(np.zeros(0, dtype=np.intp), np.zeros(0), -math.inf if forced.any() else 0.0, 0.0)
    if senders.num_devices == 0:
        return best
    suggested, near = _suggested(senders, worth, total_hz, forced)
    least, most = max(int(forced.sum()), 1), min(max_devices, senders.num_devices)
    suggested = min(max(suggested, least), most)
    open_bound, effort = -math.inf, _Effort()
    for numbers in (range(suggested, most + 1), range(suggested - 1, least - 1, -1)):
        next_to = near
        for number in numbers:
            priced = _priced(senders, worth, total_hz, forced, number, next_to)
            if priced.bound <= _surely_above(best.value):
                break
            next_to = priced.log_price
            best, left = _best_of_size(senders, worth, total_hz, forced, number, priced, best, effort)
            open_bound = max(open_bound, left)
    return Group(best.members, best.bandwidth_hz, best.value, max(best.value, open_bound))


def _surely_above(value: float) -> float:
    """A little more than a value: what is no greater is not better, rounding aside."""
    return value + 1e-12 * abs(value)


@dataclass
class _Effort:
    """How many sets were listed, and how many of them divided."""

    listed: int = 0
    tried: int = 0

    @property
    def spent(self) -> bool:
        """Whether it is time to end with what was found."""
        return self.listed >= _MAX_LISTED or self.tried >= MAX_TRIED


def _best_of_size(
    senders: Senders,
    worth: Floats,
    total_hz: float,
    forced: NDArray[np.bool_],
    number: int,
    priced: _Priced,
    best: Group,
    effort: _Effort,
) -> tuple[Group, float]:
    """The best of the sets of so many devices and of `best`, and what no set is worth more than that was not tried:
    minus infinity where none is left."""
    first = True
    for members, at_most in _by_bound(priced.beyond, priced.bound, forced):
        if at_most <= _surely_above(best.value):
            break
        if (effort.spent and not first) or effort.listed >= _MAX_LISTED_IN_VAIN:
            return best, at_most
        effort.listed += 1
        if members.size != number or math.fsum(senders.least_hz[members]) > total_hz * (1.0 + 1e-12):
            continue
        effort.tried += 1
        first = False
        found = _valued(senders, worth, members, total_hz, forced, priced.log_price)
        if found.value > best.value:
            best = found
    return best, -math.inf


def _valued(
    senders: Senders, worth: Floats, members: Indices, total_hz: float, forced: NDArray[np.bool_], log_price: float
) -> Group:
    """A set on its best bands, without members that cost more than they are worth."""
    while True:
        group = senders.of(members)
        bandwidth_hz = least_energy(group, total_hz, log_price)
        worths = worth[members] - group.cost * group.energy_j(bandwidth_hz)
        losing = (worths < 0.0) & ~forced[members]
        if members.size == 1 or not losing.any():
            return Group(members, bandwidth_hz, math.fsum(worths), math.inf)
        members = np.delete(members, int(np.argmin(np.where(losing, worths, np.inf))))


def _suggested(senders: Senders, worth: Floats, total_hz: float, forced: NDArray[np.bool_]) -> tuple[int, float]:
    """How many devices are worth something at the price at which they ask for no more than the band, and this price."""
    low, high = _price_range(senders, worth, total_hz)
    number, nats = int(forced.sum()), None
    while high - low > _PRICE_STEP:
        price = 0.5 * (low + high)
        own, bandwidth_hz, _, nats = _own_worth(senders, worth, total_hz, price, nats)
        wanted = forced | (own > 0.0)
        if math.fsum(bandwidth_hz[wanted]) > total_hz:
            low = price
        else:
            high, number = price, int(wanted.sum())
    return number, high


@dataclass(frozen=True, eq=False)
class _Priced:
    """A price of a hertz (its logarithm), the bound that it gives for sets of one size, and what each device is worth
    at it beyond a place in the set, shape (devices,): those above 0, and the forced ones, are the set of the bound."""

    log_price: float
    bound: float
    beyond: Floats


def _priced(
    senders: Senders, worth: Floats, total_hz: float, forced: NDArray[np.bool_], number: int, near: float
) -> _Priced:
    """The price with the least bound on the sets of so many devices, perhaps `near` another; the bound is minus
    infinity where so many never fit."""
    places = number - int(forced.sum())
    free = np.flatnonzero(~forced)
    least_hz = math.fsum(senders.least_hz[forced]) + math.fsum(np.sort(senders.least_hz[free])[:places])
    if least_hz > total_hz * (1.0 + 1e-12):
        return _Priced(0.0, -math.inf, worth)
    low, high = _price_range(senders, worth, total_hz)
    nats, price, tried = None, near, 0
    while high - low > _PRICE_STEP:
        own, bandwidth_hz, slope, nats = _own_worth(senders, worth, total_hz, price, nats)
        best_first = free[np.argsort(-own[free], kind="stable")]
        chosen = np.concatenate((np.flatnonzero(forced), best_first[:places]))
        over_hz, by_price = math.fsum(bandwidth_hz[chosen]) - total_hz, math.fsum(slope[chosen])
        low, high = (price, high) if over_hz > 0.0 else (low, price)
        tried += 1
        price = _next_price(price, low, high, over_hz, by_price, halve=tried % 4 == 0)
    own, _, _, _ = _own_worth(senders, worth, total_hz, high, nats)
    best_first = free[np.argsort(-own[free], kind="stable")]
    inside, outside = own[best_first[:places]], own[best_first[places:]]
    edge = [float(part) for part in (*inside[-1:], *outside[:1])]
    place = math.fsum(edge) / len(edge) if edge else 0.0  # between the last one inside and the first one outside
    bound = math.fsum(own[forced]) + math.fsum(inside) + math.exp(high) * total_hz
    return _Priced(high, bound, own - place)


def _next_price(price: float, low: float, high: float, over_hz: float, by_price: float, *, halve: bool) -> float:
    """Where to look next between two prices: a little beyond where Newton's method sees the band divided, so that both
    ends close in on it. Other devices may ask there, and it may be far off: from time to time it is the middle."""
    beyond = math.copysign(0.25 * _PRICE_STEP, over_hz)
    newton = price - over_hz / by_price + beyond if by_price < 0.0 else math.nan
    return newton if low < newton < high and not halve else 0.5 * (low + high)


def _own_worth(
    senders: Senders, worth: Floats, total_hz: float, log_price: float, nats: Floats | None
) -> tuple[Floats, Floats, Floats, Floats]:
    """What each device is worth less its energy and its band at a price, this band, its derivative by the logarithm of
    the price, and u."""
    bandwidth_hz, slope, nats = senders.band_at(log_price, total_hz, nats)
    own = worth - senders.cost * senders.energy_j(bandwidth_hz) - math.exp(log_price) * bandwidth_hz
    return own, bandwidth_hz, slope, nats


def _price_range(senders: Senders, worth: Floats, total_hz: float) -> tuple[float, float]:
    """Prices (logarithms) at which everybody would take all of the band, and nobody more than the least."""
    low = float(senders.log_slope(np.full(senders.num_devices, total_hz)).min())
    with np.errstate(divide="ignore"):
        worthless = np.log(np.maximum(worth, 0.0)) - np.log(senders.least_hz)
    high = max(float(senders.log_slope(senders.least_hz).max()), float(worthless.max()), low)
    return max(low - 1.0, -650.0), min(high + 1.0, 650.0)


def _by_bound(beyond: Floats, bound: float, forced: NDArray[np.bool_]) -> Iterator[tuple[Indices, float]]:
    """Sets with a bound of each, best first: each change of one device to or from the set of the bound takes what the
    device is worth beyond its place from the bound. Sums of the smallest changes, smallest first."""
    start = forced | (beyond > 0.0)
    free = np.flatnonzero(~forced)
    free = free[np.argsort(np.abs(beyond[free]), kind="stable")]
    loss = np.abs(beyond[free]).tolist()

    def members(changes: tuple[int, ...]) -> Indices:
        inside = start.copy()
        inside[free[list(changes)]] ^= True
        return np.flatnonzero(inside)

    yield members(()), bound
    heap: list[tuple[float, tuple[int, ...]]] = [(loss[0], (0,))] if loss else []
    while heap:
        lost, changes = heapq.heappop(heap)
        yield members(changes), bound - lost
        last = changes[-1] + 1
        if last < len(loss):  # one change more, or the last one replaced by the next
            heapq.heappush(heap, (lost + loss[last], (*changes, last)))
            heapq.heappush(heap, (lost - loss[last - 1] + loss[last], (*changes[:-1], last)))
