"""The last step of policy `exact`: a complete search of the few devices about which a price leaves doubt.

Given a price, the M devices of least key nu_i + price c_i are the base. Let r_i be the key of device i less the border
between the base and the rest. For every set of M devices

    sum nu_i  =  (sum of base keys - price * band)  +  sum of |r_i| where the set differs from the base
                 +  price * (band - sum c_i),

and the last two terms are not negative for a set that fits. So a set with sum nu_i < target differs from the base by
|r_i| of less than gap = target - (sum of base keys - price * band) in total. Devices with |r_i| >= gap stay as they
are; the others are the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.knapsack_walk import Group, Walk, both_ways
from flare.types import Floats, Indices


@dataclass(frozen=True)
class _Class:
    """The core devices of one tau, and what using more or fewer of them changes.

    Among devices of equal tau only the cheapest are ever worth using, so the options are: give up the dearest few of
    the base, leave it, or take the cheapest few of the rest.
    """

    taken: Indices  # in the base, dearest first
    free: Indices  # not in the base, cheapest first
    group: Group


def better_set(
    nu: Floats,
    needed: Floats,
    price: float,
    num_selected: int,
    band: float,
    target: float,
    fits: Callable[[Indices], bool],
    stop_at: float,
    must: NDArray[np.bool_] | None = None,
) -> Indices | None:
    """The set of `num_selected` devices that fits and has the least sum of `nu`, if that is < target.

    A set fits if the sum of `needed`, as rounded here, is at most `band`, and `fits`, which sums exactly, says so too.
    Devices of `must` are in every set. None proves that there is no such set. Devices are sorted by nu, then needed.
    Raises TimeoutError when `time.perf_counter()` passes `stop_at` before the search is complete.
    """
    key = nu + price * needed
    if must is not None and must.sum() == num_selected:
        return None  # there is one such set, and it is known
    order = np.argsort(key if must is None else np.where(must, -np.inf, key), kind="stable")
    base = order[:num_selected]
    gap = target - (math.fsum(key[base]) - price * band)
    if gap <= 0.0:
        return None
    last = key[order[num_selected - 1]]
    border = 0.5 * (last + key[order[num_selected]]) if num_selected < len(order) else last
    taken = np.zeros(len(nu), dtype=bool)
    taken[base] = True
    reduced = key - border
    if must is not None:
        reduced[must] = -np.inf  # never in doubt
    classes = _classes(nu, needed, reduced, taken, gap)
    walk = Walk(
        groups=[one.group for one in classes],
        fits=lambda options: fits(_changed(taken, classes, options)),
        room_hz=band - math.fsum(needed[base]),
        base_cost=math.fsum(nu[base]),
        target=target,
        gap=gap,
        stop_at=stop_at,
    )
    chosen = walk.run()
    return None if chosen is None else _changed(taken, classes, chosen)


def _classes(nu: Floats, needed: Floats, reduced: Floats, taken: NDArray[np.bool_], gap: float) -> list[_Class]:
    (core,) = (np.abs(reduced) < gap).nonzero()
    if core.size == 0:
        return []
    starts = ((nu[core[1:]] != nu[core[:-1]]).nonzero()[0] + 1).tolist()
    classes = []
    for start, end in pairwise([0, *starts, len(core)]):
        members = core[start:end]
        inside = members[taken[members]][::-1]
        outside = members[~taken[members]]
        count = np.arange(-len(inside), len(outside) + 1)
        regret = both_ways(-reduced[inside], reduced[outside])
        options = regret < gap
        group = Group(
            count=count[options],
            cost=count[options] * nu[members[0]],
            hz=both_ways(-needed[inside], needed[outside])[options],
            regret=regret[options],
            give=-reduced[inside],
            take=reduced[outside],
        )
        classes.append(_Class(inside, outside, group))
    classes.sort(key=lambda one: len(one.group.count))  # few options first: the number of states grows late
    return classes


def _changed(taken: NDArray[np.bool_], classes: list[_Class], options: list[int]) -> Indices:
    """The base with the option chosen of each class."""
    chosen = taken.copy()
    for one, option in zip(classes, options, strict=True):
        change = int(one.group.count[option])
        if change < 0:
            chosen[one.taken[:-change]] = False
        else:
            chosen[one.free[:change]] = True
    return np.flatnonzero(chosen)
