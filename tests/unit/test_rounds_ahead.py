"""Rounds that are scheduled before their time are the same rounds, and fail in theirs."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import flare
from flare.config import Config
from flare.learning.batches import draw_batches
from flare.learning.engine import SequentialEngine
from flare.learning.engine.base import Launched
from flare.learning.job import Job, Update
from flare.rounds import RunState
from flare.rounds.scheduled import goes_by_the_cell
from flare.scheduling import POLICIES
from flare.simulation import Member, RoundRecord, Simulation, drive, plan_rounds
from flare.simulation import rounds_ahead as module
from flare.simulation.rounds_ahead import RoundsAhead
from flare.uplink.air.schemes import LeastError
from flare.uplink.plain import Float16
from flare.wireless.cell import Cell
from tests.driving import followed
from tests.plugin_files import registries_as_they_were
from tests.unit.test_simulation import small


@pytest.fixture
def own_policies() -> Iterator[None]:
    with registries_as_they_were():
        yield


def simulated(config: Config) -> list[RoundRecord]:
    (records,) = followed([Member(Simulation(config))])
    return records


@pytest.mark.parametrize(
    "settings",
    [
        ("scheduling.policy=random", "wireless.fading=rayleigh"),
        ("scheduling.policy=exact", "uplink.codec=qsgd", "uplink.bits=auto", "run.payload=model"),
        ("scheduling.policy=greedy", "uplink.air=ota", "run.payload=model"),
        ("scheduling.policy=tran",),
        ("scheduling.policy=ps", "learning.method=heterofl", "learning.model=mlp"),
    ],
)
def test_a_round_is_the_same_whenever_it_is_scheduled(
    monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    config = small(*settings, "run.rounds=6", "wireless.cpu_every_round=true")
    monkeypatch.setattr(module, "_MAX_S", math.inf)
    at_once = simulated(config)
    monkeypatch.setattr(module, "MAX_ROUNDS", 1)
    assert at_once == simulated(config)


@pytest.mark.parametrize("method", ["flare", "fedpaq", "fedlin", "fedbuff"])
@pytest.mark.parametrize("policy", ["exact", "round-robin"])
def test_a_round_is_the_same_where_it_is_scheduled_while_a_gpu_is_at_work(
    monkeypatch: pytest.MonkeyPatch, policy: str, method: str
) -> None:
    coded = ("uplink.codec=qsgd", "run.payload=model") if method == "fedpaq" else ()
    named = (f"scheduling.policy={policy}", f"learning.method={method}")
    config = small(*named, "wireless.fading=rayleigh", "run.rounds=6", *coded)
    wanted, launch, look_ahead, asked = simulated(config), SequentialEngine.launch, Simulation.look_ahead, []

    def busy(engine: SequentialEngine, jobs: Sequence[Job]) -> Launched:
        return replace(launch(engine, jobs), under_way=True)

    def counted(simulation: Simulation, state: RunState) -> None:
        asked.append(look_ahead(simulation, state))

    monkeypatch.setattr(SequentialEngine, "launch", busy)
    monkeypatch.setattr(Simulation, "look_ahead", counted)
    monkeypatch.setattr(module, "MAX_ROUNDS", 1)
    assert simulated(config) == wanted
    assert len(asked) == 6


def test_batches_are_drawn_while_a_gpu_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, draw, drawn, idle = SequentialEngine.launch, draw_batches, [], [True]

    def busy(engine: SequentialEngine, jobs: Sequence[Job]) -> Launched:
        launched = launch(engine, jobs)

        def read() -> list[Update]:
            idle[0] = True
            return launched.read()

        idle[0] = False
        return Launched(read, under_way=True)

    def counted(*given: Any, **named: Any) -> Any:
        drawn.append(idle[0])
        return draw(*given, **named)

    monkeypatch.setattr(SequentialEngine, "launch", busy)
    monkeypatch.setattr("flare.simulation.run.draw_batches", counted)
    records = simulated(small("scheduling.policy=exact", "run.rounds=6"))
    sent = [len(record.selected) for record in records]
    assert drawn == [True] * sent[0] + [False] * sum(sent[1:])
    drawn.clear()
    monkeypatch.setattr("flare.simulation.run._FEW_SAMPLES", 0)  # for the next round alone, then
    assert simulated(small("scheduling.policy=exact", "run.rounds=6")) == records
    assert drawn == [True] * sent[0] + [False] * sum(sent[1:])
    drawn.clear()
    monkeypatch.setattr("flare.simulation.run._MAX_DRAWN_AHEAD", 0)
    assert [record.loss for record in simulated(small("scheduling.policy=exact", "run.rounds=6"))] == [
        record.loss for record in records
    ]
    assert drawn == [True] * sum(sent)


def test_batches_are_drawn_with_the_rounds_that_are_prepared_but_not_where_nothing_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, drawn, config = draw_batches, [], small("scheduling.policy=exact", "run.rounds=6")

    def counted(*given: Any, **named: Any) -> Any:
        drawn[-1] += 1
        return draw(*given, **named)

    monkeypatch.setattr(module, "_MAX_S", math.inf)
    monkeypatch.setattr(module, "_turns", itertools.count(2))
    monkeypatch.setattr("flare.simulation.run.draw_batches", counted)
    drawn.append(0)
    sent: list[int] = []

    def after(_: Member, record: RoundRecord) -> None:
        sent.append(len(record.selected))
        drawn.append(0)

    drive([Member(Simulation(config))], callback=after)
    assert drawn[:6] == [sent[0], sum(sent[1:4]), 0, 0, sum(sent[4:]), 0]
    drawn[:] = [0]
    plan_rounds(Member(Simulation(config)))
    assert drawn == [0]


def test_runs_do_not_all_need_new_rounds_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_S", math.inf)
    counts = []
    for runs in [RoundsAhead(1000) for _ in range(module.MAX_ROUNDS)]:
        made: list[int] = []

        def make(numbers: Sequence[int], made: list[int] = made) -> Sequence[int]:
            made.extend(numbers)
            return numbers

        runs.prepare(0, make)
        runs.prepare(1, make)
        counts.append(len(made) - 1)
    assert sorted(counts) == list(range(1, module.MAX_ROUNDS + 1))


def test_only_policies_that_go_by_the_cell_alone_are_asked_before_their_time() -> None:
    def before_its_time(name: str) -> bool:
        shares = [f"data.share_{what}=true" for what in ("losses", "norms", "gradients", "labels")]
        simulation = Simulation(small(f"scheduling.policy={name}", *shares, "run.payload=model"))
        return goes_by_the_cell(simulation.station)

    asked_before = {name for name in POLICIES if before_its_time(name)}
    assert {"exact", "greedy", "random", "ps", "cp", "fedcs", "tran"} <= asked_before
    assert not asked_before & {"round-robin", "oort", "xu", "luo", "hu", "fedcgd", "power-of-choice", "divfl"}
    assert not asked_before & {name for name, each in POLICIES.items() if each.learns or each.remembers}


@pytest.mark.usefixtures("own_policies")
def test_code_of_a_users_own_is_not_asked_before_its_time() -> None:
    flare.codec("my-codec")(type("Mine", (Float16,), {"__doc__": "As float16."}))
    flare.air_scheme("my-scheme")(type("Mine", (LeastError,), {"__doc__": "As mse."}))
    assert goes_by_the_cell(Simulation(small("uplink.codec=float16", "run.payload=model")).station)
    assert not goes_by_the_cell(Simulation(small("uplink.codec=my-codec", "run.payload=model")).station)
    on_air = ("uplink.air=ota", "run.payload=model")
    assert goes_by_the_cell(Simulation(small(*on_air)).station)
    assert not goes_by_the_cell(Simulation(small(*on_air, "uplink.air_scheme=my-scheme")).station)


def test_what_goes_wrong_in_a_later_round_stops_the_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_S", math.inf)
    drawn, draw = [], Cell.draw

    def fails_in_the_fifth(cell: Cell, index: int) -> Any:
        drawn.append(index)
        if index == 4:
            raise ValueError("the fifth round")
        return draw(cell, index)

    simulation = Simulation(small("scheduling.policy=greedy", "run.rounds=9"))
    monkeypatch.setattr(Cell, "draw", fails_in_the_fifth)
    seen: list[int] = []
    with pytest.raises(ValueError, match="the fifth round"):
        drive([Member(simulation)], callback=lambda _, record: seen.append(record.round))
    assert seen == [0, 1, 2, 3]
    assert drawn.count(4) > 1  # also before its time


def test_rounds_that_take_long_are_made_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make(numbers: Sequence[int]) -> Sequence[int]:
        made.extend(numbers)
        return numbers

    monkeypatch.setattr(module, "_MAX_S", math.inf)
    monkeypatch.setattr(module, "_turns", itertools.count(3))
    ahead = RoundsAhead(40)
    assert ahead.round(2, make) == 2
    assert made == [2]
    made.clear()
    assert ahead.round(3, make) == 3
    assert made == list(range(3, 3 + 4))
    made.clear()
    assert ahead.round(7, make) == 7
    assert made == list(range(7, 7 + module.MAX_ROUNDS))
    ahead.round(18, make)
    assert len(made) == module.MAX_ROUNDS
    ahead.round(39, make)
    assert made[module.MAX_ROUNDS :] == [39]
    ahead.prepare(20, make, alone=True)
    assert made[module.MAX_ROUNDS + 1 :] == [20]
    made.pop()
    monkeypatch.setattr(module, "_MAX_S", -1.0)
    ahead.round(0, make)
    assert made[module.MAX_ROUNDS + 1 :] == [0]


def test_a_simulation_is_gone_with_its_last_name() -> None:
    gc.disable()
    try:
        simulation = Simulation(small("scheduling.policy=random"))
        simulation.plan(simulation.start())
        there = weakref.ref(simulation)
        del simulation
        assert there() is None
    finally:
        gc.enable()
