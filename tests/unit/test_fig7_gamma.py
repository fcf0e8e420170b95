"""On what the verdict on Fig. 7's devices rests: the claim says from which gamma on it would be another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flare import Cell, round_problem, solve, solve_many, stream
from flare.experiments import fig7
from flare.experiments.experiment import Scale
from flare.experiments.settings import setting
from tests.made_up_outcomes import filled, made_up


def test_the_verdict_on_devices_rests_on_gamma_as_it_says() -> None:
    (mnist, *_) = [trial.config for trial in fig7.trials(Scale((0,))) if "MNIST" in trial.panel]
    assert mnist.scheduling.gamma == 10.0
    most, at_10, at_enough = 0, 0, 0
    for seed, index in itertools.product(range(5), range(4)):
        radio = Cell(mnist.wireless, seed=seed).draw(index)
        usual = round_problem(radio, gamma=10.0)
        most += solve(usual, "cp", rng=stream(seed, "cp", index)).num_selected
        at_10 += solve(usual, "greedy").num_selected
        at_enough += solve(round_problem(radio, gamma=fig7.GAMMA_ENOUGH), "greedy").num_selected
    assert at_10 < fig7.ENOUGH * most < at_enough
    _, devices = fig7.claims(filled(fig7.EXPERIMENT, lambda trial: made_up()))
    assert "gamma (fails at 10, holds from about 30)" in devices.depends


@pytest.mark.parametrize(
    ("dataset", "deadline_s", "num_rounds", "policy", "ever"),
    [("mnist", 0.4, 300, "cp", 6.8), ("mnist", 0.4, 300, "dm", 11.0), ("cifar10", 1.5, 100, "cp", 3.6)],
)
def test_a_channel_that_never_changes_calls_the_same_few_devices(
    dataset: str, deadline_s: float, num_rounds: int, policy: str, ever: float
) -> None:
    """What the page says beside Figs. 5 and 6: how many of the 40 devices a policy ever calls, over five seeds."""
    wireless = setting(dataset, Scale((0,)), f"wireless.deadline_s={deadline_s}").wireless
    called = []
    for seed in range(5):
        cell = Cell(wireless, seed)
        schedules = solve_many([round_problem(cell.draw(r), gamma=10.0) for r in range(num_rounds)], policy)
        called.append(len({device for each in schedules for device in each.selected.tolist()}))
    assert np.mean(called) == pytest.approx(ever, abs=0.05)
