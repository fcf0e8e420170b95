"""What each swept setting does: runs of a sweep that differ in it alone, compared in pairs.

Two runs are a pair where they have the same seed and the same values of all other swept settings. Of a sweep that is
not finished only runs count that came to their end and have partners at all values of the setting: others would be
compared after fewer rounds, or with other seeds and settings. Differences are first averaged over those other settings,
then over the seeds, so that an interval tells of seeds, which are independent, and not of settings, which are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    difference   of it to that of the best value, over the pairs; None for the best value itself
    won          in how many of `pairs` it is ahead of the best value
    to_target_s  time to the target accuracy on the clock of the runs, of the runs that reach it
    """

    label: str
    accuracy: Estimate
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
    """What a swept setting does; `levels` in the order of the sweep."""

    factor: Factor
    levels: tuple[LevelEffect, ...]

    @property
    def best(self) -> int:
        """The number of the value with the best mean accuracy; -1 where no accuracy is known."""
        means = [level.accuracy.mean for level in self.levels]
        return int(np.nanargmax(means)) if np.isfinite(means).any() else -1

    def as_good_as_best(self) -> list[bool]:
        """Of each value, whether its mean accuracy is that of the best value; the best is one of them."""
        most = max((level.accuracy.mean for level in self.levels if level.accuracy.count), default=math.nan)
        return [math.isclose(level.accuracy.mean, most, rel_tol=0.0, abs_tol=_SAME) for level in self.levels]

    @property
    def winner(self) -> int:
        """The number of the value that is better than all others; -1 where there is none."""
        return self.best if sum(self.as_good_as_best()) == 1 else -1


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


def mean_accuracy(runs: Sequence[SweptRun]) -> Estimate:
    """The final accuracy of runs, over their settings first, then over their seeds."""
    return _over_seeds({(each.levels, each.run.config.seed): each.run.final_accuracy for each in runs})


def _effect(place: int, factor: Factor, runs: Sequence[SweptRun], target: float) -> Effect:
    of_level = [{pair: each.run for pair, each in found.items()} for found in with_partners(place, factor, runs)]
    accuracies = [{pair: run.final_accuracy for pair, run in found.items()} for found in of_level]
    means = [_over_seeds(found) for found in accuracies]
    known = [mean.mean if mean.count else -math.inf for mean in means]
    best = accuracies[int(np.argmax(known))]
    return Effect(
        factor,
        tuple(
            _level(level_text(factor, level), list(of_level[level].values()), accuracies[level], best, mean, target)
            for level, mean in enumerate(means)
        ),
    )


def _level(
    label: str,
    runs: Sequence[RunNumbers],
    ours: Mapping[Pair, float],
    best: Mapping[Pair, float],
    accuracy: Estimate,
    target: float,
) -> LevelEffect:
    apart = {pair: ours[pair] - best[pair] for pair in ours if pair in best}
    to_target_s = [each for each in (time_to_accuracy_s(run, target) for run in runs) if math.isfinite(each)]
    return LevelEffect(
        label,
        accuracy,
        None if ours is best else _over_seeds(apart),
        sum(each > 0.0 for each in apart.values()),
        len(apart),
        len(runs),
        sum(run.diverged for run in runs),
        _mean([run.clock_s for run in runs]),
        _mean(to_target_s),
        len(to_target_s),
        _mean([float(run.round_energy_j().sum()) for run in runs]),
    )


def _over_seeds(values: Mapping[Pair, float]) -> Estimate:
    """The mean over other settings first, then over seeds, with the interval of the seeds."""
    of_seed: dict[int, list[float]] = {}
    for (_, seed), value in values.items():
        of_seed.setdefault(seed, []).append(value)
    return estimate([_mean(each) for each in of_seed.values()] or [math.nan])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
