"""HeteroFL: the models of devices, what they learn and cost, and the mean of what they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from flare.config import Config, LearningConfig, override
from flare.config.options import Options
from flare.flower.settings import refuse_settings
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.job import Update
from flare.learning.methods import FedAvg, FedAvgM, HeteroFl, Round, make_method
from flare.learning.models import make_model
from flare.learning.widths import read_widths
from flare.rng import stream
from flare.rounds.coding import transmit
from flare.rounds.residuals import Part
from flare.simulation import Member, Simulation, drive
from flare.simulation.redraw import Redraw, facts_of
from flare.uplink import arrive, keys
from tests.driving import followed
from tests.method_rounds import same_bits, train
from tests.reducing import reduced
from tests.tiny import Residual, small_cnn, tiny_data

TAUS = [stream(number, "tau").integers(1, 6, 6).astype(float) for number in range(3)]
TINY = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2))
"""Weights: two of the hidden layer and their biases, four of the classes, (unit 0, unit 1) each, and their biases."""


def of_tiny(*rates: float, assign: str = "number") -> HeteroFl:
    return HeteroFl(rates, assign).fitted(read_widths(TINY, (1,)))


def round_of(selected: list[int], *, cpu_hz: list[float] | None = None, devices: int = 4) -> Round:
    speeds = None if cpu_hz is None else np.array(cpu_hz)
    weights = torch.arange(10.0)
    return Round(weights, np.array(selected), np.ones(devices), local_lr=0.5, global_lr=1.0, cpu_hz=speeds)


# ---- by hand


def test_masks_of_a_tiny_network_by_hand() -> None:
    whole, half = of_tiny(1.0, 0.5).rules({}, round_of([0, 1]), None)
    assert (whole.lr, whole.steps, whole.mask, whole.widths) == (0.5, 1, None, None)
    assert half.mask.tolist() == [2.0, 0.0, 2.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert half.widths == (1, 2)


def test_without_the_scaler_a_device_has_its_part_of_the_weights_as_they_are() -> None:
    method = HeteroFl((1.0, 0.5), scaler=False).fitted(read_widths(TINY, (1,)))
    whole, half = method.rules({}, round_of([0, 1]), None)
    assert whole.mask is None
    assert half.mask.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    assert half.widths == (1, 2)


def test_each_weight_moves_by_the_mean_of_those_that_hold_it_by_hand() -> None:
    method, now = of_tiny(1.0, 0.5), round_of([1, 2, 3])  # device 2 has the whole model, 1 and 3 the half
    rules = method.rules({}, now, None)
    held = rules[0].mask != 0.0
    sent = [held * 3.0, torch.full((10,), 6.0), held * 12.0]
    weights, _ = reduced(method, {}, now, rules, [Update(each, 0.0) for each in sent])
    # (3 + 6 + 12) / 3 where three hold it, 6 where one does
    assert (weights - now.weights).tolist() == torch.where(held, 7.0, 6.0).tolist()


def test_a_weight_that_nobody_holds_stays() -> None:
    method, now = of_tiny(1.0, 0.5), round_of([1, 3])
    rules = method.rules({}, now, None)
    held = rules[0].mask != 0.0
    sent = [Update(held * 1.0, 0.0), Update(held * 3.0, 0.0)]
    moved, _ = reduced(method, {}, replace(now, global_lr=0.5), rules, sent)
    assert (moved - now.weights).tolist() == torch.where(held, 1.0, 0.0).tolist()


def test_devices_get_their_rates_by_number_or_by_speed() -> None:
    sizes = of_tiny(1.0, 0.5).sizes(np.array([0, 1, 3, 4]), np.ones(4))
    assert sizes.num_weights.tolist() == [10, 6, 6, 10]
    assert sizes.work.tolist() == [1.0, 0.5, 0.5, 1.0]  # 1 x 2 + 2 x 2 multiply-adds, or half of them
    by_speed = of_tiny(0.5, 1.0, assign="cpu")  # device 1 is silent; the faster half of the others: devices 3 and 0
    sizes = by_speed.sizes(np.array([0, 2, 3, 4]), np.array([3e9, 2e9, 4e9, 1e9]))
    assert sizes.num_weights.tolist() == [10, 6, 10, 6]
    now = round_of([0, 3, 4], cpu_hz=[3e9, 0.0, 2e9, 4e9, 1e9], devices=5)
    assert [rule.mask is None for rule in by_speed.rules({}, now, None)] == [True, True, False]
    three = of_tiny(1.0, 0.5, 0.5, assign="cpu").sizes(np.arange(4), np.array([1.0, 4.0, 3.0, 2.0]))
    assert three.num_weights.tolist() == [6, 10, 10, 6]  # of four devices, two are in the first third


def test_devices_of_one_rate_and_as_many_steps_share_a_rule() -> None:
    rules = of_tiny(1.0, 0.5).rules({}, replace(round_of([0, 1, 2, 3]), tau=np.array([1.0, 1.0, 2.0, 1.0])), None)
    assert [rule.steps for rule in rules] == [1, 1, 2, 1]
    assert rules[1] is rules[3]
    assert rules[0].widths is rules[2].widths is None


# ---- FedAvg where all have the whole model


def test_at_rate_one_it_is_fedavg_to_the_last_bit() -> None:
    plain = train(FedAvg(), TAUS)
    assert same_bits(train(HeteroFl((1.0,)), TAUS), plain)
    assert not same_bits(train(HeteroFl((1.0, 0.5)), TAUS), plain)
    assert not HeteroFl((1.0, 1.0)).needs_widths
    assert HeteroFl().needs_widths


def test_where_all_that_were_selected_have_the_whole_model_it_is_fedavg_to_the_last_bit() -> None:
    method, now = of_tiny(1.0, 0.5), round_of([0, 2])
    sent = [Update(torch.from_numpy(stream(i, "sent").standard_normal(10).astype(np.float32)), 0.0) for i in (0, 2)]
    mine, plain = (reduced(each, {}, now, FedAvg().rules({}, now, None), sent)[0] for each in (method, FedAvg()))
    assert mine.numpy().tobytes() == plain.numpy().tobytes()


# ---- runs


def settings(*more: str) -> Config:
    small = ["wireless.num_devices=8", "wireless.deadline_s=1.0", "wireless.batch_size=10", "run.rounds=3"]
    return override(Config(), [*small, "learning.device=cpu", "learning.model_options.hidden=20", *more])


def hetero(*more: str) -> Config:
    return settings("learning.method=heterofl", *more)


def test_runs_at_rate_one_are_fedavgs_on_the_clock_too() -> None:
    configs = settings("learning.method=fedavg"), hetero("learning.options.rates=[1]")
    plain, same = followed([Member(Simulation(config)) for config in configs])
    assert len(plain) == 3
    assert same == plain


@pytest.mark.parametrize("payload", ["model", "wireless"])
def test_devices_pay_for_their_own_model(payload: str) -> None:
    more = (f"run.payload={payload}", "wireless.payload_bits=1e6")
    plain, mine = (Simulation(each) for each in (settings("learning.method=fedavg", *more), hetero(*more)))
    asked, paid = (each.plan(each.start()) for each in (plain, mine))
    whole = mine.model.num_weights  # 64 x h + h + h x 10 + 10 with h hidden units
    hidden = np.array([20, 10, 5, 3, 2, 20, 10, 5])
    weights = 75 * hidden + 10
    assert weights[0] == whole
    bits = 32 * weights if payload == "model" else 1e6 * weights / whole
    assert paid.problem.payload_bits == pytest.approx(bits, rel=1e-14)
    assert paid.problem.tau.tolist() == asked.problem.tau.tolist()
    assert paid.problem.compute_s == pytest.approx(asked.problem.compute_s * hidden / 20, rel=1e-14)
    assert paid.compute_energy_j == pytest.approx(asked.compute_energy_j * hidden / 20, rel=1e-14)


def test_records_tell_what_was_sent_and_the_whole_model_is_evaluated() -> None:
    member = Member(Simulation(hetero("run.evaluate_every=3", "wireless.downlink=broadcast")))
    (records,) = followed([member])
    simulation = member.simulation
    for record in records:
        sizes = simulation.station.method.sizes(np.arange(8), np.ones(8))
        assert record.sent
        assert record.payload_bits == (32.0 * sizes.num_weights[record.sent]).tolist()
        assert record.downlink_bits == 32.0 * simulation.model.num_weights
    (score,) = ReferenceEngine(simulation.module, simulation.dataset).evaluate([member.state.weights])
    assert (records[-1].test_accuracy, records[-1].test_loss) == (score.accuracy, score.loss)
    assert len(member.state.weights) == simulation.model.num_weights


def test_a_run_learns_with_every_way_of_giving_rates() -> None:
    members = [
        Member(Simulation(hetero(f"learning.options.{option}", "learning.local_lr=0.2", "run.rounds=12")))
        for option in ("assign=number", "assign=cpu", "scaler=false")
    ]
    for records in followed(members):
        assert records[-1].test_accuracy > 0.6


def test_it_goes_into_a_server_optimiser() -> None:
    names = ["learning.method=fedavgm", "learning.options.inner=heterofl"]
    around, alone = Simulation(settings(*names)), Simulation(hetero())
    paid, wanted = (each.plan(each.start()) for each in (around, alone))
    assert paid.problem.payload_bits.tolist() == wanted.problem.payload_bits.tolist()
    assert paid.problem.compute_s.tolist() == wanted.problem.compute_s.tolist()
    assert isinstance(around.station.method, FedAvgM)
    still = Simulation(settings(*names, "learning.options.momentum=0"))
    members = [Member(each) for each in (still, alone)]
    drive(members)
    assert torch.equal(members[0].state.weights, members[1].state.weights)


def test_rounds_are_drawn_again_from_what_the_folder_is_told() -> None:
    for assign in ("number", "cpu"):
        member = Member(Simulation(hetero(f"learning.options.assign={assign}")))
        (records,) = followed([member])
        facts = facts_of(member.simulation)
        redraw = Redraw(member.simulation.config, facts)
        for index, record in enumerate(records):
            again = redraw.round(record).problem
            wanted = member.simulation.plan(replace(member.state, rounds_done=index)).problem
            assert again.payload_bits.tolist() == wanted.payload_bits.tolist()
            assert again.compute_s.tolist() == wanted.compute_s.tolist()
    with pytest.raises(ValueError, match="widths that are not those of its model"):
        Redraw(member.simulation.config, facts | {"num_weights": 7})
    with pytest.raises(ValueError, match="widths of a model"):
        Redraw(member.simulation.config, {name: value for name, value in facts.items() if name != "widths"})


# ---- codecs


@pytest.mark.parametrize("codec", [["qsgd", "uplink.bits=4"], ["topk", "uplink.share=0.2"], ["sign"], ["float16"]])
def test_codecs_code_what_a_device_holds_and_charge_its_bits(codec: list[str]) -> None:
    simulation = Simulation(hetero(f"uplink.codec={codec[0]}", *codec[1:]))
    station, state = simulation.station, simulation.start()
    plan = simulation.plan(state)
    work = simulation.jobs(state, plan, [])
    updates = SequentialEngine(simulation.module, simulation.dataset).train(work.jobs)
    (heard,) = transmit(simulation.updates_out(state, plan, work, updates))
    sizes = station.method.sizes(plan.seen.devices, plan.seen.cpu_hz)
    assert plan.problem.payload_bits.tolist() == [station.codec.bits(n) for n in sizes.num_weights]
    for (device, rule), update in zip(work.rules.items(), updates, strict=True):
        received = heard.vectors[device]
        inside = torch.ones_like(received, dtype=torch.bool) if rule.mask is None else rule.mask != 0.0
        assert not received[~inside].any()
        assert received[inside].any()
        draws = keys(simulation.config.seed, 0, [device], part=Part.UPDATE) if station.codec.draws else None
        alone = arrive(station.codec, update.delta[inside].unsqueeze(0), draws).received[0]
        assert torch.equal(received[inside], alone)
        if station.codec.error_feedback:
            torch.testing.assert_close(heard.kept[device], update.delta - received, rtol=0.0, atol=1e-7)


def test_what_is_held_back_outside_the_device_model_stays_until_it_is_held_again() -> None:
    simulation = Simulation(hetero("uplink.codec=topk", "uplink.share=0.1"))
    state = simulation.start()
    plan = simulation.plan(state)
    work = simulation.jobs(state, plan, [])
    small = next(device for device, rule in work.rules.items() if rule.mask is not None)
    before = torch.full_like(state.weights, 0.25)
    state = replace(state, residuals=state.residuals.after(Part.UPDATE, {small: before}))
    updates = [Update(torch.zeros_like(state.weights), 0.0) for _ in work.rules]
    (heard,) = transmit(simulation.updates_out(state, plan, work, updates))
    inside = work.rules[small].mask != 0.0
    assert heard.kept[small][~inside].tolist() == before[~inside].tolist()
    assert torch.equal(heard.kept[small][inside] + heard.vectors[small][inside], before[inside])
    assert heard.vectors[small][inside].any()


# ---- what is refused


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["learning.model=logistic"], "fewer channels of the hidden layers, and the model has none"),
        (["learning.options.rates=[]"], "'rates' of method 'heterofl' is empty"),
        (["learning.options.rates=[2]"], "must be a list of numbers, each at least 1e-06 and at most 1"),
        (["learning.options.assign=size"], 'must be one of "number", "cpu"'),
        (
            ["uplink.codec=qsgd", "uplink.bits=auto", "scheduling.policy=exact"],
            "the devices of method 'heterofl' send models of different sizes",
        ),
        (
            ["uplink.air=ota"],
            "train models of different sizes: over the air the base station hears the sum",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(more: list[str], words: str) -> None:
    own = [each for each in more if each.startswith("learning.model=")]
    base = override(Config(), ["learning.method=heterofl", *more]) if own else hetero(*more)
    with pytest.raises(ValueError, match=words):
        Simulation(base)


def test_models_that_cannot_be_followed_are_refused_and_chains_of_ones_own_train() -> None:
    data, config = tiny_data(), override(hetero(), ["run.rounds=1", "wireless.num_devices=5"])
    config = replace(config, learning=replace(config.learning, model_options=Options()))
    held = [np.arange(i, 60, 5) for i in range(5)]
    with pytest.raises(ValueError, match=r"the model \(Residual\) is none whose channels are known"):
        Simulation(config, dataset=data, held=held, module=Residual())
    member = Member(Simulation(config, dataset=data, held=held, module=small_cnn()))
    (records,) = followed([member])
    assert records[0].sent


def test_a_fleet_refuses_it_with_the_reason() -> None:
    with pytest.raises(ValueError, match="train a part of the model"):
        refuse_settings(hetero())
    refuse_settings(hetero("learning.options.rates=[1]"))


def test_without_a_model_it_says_what_to_do() -> None:
    method = make_method(LearningConfig(method="heterofl"))
    for ask in (lambda: method.rules({}, round_of([0]), None), lambda: method.sizes(np.arange(2), np.ones(2))):
        with pytest.raises(ValueError, match="goes by the widths of the model"):
            ask()
    with pytest.raises(ValueError, match=r"goes by Round\.cpu_hz"):
        of_tiny(1.0, 0.5, assign="cpu").rules({}, round_of([0]), None)


def test_the_papers_network_has_the_sizes_that_follow_by_hand() -> None:
    widths = read_widths(make_model("mnist-cnn", (1, 28, 28), 10, seed=0), (1, 28, 28))
    sizes = HeteroFl().fitted(widths).sizes(np.arange(5), np.ones(5))
    c1, c2, h = (np.array(each) for each in ([16, 8, 4, 2, 1], [32, 16, 8, 4, 2], [572, 286, 143, 72, 36]))
    assert sizes.num_weights.tolist() == (26 * c1 + (25 * c1 + 1) * c2 + (16 * c2 + 1) * h + 10 * (h + 1)).tolist()
    adds = 576 * 25 * c1 + 64 * 25 * c1 * c2 + 16 * c2 * h + 10 * h
    assert sizes.work == pytest.approx(adds / adds[0], rel=1e-14)
