"""The numbers of a report: means over seeds with their 95 % intervals, as curves and as one line of a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from flare.records.run import Run
from flare.report.run_groups import Group
from flare.types import Floats, Indices

MAX_POINTS = 120
"""Points of a curve: the eye tells no more of them apart."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, half the width of its 95 % t-interval (nan with one seed) and the number of seeds."""

    mean: float
    half: float
    count: int


@dataclass(frozen=True, eq=False)
class Curve:
    """A mean over seeds along an axis; each array has shape (points,), `half` is nan where fewer than two seeds are."""

    x: Floats
    mean: Floats
    half: Floats
    seeds: Indices

    @property
    def low(self) -> Floats:
        """Lower end of the 95 % interval."""
        return self.mean - self.half

    @property
    def high(self) -> Floats:
        """Upper end of the 95 % interval."""
        return self.mean + self.half


@dataclass(frozen=True)
class Summary:
    """A group in one line. Energy is that of a whole run; gap and shares are plain ratios."""

    final: Estimate
    best: Estimate
    at_common: Estimate
    rounds: tuple[int, int]  # shortest and longest run
    clock_s: Estimate
    devices: float
    tau: float
    gap: float
    energy_j: float
    infeasible: int
    total_rounds: int
    status: str


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95 % t-interval of what is a number among the values."""
    curve = over_seeds(np.zeros(1), np.array(values, dtype=float)[:, None])
    return Estimate(float(curve.mean[0]), float(curve.half[0]), int(curve.seeds[0]))


def over_seeds(x: Floats, values: Floats) -> Curve:
    """The curve through `x`, shape (points,), of `values`, shape (seeds, points), nan where a seed has none."""
    known = np.isfinite(values)
    seeds = known.sum(axis=0)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.where(seeds > 0, seeds, np.nan)
    squares = (np.where(known, values - mean, 0.0) ** 2).sum(axis=0)
    several = np.where(seeds > 1, seeds, np.nan)
    half = stdtrit(several - 1.0, 0.975) * np.sqrt(squares / (several - 1.0) / several)
    return Curve(x, mean, half, seeds)


def of_most_seeds(curve: Curve) -> Curve:
    """The curve as far as half of its seeds or more go: the last few would bend it."""
    return _at(curve, 2 * curve.seeds >= curve.seeds.max(initial=0))


def _at(curve: Curve, points: Any) -> Curve:
    return Curve(curve.x[points], curve.mean[points], curve.half[points], curve.seeds[points])


def against_rounds(group: Group, values: Callable[[Run], Floats], max_points: int = MAX_POINTS) -> Curve:
    """Something of each round against the number of rounds done; where that is too many points, means of bins."""
    longest = max(run.num_rounds for run in group.runs)
    table = np.full((len(group.runs), longest), np.nan)  # (seeds, rounds)
    for row, run in zip(table, group.runs, strict=True):
        row[: run.num_rounds] = values(run)
    known = np.flatnonzero(np.isfinite(table).any(axis=0))
    bins = np.array_split(known, min(len(known), max_points)) if len(known) else []
    x = np.array([1.0 + part.mean() for part in bins])
    means = np.array([_mean_known(table[:, part]) for part in bins]).reshape(len(bins), len(table))
    return of_most_seeds(over_seeds(x, means.T))


def accuracy_against_rounds(group: Group) -> Curve:
    """Test accuracy against rounds; where there are too many tests, every so many of them, and the last."""
    tests = np.unique(np.concatenate([run.evaluated for run in group.runs]))
    table = np.full((len(group.runs), len(tests)), np.nan)  # (seeds, tests)
    for row, run in zip(table, group.runs, strict=True):
        row[np.searchsorted(tests, run.evaluated)] = run.of_round["test_accuracy"][run.evaluated]
    curve = of_most_seeds(over_seeds(1.0 + tests, table))
    return _at(curve, evenly(len(curve.x)))


def evenly(number: int) -> Indices:
    """At most `MAX_POINTS` of so many places, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, number - 1), min(number, MAX_POINTS)).round().astype(np.intp))


def accuracy_against_time(group: Group) -> Curve:
    """Test accuracy against simulated seconds."""
    return along(group, lambda run: run.of_round["clock_s"], lambda run: run.of_round["test_accuracy"])


def along(group: Group, axis: Callable[[Run], Floats], values: Callable[[Run], Floats]) -> Curve:
    """Something of each round against what grows with the rounds (simulated seconds, energy): on a grid, since every
    seed has its own; on a straight line between two values, nothing before the first and after the last."""
    known = [(axis(run), values(run)) for run in group.runs]
    seeds = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in known if np.isfinite(y).any()]
    if not seeds:
        return over_seeds(np.zeros(0), np.zeros((1, 0)))
    grid = np.linspace(min(x[0] for x, _ in seeds), max(x[-1] for x, _ in seeds), MAX_POINTS)
    return of_most_seeds(
        over_seeds(grid, np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in seeds]))
    )


def accuracy_at(run: Run, clock_s: Floats) -> Floats:
    """Test accuracy at simulated times, on a straight line between tests; nan before the first and after the last."""
    if not len(run.evaluated):
        return np.full(len(clock_s), np.nan)
    tests_s = run.of_round["clock_s"][run.evaluated]
    return np.interp(clock_s, tests_s, run.of_round["test_accuracy"][run.evaluated], left=np.nan, right=np.nan)


def common_time_s(groups: Sequence[Group]) -> float:
    """The latest simulated time that every run has a test for, diverged runs aside; nan where there is none."""
    runs = [run for group in groups for run in group.runs if len(run.evaluated) and not run.diverged]
    last_s = min((float(run.of_round["clock_s"][run.evaluated[-1]]) for run in runs), default=math.nan)
    first_s = max((float(run.of_round["clock_s"][run.evaluated[0]]) for run in runs), default=math.nan)
    return last_s if first_s <= last_s else math.nan


def summarise(group: Group, common_s: float) -> Summary:
    """The group's line of the final table; a run that diverged has no final accuracy."""
    runs = group.runs
    sound = [run for run in runs if not run.diverged]
    return Summary(
        final=estimate([_last(run) for run in sound] or [math.nan]),
        best=estimate([np.nanmax(run.of_round["test_accuracy"], initial=-math.inf) for run in runs]),
        at_common=estimate([float(accuracy_at(run, np.array([common_s]))[0]) for run in sound] or [math.nan]),
        rounds=(min(run.num_rounds for run in runs), max(run.num_rounds for run in runs)),
        clock_s=estimate([run.of_round["clock_s"][-1] if run.num_rounds else 0.0 for run in runs]),
        devices=_mean([run.num_senders for run in runs]),
        tau=_mean([run.of_selected["tau"] for run in runs]),
        gap=_mean([run.gap() for run in runs]),
        energy_j=_mean([np.array([run.round_energy_j().sum()]) for run in runs]),
        infeasible=sum(int(run.infeasible.sum()) for run in runs),
        total_rounds=sum(run.num_rounds for run in runs),
        status=_status([run.status for run in runs]),
    )


def _last(run: Run) -> float:
    return float(run.of_round["test_accuracy"][run.evaluated[-1]]) if len(run.evaluated) else math.nan


def _mean(values: Sequence[Floats | Indices]) -> float:
    return float(_mean_known(np.concatenate(values)[None, :].astype(float))[0])


def _mean_known(values: Floats) -> Floats:
    """The mean of each row, of what is a number in it; nan where nothing is."""
    known = np.isfinite(values)
    number = known.sum(axis=1)
    total: Floats = np.where(known, values, 0.0).sum(axis=1)
    return total / np.where(number > 0, number, np.nan)


def _status(statuses: Sequence[str]) -> str:
    times = Counter(statuses)
    return (
        statuses[0]
        if len(times) == 1
        else ", ".join(f"{number}\N{NO-BREAK SPACE}{status}" for status, number in times.items())
    )
