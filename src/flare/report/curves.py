"""The numbers of a report: means over seeds with their 95 % intervals, as curves and as one line of a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from flare.records.run import RunNumbers
from flare.report.run_groups import Group
from flare.types import Floats, Indices

MAX_POINTS = 120
"""Points of a curve: the eye tells no more of them apart."""
MIN_SEEDS = 3
"""Seeds that an interval takes. Of two, Student's interval is 12.7 standard errors wide: it says nothing."""
MAX_MARKS = 20
"""Tests of a curve that are marked one by one; of more of them only some."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, half the width of its 95 % t-interval (nan below `MIN_SEEDS`) and the number of seeds."""

    mean: float
    half: float
    count: int


@dataclass(frozen=True, eq=False)
class Curve:
    """A mean over seeds along an axis; each array has shape (points,), `half` is nan where fewer than `MIN_SEEDS` are.

    `tests` are the places along the axis at which the model was tested, where those are few enough to be marked.
    """

    x: Floats
    mean: Floats
    half: Floats
    seeds: Indices
    tests: Floats | None = None

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
    """A group in one line. Energy and bits are those of a whole run; gap and shares are plain ratios."""

    final: Estimate
    best: Estimate
    rounds: tuple[int, int]  # shortest and longest run
    clock_s: Estimate
    devices: float
    fairness: float  # Jain's index of how often devices sent
    tau: float
    gap: float
    energy_j: float
    sent_bits: float  # updates and control traffic
    without_sender: int  # rounds
    total_rounds: int
    status: str
    target: float  # test accuracy at which all runs of the group end; 0: none
    to_target_s: Estimate  # of the runs that reach it
    num_reached: int


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
    several = np.where(seeds >= MIN_SEEDS, seeds, np.nan)
    half = stdtrit(several - 1.0, 0.975) * np.sqrt(squares / (several - 1.0) / several)
    return Curve(x, mean, half, seeds)


def of_most_seeds(curve: Curve) -> Curve:
    """The curve as far as half of its seeds or more go: the last few would bend it."""
    return _at(curve, 2 * curve.seeds >= curve.seeds.max(initial=0))


def _at(curve: Curve, points: Any) -> Curve:
    return Curve(curve.x[points], curve.mean[points], curve.half[points], curve.seeds[points])


def _with_tests(curve: Curve, tests: Floats) -> Curve:
    """The curve with the tests marked that it reaches, where they are few."""
    reached = tests[(curve.x.min(initial=math.inf) <= tests) & (tests <= curve.x.max(initial=-math.inf))]
    return replace(curve, tests=reached) if len(reached) <= MAX_MARKS else curve


def against_rounds(
    group: Group, values: Callable[[RunNumbers], Floats], max_points: int = MAX_POINTS, *, is_accuracy: bool = False
) -> Curve:
    """Something of each round against the number of rounds done; where that is too many points, means of bins. Where it
    is an accuracy, a run that diverged guesses from where it ended."""
    longest = max(run.num_rounds for run in group.runs)
    table = np.full((len(group.runs), longest), np.nan)  # (seeds, rounds)
    for row, run in zip(table, group.runs, strict=True):
        row[: run.num_rounds] = values(run)
    known = np.flatnonzero(np.isfinite(table).any(axis=0))
    for row, run in zip(table, group.runs, strict=True):
        if is_accuracy and run.diverged:
            row[run.num_rounds :] = run.guess
    bins = np.array_split(known, min(len(known), max_points)) if len(known) else []
    x = np.array([1.0 + part.mean() for part in bins])
    means = np.array([_mean_known(table[:, part]) for part in bins]).reshape(len(bins), len(table))
    return of_most_seeds(over_seeds(x, means.T))


def accuracy_against_rounds(group: Group) -> Curve:
    """Test accuracy against rounds; where there are too many tests, every so many of them, and the last. A run that
    diverged guesses from where it ended."""
    tests = np.unique(np.concatenate([run.evaluated for run in group.runs]))
    table = np.full((len(group.runs), len(tests)), np.nan)  # (seeds, tests)
    for row, run in zip(table, group.runs, strict=True):
        row[np.searchsorted(tests, run.evaluated)] = run.accuracies[run.evaluated]
        if run.diverged:
            row[tests >= run.num_rounds] = run.guess
    curve = of_most_seeds(over_seeds(1.0 + tests, table))
    return _with_tests(_at(curve, evenly(len(curve.x))), curve.x)


def evenly(number: int) -> Indices:
    """At most `MAX_POINTS` of so many places, the first and the last among them."""
    return np.unique(np.linspace(0, max(0, number - 1), min(number, MAX_POINTS)).round().astype(np.intp))


def accuracy_against_time(group: Group) -> Curve:
    """Test accuracy against simulated seconds, on a grid, since every seed has its own clock.

    The tests are marked at the mean of their times over the seeds. A run that diverged guesses from where it ended.
    """
    tested = [run for run in group.runs if len(run.evaluated)]
    if not tested:
        return over_seeds(np.zeros(0), np.zeros((1, 0)))
    curve = along(group, lambda run: run.of_round["clock_s"], lambda run: run.accuracies, is_accuracy=True)
    shared = set.intersection(*(set(run.evaluated.tolist()) for run in tested))
    times_s = np.array([[run.of_round["clock_s"][index] for index in sorted(shared)] for run in tested])
    return _with_tests(curve, times_s.mean(axis=0)) if shared else curve


def accuracy_against_bits(group: Group) -> Curve:
    """Test accuracy against the bits that all devices have sent so far, on a grid; nothing where they are not known, or
    there are none, over the air."""
    if not all(np.isfinite(run.bits_so_far()).all() for run in group.runs):
        return over_seeds(np.zeros(0), np.zeros((1, 0)))
    return along(group, RunNumbers.bits_so_far, lambda run: run.accuracies, is_accuracy=True)


def along(
    group: Group,
    axis: Callable[[RunNumbers], Floats],
    values: Callable[[RunNumbers], Floats],
    *,
    is_accuracy: bool = False,
) -> Curve:
    """Something of each round against what grows with the rounds (simulated seconds, energy): on a grid, since every
    seed has its own; on a straight line between two values, nothing before the first and after the last, but that a
    run that diverged guesses then, where it is an accuracy. Rounds in which one of them is no number are left out.

    Seeds do not begin and end at the same place. The curve begins where the most of them have begun, and ends where
    the first of those with the most rounds ends: beyond, mean and band would jump with every seed that comes or goes.
    """
    seeds, rounds = [], []
    for run in group.runs:
        x, y = axis(run), values(run)
        known = np.isfinite(x) & np.isfinite(y)
        if known.any():
            seeds.append((x[known], y[known], run.guess if is_accuracy and run.diverged else np.nan))
            rounds.append(run.num_rounds)
    if not seeds:
        return over_seeds(np.zeros(0), np.zeros((1, 0)))
    end = min(x[-1] for (x, _, _), done in zip(seeds, rounds, strict=True) if done == max(rounds))
    grid = np.linspace(min(x[0] for x, _, _ in seeds), end, MAX_POINTS)
    curve = over_seeds(grid, np.array([np.interp(grid, x, y, left=np.nan, right=after) for x, y, after in seeds]))
    return of_most_seeds(_at(curve, slice(int(np.argmax(curve.seeds)), None)))


def times_of_tests(run: RunNumbers) -> Floats:
    """Simulated times of the tests, shape (tests,)."""
    return run.of_round["clock_s"][run.evaluated]


def rounds_of_tests(run: RunNumbers) -> Floats:
    """Rounds done at the tests, shape (tests,)."""
    return 1.0 + run.evaluated.astype(np.float64)


Axis = Callable[[RunNumbers], Floats]
"""Where the tests of a run lie along an axis: `times_of_tests` or `rounds_of_tests`."""


def accuracy_at(run: RunNumbers, places: Floats, axis: Axis = times_of_tests) -> Floats:
    """Test accuracy at places of an axis, on a straight line between tests; nan before the first and after the last."""
    if not len(run.evaluated):
        return np.full(len(places), np.nan)
    return np.interp(places, axis(run), run.accuracies[run.evaluated], left=np.nan, right=np.nan)


def time_to_accuracy_s(run: RunNumbers, accuracy: float) -> float:
    """Simulated time of the first test at which the accuracy was reached; nan where none reached it, or it is 0."""
    reached = run.accuracies[run.evaluated] >= accuracy
    return float(times_of_tests(run)[np.argmax(reached)]) if accuracy > 0.0 and reached.any() else math.nan


def common_place(groups: Sequence[Group], axis: Axis) -> float:
    """The last place of an axis that the tests of every run reach, diverged runs aside; nan where there is none."""
    tests = [axis(run) for group in groups for run in group.runs if len(run.evaluated) and not run.diverged]
    last = min((float(each[-1]) for each in tests), default=math.nan)
    first = max((float(each[0]) for each in tests), default=math.nan)
    return last if first <= last else math.nan


def summarise(group: Group) -> Summary:
    """The group's line of the final table; a run that diverged guesses at its end."""
    runs = group.runs
    target = group.config.run.target_accuracy
    to_target_s = [time_to_accuracy_s(run, target) for run in runs]
    return Summary(
        final=estimate([run.final_accuracy for run in runs]),
        best=estimate([np.nanmax(run.accuracies, initial=-math.inf) for run in runs]),
        rounds=(min(run.num_rounds for run in runs), max(run.num_rounds for run in runs)),
        clock_s=estimate([run.clock_s for run in runs]),
        devices=_mean([run.num_senders for run in runs]),
        fairness=_mean([np.array([fairness_of(run.participation() * run.num_rounds)]) for run in runs]),
        tau=_mean([run.of_selected["tau"] for run in runs]),
        gap=_mean([run.gap() for run in runs]),
        energy_j=_mean([np.array([run.round_energy_j().sum()]) for run in runs]),
        sent_bits=_mean([np.array([run.round_sent_bits().sum()]) for run in runs]),
        without_sender=sum(int(run.without_sender.sum()) for run in runs),
        total_rounds=sum(run.num_rounds for run in runs),
        status=_status([run.status for run in runs]),
        target=target,
        to_target_s=estimate(to_target_s),
        num_reached=sum(map(math.isfinite, to_target_s)),
    )


def fairness_of(times_sent: Floats) -> float:
    """Jain's index, (sum x)^2 / (K sum x^2): 1 where all sent equally often, 1 / K where one device alone did; nan
    where nobody sent."""
    squares = float((times_sent**2).sum())
    return float(times_sent.sum() ** 2 / (len(times_sent) * squares)) if squares else float("nan")


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
