"""The last step of the search with choices: a complete search of the few devices about which a price leaves doubt.

As `fixed_size_knapsack`, with a choice for every device. At a price each device has a best choice and a key, its cost
at the price; the M least keys are the base. A device of the base may take another choice or leave, one outside may
come in with any choice, and each of these options has a regret (`knapsack_walk`). Devices whose only option below the
gap is what the base does are settled. The others are paired, and pairs again, all at once, as long as their options
stay few: the walk then has fewer and larger steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.knapsack_walk import Group, Walk
from flare.types import Floats, Indices

_Number = TypeVar("_Number", np.float64, np.int64)
_MAX_TO_PAIR = 12  # options of a group; groups of more are not paired


@dataclass(frozen=True)
class Selection:
    """Devices and the choice of each, both of shape (selected,)."""

    devices: Indices
    choice: Indices


@dataclass(frozen=True, eq=False)
class Options:
    """What could be done with each device: arrays of shape (choices + 1, devices), the last row for leaving it out.
    What cannot be done has an infinite regret.

    regret, count, cost, hz     what an option costs at the price, and changes, against the base
    inside                      (devices,), whether the device is in the base
    base                        (devices,), the option that the base takes
    base_bound                  cost of the base at the price, less the price of the band
    base_cost, base_hz          cost and bandwidth of the base
    """

    regret: Floats
    count: NDArray[np.int64]
    cost: Floats
    hz: Floats
    inside: NDArray[np.bool_]
    base: Indices
    base_bound: float
    base_cost: float
    base_hz: float

    def reach(self, number: int, gap: float) -> float:
        """The regret below which there are `number` options beside the base, at most `gap`."""
        rising = np.sort(self.regret[(self.regret < gap) & (self.regret > 0.0)])
        return float(rising[number]) if number < len(rising) else gap


def options_at(
    cost: Floats,
    needed: Floats,
    usable: NDArray[np.bool_],
    must: NDArray[np.bool_],
    price: float,
    num: int,
    band: float,
) -> Options:
    """The base of `num` devices at a price, and the options beside it. `cost`, `needed` and `usable` have the shape
    (choices, devices), `must` (devices,)."""
    choices, devices = cost.shape
    at_price = np.where(usable, cost + price * needed, np.inf)
    own, every = at_price.argmin(axis=0), np.arange(devices)
    key, own_cost, own_hz = at_price[own, every], cost[own, every], needed[own, every]
    inside = np.zeros(devices, dtype=bool)
    inside[np.where(must, -np.inf, key).argsort(kind="stable")[:num]] = True
    last, first = key[inside & ~must].max(initial=-np.inf), key[~inside].min(initial=np.inf)
    regret, base = np.full((choices + 1, devices), np.inf), np.where(inside, own, choices)
    regret[:-1, inside] = (at_price - key)[:, inside]
    if -np.inf < last and first < np.inf:  # otherwise nobody can leave, or nobody can come
        border = 0.5 * (last + first)
        regret[:-1, ~inside] = (at_price - border)[:, ~inside]
        regret[-1] = np.where(inside & ~must, border - key, np.inf)
    regret[base, every] = 0.0
    taken, zero = inside.astype(np.int64), np.zeros((1, devices))
    return Options(
        regret=regret,
        count=np.concatenate([np.ones((choices, devices), dtype=np.int64), zero.astype(np.int64)]) - taken,
        cost=np.concatenate([cost, zero]) - taken * own_cost,
        hz=np.concatenate([needed, zero]) - taken * own_hz,
        inside=inside,
        base=base,
        base_bound=math.fsum(key[inside].tolist()) - price * band,
        base_cost=math.fsum(own_cost[inside].tolist()),
        base_hz=math.fsum(own_hz[inside].tolist()),
    )


def better_choices(
    options: Options, band: float, reach: float, fits: Callable[[Selection], bool], stop_at: float
) -> Selection | None:
    """The selection of least cost that fits and costs less than `base_bound + reach`; None proves that there is none.

    A selection fits if its bandwidths, as rounded here, sum to at most `band`, and `fits`, which sums exactly, says so
    too. Raises TimeoutError when `time.perf_counter()` passes `stop_at` before the search is complete.
    """
    if reach <= 0.0:
        return None
    number = (options.regret < reach).sum(axis=0)
    (core,) = (number > 1).nonzero()
    core = core[number[core].argsort(kind="stable")]  # alike in the number of options: those are paired
    table = _table(options, core, reach)
    while len(table.regret) > 1 and table.regret.shape[1] <= _MAX_TO_PAIR:
        table = _paired(table, reach)
    sizes = (table.regret < reach).sum(axis=1)
    order = sizes.argsort(kind="stable")
    walk = Walk(
        groups=_groups(options, core, reach, table, sizes, order),
        fits=lambda chosen: fits(_changed(options, core, table, order, chosen)),
        room_hz=band - options.base_hz,
        base_cost=options.base_cost,
        target=options.base_bound + reach,
        gap=reach,
        stop_at=stop_at,
    )
    chosen = walk.run()
    return None if chosen is None else _changed(options, core, table, order, chosen)


@dataclass(frozen=True, eq=False)
class _Table:
    """Groups as rows, shape (groups, options): the regrets ascending, infinite behind the last option of a group.

    `place` is where an option comes from: the row of `Options`, or, of pairs, the first one's option times the width of
    the table `before` plus the second one's.
    """

    regret: Floats
    count: NDArray[np.int64]
    cost: Floats
    hz: Floats
    place: Indices
    before: _Table | None

    @property
    def pairings(self) -> int:
        """How often groups were paired."""
        return 0 if self.before is None else 1 + self.before.pairings

    def options_of(self, chosen: Indices) -> Indices:
        """Rows of `Options`, from the option chosen in each group."""
        place = self.place[np.arange(len(chosen)), chosen]
        if self.before is None:
            return place
        number, width = self.before.regret.shape
        return self.before.options_of(np.stack(np.divmod(place, width), axis=1).ravel()[:number])


def _table(options: Options, core: Indices, reach: float) -> _Table:
    """Each device of the core as a group."""
    regret, count = options.regret[:, core].T, options.count[:, core].T
    return _kept(regret, count, options.cost[:, core].T, options.hz[:, core].T, reach, None)


def _paired(table: _Table, reach: float) -> _Table:
    """Two and two groups as one; of an odd number the last goes with one that changes nothing."""
    regret, count = _sums(table.regret, np.inf), _sums(table.count, 0)
    return _kept(regret, count, _sums(table.cost, 0.0), _sums(table.hz, 0.0), reach, table)


def _sums(values: NDArray[_Number], filler: float) -> NDArray[_Number]:
    """Sums over the options of two and two groups, shape (pairs, options * options). A group that is missing has one
    option, zero, before `filler`."""
    groups, width = values.shape
    if groups % 2:
        nothing = np.full((1, width), filler, dtype=values.dtype)
        nothing[0, 0] = 0
        values = np.concatenate([values, nothing])
    both: NDArray[_Number] = values[0::2, :, None] + values[1::2, None, :]
    return both.reshape(-1, width * width)


def _kept(
    regret: Floats, count: NDArray[np.int64], cost: Floats, hz: Floats, reach: float, before: _Table | None
) -> _Table:
    """The options whose regret is below `reach`, in order of their regrets."""
    good = regret < reach
    width = int(good.sum(axis=1).max(initial=0))
    regret = np.where(good, regret, np.inf)
    place = regret.argsort(axis=1, kind="stable")[:, :width]
    return _Table(
        regret=np.take_along_axis(regret, place, axis=1),
        count=np.take_along_axis(count, place, axis=1),
        cost=np.take_along_axis(cost, place, axis=1),
        hz=np.take_along_axis(hz, place, axis=1),
        place=place,
        before=before,
    )


def _groups(
    options: Options, core: Indices, reach: float, table: _Table, sizes: Indices, order: Indices
) -> list[Group]:
    """The rows of a table, in order, as groups to walk through."""
    devices = 1 << table.pairings  # of a group
    give, take = options.regret[-1, core], options.regret[:-1, core].min(axis=0, initial=np.inf)
    inside = options.inside[core]
    give, take = np.where(inside, give, np.inf), np.where(inside, np.inf, take)
    groups = []
    for row in order.tolist():
        own, members = slice(0, int(sizes[row])), slice(row * devices, (row + 1) * devices)
        groups.append(
            Group(
                count=table.count[row, own],
                cost=table.cost[row, own],
                hz=table.hz[row, own],
                regret=table.regret[row, own],
                give=give[members][give[members] < reach],
                take=take[members][take[members] < reach],
            )
        )
    return groups


def _changed(options: Options, core: Indices, table: _Table, order: Indices, chosen: list[int]) -> Selection:
    """The base with the options chosen, one a group in order."""
    by_row = np.empty(len(order), dtype=np.intp)
    by_row[order] = chosen
    option = options.base.copy()
    if len(core):
        option[core] = table.options_of(by_row)
    (devices,) = (option < len(options.regret) - 1).nonzero()
    return Selection(devices, option[devices])
