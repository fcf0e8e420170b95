"""How fast a node trains: what it measures, what it tells, and what the schedule makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import nn

from flare.config import Config, override
from flare.flower import Ask, FlareStrategy, Work, client_app, own_resources, trained_arrays
from flare.flower import speed as speed_module
from flare.flower.client import WARM_UP_S, WARM_UP_STEPS
from flare.flower.device import MAX_STEPS
from flare.flower.faults import Faults
from flare.flower.fleet import Fleet
from flare.flower.nodes import Answer, Terms, read_queries
from flare.flower.resources import Resources, observation
from flare.flower.speed import ROUNDS_KEPT, Speed, Stopwatch, known_speed, samples_in
from flare.learning.methods import make_method
from flare.records import RunFolder
from flare.rounds import BaseStation
from flare.rounds.scheduled import problem_of
from tests.fleets import FakeGrid, node_identity, running
from tests.fleets import node_context as context

__all__ = ["node_identity"]  # a fixture
pytestmark = pytest.mark.usefixtures("node_identity")
ASK = Ask(round=3, deadline_s=2.0, cycles_per_step=1e8, power_w=0.5, bandwidth_hz=1e7, uplink_bps=0.0, batch_size=40)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(speed_module.time, "perf_counter", made)
    return made


def worked(here: Context, clock: Clock, setup_s: float, steps_s: list[float], *, warm_up: bool = False) -> None:
    """A round of work that takes so long."""
    watch = Stopwatch()
    clock.now += setup_s
    watch.begin_steps()
    for step_s in steps_s:
        clock.now += step_s
        watch.step_done((torch.zeros(8, 2), torch.zeros(8)))
    watch.keep(here, warm_up=warm_up)


# What is measured


def test_a_round_takes_its_set_up_and_its_steps(clock: Clock) -> None:
    here = context()
    assert known_speed(here) is None
    worked(here, clock, 3.0, [1.5, 0.4, 0.6, 0.5])  # the first opens the data: 1 s of it is set-up
    found = known_speed(here)
    assert found is not None
    assert found.step_s == pytest.approx(0.5)
    assert found.samples_per_s == pytest.approx(8 / 0.5)
    assert found.setup_s == pytest.approx(4.0)
    assert found.spread == pytest.approx(math.sqrt((0.01 + 0.01 + 0.0) / 3) / 0.5)


def test_a_warm_up_counts_until_the_first_round_is_over(clock: Clock) -> None:
    here = context()
    worked(here, clock, 9.0, [1.0, 1.0], warm_up=True)
    warm = known_speed(here)
    assert warm is not None
    assert (warm.step_s, warm.setup_s) == pytest.approx((1.0, 9.0))
    worked(here, clock, 2.0, [0.25] * 4)
    found = known_speed(here)
    assert found is not None
    assert (found.step_s, found.setup_s, found.spread) == pytest.approx((0.25, 2.0, 0.0), abs=1e-9)


def test_one_bad_round_is_forgotten_and_a_node_that_became_slow_is_slow_three_rounds_later(clock: Clock) -> None:
    here, told = context(), []
    for step_s in [0.1, 0.1, 5.0, 0.1, 0.1, 0.4, 0.4, 0.4, 0.4]:
        worked(here, clock, 0.0, [step_s] * 3)
        found = known_speed(here)
        assert found is not None
        told.append(found.step_s)
    assert told[2] == pytest.approx(0.1)
    assert told[7] == pytest.approx(0.4)
    assert len(here.state.metric_records["flare.speed"]["step_s"]) == ROUNDS_KEPT


def test_the_spread_is_that_within_rounds_and_between_them(clock: Clock) -> None:
    here = context()
    worked(here, clock, 0.0, [1.0, 0.8, 1.2])  # mean 1, variance 0.04
    worked(here, clock, 0.0, [2.0, 2.0, 2.0])  # mean 2, variance 0
    found = known_speed(here)
    assert found is not None
    assert found.spread == pytest.approx(math.sqrt(0.04 / 2 + 0.25) / 1.5)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((torch.zeros(7, 2), torch.zeros(7)), 7),
        ([torch.zeros(7, 2), torch.zeros(7)], 7),
        ({"pixels": torch.zeros(5, 2), "label": torch.zeros(5)}, 5),
        (torch.zeros(6, 3), 6),
        (3.5, 1),
        (torch.tensor(1.0), 1),
        ((), 1),
        ({}, 1),
    ],
    ids=str,
)
def test_samples_of_a_batch_are_counted_whatever_it_is(batch: Any, samples: int) -> None:
    assert samples_in(batch) == samples


# What the node tells


def step_taking(clock: Clock, seconds: Callable[[], float]) -> Callable[..., float]:
    def step(module: nn.Module, batch: Any, lr: float) -> float:
        clock.now += seconds()
        return 1.0

    return step


def batches(_: Context, work: Work) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(work.steps):
        yield torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)


def query(ask: Ask) -> Message:
    made = Message(RecordDict({"config": ask.record()}), 5, "query")
    made.metadata.__dict__["_message_id"] = "m"
    return made


def test_a_node_measures_before_its_first_round_with_steps_that_change_nothing(clock: Clock) -> None:
    rates, models = [], []

    def step(module: nn.Module, batch: Any, lr: float) -> float:
        rates.append(lr)
        clock.now += 0.1
        return 1.0

    def model(_: Context) -> nn.Module:
        models.append(nn.Linear(2, 3))
        clock.now += 0.2
        return models[-1]

    app, here = client_app(model=model, batches=batches, train_step=step), context()
    said = app(query(ASK), here).content.metric_records["resources"]
    assert rates == [0.0] * WARM_UP_STEPS
    assert said["samples_per_s"] == pytest.approx(40.0)
    assert (said["batch_samples"], said["setup_s"]) == pytest.approx((4.0, 0.2))
    assert said["tau"] == 8.0  # (2 s / 2 - 0.2 s) / 0.1 s
    app(query(ASK), here)
    assert len(models) == 1  # once


def test_before_its_first_round_a_node_counts_with_what_the_steps_of_the_method_will_cost(clock: Clock) -> None:
    """It has taken plain ones; later it measures those of the method."""
    ask = replace(ASK, step_cost=2.0)
    app = client_app(model=lambda _: nn.Linear(2, 3), batches=batches, train_step=step_taking(clock, lambda: 0.1))
    here = context()
    said = app(query(ask), here).content.metric_records["resources"]
    assert (said["samples_per_s"], said["tau"]) == pytest.approx((20.0, 5.0))  # 1 s / 0.2 s
    worked(here, clock, 0.0, [0.3] * 4)
    said = app(query(ask), here).content.metric_records["resources"]
    assert said["samples_per_s"] == pytest.approx(8 / 0.3)
    said = own_resources(context(samples_per_s=200.0), ask)
    assert (said["samples_per_s"], said["tau"]) == (100.0, 2.0)  # 1 s / (40 / 100) s


@pytest.mark.parametrize(("method", "cost"), [("fedavg", 1.0), ("fedsam", 2.0), ("moon", 5 / 3)])
def test_nodes_are_told_what_a_step_of_the_method_costs(method: str, cost: float) -> None:
    config = override(Config(), ["run.rounds=1", f"learning.method={method}"])
    app = client_app(
        model=lambda _: nn.Linear(2, 3), batches=batches, loss_of=lambda module, batch: module(batch[0]).sum()
    )
    grid = FakeGrid({1: running(app, 1, {"partition-id": 0, "gain-db": -80.0})})
    FlareStrategy(config, poll_s=0.001).start(grid, trained_arrays(nn.Linear(2, 3)))
    told = grid.pushed[0].content.config_records["config"]
    assert told["step_cost"] == pytest.approx(cost)
    plain = config.wireless.cycles_per_sample * config.wireless.batch_size
    assert told["cycles_per_step"] == pytest.approx(cost * plain)


@pytest.mark.parametrize(("own", "cost"), [(False, 5 / 3), (True, 8 / 3)])
def test_a_plain_first_round_of_a_method_that_compares_counts_as_what_later_ones_will_take(
    own: bool, cost: float, clock: Clock
) -> None:
    """The passes for the term come beside a step of the user's, and in one with the default one."""

    def loss_of(module: nn.Module, batch: Any) -> torch.Tensor:
        clock.now += 0.1
        loss: torch.Tensor = module(batch[0]).sum()
        return loss

    def own_step(module: nn.Module, batch: Any, lr: float) -> float:
        clock.now += 0.1
        return 0.0

    app, here = (
        client_app(
            model=lambda _: nn.Linear(2, 3), batches=batches, loss_of=loss_of, train_step=own_step if own else None
        ),
        context(),
    )
    said = app(query(replace(ASK, step_cost=5 / 3, keeps_model=True)), here).content.metric_records["resources"]
    assert said["samples_per_s"] == pytest.approx(4 / 0.1 / cost)
    config = {"round": 0, "device": 0, "steps": 3, "lr": 0.1, "mu": 0.0, "subtract_own_gradient": False}
    config |= {"tau_bar": 3.0, "bandwidth_hz": 1e6, "seed": 1, "keeps_model": True, "step_cost": 5 / 3}
    arrays = trained_arrays(nn.Linear(2, 3))
    made = Message(RecordDict({"arrays": arrays, "config": ConfigRecord(config)}), 5, "train")
    made.metadata.__dict__["_message_id"] = "m"
    app(made, here)
    said = app(query(replace(ASK, step_cost=5 / 3, keeps_model=True)), here).content.metric_records["resources"]
    assert said["samples_per_s"] == pytest.approx(4 / 0.1 / cost)  # as before its first round
    assert said["speed_spread"] == pytest.approx(0.0, abs=1e-6)


def test_a_spread_is_scaled_with_the_time_of_a_step(clock: Clock) -> None:
    here = context()
    watch = Stopwatch()
    watch.begin_steps()
    for step_s in (0.1, 0.1, 0.3):
        clock.now += step_s
        watch.step_done((torch.zeros(8, 2),))
    watch.keep(here, step_cost=2.0)
    found = known_speed(here)
    assert found is not None
    assert (found.step_s, found.spread) == pytest.approx((0.4, 0.5))


def test_a_slow_node_stops_its_warm_up_early(clock: Clock) -> None:
    app = client_app(
        model=lambda _: nn.Linear(2, 3), batches=batches, train_step=step_taking(clock, lambda: 2.0 * WARM_UP_S)
    )
    before = clock.now
    said = app(query(ASK), context()).content.metric_records["resources"]
    assert clock.now - before == 2.0 * WARM_UP_S  # one step
    assert said["samples_per_s"] == pytest.approx(4.0 / (2.0 * WARM_UP_S))
    assert said["tau"] == 1.0


def test_a_node_that_cannot_warm_up_answers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Context, work: Work) -> Any:
        raise RuntimeError("the disk is not mounted yet")

    app = client_app(model=lambda _: nn.Linear(2, 3), batches=broken)
    said = app(query(ASK), context()).content.metric_records["resources"]
    assert "samples_per_s" not in said
    assert "the disk is not mounted yet" in caplog.text


def test_the_node_configuration_may_fix_speed_and_share() -> None:
    def never() -> Speed | None:
        raise AssertionError("nothing is to be measured")

    ask = replace(ASK, speed=never)
    said = own_resources(context(samples_per_s=200.0), ask)
    assert (said["samples_per_s"], said["batch_samples"], said["tau"]) == (200.0, 40.0, 5.0)  # 1 s / (40 / 200) s
    assert own_resources(context(samples_per_s=200.0, compute_share=0.9), ask)["tau"] == 9.0
    assert own_resources(context(samples_per_s=200.0, tau=3), ask)["tau"] == 3.0
    assert "samples_per_s" not in own_resources(context(cpu_hz=1e9), ask)  # then the cycles of the settings count


@pytest.mark.parametrize("speed", [Speed(1e9, 0.0, 4.0, 0.0), Speed(4.0, 0.0, 4.0, 50.0), Speed(4.0, 9.0, 4.0, 0.0)])
def test_steps_are_at_least_one_and_not_more_than_the_most(speed: Speed) -> None:
    tau = own_resources(context(), replace(ASK, speed=lambda: speed))["tau"]
    assert tau == (MAX_STEPS if speed.samples_per_s == 1e9 else 1.0)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"samples_per_s": 0.0}, "samples-per-s is 0; it must be greater than 0"),
        ({"compute_share": 1.5}, "compute-share is 1.5; it must be greater than 0, and 1 at most"),
        ({"samples_per_s": "fast"}, "samples-per-s is 'fast'; it must be a number"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        own_resources(context(**config), ASK)


# What the server makes of it


def test_a_speed_that_is_told_in_part_is_a_fault() -> None:
    answer = Message(RecordDict({"config": ASK.record()}), 5, "query")
    answer.metadata.__dict__["_message_id"] = "m"
    said = {"tau": 2.0, "cpu_hz": 1e9, "power_w": 0.1, "gain_db": -90.0, "samples_per_s": 5.0, "speed_spread": 0.0}
    told = Message(RecordDict({"resources": MetricRecord(said)}), reply_to=answer)
    faults = Faults()
    found = read_queries([Answer(5, told, 0.1)], index=0, fleet=Fleet(3), faults=faults, max_steps=9, terms=Terms())
    assert found == {}
    assert faults.take()[0]["why"] == "samples_per_s is there, and batch_samples is missing; both are needed"


def test_a_measured_speed_takes_the_place_of_cycles() -> None:
    config = override(Config(), ["wireless.cycles_per_sample=1e6", "wireless.batch_size=10", "learning.method=fedlin"])
    station = BaseStation(config, make_method(config.learning), 10)
    plain = Resources(4.0, 2e9, 0.1, -90.0, None, None, num_samples=30.0)
    fast = replace(plain, speed=Speed(20.0, 0.1, batch_samples=5.0, setup_s=0.7))
    problem, energy_j = problem_of(station, observation({0: plain, 1: fast}, 2, config.wireless))
    assert problem.compute_s == pytest.approx([(4 * 10 + 30) * 1e6 / 2e9, 0.7 + (4 * 5 + 30) / 20.0])
    assert energy_j == pytest.approx(config.wireless.capacitance * problem.compute_s * (2e9) ** 3)
    alone, _ = problem_of(station, observation({0: plain}, 2, config.wireless))
    assert alone.compute_s[0] == problem.compute_s[0]


def test_three_rounds_later_the_plan_takes_as_long_as_the_nodes_did(clock: Clock, tmp_path: Any) -> None:
    """Three nodes, two of them slow, one of which becomes slower still: planned against measured."""
    begun = {1: 0, 2: 0, 3: 0}

    def node(number: int, step_s: float) -> Any:
        def seconds() -> float:
            begun[number] += 1
            return step_s * (3.0 if number == 3 and begun[number] > WARM_UP_STEPS else 1.0)

        app = client_app(model=lambda _: nn.Linear(2, 3), batches=batches, train_step=step_taking(clock, seconds))
        return running(app, number, {"partition-id": number - 1, "gain-db": -80.0})

    config = override(Config(), ["run.rounds=5", "scheduling.policy=all", "wireless.deadline_s=20", "seed=1"])
    grid = FakeGrid({1: node(1, 0.01), 2: node(2, 0.3), 3: node(3, 0.4)})
    FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001).start(grid, trained_arrays(nn.Linear(2, 3)))
    recorded = RunFolder.open(tmp_path / "run").records()
    assert all(each["sent"] == [0, 1, 2] for each in recorded)
    for each in recorded[3:]:
        assert each["compute_s"] == pytest.approx(each["measured_compute_s"], rel=0.01)
    first = recorded[0]
    assert first["compute_s"][2] == pytest.approx(first["measured_compute_s"][2] / 3.0, rel=0.1)
    assert recorded[4]["samples_per_s"] == pytest.approx([400.0, 4 / 0.3, 4 / 1.2])
    assert recorded[4]["speed_spread"] == pytest.approx([0.0] * 3, abs=1e-6)
    assert [each["tau"][2] for each in recorded] == [20.0, 8.0, 8.0, 8.0, 8.0]  # what fits into 10 s
    assert np.isfinite(recorded[4]["objective"])
