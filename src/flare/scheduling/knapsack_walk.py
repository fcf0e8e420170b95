"""A complete search of the few changes to a selection about which a price leaves doubt.

A price of bandwidth makes a base, the best selection of M devices at that price. Whoever searches for a better one
(`fixed_size_knapsack`, `choice_knapsack`) lays out what could be done otherwise as groups of options, of which every
selection takes exactly one a group. An option changes the number of devices, their cost and their bandwidth, and has a
regret >= 0: what it costs at the price. For a selection that fits

    cost  =  (cost of the base at the price)  +  sum of regrets  +  price * (band left over),

so that a cost below a target leaves a total regret of less than gap = target - (cost of the base at the price).
The walk takes one group after another and keeps every partial change that could still lead to such a selection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flare.types import Floats, Indices

_MAX_STATES = 500_000  # states that one step may make; more are searched half by half, which bounds the memory


@dataclass(frozen=True)
class Group:
    """Options of which exactly one is taken; arrays of shape (options,).

    `give` and `take` are the regrets of single devices that can be given up or taken here, for a bound on what it
    costs to bring the number of devices back to M.
    """

    count: NDArray[np.int64]
    cost: Floats
    hz: Floats
    regret: Floats
    give: Floats
    take: Floats


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
    cost: Floats
    hz: Floats
    regret: Floats
    trail: _Trail | None


@dataclass
class Walk:
    """Goes through groups of options for the cheapest change to the base that fits and costs less than `target`.

    groups      the options, from those of few to those of many: the number of states grows late
    fits        whether the options chosen, one index a group, make a selection that fits by exact sums
    room_hz     bandwidth that the base leaves; negative where it asks for more than the band
    base_cost   cost of the base
    target      what the cost must stay below
    gap         what the total regret must stay below
    stop_at     `time.perf_counter()` from which on TimeoutError is raised
    """

    groups: Sequence[Group]
    fits: Callable[[list[int]], bool]
    room_hz: float
    base_cost: float
    target: float
    gap: float
    stop_at: float
    found: list[int] | None = None
    balances: dict[int, tuple[Floats, int]] = field(default_factory=dict)

    def run(self) -> list[int] | None:
        """The index of the option chosen in each group; None proves that no change to the base will do."""
        zero = np.zeros(1)
        self.search(_States(np.zeros(1, dtype=np.int64), zero, zero, zero, None), 0)
        return self.found

    def balance(self, stage: int) -> tuple[Floats, int]:
        """`_balance` of the groups after a stage, made when it is first needed."""
        if stage not in self.balances:
            self.balances[stage] = _balance(self.groups[stage + 1 :])
        return self.balances[stage]

    def search(self, states: _States, stage: int) -> None:
        """Go on from some states, half by half where they become too many."""
        while stage < len(self.groups):
            if time.perf_counter() > self.stop_at:
                raise TimeoutError
            if len(states.count) > 1 and len(states.count) * len(self.groups[stage].count) > _MAX_STATES:
                middle = len(states.count) // 2
                for half in (slice(None, middle), slice(middle, None)):
                    self.search(_pick(states, np.arange(len(states.count))[half]), stage)
                return
            states = self.expand(states, stage)
            stage += 1
        self.finish(states)

    def expand(self, states: _States, stage: int) -> _States:
        """Every state with every option of a group, as far as it can still lead below the target."""
        one = self.groups[stage]
        width = len(one.count)
        count = np.add.outer(states.count, one.count).ravel()
        regret = np.add.outer(states.regret, one.regret).ravel()
        undo, zero = self.balance(stage)
        place = count + zero
        (kept,) = ((place >= 0) & (place < len(undo)) & (regret < self.gap)).nonzero()
        kept = kept[regret[kept] + undo[place[kept]] < self.gap]
        parent, option = np.divmod(kept, width)
        return _undominated(
            _States(
                count=count[kept],
                cost=states.cost[parent] + one.cost[option],
                hz=states.hz[parent] + one.hz[option],
                regret=regret[kept],
                trail=_Trail(parent.astype(np.int32), option.astype(np.int32), states.trail),
            )
        )

    def finish(self, states: _States) -> None:
        """Keep the least cost that fits, if it is below the target."""
        (good,) = ((states.count == 0) & (states.hz <= self.room_hz)).nonzero()
        for best in good[states.cost[good].argsort(kind="stable")]:
            total = self.base_cost + float(states.cost[best])
            if total >= self.target:
                return
            chosen = self.options_of(states, int(best))
            if self.fits(chosen):
                self.gap -= self.target - total  # what is searched after this must be better still
                self.target = total
                self.found = chosen
                return

    def options_of(self, states: _States, at: int) -> list[int]:
        """The option that led to a state in each group."""
        options, trail = [], states.trail
        while trail is not None:
            options.append(int(trail.option[at]))
            at, trail = int(trail.parent[at]), trail.before
        return options[::-1]


def both_ways(down: Floats, up: Floats) -> Floats:
    """Running sums away from zero change, laid out from the most removed to the most added."""
    both = np.zeros(len(down) + 1 + len(up))
    both[: len(down)] = down.cumsum()[::-1]
    both[len(down) + 1 :] = up.cumsum()
    return both


def _balance(rest: Sequence[Group]) -> tuple[Floats, int]:
    """The least regret of undoing a change in the number of devices with the groups that are left, and the index that
    stands for no change; an entry for each change that can still be undone."""
    give = np.sort(np.concatenate([one.give for one in rest] or [np.zeros(0)]))
    take = np.sort(np.concatenate([one.take for one in rest] or [np.zeros(0)]))
    return both_ways(take, give), len(take)


def _undominated(states: _States) -> _States:
    """Drop a state if another changes the number of devices as much, with no more cost and no more bandwidth."""
    if len(states.count) < 2:
        return states
    order = np.lexsort((states.hz, states.cost, states.count))
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
        cost=states.cost[at],
        hz=states.hz[at],
        regret=states.regret[at],
        trail=None if trail is None else _Trail(trail.parent[at], trail.option[at], trail.before),
    )
