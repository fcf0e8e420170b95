"""FedSAM and MOON as methods; what their rules mean in every engine is in tests/unit/test_seams.py."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flare.config import Config, override
from flare.data.dataset import Dataset
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.job import Job
from flare.learning.methods import FedAvg, FedAvgM, FedSam, Moon
from flare.rng import stream
from flare.simulation import Member, Simulation
from tests.driving import followed
from tests.method_rounds import NOW, one_round, same_bits, train

ENGINES = {
    "reference": ReferenceEngine,
    "sequential": SequentialEngine,
    "batched": lambda module, data: BatchedEngine(module, data, device="cpu"),
}
TAUS = [stream(number, "tau").integers(1, 6, 6).astype(float) for number in range(4)]


def test_a_round_of_sharpness_aware_steps_by_hand():
    # On a quadratic in one weight the gradient uphill is g + rho sign(g), here with rho = 1/2:
    # device 0:  1 -> 1 - 1/2 (1 + 1/2) = 0.25                                             delta -0.75
    # device 1:  1 -> 1 - 1/2 (-3.5) = 2.75 -> 2.75 - 1/2 (-1.25 - 1/2) = 3.625            delta  2.625
    weights, state, rules = one_round(FedSam(0.5))
    assert weights.item() == 1.9375
    assert state == {}
    assert [rule.ascent for rule in rules] == [0.5, 0.5]


def test_moon_remembers_the_models_of_those_that_sent_by_hand():
    method = Moon(2.0, 0.25)
    weights, state, rules = one_round(method)  # as FedAvg: nobody has a previous model
    assert weights.item() == 1.875
    assert [rule.contrast for rule in rules] == [None, None]
    assert state["previous"][:, 0].tolist() == [0.5, 3.25, 0.0, 0.0]
    assert state["has_previous"].tolist() == [1.0, 1.0, 0.0, 0.0]
    later = replace(NOW, selected=np.array([1, 3]), weights=weights)
    old, new = method.rules(state, later, None)
    assert (old.contrast.previous.item(), old.contrast.mu, old.contrast.temperature) == (3.25, 2.0, 0.25)
    assert new.contrast is None
    grown = method.enrol(state, np.ones(6))
    assert grown["previous"][:, 0].tolist() == [0.5, 3.25, 0.0, 0.0, 0.0, 0.0]
    assert grown["has_previous"].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_of_moon_by_hand(engine):
    # Features are the first layer's weights, the only sample being 1: z = z_start = (1, 0) and z_previous = (0, 1).
    # The second layer is zero, so that the cross-entropy does not move the first. Of near - far = 2 (temperature 1/2)
    # the contrast has the slope sigmoid(-2) / (1/2) along z_previous: at the rate 1/2, z moves by (0, -sigmoid(-2)).
    module = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False))
    one = np.ones((1, 1), dtype=np.float32)
    data = Dataset("one", one, np.zeros(1, dtype=int), one, np.zeros(1, dtype=int), 2)
    start = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    state = {"previous": torch.tensor([[0.0, 1.0, 3.0, 3.0, 3.0, 3.0]]), "has_previous": torch.ones(1)}
    now = replace(NOW, weights=start, selected=np.array([0]), tau=np.ones(1))
    (rule,) = Moon(1.0, 0.5).rules(state, now, None)
    (update,) = ENGINES[engine](module, data).train([Job(start, rule, np.zeros((1, 1), dtype=np.intp))])
    sigmoid = 1.0 / (1.0 + math.exp(2.0))
    # and the second layer by 1/2 (onehot - p) z = 1/2 (+-1/2) (1, 0), as without the term
    assert update.delta.tolist() == pytest.approx([0.0, -sigmoid, 0.25, 0.0, -0.25, 0.0], abs=1e-6)
    assert update.loss == pytest.approx(math.log(2.0))


def test_without_their_terms_they_are_fedavg_to_the_last_bit():
    plain = train(FedAvg(), TAUS)
    assert same_bits(train(FedSam(0.0), TAUS), plain)
    assert same_bits(train(Moon(0.0), TAUS), plain)
    assert not same_bits(train(FedSam(0.1), TAUS), plain)
    with_term = train(Moon(1.0), TAUS)
    assert same_bits(with_term[:1], plain[:1])  # nobody has a previous model yet
    assert not same_bits(with_term, plain)


def settings(*more: str) -> Config:
    small = ["wireless.num_devices=8", "wireless.deadline_s=1.0", "wireless.batch_size=10", "run.rounds=4"]
    return override(Config(), [*small, "run.payload=wireless", "learning.device=cpu", *more])


@pytest.mark.parametrize("option", ["learning.method=fedsam sam_rho=0", "learning.method=moon moon_mu=0"])
def test_without_their_terms_runs_are_fedavgs_on_the_clock_too(option):
    method, value = option.split()
    configs = settings("learning.method=fedavg"), settings(method, f"learning.options.{value}")
    plain, same = followed([Member(Simulation(config)) for config in configs])
    assert len(plain) == 4
    assert same == plain


@pytest.mark.parametrize(
    ("more", "cost"),
    [
        (["learning.method=fedsam"], 2.0),
        (["learning.method=moon"], 5.0 / 3.0),
        (["learning.method=fedavgm", "learning.options.inner=fedsam"], 2.0),
    ],
)
def test_time_and_energy_of_their_steps_are_paid(more, cost):
    plain, dear = (Simulation(settings(*each)) for each in (["learning.method=fedavg"], more))
    asked, paid = (each.plan(each.start()) for each in (plain, dear))
    assert paid.problem.tau.tolist() == asked.problem.tau.tolist()
    assert paid.problem.compute_s == pytest.approx(cost * asked.problem.compute_s, rel=1e-14)
    assert paid.compute_energy_j == pytest.approx(cost * asked.compute_energy_j, rel=1e-14)
    assert paid.payload_bits.tolist()[:1] == asked.payload_bits.tolist()[:1]  # nothing more is sent


def test_their_costs_are_those_of_the_method_as_it_is_set():
    assert [each.step_cost for each in (FedSam(), FedSam(0.0), Moon(), Moon(0.0))] == [2.0, 1.0, 5.0 / 3.0, 1.0]
    assert [each.keeps_models for each in (FedSam(), Moon(), Moon(0.0))] == [False, True, False]
    assert FedAvgM(inner="moon").keeps_models is True
