"""Outcomes of runs with made-up numbers, and whole experiments of them: for tests of what is concluded from runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Trial
from flare.report.curves import fairness_of

ROUNDS, ROUND_S = 12, 0.5


def made_up(
    accuracy: float | Sequence[float] = 0.5,
    *,
    train_loss: float = 1.0,
    test_loss: float = 1.0,
    devices: float = 4.0,
    tau: float = 3.0,
    gap: float = 0.0,
    diverged: bool = False,
    energy_j: float = 1.0,
    times_sent: Sequence[float] = (6.0, 6.0),
) -> Outcome:
    """A run of twelve rounds, tested after every other at this accuracy, or at these one after the other."""
    tests = np.full(ROUNDS // 2, accuracy) if isinstance(accuracy, float) else np.array(accuracy, dtype=np.float64)
    middles = np.arange(1.0, ROUNDS + 1.0)
    return Outcome(
        status="diverged" if diverged else "finished",
        num_classes=10,
        num_rounds=ROUNDS,
        end_s=ROUND_S * ROUNDS,
        mean_devices=devices,
        mean_tau=tau,
        mean_gap=gap,
        total_energy_j=ROUNDS * energy_j,
        fairness=fairness_of(np.array(times_sent, dtype=np.float64)),
        end_train_loss=train_loss,
        test_round=2.0 * np.arange(1.0, len(tests) + 1.0),
        test_s=2.0 * ROUND_S * np.arange(1.0, len(tests) + 1.0),
        test_accuracy=tests,
        test_loss=np.full(len(tests), test_loss),
        loss_round=middles,
        loss_s=ROUND_S * middles,
        train_loss=np.full(ROUNDS, train_loss),
    )


def luck(seed: int) -> float:
    """How much better every run with this seed is: far more than what runs differ by, so that only pairs tell."""
    return (0.0, 0.13, -0.21, 0.08, -0.05)[seed % 5]


def filled(experiment: Experiment, outcome: Callable[[Trial], Outcome], seeds: int = 3) -> Results:
    """The results of an experiment whose every run is made up."""
    scale = Scale(tuple(range(seeds)), quick=True)
    trials = trials_that_count(experiment, scale, outcome)
    return Results(trials, {trial.key: outcome(trial) for trial in trials}, scale)


def trials_that_count(
    experiment: Experiment, scale: Scale, outcome: Callable[[Trial], Outcome] = lambda trial: made_up()
) -> list[Trial]:
    """The trials that an experiment is judged by; what it chooses by other runs first is chosen by made-up ones."""
    trials = experiment.trials(scale)
    if experiment.then is None:
        return trials
    return experiment.then(Results(trials, {trial.key: outcome(trial) for trial in trials}, scale))


def ranked(accuracy: Callable[[Trial], float]) -> Callable[[Trial], Outcome]:
    """Runs of so much accuracy, give or take the luck of their seed."""
    return lambda trial: made_up(accuracy(trial) + luck(trial.seed))
