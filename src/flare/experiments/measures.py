"""Numbers of a run. A run that diverged counts with the accuracy and the loss of guessing from where it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from flare.experiments.outcome import Outcome
from flare.types import Floats

# What an outcome says of the whole run.
mean_devices: Callable[[Outcome], float] = attrgetter("mean_devices")
mean_tau: Callable[[Outcome], float] = attrgetter("mean_tau")
mean_gap: Callable[[Outcome], float] = attrgetter("mean_gap")
total_energy_j: Callable[[Outcome], float] = attrgetter("total_energy_j")
fairness: Callable[[Outcome], float] = attrgetter("fairness")

LAST = 5
"""Tests at the end of a run that make its final accuracy: one alone is noisy."""


def accuracies(run: Outcome) -> Floats:
    """Test accuracies, those of a diverged run followed by guesses."""
    if run.diverged:
        return np.append(run.test_accuracy, np.full(LAST, 1.0 / run.num_classes))
    return run.test_accuracy


def final_accuracy(run: Outcome) -> float:
    """Mean of the last tests."""
    return float(accuracies(run)[-LAST:].mean())


def best_accuracy(run: Outcome) -> float:
    """The best test."""
    return float(run.test_accuracy.max(initial=1.0 / run.num_classes))


def best_by(run: Outcome, times_s: Floats) -> float:
    """The best of the newest tests at the given simulated times; a guess where there is none yet."""
    newest = np.searchsorted(run.test_s, times_s, side="right") - 1
    return float(run.test_accuracy[newest[newest >= 0]].max(initial=1.0 / run.num_classes))


def mean_accuracy(run: Outcome) -> float:
    """Mean over all tests: the area under the curve, larger for a run that is sooner there."""
    return float(accuracies(run).mean())


def mean_drop(run: Outcome) -> float:
    """How much a test falls short of the one before, on average: zero for a run that only rises."""
    return float(np.maximum(-np.diff(accuracies(run)), 0.0).mean())


def final_train_loss(run: Outcome) -> float:
    """Mean training loss over the last tenth of the rounds; nan where nobody sent in them."""
    return math.log(run.num_classes) if run.diverged else run.end_train_loss


def final_test_loss(run: Outcome) -> float:
    """Mean loss of the global model over the last tests."""
    return math.log(run.num_classes) if run.diverged else float(run.test_loss[-LAST:].mean())


def seconds_to(run: Outcome, target: float) -> float:
    """The simulated time of the first test that was at least as good as the target; infinite where none was."""
    reached = np.flatnonzero(run.test_accuracy >= target)
    return float(run.test_s[reached[0]]) if reached.size else math.inf
