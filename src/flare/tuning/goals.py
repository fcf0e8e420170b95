"""What is tuned for, and what a run and a trial come to by that measure.

time       least simulated time to a test accuracy
energy     least energy of all devices to a test accuracy
accuracy   best test accuracy within a simulated time
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import final

import numpy as np

from flare.records.run import RunNumbers
from flare.report.curves import time_to_accuracy_s, times_of_tests
from flare.types import Floats
from flare.units import human


class Goal(StrEnum):
    """What is to be least, or best."""

    TIME = "time"
    ENERGY = "energy"
    ACCURACY = "accuracy"


@final
@dataclass(frozen=True)
class Aim:
    """A goal with its numbers.

    target     test accuracy to be reached; 0 where the goal is accuracy
    within_s   simulated time that a run has at most
    """

    goal: Goal
    target: float
    within_s: float

    @property
    def has_target(self) -> bool:
        """Whether an accuracy is to be reached."""
        return self.goal is not Goal.ACCURACY

    def words(self) -> str:
        """The goal in words."""
        within = human(self.within_s, "s", 3)
        if not self.has_target:
            return f"best test accuracy after {within} of simulated time"
        what = "simulated time" if self.goal is Goal.TIME else "energy"
        return f"least {what} to {100.0 * self.target:g} % test accuracy, within {within}"

    def measured(self) -> str:
        """What is measured, as the label of an axis."""
        if not self.has_target:
            return "test accuracy"
        return f"time to {100.0 * self.target:g} % (s)" if self.goal is Goal.TIME else "energy to the target (J)"


class Standing(IntEnum):
    """What a trial came to, from good to bad: a higher one is worse than any trial of a lower one."""

    REACHED = 0
    MISSED = 1
    IMPOSSIBLE = 2


@final
@dataclass(frozen=True, order=True)
class Score:
    """A trial's place among others, the less the better: by its standing first, then by a number.

    REACHED      with every seed: the mean time or energy; where the goal is accuracy, all are, by 1 - accuracy
    MISSED       with some seed: the mean over the seeds of what lacks of the target at best
    IMPOSSIBLE   no run can have such settings
    """

    standing: Standing
    number: float

    @property
    def told(self) -> float:
        """The score as one number in the same order."""
        return (self.number, 1e30 * (1.0 + self.number), 1e31)[self.standing]


@final
@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    time_s     simulated time to the target, nan where it was not reached within the time
    energy_j   what all devices spent to the target, or in the whole run where it was not reached
    accuracy   test accuracy at the last test within the time, or at the end where there was none; of a run that
               diverged within the time, that of guessing
    best       the best test accuracy within the time, nan where there was no test
    """

    seed: int
    status: str
    rounds: int
    clock_s: float
    time_s: float
    energy_j: float
    accuracy: float
    best: float

    @property
    def reached(self) -> bool:
        """Whether the target was reached within the time."""
        return math.isfinite(self.time_s)

    @property
    def diverged(self) -> bool:
        """Whether the weights are no numbers any more."""
        return self.status == "diverged"


def outcome_of(run: RunNumbers, aim: Aim) -> Outcome:
    """What a run came to, or has come to so far."""
    time_s = time_to_accuracy_s(run, aim.target)
    if not time_s <= aim.within_s:
        time_s = math.nan
    accuracies = _accuracies_by(run, aim.within_s)
    accuracy = run.final_accuracy
    if len(accuracies) and not _diverged_by(run, aim.within_s):
        accuracy = float(accuracies[-1])
    return Outcome(
        run.config.seed,
        run.status if run.ended else "stopped",
        run.num_rounds,
        run.clock_s,
        time_s,
        _energy_j(run, time_s),
        accuracy,
        float(accuracies.max()) if len(accuracies) else math.nan,
    )


def _energy_j(run: RunNumbers, until_s: float) -> float:
    """Energy up to a time, or of the whole run where that is nan."""
    counted = np.full(run.num_rounds, True) if math.isnan(until_s) else run.of_round["clock_s"] <= until_s
    return float(run.round_energy_j()[counted].sum())


def accuracy_by(run: RunNumbers, time_s: float) -> float:
    """Test accuracy at the last test by then; 0 of a run that has diverged by then, nan where there was no test."""
    if _diverged_by(run, time_s):
        return 0.0
    accuracies = _accuracies_by(run, time_s)
    return float(accuracies[-1]) if len(accuracies) else math.nan


def _diverged_by(run: RunNumbers, time_s: float) -> bool:
    return run.diverged and run.clock_s <= time_s


def _accuracies_by(run: RunNumbers, time_s: float) -> Floats:
    """Test accuracies of a run up to a time."""
    return np.asarray(run.of_round["test_accuracy"][run.evaluated][times_of_tests(run) <= time_s])


def score_of(outcomes: Sequence[Outcome], aim: Aim) -> Score:
    """The score of a trial whose runs have ended. A run that diverged counts as one that is never right."""
    if not aim.has_target:
        known = [0.0 if each.diverged or math.isnan(each.accuracy) else each.accuracy for each in outcomes]
        return Score(Standing.REACHED, 1.0 - _mean(known))
    if all(each.reached for each in outcomes):
        return Score(Standing.REACHED, _mean([value_of(each, aim) for each in outcomes]))
    lacking = [0.0 if each.reached else max(0.0, aim.target - _at_best(each)) for each in outcomes]
    return Score(Standing.MISSED, _mean(lacking))


def value_of(outcome: Outcome, aim: Aim) -> float:
    """What the goal measures of a run; nan where it missed the target."""
    if not aim.has_target:
        return outcome.accuracy
    if not outcome.reached:
        return math.nan
    return outcome.time_s if aim.goal is Goal.TIME else outcome.energy_j


def at_least(outcomes: Sequence[Outcome], aim: Aim) -> float:
    """What the mean time or energy of a trial comes to at least, by its runs so far; infinite where one has ended
    without the target, 0 where nothing can be said."""
    if not aim.has_target:
        return 0.0
    if any(not each.reached and each.status != "stopped" for each in outcomes):
        return math.inf
    return _mean([each.energy_j if aim.goal is Goal.ENERGY else _so_far_s(each) for each in outcomes])


def _so_far_s(each: Outcome) -> float:
    return each.time_s if each.reached else each.clock_s


def _at_best(each: Outcome) -> float:
    return 0.0 if each.diverged or math.isnan(each.best) else each.best


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
