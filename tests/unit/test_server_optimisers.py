"""FedAvgM, FedAdam and FedYogi, on the quadratic losses of tests/method_rounds.py.

From w = 1 FedAvg moves by d = 0.875 (tests/unit/test_methods.py). From w = 1.875 its devices go

    device 0:  1.875 -> 0.9375                              delta -0.9375
    device 1:  1.875 -> 2.9375 -> 3.46875                   delta  1.59375            d = 0.328125
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch

from flare.config import LearningConfig, Options
from flare.learning.methods import METHODS, AroundMethod, FedAdam, FedAvg, FedAvgM, FedYogi, Flare, make_method
from flare.rng import stream
from tests.method_rounds import NOW, ONE, one_round, same_bits, train
from tests.reducing import reduced

SERVERS = [FedAvgM, FedAdam, FedYogi]
INNER = [name for name, kind in METHODS.items() if not issubclass(kind.make, AroundMethod)]
TAUS = [stream(number, "tau").integers(1, 6, 6).astype(float) for number in range(4)]


def number(state: dict[str, torch.Tensor], name: str) -> float:
    return state[name].item()


def test_two_rounds_of_momentum_by_hand():
    method = FedAvgM(momentum=0.5)
    weights, state, _ = one_round(method)
    assert (weights.item(), number(state, "momentum")) == (1.875, 0.875)
    weights, state, _ = one_round(method, weights=weights, state=state)
    assert number(state, "momentum") == 0.4375 + 0.328125
    assert weights.item() == 1.875 + 0.765625


def test_the_server_rate_of_momentum_is_the_global_rate_by_hand():
    method = FedAvgM(momentum=0.5)
    _, state, _ = one_round(method)
    at = torch.tensor([1.875])
    weights, state, _ = one_round(method, replace(NOW, global_lr=2.0), at, state)
    assert number(state, "momentum") == 0.765625  # of updates, not of steps
    assert weights.item() == 1.875 + 2.0 * 0.765625


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        # v = 0.75 (1/16) + 0.25 (0.875)^2, then 0.75 of that + 0.25 (0.5)^2
        (FedAdam, 0.23828125, 0.2412109375),
        # v = 1/16 + 0.25 (0.875)^2, since d^2 is larger; then + 0.25 (0.5)^2 - twice that, since 0.25 < v
        (FedYogi, 0.25390625, 0.19140625),
    ],
)
def test_two_rounds_of_adaptive_steps_by_hand(kind, first, second):
    method = kind(server_lr=0.5, momentum=0.5, second_momentum=0.75, adaptivity=0.25)
    assert number(method.start(1, 4), "second_moment") == 0.0625
    weights, state, rules = one_round(method)
    assert (number(state, "momentum"), number(state, "second_moment")) == (0.4375, first)
    assert weights.item() == pytest.approx(1.0 + 0.5 * 0.4375 / (sqrt(first) + 0.25), rel=1e-7)
    now = replace(NOW, weights=torch.tensor([2.0]))
    updates = [replace(one, delta=torch.tensor([0.5])) for one in sent_by(rules)]
    weights, state = reduced(method, state, now, rules, updates)
    assert (number(state, "momentum"), number(state, "second_moment")) == (0.21875 + 0.25, second)
    assert weights.item() == pytest.approx(2.0 + 0.5 * 0.46875 / (sqrt(second) + 0.25), rel=1e-7)


def sent_by(rules):
    from flare.learning.job import Update

    return [Update(torch.zeros(1), 0.0) for _ in rules]


@pytest.mark.parametrize("inner", INNER)
def test_without_momentum_it_is_the_inner_method_to_the_last_bit(inner):
    plain = train(make_method(LearningConfig(method=inner)), TAUS)
    assert same_bits(train(FedAvgM(inner=inner, momentum=0.0), TAUS), plain)
    with_momentum = train(FedAvgM(inner=inner, momentum=0.5), TAUS)
    assert same_bits(with_momentum[:1], plain[:1])  # there is none in the first round
    assert not same_bits(with_momentum, plain)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("inner", INNER)
def test_what_the_inner_method_needs_and_costs_is_needed_and_paid(kind, inner):
    method, alone = kind(inner=inner), make_method(LearningConfig(method=inner))
    for part in ("uplink_models", "downlink_models", "needs_gradients", "sends_control", "needs_smoothness"):
        assert getattr(method, part) == getattr(alone, part)
    assert (method.step_cost, method.keeps_models) == (alone.step_cost, alone.keeps_models)
    tau = np.array([1.0, 2.0, 7.0, 7.0])
    assert method.steps(tau).tolist() == alone.steps(tau).tolist()
    assert method.reference_steps(method.start(1, 4), NOW) == alone.reference_steps(alone.start(1, 4), NOW)


def test_options_of_the_inner_method_reach_it():
    options = Options(inner="flare", inner_options=["tau_bar=safe"], momentum=0.5)
    method = make_method(LearningConfig(method="fedavgm", options=options))
    assert isinstance(method, AroundMethod)
    assert method.around == Flare("safe")
    assert method.needs_smoothness
    assert FedAvgM().around == FedAvg()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inner": "fedavgg"}, r"no method 'fedavgg'; did you mean 'fedavg'"),
        ({"inner": "fedyogi"}, r"the inner method is 'fedyogi', which is itself around another; name one"),
        ({"inner": "flare", "inner_options": ["tau_bar"]}, r"inner_options.*'tau_bar' is not of the form name=value"),
        ({"inner": "flare", "inner_options": ["tau_bar=9"]}, r"inner_options.*'tau_bar' of method 'flare' is '9'"),
        ({"inner_options": ["tau_bar=mes"]}, r"inner_options.*'fedavg' has no option 'tau_bar'"),
        ({"momentum": 1.0}, r"'momentum' of method 'fedadam' is 1.0; it must be .*at most 0.9999"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, said):
    with pytest.raises(ValueError, match=said):
        make_method(LearningConfig(method="fedadam", options=Options(**options)))


def test_a_fleet_that_grows_keeps_momentum_and_the_inner_methods_state():
    method = FedAvgM(inner="scaffold")
    _, state, _ = one_round(method)
    grown = method.enrol(state, np.ones(6))
    assert torch.equal(grown["momentum"], state["momentum"])
    assert grown["inner.device_control"][:, 0].tolist() == [1.0, -2.25, 0.0, 0.0, 0.0, 0.0]


def test_vectors_are_where_the_weights_are_and_in_float64():
    for kind in SERVERS:
        _, state, _ = one_round(kind(), weights=ONE)
        assert all(each.dtype == torch.float64 and each.device == ONE.device for each in state.values())
