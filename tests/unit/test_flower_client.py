"""What a node says of itself, what it sends back, and how the server reads it."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional

from flare.config import Config, WirelessConfig
from flare.flower import Ask, Work, client_app, from_run_config, load_arrays, own_resources, trained_arrays
from flare.flower.arrays import Layout, difference, own_draws
from flare.flower.device import MAX_STEPS, measure_cpu_hz
from flare.flower.faults import Faults
from flare.flower.fleet import SURE_S, Fleet, Share, Uplink
from flare.flower.mailbox import Mailbox
from flare.flower.nodes import Answer, Terms, read_queries
from flare.flower.resources import MAX_BPS_PER_HZ, Resources, channel_hz, observation, read_resources
from flare.rng import stream
from flare.rounds.history import informed
from flare.scheduling.history import History
from flare.wireless.rate import rate_bps
from tests.fleets import FakeGrid, node_identity
from tests.fleets import node_context as context

__all__ = ["node_identity"]  # a fixture
pytestmark = pytest.mark.usefixtures("node_identity")
ASK = Ask(round=3, deadline_s=2.0, cycles_per_step=1e8, power_w=0.5, bandwidth_hz=1e7, uplink_bps=0.0)


# What a node says


def test_the_node_configuration_counts() -> None:
    said = own_resources(context(tau=7, cpu_hz=1e9, power_dbm=20.0, gain_db=-80.0, partition_id=4), ASK)
    assert said == pytest.approx({"tau": 7.0, "cpu_hz": 1e9, "power_w": 0.1, "gain_db": -80.0, "device": 4.0})


def test_what_the_node_configuration_leaves_out_is_measured() -> None:
    said = own_resources(context(), ASK)
    assert said["cpu_hz"] == pytest.approx(measure_cpu_hz(), rel=0.5)
    assert 1e8 < said["cpu_hz"] < 1e14
    assert said["power_w"] == 0.5
    assert said["uplink_bps"] == 1e7  # 1 bit/s for each Hz
    assert "gain_db" not in said
    assert "device" not in said


def test_the_processor_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = context()
    first = own_resources(here, ASK)["cpu_hz"]
    monkeypatch.setattr("flare.flower.device.measure_cpu_hz", lambda: 1.0 / 0.0)
    assert own_resources(here, ASK)["cpu_hz"] == first


@pytest.mark.parametrize(("cpu_hz", "steps"), [(1e6, 1), (4e8, 4), (1e12, MAX_STEPS)])
def test_a_device_does_the_steps_that_fit_into_half_of_the_deadline(cpu_hz: float, steps: int) -> None:
    assert own_resources(context(cpu_hz=cpu_hz), ASK)["tau"] == steps


def test_the_uplink_is_what_the_server_measured() -> None:
    measured = Ask(**{**ASK.__dict__, "uplink_bps": 3e6})
    assert own_resources(context(), measured)["uplink_bps"] == 3e6
    assert own_resources(context(uplink_bps=2e6), measured)["uplink_bps"] == 2e6


def test_a_node_configuration_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="node-config tau is 'many'; it must be a number"):
        own_resources(context(tau="many"), ASK)


def test_what_a_node_draws_is_what_the_seed_of_its_round_gives_pytorch_and_others_draw_on_as_before() -> None:
    torch.manual_seed(1)
    with own_draws(7, 3, 2):
        drawn = torch.rand(4)
    after = torch.rand(4)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(4))
    torch.manual_seed(int(stream(7, "node", 3, 2).integers(2**63)))
    assert torch.equal(drawn, torch.rand(4))


# What the server makes of it


def test_a_measured_rate_is_that_of_the_whole_band() -> None:
    config = WirelessConfig()
    said = [Resources(1.0, 1e9, 0.1, None, rate, None) for rate in (1e3, 1e7, 2e8, 1e12)]
    band = np.array(config.total_bandwidth_hz)
    rates = rate_bps(band, channel_hz(said, config))
    assert rates[:3] == pytest.approx([1e3, 1e7, 2e8], rel=1e-9)
    assert rates[3] == pytest.approx(MAX_BPS_PER_HZ * config.total_bandwidth_hz)


@pytest.mark.parametrize("clocks_s", [0.0, 3600.0, -86400.0])
def test_a_rate_is_what_remains_when_the_delay_of_a_small_answer_is_taken_off(clocks_s: float) -> None:
    """However far the clocks of node and server are apart."""
    uplink = Uplink()
    assert uplink.rate_bps(0, 1e7) == 0.0
    uplink.asked(0, clocks_s + 3.0)
    uplink.asked(0, clocks_s + 2.0)
    uplink.sent(0, 1e6, clocks_s + 1.5)  # shorter than an answer without a model: tells nothing
    uplink.sent(0, 1e6, math.nan)
    assert uplink.rate_bps(0, 1e7) == 0.0
    uplink.asked(2, clocks_s + 2.5)
    uplink.sent(1, 1e6, clocks_s + 6.0)
    uplink.sent(2, 1e6, clocks_s + 12.0)
    assert uplink.rate_bps(2, 1e7) == 1e6 / 4.0  # the greatest: all else only makes it look slower
    assert uplink.rate_bps(7, 1e7) == 1e6 / 10.0  # the older one no longer counts
    assert uplink.rate_bps(8, 1e7) == 0.0  # and then the node gets another chance
    assert uplink.upload_s(7, clocks_s + 7.0) == pytest.approx(4.5)  # of the first it is forgotten too: clocks drift
    assert uplink.upload_s(8, clocks_s + 7.0) is None


def test_an_upload_too_short_for_flowers_polling_says_only_that_the_uplink_is_not_slower() -> None:
    uplink = Uplink()
    uplink.asked(0, 0.1)
    uplink.sent(0, 1e5, 0.1 + 0.7)  # all of it may have been waiting
    assert uplink.rate_bps(0, 1e7) == 1e7
    uplink.sent(1, 1e8, 0.1 + 1.0)
    assert uplink.rate_bps(1, 1e7) == pytest.approx(1e8)  # not slower than this is more than was assumed
    slow = Uplink()
    slow.asked(0, 0.1)
    slow.sent(0, 1e6, 0.1 + SURE_S)
    assert slow.rate_bps(0, 1e7) == pytest.approx(1e6 / SURE_S)  # it is sure now
    slow.asked(1, 2.1)  # on a busy machine anything may take 2 s
    slow.rates.clear()
    slow.sent(1, 1e6, 0.1 + 3.9)
    assert slow.rate_bps(1, 1e7) == 1e7
    slow.sent(1, 1e6, 0.1 + 4.1)
    assert slow.rate_bps(1, 1e7) == pytest.approx(1e6 / 4.1)


@pytest.mark.parametrize(("asked_s", "sent_s"), [(-8e307, 8e307), (0.1, 8e307), (-8e307, 0.5), (0.1, 2e9)])
def test_times_that_no_clock_can_show_are_not_believed(asked_s: float, sent_s: float) -> None:
    uplink = Uplink()
    uplink.asked(0, asked_s)
    assert uplink.upload_s(0, sent_s) is None
    uplink.sent(0, 1e6, sent_s)
    assert uplink.rate_bps(0, 1e7) == 0.0
    uplink.asked(1, 1.7e9)  # of a node whose clock stands at 1970
    assert uplink.upload_s(1, 1.7e9 + 3.0) == (3.0 if asked_s < 0.0 else None)


def test_what_came_on_a_granted_share_counts_as_what_the_whole_band_would_carry() -> None:
    snr_hz, share_hz, band_hz = 3e6, 1e6, 1e7
    rate = float(rate_bps(np.array([share_hz]), np.array([snr_hz]))[0])
    whole = float(rate_bps(np.array([band_hz]), np.array([snr_hz]))[0])
    uplink = Uplink()
    uplink.asked(4, 0.5)
    uplink.sent(4, 10.0 * rate, 10.5, share=Share(share_hz, band_hz))
    assert uplink.rate_bps(4, 1.0) == pytest.approx(whole, rel=1e-9)


def test_of_a_measurement_that_cannot_be_a_fleet_is_not_restored() -> None:
    sound = {"size": 1, "device_of": {"7": 0}}
    Fleet(8).restore(sound)  # of a version that measured otherwise
    for spoilt in (
        {"delays_s": {"7": [[0, "nan"]]}},
        {"uplink": {"7": [[0, -1.0, True]]}},
        {"uplink": {"7": [[0, 1]]}},
    ):
        with pytest.raises(ValueError, match="what it says of the fleet cannot be read"):
            Fleet(8).restore(sound | spoilt)


def test_a_fleet_comes_back_from_its_numbers() -> None:
    fleet = Fleet(8)
    sound = Resources(1.0, 1e9, 0.1, -90.0, None, None)
    fleet.enrol({2**63: sound, 7: sound}, Faults())
    fleet.uplink(7).asked(3, 1.0)
    fleet.uplink(7).sent(3, 8e6, 3.0)
    other = Fleet(8)
    other.restore(fleet.to_numbers())
    assert other.device_of == {7: 0, 2**63: 1}
    assert (other.size, other.uplink(7)) == (2, fleet.uplink(7))
    assert other.uplink(7).rate_bps(3, 1.0) == 4e6


# What it sends back


def message(kind: str, content: dict[str, Any]) -> Message:
    made = Message(RecordDict(content), 5, kind)
    made.metadata.__dict__["_message_id"] = "m"
    return made


def work(**changes: Any) -> ConfigRecord:
    said = {"round": 2, "device": 1, "steps": 3, "lr": 0.5, "tau_bar": 3.0, "bandwidth_hz": 1e6, "seed": 9}
    return ConfigRecord(said | {"mu": 0.0, "subtract_own_gradient": False} | changes)


def test_a_node_takes_its_steps_at_its_rate_and_sends_the_difference() -> None:
    seen: list[tuple[float, float]] = []

    def train_step(module: nn.Module, batch: float, lr: float) -> float:
        seen.append((batch, lr))
        for parameter in module.parameters():
            parameter.data += lr * batch
        return batch

    def batches(_: Context, asked: Work) -> list[float]:
        assert (asked.round, asked.device, asked.steps, asked.seed) == (2, 1, 3, 9)
        return [1.0, 2.0, 3.0, 4.0]  # the last is one too many

    app = client_app(model=lambda _: nn.Linear(2, 1), batches=batches, train_step=train_step)
    start = trained_arrays(nn.Linear(2, 1))
    answer = app(message("train", {"arrays": start, "config": work(share_loss=True)}), context())
    assert seen == [(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]
    delta = Layout(start).flatten(answer.content.array_records["arrays"])
    assert torch.allclose(delta, torch.full((3,), 3.0))
    metrics = answer.content.metric_records["metrics"]
    assert (metrics["steps"], metrics["loss"]) == (3, 2.0)
    assert metrics["squared_loss"] == pytest.approx((1.0 + 4.0 + 9.0) / 3.0)
    silent = app(message("train", {"arrays": start, "config": work()}), context())
    assert set(silent.content.metric_records["metrics"]) == {"steps", "work_s"}  # unless it is told to


def quadratic_step(module: nn.Module, batch: float, lr: float) -> float:
    """A step on (w - batch)^2 / 2."""
    for parameter in module.parameters():
        parameter.data -= lr * (parameter.data - batch)
    return 0.0


def test_what_a_method_adds_to_the_gradient_is_added_to_any_step_of_the_users() -> None:
    # w0 = 0, lr 1/2, target 1, mu 1, drift 1/4:  w <- w - 1/2 ((w - 1) + 1/4 + w)
    start = ArrayRecord({"weight": Array(np.zeros((1, 1), dtype=np.float32))})
    drift = ArrayRecord({"weight": Array(np.full((1, 1), 0.25, dtype=np.float32))})
    expected = 0.0
    for _ in range(3):
        expected -= 0.5 * ((expected - 1.0) + 0.25 + expected)
    app = client_app(
        model=lambda _: nn.Linear(1, 1, bias=False), batches=lambda *_: [1.0] * 3, train_step=quadratic_step
    )
    content = {"arrays": start, "drift": drift, "config": work(mu=1.0)}
    answer = app(message("train", content), context())
    assert answer.content.array_records["arrays"]["weight"].numpy().item() == pytest.approx(expected, rel=1e-6)


def test_a_drift_is_taken_by_name_whatever_the_order_of_the_servers_arrays() -> None:
    start = {"weight": np.zeros((1, 2), dtype=np.float32), "bias": np.zeros(1, dtype=np.float32)}
    drift = {"weight": np.array([[1.0, 2.0]], dtype=np.float32), "bias": np.array([4.0], dtype=np.float32)}
    app = client_app(model=lambda _: nn.Linear(2, 1), batches=lambda *_: [0.0], train_step=lambda *_: 0.0)
    for order in (["weight", "bias"], ["bias", "weight"]):
        arrays, added = (ArrayRecord({name: Array(each[name]) for name in order}) for each in (start, drift))
        content = {"arrays": arrays, "drift": added, "config": work(steps=1)}
        delta = app(message("train", content), context()).content.array_records["arrays"]
        assert delta["weight"].numpy().tolist() == [[-0.5, -1.0]]
        assert delta["bias"].numpy().tolist() == [-2.0]


def test_an_own_loss_is_what_the_default_step_descends() -> None:
    app = client_app(
        model=lambda _: nn.Linear(1, 1, bias=False),
        batches=lambda *_: [(torch.ones(1, 1), torch.tensor([[3.0]]))],
        loss_of=squared_error,
    )
    start = ArrayRecord({"weight": Array(np.zeros((1, 1), dtype=np.float32))})
    answer = app(message("train", {"arrays": start, "config": work(share_loss=True, steps=1)}), context())
    assert answer.content.array_records["arrays"]["weight"].numpy().item() == pytest.approx(1.5)  # 0.5 * 3
    assert answer.content.metric_records["metrics"]["loss"] == pytest.approx(4.5)


def squared_error(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return 0.5 * ((module(x) - y) ** 2).mean()


def test_a_node_tells_the_gradient_of_all_its_data_and_takes_it_from_the_drift() -> None:
    # f(w) = mean (w - y)^2 / 2 over y = 1, 2, 6 in two uneven batches: at w = 0 the gradient is -3.
    data = [(torch.ones(2, 1), torch.tensor([[1.0], [2.0]])), (torch.ones(1, 1), torch.tensor([[6.0]]))]
    app = client_app(
        model=lambda _: nn.Linear(1, 1, bias=False),
        batches=lambda *_: [0.0],
        train_step=lambda *_: 0.0,
        all_batches=lambda _: data,
        loss_of=squared_error,
    )
    start = ArrayRecord({"weight": Array(np.zeros((1, 1), dtype=np.float32))})
    here = context()
    asked = {"arrays": start, "config": ConfigRecord({"round": 2})}
    answer = app(message("train.gradient", asked), here)
    assert answer.content.array_records["arrays"]["weight"].numpy().item() == pytest.approx(-3.0)
    drift = ArrayRecord({"weight": Array(np.full((1, 1), -1.0, dtype=np.float32))})
    sent = {"arrays": start, "drift": drift, "config": work(steps=1, subtract_own_gradient=True)}
    delta = app(message("train", sent), here).content.array_records["arrays"]["weight"].numpy().item()
    assert delta == pytest.approx(-0.5 * (-1.0 + 3.0))  # the user's step does nothing
    with pytest.raises(ValueError, match="no gradient of its own for this round"):
        app(message("train", sent | {"config": work(round=3, steps=1, subtract_own_gradient=True)}), here)
    for needed in (True, False):
        ask = replace(ASK, needs_samples=needed).record()
        told = app(message("query", {"config": ask}), here).content["resources"]
        assert told.get("num_samples") == (3 if needed else None)


def test_a_node_that_cannot_tell_its_gradient_says_what_to_do() -> None:
    app = client_app(model=lambda _: nn.Linear(1, 1), batches=lambda *_: [])
    asked = {"arrays": trained_arrays(nn.Linear(1, 1)), "config": ConfigRecord({"round": 0})}
    with pytest.raises(ValueError, match="give client_app all_batches"):
        app(message("train.gradient", asked), context())


def labelled(*labels: Any) -> ClientApp:
    """An app whose device holds batches with these labels."""
    held = [(torch.zeros(len(each), 2), each) for each in labels]
    model, batches = (lambda _: nn.Linear(2, 3)), (lambda *_: held)
    return client_app(model=model, batches=batches, all_batches=(lambda _: held) if held else None)


def told_labels(app: ClientApp, *, asked: bool) -> Message:
    return app(message("query", {"config": replace(ASK, needs_labels=asked).record()}), context(gain_db=-80.0))


def test_a_node_tells_how_many_samples_of_each_label_it_holds_where_it_is_asked() -> None:
    app = labelled(torch.tensor([3, 0, 3]), [1, 3])
    answer = told_labels(app, asked=True)
    assert answer.content.metric_records["resources"]["label_counts"] == [1, 1, 0, 3]
    said = read_resources(answer, 20, max_labels=4)
    assert (said.label_counts, said.num_samples) == ((1.0, 1.0, 0.0, 3.0), 5.0)
    assert read_resources(answer, 20).label_counts is None  # a run that keeps labels where they are
    assert "label_counts" not in told_labels(app, asked=False).content.metric_records["resources"]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ((), "give client_app all_batches"),
        ((torch.tensor([0.5, 1.0]),), r"these are \(2,\) of torch.float32: give class numbers"),
        ((functional.one_hot(torch.tensor([0, 1, 2, 2]), 3),), r"one a sample; these are \(4, 3\)"),
        ((["cat", "dog"],), "these cannot be read"),
        ((torch.zeros(0),), "all_batches gave no sample"),
        ((torch.tensor([-1, 1]),), "whole numbers from 0 to 99,999"),
        ((torch.tensor([10**9]),), "whole numbers from 0 to 99,999"),
    ],
)
def test_a_node_that_cannot_tell_its_labels_says_why(labels: tuple[Any, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        told_labels(labelled(*labels), asked=True)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "label_counts is missing"),
        (3.0, "must be a list of up to 1,000, with so many devices"),
        ([], "has 0 numbers; it must be a list of up to 1,000"),
        ([1.0] * 1_001, "has 1,001 numbers; it must be a list of up to 1,000"),
        ([1.0, -1.0], "label_counts is -1.0; it must be a number from 0"),
        ([1.5], "it must be a whole number"),
        ([math.nan], "label_counts is nan"),
        ([0.0, 0.0], "the sum of label_counts is 0.0; it must be a number from 1"),
        ([1e12, 1e12], "the sum of label_counts is 2000000000000.0"),
    ],
)
def test_labels_that_a_device_cannot_hold_are_not_believed(told: Any, why: str) -> None:
    answer = told_labels(labelled([1]), asked=False)
    if told is not None:
        answer.content.metric_records["resources"]["label_counts"] = told
    with pytest.raises(ValueError, match=why):
        read_resources(answer, 20, max_labels=1000)


def test_a_node_goes_through_its_data_once_in_a_run_to_count_them() -> None:
    passes = []

    def all_batches(_: Context) -> list[tuple[Tensor, Tensor]]:
        passes.append(1)
        return [(torch.zeros(3, 2), torch.tensor([0, 1, 1]))]

    app = client_app(model=lambda _: nn.Linear(2, 3), batches=lambda *_: [], all_batches=all_batches)
    here = context(gain_db=-80.0)
    for labels in (False, True, True):
        ask = replace(ASK, needs_samples=True, needs_labels=labels).record()
        told = app(message("query", {"config": ask}), here).content.metric_records["resources"]
        assert told["num_samples"] == 3
        assert told.get("label_counts") == ([1, 2] if labels else None)
    assert len(passes) == 2  # once more for the labels


def test_a_users_own_resources_may_tell_labels_and_tell_them_only_where_they_are_asked() -> None:
    def own(here: Context, ask: Ask) -> dict[str, Any]:
        return {**own_resources(here, ask), "label_counts": np.bincount([0, 0, 1])}

    app = client_app(model=lambda _: nn.Linear(2, 3), batches=lambda *_: [], resources=own)
    assert told_labels(app, asked=True).content.metric_records["resources"]["label_counts"] == [2, 1]
    assert "label_counts" not in told_labels(app, asked=False).content.metric_records["resources"]


def test_labels_of_a_users_own_that_are_no_numbers_are_named() -> None:
    def own(here: Context, ask: Ask) -> dict[str, Any]:
        return {**own_resources(here, ask), "label_counts": "many"}

    app = client_app(model=lambda _: nn.Linear(2, 3), batches=lambda *_: [], resources=own)
    with pytest.raises(ValueError, match="label_counts of resources is 'many', and no list of numbers"):
        told_labels(app, asked=True)


def test_samples_and_labels_that_contradict_each_other_are_not_believed() -> None:
    answer = told_labels(labelled([1]), asked=True)
    answer.content.metric_records["resources"]["num_samples"] = 7.0
    with pytest.raises(ValueError, match="num_samples is 7, and label_counts add up to 1"):
        read_resources(answer, 20, max_labels=1000)


def test_the_more_devices_there_are_the_fewer_labels_each_may_tell_of() -> None:
    answer = told_labels(labelled([2_999]), asked=True)
    for devices, is_believed in ((10, True), (1_000, False)):
        faults = Faults()
        fleet = Fleet(devices)
        said = read_queries(
            [Answer(5, answer, 0.1)], index=0, fleet=fleet, faults=faults, max_steps=20, terms=Terms(labels=True)
        )
        assert (5 in said) == is_believed, faults


def test_labels_of_nodes_that_know_of_different_ones_stand_in_one_table() -> None:
    answers = [told_labels(labelled(each), asked=True) for each in ([0, 0], [2])]
    said = [read_resources(each, 20, max_labels=1000) for each in answers]
    seen = observation({4: said[0], 1: said[1]}, 5, Config().wireless)
    assert seen.label_counts is not None
    assert seen.label_counts.tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    before = History.empty(5, label_counts=np.full((5, 1), 7.0))
    known = informed(before, seen).label_counts
    assert known is not None
    assert known.tolist() == [[7.0, 0.0, 0.0], [0.0, 0.0, 1.0], [7.0, 0.0, 0.0], [7.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    lied = observation({1: replace(said[1], label_counts=(0.0,) * 50 + (1.0,))}, 5, Config().wireless)
    wide = informed(History.empty(5, label_counts=known), lied)
    assert wide.label_counts is not None
    assert wide.label_counts.shape == (5, 51)
    narrow = informed(wide, seen).label_counts
    assert narrow is not None
    assert np.array_equal(narrow, known)  # what nobody holds any more goes
    fewer = observation({2: said[0]}, 5, Config().wireless)
    assert informed(History.empty(5, label_counts=known), fewer).label_counts[2].tolist() == [2.0, 0.0, 0.0]


def test_too_few_batches_are_an_error_that_says_so() -> None:
    app = client_app(model=lambda _: nn.Linear(2, 1), batches=lambda *_: [], train_step=lambda *_: 0.0)
    with pytest.raises(ValueError, match="batches gave 0 of the 3 batches; give one for each step"):
        app(message("train", {"arrays": trained_arrays(nn.Linear(2, 1)), "config": work()}), context())


def test_the_model_of_another_app_is_refused() -> None:
    with pytest.raises(ValueError, match=r"array 'weight' has shape \(1, 2\); it must be \(1, 3\)"):
        load_arrays(nn.Linear(3, 1), trained_arrays(nn.Linear(2, 1)))


def test_arrays_and_vector_are_one_another_again() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    arrays = trained_arrays(module)
    layout = Layout(arrays)
    flat = layout.flatten(arrays)
    assert torch.equal(layout.flatten(layout.arrays(flat)), flat)
    other = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    load_arrays(other, arrays)
    assert not layout.flatten(difference(other, arrays)).any()


def test_an_array_in_the_order_of_columns_is_read_as_it_is_meant() -> None:
    held = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain, columns = (ArrayRecord({"w": Array(each)}) for each in (held, np.asfortranarray(held)))
    assert torch.equal(Layout(plain).flatten(columns), torch.arange(6, dtype=torch.float32))


# How answers are fetched


class Blocking(FakeGrid):
    """Some nodes have announced an answer and never deliver it: fetching it waits."""

    def __init__(self, stuck: set[int], count: int) -> None:
        super().__init__({node: lambda message: [Message(RecordDict(), reply_to=message)] for node in range(count)})
        self.stuck = stuck
        self.given_up = threading.Event()

    def pull_messages(self, message_ids: Any) -> list[Message]:
        (message_id,) = message_ids
        if int(message_id.removeprefix("m")) in self.stuck:
            self.given_up.wait(60)
        return super().pull_messages(message_ids)


def asked(grid: FakeGrid, timeout_s: float) -> tuple[list[int], list[str]]:
    faults = Faults()
    messages = [Message(RecordDict(), node, "query", ttl=60) for node in grid.get_node_ids()]
    answers = Mailbox(0.01, faults).ask(grid, messages, when="query", timeout_s=timeout_s)
    return [each.node for each in answers], [each["node"] for each in faults.take()]


def test_a_node_that_does_not_deliver_holds_up_nobody() -> None:
    grid = Blocking({0, 1, 4}, 9)
    try:
        answered, faulty = asked(grid, 8.0)
    finally:
        grid.given_up.set()
    assert sorted(answered) == [2, 3, 5, 6, 7, 8]
    assert sorted(faulty) == ["0", "1", "4"]


def test_a_broken_connection_is_no_fault_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConnectionError("the SuperLink is gone")

    monkeypatch.setattr(FakeGrid, "pull_messages", broken)
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        asked(FakeGrid({1: lambda message: []}), 5.0)


def test_threads_end_with_the_exchange() -> None:
    before = threading.active_count()
    asked(FakeGrid({node: lambda message: [Message(RecordDict(), reply_to=message)] for node in range(5)}), 10.0)
    for thread in threading.enumerate():
        if thread.name.startswith("flare-fetch"):
            thread.join(5.0)
    assert threading.active_count() <= before


# Settings


def test_settings_come_from_the_run_configuration(tmp_path: Path) -> None:
    said = {
        "wireless.deadline_s": 2,
        "wireless.tau_law": "exponential",
        "scheduling.bound": False,
        "seed": 5,
        "folder": "x",
        "app.key": 1,
    }
    config = from_run_config(said)
    assert (config.wireless.deadline_s, config.scheduling.bound, config.seed) == (2.0, False, 5)
    assert config.learning == Config().learning
    with pytest.raises(ValueError, match=r"unknown key wireless\.deadlin"):
        from_run_config({"wireless.deadlin": 2})
