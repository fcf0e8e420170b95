"""Each method against numbers worked out by hand, on quadratic losses in one weight.

Device i has the loss (w - b_i)^2 / 2 and so the gradient w - b_i, with b = (0, 4, 10, 10); devices 0 and 1 are selected
and do 1 and 2 steps. From w = 1 at the rate 1/2, plain descent goes

    device 0:  1 -> 1 - 1/2 (1) = 0.5                                            delta -0.5
    device 1:  1 -> 1 - 1/2 (-3) = 2.5 -> 2.5 - 1/2 (-1.5) = 3.25                delta  2.25

Every number below is a sum of a few powers of two, so that float32 holds it exactly.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.config import LearningConfig, Options
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.job import Update
from flare.learning.methods import (
    METHODS,
    FedAvg,
    FedLin,
    FedNova,
    FedProx,
    Flare,
    Method,
    Round,
    Scaffold,
    make_method,
)
from flare.rng import stream
from tests.method_rounds import NOW, OF_ANY_MODEL, ONE, descend, one_round, same_bits, train
from tests.reducing import reduced, resolved
from tests.tiny import tiny_data, tiny_module


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FedAvg(), 1.875),  # 1 + (-0.5 + 2.25) / 2
        (Flare("mas"), 1.625),  # rates 1, 1/2: 1 + (-1 + 2.25) / 2
        (Flare("mes"), 1.5390625),  # rates 3/4, 3/8: deltas -0.75 and 1.125 + 0.703125
        (FedProx(1.0), 1.5),  # device 1 at 2.5: -1.5 + (2.5 - 1) = 0, stays: 1 + (-0.5 + 1.5) / 2
        (FedProx(0.0), 1.875),
        (FedNova(), 1.46875),  # 1 + 1.5 (-0.5 / 1 + 2.25 / 2) / 2
        (Scaffold(), 1.875),  # all controls are zero: FedAvg
        (FedLin(), 1.6796875),  # drifts -2, 2 and rates 3/4, 3/8: deltas 0.75 and 0.375 + 0.234375
    ],
)
def test_a_round_by_hand(method, expected):
    weights, _, _ = one_round(method)
    assert weights.dtype == torch.float32
    assert weights.item() == expected


@pytest.mark.parametrize("name", OF_ANY_MODEL)
def test_the_global_rate_scales_the_step_of_the_base_station(name):
    method = make_method(LearningConfig(method=name))
    plain, _, _ = one_round(method)
    doubled, _, _ = one_round(method, replace(NOW, global_lr=2.0))
    assert doubled.item() - 1.0 == pytest.approx(2.0 * (plain.item() - 1.0), rel=1e-6)


def test_flare_scales_rates_so_that_rate_times_steps_is_the_same_for_all():
    now = Round(ONE, selected=np.arange(4), tau=np.array([1.0, 2.0, 5.0, 8.0]), local_lr=0.1, global_lr=1.0)
    for name, tau_bar in (("mas", 8.0), ("mes", 4.0)):
        rules = Flare(name).rules(Flare(name).start(1, 4), now, None)
        assert [rule.lr * rule.steps for rule in rules] == pytest.approx([0.1 * tau_bar] * 4)
        assert [rule.steps for rule in rules] == [1, 2, 5, 8]


def test_fixed_strategies_go_by_the_first_round_of_the_devices_selected_now():
    later = replace(NOW, selected=np.array([1, 3]), tau=np.array([5.0, 5.0, 5.0, 3.0]))
    for name, first, second in (("fmas", 2.0, 7.0), ("fmes", 1.5, 4.5)):  # first round: 1, 2, then of 2, 7
        method = Flare(name)
        start = method.start(1, 4)
        assert method.reference_steps(start, NOW) == first
        _, state, _ = one_round(method, state=start)
        assert method.reference_steps(state, later) == second
        _, state, rules = one_round(method, later, state=state)
        assert [rule.lr for rule in rules] == pytest.approx([0.5 * second / 5.0, 0.5 * second / 3.0])
        assert method.reference_steps(state, later) == second  # the second round is not the first


def test_scaffold_controls_by_hand():
    # c_0 = 0.5 / (1 * 1/2) = 1, the gradient it saw; c_1 = -2.25 / (2 * 1/2) = -2.25, the mean of -3 and -1.5;
    # c = 2/4 of their mean -0.625.
    _, state, _ = one_round(Scaffold())
    assert state["device_control"][:, 0].tolist() == [1.0, -2.25, 0.0, 0.0]
    assert state["control"].tolist() == [-0.3125]
    rules = Scaffold().rules(state, NOW, None)
    assert [rule.drift.item() for rule in rules] == [-0.3125 - 1.0, -0.3125 + 2.25]


def test_scaffolds_control_stays_the_mean_of_the_devices_controls():
    method, weights = Scaffold(), ONE
    state = method.start(1, 4)
    for number in range(12):
        draw = stream(number, "round")
        selected = np.sort(draw.choice(4, int(draw.integers(1, 5)), replace=False))
        now = Round(weights, selected, draw.integers(1, 6, 4).astype(float), local_lr=0.1, global_lr=1.0)
        weights, state, _ = one_round(method, now, weights, state)
        assert state["control"].item() == pytest.approx(state["device_control"].mean().item(), abs=1e-5)


def test_only_corrected_methods_rest_at_the_minimum_of_the_mean_loss():
    # Devices 0 and 1 alone: the minimum is at 2, where their gradients are 2 and -2.
    now, minimum = replace(NOW, tau=np.array([1.0, 3.0, 1.0, 1.0])), torch.tensor([2.0])
    at_rest = {"control": torch.zeros(1), "device_control": torch.tensor([[2.0], [-2.0], [0.0], [0.0]])}
    assert one_round(FedLin(), now, minimum)[0].item() == 2.0
    assert one_round(Scaffold(), now, minimum, at_rest)[0].item() == 2.0
    assert one_round(FedAvg(), now, minimum)[0].item() > 2.1  # the device with more steps pulls it to itself


def test_fednova_and_flare_agree_on_constant_gradients():
    # With delta_i = -lr steps g_i both move by -lr tau_bar mean(g), whatever the steps; FedAvg by -lr mean(steps g).
    slopes = torch.tensor([3.0, -1.0])

    def move(method: Method) -> float:
        state = method.start(1, 4)
        rules = method.rules(state, NOW, None)
        updates = [
            Update(-rule.lr * rule.steps * slope.reshape(1), 0.0) for rule, slope in zip(rules, slopes, strict=True)
        ]
        return reduced(method, state, NOW, rules, updates)[0].item() - 1.0

    assert move(FedNova()) == pytest.approx(-0.5 * 1.5 * 1.0)
    assert move(Flare("mes")) == pytest.approx(-0.5 * 1.5 * 1.0)
    assert move(FedAvg()) == pytest.approx(-0.5 * (1 * 3.0 + 2 * -1.0) / 2)


@pytest.mark.parametrize("strategy", ["mas", "mes", "fmas", "fmes"])
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_flare_with_equal_steps_is_fedavg_to_the_last_bit(strategy, steps):
    taus = [np.full(6, float(steps))] * 4
    assert same_bits(train(Flare(strategy), taus), train(FedAvg(), taus))


@pytest.mark.parametrize("strategy", ["mas", "mes"])
def test_flares_rate_at_equal_steps_is_the_local_rate_itself(strategy):
    # (0.1 * 3) / 3 is not 0.1 in floating point, 0.1 * (3 / 3) is.
    method = Flare(strategy)
    for local_lr in stream(0, "rates").uniform(0.001, 1.0, 50):
        for steps in (3.0, 7.0, 11.0):
            now = Round(ONE, np.arange(3), np.full(4, steps), float(local_lr), global_lr=1.0)
            assert {rule.lr for rule in method.rules(method.start(1, 4), now, None)} == {float(local_lr)}


def test_fedprox_without_its_term_is_fedavg_to_the_last_bit():
    taus = [stream(number, "tau").integers(1, 6, 6).astype(float) for number in range(4)]
    plain = train(FedAvg(), taus)
    assert same_bits(train(FedProx(0.0), taus), plain)
    assert not same_bits(train(FedProx(0.1), taus), plain)
    assert not same_bits(train(Flare("mas"), taus), plain)


@pytest.mark.parametrize("name", OF_ANY_MODEL)
def test_every_method_brings_the_loss_down_and_repeats_itself(name):
    method = make_method(LearningConfig(method=name))
    taus = [stream(number, "tau").integers(1, 4, 6).astype(float) for number in range(25)]
    history = train(method, taus, local_lr=0.2)
    engine = SequentialEngine(
        tiny_module("mlp"), replace(tiny_data(), test_x=tiny_data().train_x, test_y=tiny_data().train_y)
    )
    first, last = engine.evaluate([history[0], history[-1]])
    assert last.loss < 0.7 * first.loss
    assert same_bits(train(method, taus[:3], local_lr=0.2), history[:3])


@pytest.mark.parametrize("name", OF_ANY_MODEL)
def test_methods_write_to_nothing_they_are_given(name):
    method = make_method(LearningConfig(method=name))
    _, state, _ = one_round(method)
    kept = {key: value.clone() for key, value in state.items()}
    weights = ONE.clone()
    gradient = torch.tensor([-1.0], dtype=torch.float64)
    now = replace(NOW, weights=weights)
    rules = method.rules(state, now, gradient)
    drifts = [None if rule.drift is None else rule.drift.clone() for rule in rules]
    updates = [descend(i, weights, resolved(rule, ONE)) for i, rule in zip(NOW.selected, rules, strict=True)]
    deltas = [update.delta.clone() for update in updates]
    reduced(method, state, now, rules, updates)
    assert torch.equal(weights, ONE)
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[key], kept[key]) for key in kept)
    assert all(torch.equal(update.delta, delta) for update, delta in zip(updates, deltas, strict=True))
    assert gradient.item() == -1.0
    assert all(d is None or torch.equal(rule.drift, d) for rule, d in zip(rules, drifts, strict=True))


def test_extra_traffic_is_declared():
    declared = {name: make_method(LearningConfig(method=name)) for name in METHODS}
    assert {name for name, method in declared.items() if method.uplink_models == 2} == {"scaffold", "fedlin"}
    assert {name for name, method in declared.items() if method.needs_gradients} == {"fedlin"}


def test_the_settings_reach_the_method():
    fedprox = make_method(LearningConfig(method="fedprox", options=Options(prox_mu=0.25)))
    assert fedprox.rules({}, NOW, None)[0].mu == 0.25
    flare = make_method(LearningConfig(method="flare", options=Options(tau_bar="mes")))
    assert flare.reference_steps(flare.start(1, 4), NOW) == 1.5


def test_an_unknown_method_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"no method 'fedprx'; did you mean 'fedprox'.*flare, fedavg, fedavg-fixed"):
        make_method(LearningConfig(method="fedprx"))


@pytest.mark.parametrize("name", OF_ANY_MODEL)
def test_updates_come_in_any_order_and_only_those_that_came_count(name):
    method = make_method(LearningConfig(method=name))
    state = method.start(1, 4)
    now = replace(NOW, selected=np.array([0, 1, 3]))
    rules = method.rules(state, now, ONE.double())
    sent = [Update(torch.tensor([delta]), 0.0) for delta in (0.5, -2.0, 8.0)]
    orders = [[0, 1, 3], [3, 0, 1], [1, 3, 0]]
    moved = []
    for order in orders:
        reducer = method.reducer(state, now)
        for device in order:
            place = now.selected.tolist().index(device)
            reducer.add(device, rules[place], sent[place])
        moved.append(reducer.end()[0].item())
    assert moved == pytest.approx([moved[0]] * 3, rel=1e-6)
    alone = method.reducer(state, now)
    alone.add(1, rules[1], sent[1])
    if name in ("fedadam", "fedyogi"):  # m = -0.2 and v about 0.04: the step is about -server_lr
        assert alone.end()[0].item() == pytest.approx(1.0 - 0.01, abs=1e-4)
        return
    expected = -2.0 if name != "fednova" else -2.0 / rules[1].steps * 2.0  # tau_eff is that of the one which sent
    assert alone.end()[0].item() == pytest.approx(1.0 + expected)


def test_a_fleet_that_grows_keeps_what_is_known_of_the_others():
    _, known, _ = one_round(Scaffold())
    grown = Scaffold().enrol(known, np.ones(8))
    assert grown["device_control"][:, 0].tolist() == [1.0, -2.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert grown["control"].item() == pytest.approx(grown["device_control"].mean().item())
    flare = Flare("fmas")
    _, known, _ = one_round(flare)
    assert flare.enrol(known, np.array([3.0, 3.0, 3.0, 3.0, 9.0]))["first_tau"].tolist() == [1.0, 2.0, 7.0, 7.0, 9.0]


def test_the_state_of_flare_keeps_no_round_before_it_alive():
    flare, state = Flare("mas"), {"first_tau": torch.tensor([1.0, 2.0, 7.0, 7.0], dtype=torch.float64)}
    for _ in range(3):
        state = flare.enrol(state, NOW.tau)
        rules = flare.rules(state, NOW, None)
        _, after = reduced(flare, state, NOW, rules, [Update(ONE, 0.0) for _ in rules])
        assert after["first_tau"] is state["first_tau"]  # and no view of its memory, which would hold on to it
        state = after
