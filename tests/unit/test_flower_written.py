"""What the strategy writes down, and how a run goes on from that, on a grid without a network."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from torch import nn

from flare.atomic import write_whole
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.records import RunFolder
from flare.records.checkpoint import encode
from flare.records.checkpoints import checkpoints, read_checkpoint
from tests import ready_python
from tests.fleet_runs import (
    REAL_TIME,
    SOUND,
    Killed,
    module,
    node,
    records,
    restored,
    run,
    settings,
    trained,
    update,
)
from tests.fleets import FakeGrid, Node


@pytest.mark.parametrize("policy", ["exact", "proportional-fair"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_killed_run_continues_as_if_nothing_had_happened(tmp_path: Path, rounds: int, policy: str) -> None:
    config = settings("run.rounds=6", f"scheduling.policy={policy}", "learning.options.tau_bar=fmes")

    def nodes(die_at: int | None) -> dict[int, Node]:
        def train(message: Message) -> list[Message]:
            number = message.content.config_records["config"]["round"]
            if number == die_at:
                raise Killed
            return [trained(message, update(0.1 * (1 + number)))]

        return {k: node(said=SOUND | {"tau": float(k)}, train=train) for k in (1, 2, 3)}

    whole = run(nodes(None), config, tmp_path / "whole")
    with pytest.raises(Killed):
        run(nodes(rounds), config, tmp_path / "cut")
    assert len(records(tmp_path / "cut")) == rounds
    assert torch.equal(run(nodes(None), config, tmp_path / "cut"), whole)
    ours, theirs = records(tmp_path / "cut"), records(tmp_path / "whole")
    assert [each | REAL_TIME for each in ours] == [each | REAL_TIME for each in theirs]


class OneLink:
    """A radio with the link of device 0 alone."""

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        pass

    def release(self, device: int) -> None:
        pass

    def serves(self, device: int) -> bool:
        return device == 0


@pytest.mark.parametrize("method", ["flare", "scaffold", "fedbuff"])
@pytest.mark.parametrize("sound", [0, 2])
def test_a_run_continues_after_rounds_in_which_no_newcomer_has_a_link(method: str, sound: int, tmp_path: Path) -> None:
    """After some sound rounds node 1 leaves, and others come that nothing can be planned for: devices 1 and, where
    device 0 is known already, 2."""
    newcomers = {7: node(said=SOUND | {"device": 1.0})} | ({8: node()} if sound else {})

    class Changing(FakeGrid):
        def get_node_ids(self) -> list[int]:
            if len([each for each in self.pushed if each.metadata.message_type == "train"]) >= sound:
                self.nodes = newcomers
            return super().get_node_ids()

    config = settings("run.rounds=8", "wireless.num_devices=2", f"learning.method={method}")

    def start(grid: FakeGrid) -> None:
        strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001, radio=OneLink())
        strategy.start(grid, trained_arrays(module()), timeout=2)

    start(Changing({1: node()}))
    _, path = checkpoints(tmp_path / "run" / "checkpoints")[0]
    snapshot, _ = read_checkpoint(path)
    assert len(snapshot.tensors["history.times_sent"]) == snapshot.numbers["fleet"]["size"] == 1 + len(newcomers)
    start(FakeGrid({1: node(said=SOUND | {"device": 0.0})}))
    assert [each["sent"] for each in records(tmp_path / "run")] == [[0]] * sound + [[]] * 3 + [[0]] * (5 - sound)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"fleet": None}, "what it says of the fleet cannot be read"),
        (
            {"fleet": {"size": 1, "device_of": {"1": 0, "2": 0}, "overhead_s": {}, "rates": {}}},
            "nodes for devices [0, 0]",
        ),
        ({"fleet": {"size": 1, "device_of": {"1": 7}, "overhead_s": {}, "rates": {}}}, "has nodes for devices [7]"),
        ({"fleet": {"size": 0, "device_of": {}, "overhead_s": {}, "rates": {}}}, "its history is of 2 devices"),
        ({"fleet": {"size": math.inf, "device_of": {}}}, "what it says of the fleet cannot be read"),
        ({"fleet": {"size": 2.5, "device_of": {}}}, "2.5 is no number of devices"),
        ({"fleet": {"size": 10**12, "device_of": {}}}, "its fleet is of 1000000000000 devices, its history of 2"),
        ({"fleet": {"size": 2, "device_of": {"1": math.inf}}}, "what it says of the fleet cannot be read"),
        (
            {"fleet": {"size": 2, "device_of": {}, "delays_s": {"1": [[math.inf, 1.0]]}}},
            "what it says of the fleet cannot be read",
        ),
        ({"asked": {"1": math.inf}}, "what it says of the nodes that were asked cannot be read"),
        ({"deadline": {"least_s": 10**400, "times_s": {}}}, "what it says of the deadline cannot be read"),
        ({"deadline": {"least_s": 1e300, "times_s": {}}}, "its deadline goes by times that are not numbers"),
        ({"first_norm": "much"}, "its first_norm is 'much'"),
        ({"first_norm": 10**400}, "its first_norm is 1000000"),
        ({"first_norm": 1e300}, "its first_norm is 1e+300"),
        ({"clock_s": -1.0}, "its clock_s is -1"),
    ],
)
def test_of_an_edited_checkpoint_the_one_before_is_taken(
    tmp_path: Path, change: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    config, nodes = settings(), {1: node(), 2: node(value=2.0)}
    whole = run(nodes, config, tmp_path / "run")
    newest = checkpoints(tmp_path / "run" / "checkpoints")[0][1]
    snapshot, check = read_checkpoint(newest)
    write_whole(newest, *encode(replace(snapshot, numbers=snapshot.numbers | change), check))
    assert torch.equal(run(nodes, config, tmp_path / "run"), whole)
    assert why in caplog.text
    assert newest.with_name(f"{newest.name}.aside-1").exists()


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of a run as a warning."""
    said: list[str] = []
    monkeypatch.setattr("flare.flower.under_way.log.warning", lambda text, *values: said.append(text % values))
    return said


def test_a_finished_run_stays_as_it_is_and_that_is_said(tmp_path: Path, warned: list[str]) -> None:
    weights = run({1: node()}, settings(), tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert warned == []
    assert torch.equal(run({}, settings(), tmp_path / "run"), weights)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before
    (told,) = warned
    assert "has ended after 3 rounds (finished), and nothing is trained: give another folder" in told


def test_that_nobody_ever_sent_is_said_at_the_end(tmp_path: Path, warned: list[str]) -> None:
    run({1: node(train=lambda message: [])}, settings(), tmp_path / "run", timeout=0.2)
    assert [each["sent"] for each in records(tmp_path / "run")] == [[], [], []]
    assert len([told for told in warned if told.startswith("nobody sent in any round, so nothing was learned")]) == 1


def test_a_folder_of_other_settings_or_of_another_model_is_refused(tmp_path: Path) -> None:
    run({1: node()}, settings(), tmp_path / "run")
    with pytest.raises(ValueError, match="run of other settings; give another folder"):
        run({1: node()}, settings("learning.local_lr=0.2"), tmp_path / "run")
    for other in (nn.Linear(2, 2), nn.Linear(14, 1)):  # the second has as many weights
        with pytest.raises(ValueError, match="holds a run of a model with other arrays"):
            FlareStrategy(settings(), folder=tmp_path / "run").start(FakeGrid({}), trained_arrays(other))


def test_runs_of_the_simulator_and_of_flower_do_not_continue_each_other(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "simulated", settings()):
        pass
    with pytest.raises(ValueError, match="is a run on simulation, not on flower; continue it there"):
        run({1: node()}, settings(), tmp_path / "simulated")
    run({1: node()}, settings(), tmp_path / "flower")
    command = [sys.executable, "-m", "flare", "run", "--resume", str(tmp_path / "flower")]
    done = ready_python.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "is a run on flower, not on simulation; continue it there" in " ".join(done.stderr.split())


def test_a_loop_of_flowers_own_writes_down_the_same(tmp_path: Path) -> None:
    config = settings("run.rounds=4", "run.evaluate_every=2", "scheduling.policy=round-robin")
    scores: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        scores.append(number)
        return MetricRecord({"accuracy": 0.1 * number, "loss": 1.0})

    for name in ("ours", "flowers"):
        strategy = FlareStrategy(config, folder=tmp_path / name, evaluate_fn=evaluate, poll_s=0.001)
        grid = FakeGrid({1: node(value=0.5), 2: node(value=0.25), 3: node(said={})})
        loop = strategy.start if name == "ours" else partial(Strategy.start, strategy)
        result = loop(grid, trained_arrays(module()), num_rounds=4, timeout=1)
    assert scores == [2, 4, 2, 4]
    ours, flowers = (records(tmp_path / name) for name in ("ours", "flowers"))
    assert [each | REAL_TIME for each in ours] == [each | REAL_TIME for each in flowers]
    assert len(ours[0]["faults"]) == 1
    assert all(each["wall_s"] > 0.0 for each in flowers)
    assert [RunFolder.open(tmp_path / name).manifest["status"] for name in ("ours", "flowers")] == ["finished"] * 2
    weights = [restored(tmp_path / name) for name in ("ours", "flowers")]
    assert torch.equal(*weights)
    assert torch.equal(Layout(result.arrays).flatten(result.arrays), weights[0])


def test_under_fedlin_a_node_without_a_gradient_is_out_of_the_round(tmp_path: Path) -> None:
    said = SOUND | {"num_samples": 10.0}

    def with_gradient(message: Message) -> list[Message]:
        if message.metadata.message_type == "train.gradient":
            return [Message(RecordDict({"arrays": update(1.0)}), reply_to=message)]
        return node(said=said, value=0.5)(message)

    def without(message: Message) -> list[Message]:
        return [] if message.metadata.message_type == "train.gradient" else node(said=said, value=0.5)(message)

    config = settings("learning.method=fedlin", "run.rounds=1", "scheduling.policy=all")
    run({1: with_gradient, 2: without, 3: node()}, config, tmp_path / "run", timeout=0.5)
    (record,) = records(tmp_path / "run")
    assert record["available"] == 2  # the third does not say how many samples it holds
    assert record["sent"] == [0]
    assert record["lr"][1] is None
    assert {(each["node"], each["why"]) for each in record["faults"]} >= {
        ("2", "no answer within 0.5 s"),
        ("3", "num_samples is missing"),
    }


def test_a_run_ends_when_the_target_is_reached_and_the_report_can_be_made(tmp_path: Path) -> None:
    config = settings("run.rounds=9", "run.evaluate_every=2", "run.target_accuracy=0.8")
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001)
    seen: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(number)
        return MetricRecord({"accuracy": number / 5, "loss": float(Layout(arrays).flatten(arrays).mean())})

    result = strategy.start(FakeGrid({1: node(value=0.5)}), trained_arrays(module()), timeout=1, evaluate_fn=evaluate)
    assert seen == [2, 4]
    assert sorted(result.evaluate_metrics_serverapp) == [2, 4]
    assert [each["test_accuracy"] for each in records(tmp_path / "run")] == [None, 0.4, None, 0.8]
    assert records(tmp_path / "run")[1]["test_loss"] == 1.25
    assert RunFolder.open(tmp_path / "run").manifest["status"] == "reached"
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "flare", "report", str(tmp_path / "run"), "--out", str(page)]
    done = ready_python.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0.8" in page.read_text()


def test_a_record_is_json_that_any_reader_takes(tmp_path: Path) -> None:
    run({2**63 + 5: node(said={}), 1: node()}, settings("run.rounds=1"), tmp_path / "run")
    (line,) = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert json.loads(line)["faults"][0] == {
        "node": str(2**63 + 5),
        "when": "query",
        "why": "tau is missing",
        "device": None,
    }
