"""On what the verdict on Fig. 7's devices rests: the claim says from which gamma on it would be another."""

from __future__ import annotations

import itertools

from flare import Cell, round_problem, solve, stream
from flare.experiments import fig7
from flare.experiments.experiment import Scale
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
