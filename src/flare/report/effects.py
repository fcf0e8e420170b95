"""What each swept setting does: runs of a sweep that differ in it alone, compared in pairs.

Two runs are a pair where they have the same seed and the same values of all other swept settings. Of a sweep that is
not finished only runs count that came to their end and have partners at all values of the setting: others would be
compared after fewer rounds, or with other seeds and settings. Differences are first averaged over those other settings,
then over the seeds, so that an interval tells of seeds, which are independent, and not of settings, which are not.

Runs are compared by their final test accuracy; where all of them end at a test accuracy (`run.target_accuracy`), that
only tells by how much each went past it, and they are compared by their time to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from flare.records.run import RunNumbers
from flare.report.curves import Estimate, estimate, time_to_accuracy_s
from flare.sweeps.grid import level_text
from flare.sweeps.sweep_file import Factor

Pair = tuple[tuple[int, ...], int]
"""What two runs of a pair have in common: the levels of the other settings, and the seed."""


@final
@dataclass(frozen=True, eq=False)
class SweptRun:
    """A run of a sweep: `levels` are the numbers of its values, one for each swept setting."""

    run: RunNumbers
    levels: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class LevelEffect:
    """What a value of a setting comes to, on average over the other settings.

    accuracy     final test accuracy, over the seeds; a run that diverged counts as guessing
    measure      what values are compared by: the accuracy, or the time to the target, over the pairs of which all
                 values that miss it as seldom as any reach it; otherwise over their own
    difference   of that to the best value's, over the pairs; None for the best value itself
    won          in how many of `pairs` it is ahead of the best value
    to_target_s  time to the target accuracy on the clock of the runs, of the runs that reach it
    """

    label: str
    accuracy: Estimate
    measure: Estimate
    difference: Estimate | None
    won: int
    pairs: int
    num_runs: int
    num_diverged: int
    clock_s: float
    to_target_s: float
    num_reached: int
    energy_j: float


_SAME = 1e-12  # accuracies that differ by less are the same, but for rounding


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """What a swept setting does; `levels` in the order of the sweep, `by_time` where they are compared by the time to
    the target."""

    factor: Factor
    levels: tuple[LevelEffect, ...]
    by_time: bool

    @property
    def best(self) -> int:
        """The number of the best value: by the mean of what they are compared by, of times after the number of runs
        that miss the target; -1 where nothing is known, or values are as often missed and have no pairs."""
        missed = [level.num_runs - level.num_reached if self.by_time else 0 for level in self.levels]
        known = [place for place, level in enumerate(self.levels) if level.measure.count]
        known = [place for place in known if missed[place] == min(missed)]
        return min(known, key=lambda place: _rank(self.levels[place], by_time=self.by_time), default=-1)

    def as_good_as_best(self) -> list[bool]:
        """Of each value, whether it is as good as the best one; the best is one of them."""
        best = self.levels[self.best] if self.best >= 0 else None
        return [best is not None and _is_same(level, best, by_time=self.by_time) for level in self.levels]

    @property
    def winner(self) -> int:
        """The number of the value that is better than all others; -1 where there is none."""
        return self.best if sum(self.as_good_as_best()) == 1 else -1


def _rank(level: LevelEffect, *, by_time: bool) -> tuple[int, float]:
    """The less, the better."""
    return (level.num_runs - level.num_reached, level.measure.mean) if by_time else (0, -level.measure.mean)


def _is_same(level: LevelEffect, best: LevelEffect, *, by_time: bool) -> bool:
    (missed, value), (missed_by_best, best_value) = (_rank(each, by_time=by_time) for each in (level, best))
    return missed == missed_by_best and math.isclose(value, best_value, rel_tol=0.0, abs_tol=_SAME)


def end_of(runs: Sequence[SweptRun]) -> float:
    """The test accuracy at which all runs end; 0 where they do not, or not at the same."""
    targets = {each.run.config.run.target_accuracy for each in runs}
    return targets.pop() if len(targets) == 1 else 0.0


def effects_of(factors: Sequence[Factor], runs: Sequence[SweptRun], target: float) -> list[Effect]:
    """The effect of each factor that has more than one level. `target` is the test accuracy to which the time is told;
    0: none."""
    return [_effect(place, factor, runs, target) for place, factor in enumerate(factors) if len(factor.levels) > 1]


def with_partners(place: int, factor: Factor, runs: Sequence[SweptRun]) -> list[dict[Pair, SweptRun]]:
    """Of each level of a factor the runs that came to their end and have partners at all other levels."""
    of_level: list[dict[Pair, SweptRun]] = [{} for _ in factor.levels]
    for each in runs:
        if each.run.ended and math.isfinite(each.run.final_accuracy):
            others = (*each.levels[:place], *each.levels[place + 1 :])
            of_level[each.levels[place]][others, each.run.config.seed] = each
    full = set.intersection(*map(set, of_level))
    return [{pair: each for pair, each in found.items() if pair in full} for found in of_level]


def num_without_partners(factors: Sequence[Factor], runs: Sequence[SweptRun]) -> int:
    """How many runs say nothing of any setting, for want of an end, a test or partners."""
    heard = {
        id(each)
        for place, factor in enumerate(factors)
        if len(factor.levels) > 1
        for found in with_partners(place, factor, runs)
        for each in found.values()
    }
    return sum(id(each) not in heard for each in runs)


def measured(runs: Sequence[SweptRun], time_to: float = 0.0) -> Estimate:
    """The final accuracy of runs, or of those that reach a test accuracy the time to it, over their settings first,
    then over their seeds."""
    return _over_seeds(
        {
            (each.levels, each.run.config.seed): value
            for each in runs
            if math.isfinite(value := _measure_of(each.run, time_to))
        }
    )


def _measure_of(run: RunNumbers, time_to: float) -> float:
    return time_to_accuracy_s(run, time_to) if time_to else run.final_accuracy


def _effect(place: int, factor: Factor, runs: Sequence[SweptRun], target: float) -> Effect:
    end = end_of(runs)
    by_time, target = end > 0.0, end or target  # an earlier target says nothing more of runs that end at this one
    of_level = [{pair: each.run for pair, each in found.items()} for found in with_partners(place, factor, runs)]
    told = [_level(level_text(factor, level), found, target, by_time=by_time) for level, found in enumerate(of_level)]
    if by_time:
        told = _over_common_pairs(told, of_level, target)
    best = Effect(factor, tuple(told), by_time).best
    against = [
        one if place == best or best < 0 else _against(one, found, of_level[best], target if by_time else 0.0)
        for place, (one, found) in enumerate(zip(told, of_level, strict=True))
    ]
    return Effect(factor, tuple(against), by_time)


def _level(label: str, of_pair: Mapping[Pair, RunNumbers], target: float, *, by_time: bool) -> LevelEffect:
    """What a value comes to, not yet beside the best one."""
    runs = list(of_pair.values())
    to_target_s = {pair: time_to_accuracy_s(run, target) for pair, run in of_pair.items()}
    reached_s = {pair: time_s for pair, time_s in to_target_s.items() if math.isfinite(time_s)}
    accuracy = _over_seeds({pair: run.final_accuracy for pair, run in of_pair.items()})
    return LevelEffect(
        label=label,
        accuracy=accuracy,
        measure=_over_seeds(reached_s) if by_time else accuracy,
        difference=None,
        won=0,
        pairs=len(runs),
        num_runs=len(runs),
        num_diverged=sum(run.diverged for run in runs),
        clock_s=_mean([run.clock_s for run in runs]),
        to_target_s=_mean(list(reached_s.values())),
        num_reached=len(reached_s),
        energy_j=_mean([float(run.round_energy_j().sum()) for run in runs]),
    )


def _over_common_pairs(
    told: Sequence[LevelEffect], of_level: Sequence[Mapping[Pair, RunNumbers]], target: float
) -> list[LevelEffect]:
    """With times of the pairs of which all values that miss the target as seldom as any reach it: means over what each
    reaches by itself would be of other settings and seeds."""
    least = min(one.num_runs - one.num_reached for one in told)
    tied = [place for place, one in enumerate(told) if one.num_runs - one.num_reached == least and one.num_reached]
    times_s = {
        place: {pair: time_to_accuracy_s(run, target) for pair, run in of_level[place].items()} for place in tied
    }
    common = [
        pair for pair in (times_s[tied[0]] if tied else ()) if all(math.isfinite(own[pair]) for own in times_s.values())
    ]
    return [
        replace(one, measure=_over_seeds({pair: times_s[place][pair] for pair in common})) if place in tied else one
        for place, one in enumerate(told)
    ]


def _against(
    one: LevelEffect, ours: Mapping[Pair, RunNumbers], best: Mapping[Pair, RunNumbers], time_to: float
) -> LevelEffect:
    """A value beside the best one: by the final accuracy of their runs, or by the time to a test accuracy of the pairs
    that both reach it."""
    apart = {pair: _measure_of(run, time_to) - _measure_of(best[pair], time_to) for pair, run in ours.items()}
    known = {pair: each for pair, each in apart.items() if math.isfinite(each)}
    ahead = sum(each < 0.0 if time_to else each > 0.0 for each in known.values())
    return replace(one, difference=_over_seeds(known), won=ahead, pairs=len(known))


def _over_seeds(values: Mapping[Pair, float]) -> Estimate:
    """The mean over other settings first, then over seeds, with the interval of the seeds."""
    of_seed: dict[int, list[float]] = {}
    for (_, seed), value in values.items():
        of_seed.setdefault(seed, []).append(value)
    return estimate([_mean(each) for each in of_seed.values()] or [math.nan])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
