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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flare.types import Floats, Indices

_MAX_STATES = 100_000  # states that one step may make; more are searched half by half, which bounds the memory


@dataclass(frozen=True)
class _Class:
    """The core devices of one tau, and what using more or fewer of them changes; arrays of shape (options,).

    Among devices of equal tau only the cheapest are ever worth using, so the options are: give up the dearest few of
    the base, leave it, or take the cheapest few of the rest.
    """

    taken: Indices  # in the base, dearest first
    free: Indices  # not in the base, cheapest first
    count: NDArray[np.int64]
    nu: Floats
    hz: Floats
    cost: Floats  # sum of |r_i|
    taken_cost: Floats
    free_cost: Floats


@dataclass(frozen=True)
class _Trail:
    """How states came about, shape (states,): from which state before, by which option; all that is kept of it."""

    parent: NDArray[np.int32]
    option: NDArray[np.int32]
    before: _Trail | None


@dataclass(frozen=True)
class _States:
    """Partial changes to the base, shape (states,): what they change so far, and how they came about."""

    count: NDArray[np.int64]
    nu: Floats
    hz: Floats
    cost: Floats
    trail: _Trail | None


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
    walk = _Walk(
        classes=classes,
        taken=taken,
        fits=fits,
        room_hz=band - math.fsum(needed[base]),
        base_nu=math.fsum(nu[base]),
        target=target,
        gap=gap,
        stop_at=stop_at,
    )
    zero = np.zeros(1)
    walk.search(_States(np.zeros(1, dtype=np.int64), zero, zero, zero, None), 0)
    return walk.found


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
        cost = _both_ways(-reduced[inside], reduced[outside])
        options = cost < gap
        classes.append(
            _Class(
                taken=inside,
                free=outside,
                count=count[options],
                nu=count[options] * nu[members[0]],
                hz=_both_ways(-needed[inside], needed[outside])[options],
                cost=cost[options],
                taken_cost=-reduced[inside],
                free_cost=reduced[outside],
            )
        )
    classes.sort(key=lambda one: len(one.count))  # few options first: the number of states grows late
    return classes


def _both_ways(down: Floats, up: Floats) -> Floats:
    """Running sums away from zero change, laid out from the most removed to the most added."""
    both = np.zeros(len(down) + 1 + len(up))
    both[: len(down)] = down.cumsum()[::-1]
    both[len(down) + 1 :] = up.cumsum()
    return both


def _balance(rest: list[_Class]) -> tuple[Floats, int]:
    """The least cost of undoing a change in the number of devices with the classes that are left, and the index that
    stands for no change; an entry for each change that can still be undone."""
    give = np.sort(np.concatenate([one.taken_cost for one in rest] or [np.zeros(0)]))
    take = np.sort(np.concatenate([one.free_cost for one in rest] or [np.zeros(0)]))
    return _both_ways(take, give), len(take)


@dataclass
class _Walk:
    """Goes through the classes and keeps every partial change that could still lead to a set below the target."""

    classes: list[_Class]
    taken: NDArray[np.bool_]
    fits: Callable[[Indices], bool]
    room_hz: float
    base_nu: float
    target: float
    gap: float
    stop_at: float
    found: Indices | None = None
    balances: dict[int, tuple[Floats, int]] = field(default_factory=dict)

    def balance(self, stage: int) -> tuple[Floats, int]:
        """`_balance` of the classes after a stage, made when it is first needed."""
        if stage not in self.balances:
            self.balances[stage] = _balance(self.classes[stage + 1 :])
        return self.balances[stage]

    def search(self, states: _States, stage: int) -> None:
        while stage < len(self.classes):
            if time.perf_counter() > self.stop_at:
                raise TimeoutError
            if len(states.count) > 1 and len(states.count) * len(self.classes[stage].count) > _MAX_STATES:
                middle = len(states.count) // 2
                for half in (slice(None, middle), slice(middle, None)):
                    self.search(_pick(states, np.arange(len(states.count))[half]), stage)
                return
            states = self.expand(states, stage)
            stage += 1
        self.finish(states)

    def expand(self, states: _States, stage: int) -> _States:
        one = self.classes[stage]
        width = len(one.count)
        count = np.add.outer(states.count, one.count).ravel()
        cost = np.add.outer(states.cost, one.cost).ravel()
        undo, zero = self.balance(stage)
        place = count + zero
        (kept,) = ((place >= 0) & (place < len(undo)) & (cost < self.gap)).nonzero()
        kept = kept[cost[kept] + undo[place[kept]] < self.gap]
        parent, option = np.divmod(kept, width)
        return _undominated(
            _States(
                count=count[kept],
                nu=states.nu[parent] + one.nu[option],
                hz=states.hz[parent] + one.hz[option],
                cost=cost[kept],
                trail=_Trail(parent.astype(np.int32), option.astype(np.int32), states.trail),
            )
        )

    def finish(self, states: _States) -> None:
        """Keep the least sum of nu that fits, if it is below the target."""
        (good,) = ((states.count == 0) & (states.hz <= self.room_hz)).nonzero()
        for best in good[states.nu[good].argsort(kind="stable")]:
            total = self.base_nu + float(states.nu[best])
            if total >= self.target:
                return
            chosen = self.apply(states, int(best))
            if self.fits(chosen):
                self.gap -= self.target - total  # what is searched after this must be better still
                self.target = total
                self.found = chosen
                return

    def apply(self, states: _States, at: int) -> Indices:
        """The base with the changes of a state, one class after another, last class first."""
        chosen, trail = self.taken.copy(), states.trail
        for one in reversed(self.classes):
            assert trail is not None
            change = int(one.count[trail.option[at]])
            if change < 0:
                chosen[one.taken[:-change]] = False
            else:
                chosen[one.free[:change]] = True
            at, trail = int(trail.parent[at]), trail.before
        return np.flatnonzero(chosen)


def _undominated(states: _States) -> _States:
    """Drop a state if another changes the number of devices as much, with no more nu and no more bandwidth."""
    if len(states.count) < 2:
        return states
    order = np.lexsort((states.hz, states.nu, states.count))
    # A running minimum of the bandwidth that starts anew with each count: groups are shifted below one another.
    shift = 2.0 * float(states.hz.max() - states.hz.min()) or 1.0
    hz = states.hz[order] - shift * (states.count[order] - states.count[order[0]])
    kept = np.ones(len(order), dtype=bool)
    kept[1:] = hz[1:] < np.minimum.accumulate(hz)[:-1]
    return _pick(states, order[kept])


def _pick(states: _States, at: Indices) -> _States:
    trail = states.trail
    return _States(
        count=states.count[at],
        nu=states.nu[at],
        hz=states.hz[at],
        cost=states.cost[at],
        trail=None if trail is None else _Trail(trail.parent[at], trail.option[at], trail.before),
    )
