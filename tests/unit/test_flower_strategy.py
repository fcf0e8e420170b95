"""The strategy on a grid without a network: what it sends, whom it believes, what it writes down."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from torch import nn

from flare.atomic import write_whole
from flare.config import Config, override
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.records import RunFolder
from flare.records.checkpoint import encode
from flare.records.checkpoints import checkpoints, read_checkpoint
from flare.report.curves import summarise
from flare.report.run_groups import group_runs
from flare.report.run_report import read_runs
from flare.report.run_words import remarks_on
from tests import ready_python
from tests.fleets import FakeGrid, Node

SOUND = {"tau": 2.0, "cpu_hz": 3e9, "power_w": 0.2, "gain_db": -95.0}
SHAPES = {"weight": (3, 4), "bias": (3,)}
SIZE = 15
GUIDE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
REAL_TIME = {"wall_s": None, "measured_upload_s": []}  # what no two runs have in common


def settings(*more: str) -> Config:
    common = ["wireless.num_devices=8", "run.rounds=3", "scheduling.policy=all", "data.share_losses=true", "seed=1"]
    return override(Config(), [*common, *more])


def module() -> nn.Module:
    built = nn.Linear(4, 3)
    for parameter in built.parameters():
        nn.init.constant_(parameter, 0.25)
    return built


def update(value: float) -> ArrayRecord:
    return ArrayRecord({name: Array(np.full(shape, value, dtype=np.float32)) for name, shape in SHAPES.items()})


def trained(message: Message, arrays: ArrayRecord, **said: Any) -> Message:
    config = message.content.config_records["config"]
    metrics = {"steps": config["steps"], "loss": 1.0, "work_s": 0.01} | said
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


def told(message: Message, said: dict[str, Any]) -> Message:
    return Message(RecordDict({"resources": MetricRecord(said)}), reply_to=message)


def node(
    *,
    value: float = 1.0,
    said: dict[str, Any] | None = None,
    query: Callable[[Message], list[Message]] | None = None,
    train: Callable[[Message], list[Message]] | None = None,
) -> Node:
    """A node that reports sound resources and an update of `value` everywhere, save where told otherwise."""

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "query":
            return query(message) if query else [told(message, SOUND if said is None else said)]
        return train(message) if train else [trained(message, update(value))]

    return answer


def run(
    nodes: dict[int, Node], config: Config, folder: Path | None = None, *, timeout: float = 60.0, **options: Any
) -> torch.Tensor:
    """The weights at the end, shape (15,)."""
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001, **options)
    result = strategy.start(FakeGrid(nodes), trained_arrays(module()), timeout=timeout)
    return Layout(result.arrays).flatten(result.arrays)


def records(folder: Path) -> list[dict[str, Any]]:
    return RunFolder.open(folder).records()


def restored(folder: Path) -> torch.Tensor:
    """The weights of the newest checkpoint."""
    with RunFolder.open(folder) as opened:
        snapshot = opened.restore()
        assert snapshot is not None
        return snapshot.tensors["weights"]


# What it says when nobody can send


def test_log_and_record_say_why_nobody_was_selected_and_what_would_help(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An update of 68 Mbit on 10 MHz at 1 bit/s for each Hz takes 6.8 s, and there are 0.4 s."""
    said = {name: value for name, value in SOUND.items() if name != "gain_db"} | {"uplink_bps": 1e7}
    config = settings("run.payload=wireless", "wireless.payload_bits=6.8e7", "run.rounds=2")
    run({1: node(said=said), 2: node(said=said)}, config, tmp_path / "run")
    for each in records(tmp_path / "run"):
        assert (each["available"], each["selected"]) == (2, [])
        assert "an update of 68 Mbit takes the quickest device 6.8 s to send on the whole band" in each["why_nobody"]
        assert "the deadline is 400 ms; it would take a deadline of at least 6.82 s" in each["why_nobody"]
        assert f"round {each['round'] + 1}: nobody was selected: {each['why_nobody']}" in caplog.text
        assert each["why_nobody"] in " ".join(GUIDE.split())  # as the guide shows it
    groups, _ = group_runs(read_runs([tmp_path / "run"]))
    told = remarks_on(groups, [summarise(group) for group in groups], [])
    assert "The first of them: an update of 68 Mbit takes the quickest device" in told


def test_where_no_node_is_sound_the_reason_is_that_of_the_nodes(tmp_path: Path) -> None:
    run({1: node(said={"tau": 1.0}), 2: node(said={"tau": 1.0})}, settings("run.rounds=1"), tmp_path / "run")
    (one,) = records(tmp_path / "run")
    assert one["why_nobody"] == (
        "no device gave a sound report of what it can do (cpu_hz is missing); the faults of the round say which"
    )
    run({}, settings("run.rounds=1"), tmp_path / "empty", timeout=0.01)
    (none,) = records(tmp_path / "empty")
    assert none["why_nobody"] == "no device reported what it can do; start some, or wait for them"
    run({1: node()}, settings("run.rounds=1"), tmp_path / "sound")
    assert records(tmp_path / "sound")[0]["why_nobody"] == ""


# What it sends


def test_every_selected_node_gets_its_own_work() -> None:
    nodes = {10 + k: node(said=SOUND | {"tau": float(k + 1)}) for k in range(3)}
    grid = FakeGrid(nodes)
    config = settings("run.rounds=1", "learning.local_lr=0.1", "wireless.deadline_s=5.0")
    FlareStrategy(config).start(grid, trained_arrays(module()), timeout=1, train_config=ConfigRecord({"colour": "red"}))
    sent = {m.metadata.dst_node_id: m.content for m in grid.pushed if m.metadata.message_type == "train"}
    works = {each: dict(content.config_records["config"]) for each, content in sent.items()}
    assert {each: work["steps"] for each, work in works.items()} == {10: 1, 11: 2, 12: 3}
    assert all(work["tau_bar"] == 3.0 and work["colour"] == "red" for work in works.values())
    assert {each: work["lr"] for each, work in works.items()} == pytest.approx({10: 0.3, 11: 0.15, 12: 0.1})
    assert sum(work["bandwidth_hz"] for work in works.values()) == pytest.approx(config.wireless.total_bandwidth_hz)
    assert works[12]["bandwidth_hz"] > works[10]["bandwidth_hz"]  # it computes longer, so that it must send faster
    for content in sent.values():
        assert torch.equal(Layout(update(0)).flatten(content.array_records["arrays"]), torch.full((SIZE,), 0.25))


def test_flowers_own_round_gives_the_same_model() -> None:
    """configure_train and aggregate_train, as Flower's loop calls them."""
    nodes = {1: node(value=1.0), 2: node(value=2.0)}
    grid, strategy, arrays = FakeGrid(nodes), FlareStrategy(settings()), trained_arrays(module())
    for number in (1, 2, 3):
        replies = grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        arrays, metrics = strategy.aggregate_train(number, replies)
        assert list(strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)) == []
        assert strategy.aggregate_evaluate(number, []) is None
        assert metrics is not None
        assert dict(metrics) == {"train_loss": 1.0, "num_devices": 2}
    assert torch.equal(Layout(arrays).flatten(arrays), run(nodes, settings()))


def test_the_mean_is_over_those_that_sent_and_moves_by_the_global_rate() -> None:
    weights = run({1: node(value=1.0), 2: node(value=2.0)}, settings("learning.global_lr=0.5", "run.rounds=2"))
    assert torch.allclose(weights, torch.full((SIZE,), 0.25 + 2 * 0.5 * 1.5))


# Whom it believes

RESOURCES = {
    "nan": (SOUND | {"tau": math.nan}, "tau is nan"),
    "infinite": (SOUND | {"gain_db": math.inf}, "gain_db is inf"),
    "negative": (SOUND | {"cpu_hz": -3e9}, "cpu_hz is -3"),
    "zero": (SOUND | {"power_w": 0.0}, "power_w is 0"),
    "absurd": (SOUND | {"cpu_hz": 1e40}, "cpu_hz is 1e+40"),
    "steps to set the rate of all": (SOUND | {"tau": 101.0}, "tau is 101.0; it must be a number from 1 to 100"),
    "half a step": (SOUND | {"tau": 1.5}, "tau is 1.5"),
    "a list": (SOUND | {"tau": [2.0, 2.0]}, "tau is [2.0, 2.0]"),
    "tau missing": ({k: v for k, v in SOUND.items() if k != "tau"}, "tau is missing"),
    "channel missing": ({k: v for k, v in SOUND.items() if k != "gain_db"}, "gain_db and uplink_bps are both missing"),
    "another device of the cell": (SOUND | {"device": 8.0}, "claims device 8, but wireless.num_devices is 8"),
    "half a device": (SOUND | {"device": 0.5}, "device is 0.5"),
    "nothing": ({}, "tau is missing"),
}


def left_out(
    bad: Node, folder: Path, caplog: pytest.LogCaptureFixture, when: str, why: str, timeout: float = 60.0
) -> None:
    """The round goes on without node 9, which is recorded in each and logged once; the model is that of the others."""
    sound = {1: node(value=0.5), 2: node(value=0.1)}
    config = settings("wireless.deadline_s=5.0")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            weights = run(sound | {9: bad}, config, folder, timeout=timeout)
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    assert torch.equal(weights, run(sound, config))
    recorded = records(folder)
    assert len(recorded) == 3
    for each in recorded:
        (fault,) = each["faults"]
        assert (fault["node"], fault["when"]) == ("9", when)
        assert fault["why"].startswith(why)
        assert len(each["sent"]) == 2
    told_of = {each.getMessage() for each in caplog.records if "node 9" in each.getMessage()}
    assert len(told_of) == 1
    assert why in told_of.pop()


@pytest.mark.parametrize(("said", "why"), RESOURCES.values(), ids=RESOURCES)
def test_a_node_with_impossible_resources_is_left_out(
    said: dict[str, Any], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left_out(node(said=said), tmp_path / "run", caplog, "query", why)


def array_of(values: Any) -> Array:
    return Array(np.array(values))


def with_array(name: str, array: Array) -> ArrayRecord:
    return ArrayRecord({**update(1.0), name: array})


def lying(held: np.ndarray[Any, Any]) -> Array:
    """Says that it is the bias in float32, and holds something else."""
    content = io.BytesIO()
    np.save(content, held)
    return Array("float32", (3,), "numpy.ndarray", content.getvalue())


def npy(header: str) -> bytes:
    """Bytes in NumPy's format with a header of one's own making, as long as those of three numbers."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 12


HEADERS = {
    "overflow": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},)}}\n",
    "no type": "{'descr': (), 'fortran_order': False, 'shape': (3,)}\n",
    "no end": "{'descr': \n",
    "brackets": "(" * 3900 + "\n",
    "minuses": "-" * 4000 + "1\n",
}
UPDATES: dict[str, tuple[ArrayRecord, str]] = {
    "wrong shape": (with_array("bias", array_of(np.ones(4, np.float32))), "array 'bias' has shape (4,)"),
    "flattened": (with_array("weight", array_of(np.ones(12, np.float32))), "array 'weight' has shape (12,)"),
    "wrong dtype": (with_array("bias", array_of(np.ones(3, np.float64))), "array 'bias' is float64"),
    "whole numbers": (with_array("bias", array_of(np.ones(3, np.int64))), "array 'bias' is int64"),
    "nan": (with_array("bias", array_of(np.array([1, math.nan, 1], np.float32))), "its update holds numbers that are"),
    "infinite": (update(math.inf), "its update holds numbers that are not finite"),
    "huge": (update(1e20), "its update has norm 3.87e+20"),
    "rather large": (update(30.0), "its update has norm 116"),
    "a name too many": (with_array("secret", array_of(np.ones(1, np.float32))), "arrays do not match the model"),
    "a name missing": (ArrayRecord({"bias": update(1.0)["bias"]}), "arrays do not match the model: missing weight"),
    "not what it says": (with_array("bias", lying(np.ones(3))), "array 'bias' holds float64 of shape (3,)"),
    "no array": (with_array("bias", Array("float32", (3,), "numpy.ndarray", b"nonsense")), "array 'bias' cannot be"),
    "another coding": (with_array("bias", Array("float32", (3,), "pickle", b"x")), "array 'bias' cannot be read"),
    **{
        f"header {name}": (
            with_array("bias", Array("float32", (3,), "numpy.ndarray", npy(header))),
            "array 'bias' cannot",
        )
        for name, header in HEADERS.items()
    },
    "too many bytes": (with_array("bias", lying(np.ones(2000))), "array 'bias' has 16128 bytes"),
}


@pytest.mark.parametrize(("arrays", "why"), UPDATES.values(), ids=UPDATES)
def test_a_node_with_an_unsound_update_is_left_out(
    arrays: ArrayRecord, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left_out(node(train=lambda message: [trained(message, arrays)]), tmp_path / "run", caplog, "train", why)


@pytest.mark.parametrize("said", [{"loss": 1.7e308}, {"loss": math.nan}, {"work_s": -1.0}], ids=str)
def test_what_would_overflow_a_sum_is_refused(
    said: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = node(train=lambda message: [trained(message, update(1.0), **said)])
    left_out(bad, tmp_path / "run", caplog, "train", f"its {next(iter(said))} is ")


def test_the_norm_that_is_allowed_does_not_grow_with_the_model(tmp_path: Path) -> None:
    def grows(message: Message) -> list[Message]:
        now = message.content.array_records["arrays"]["weight"].numpy()
        return [trained(message, update(2.5 * float(np.abs(now).max())))]

    run({1: node(train=grows)}, settings("run.rounds=12"), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert any("its update has norm" in fault["why"] for record in records for fault in record["faults"])


def test_a_node_that_changes_its_claim_harms_only_itself(tmp_path: Path) -> None:
    asked: list[int] = []

    def moves(message: Message) -> list[Message]:
        asked.append(1)
        return [told(message, SOUND | {"device": 7.0 if len(asked) == 1 else 0.0})]

    for policy in ("all", "proportional-fair"):
        asked.clear()
        folder = tmp_path / policy
        nodes = {9: node(said=SOUND | {"device": 0.0}), 1: node(query=moves)}
        more = ["learning.options.tau_bar=fmas", f"scheduling.policy={policy}", "scheduling.options.num_selected=2"]
        run(nodes, settings(*(more if policy != "all" else more[:2])), folder)
        records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        assert [record["available"] for record in records] == [2, 1, 1]
        blamed = {fault["node"] for record in records for fault in record["faults"]}
        assert blamed == {"1"}  # node 9 had device 0 first


class Pickled:
    """Leaves a mark where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_nothing_that_a_node_sends_is_unpickled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = io.BytesIO()
    np.save(content, np.array([Pickled(tmp_path / "mark")] * 3, dtype=object), allow_pickle=True)
    trap = Array("float32", (3,), "numpy.ndarray", content.getvalue())
    bad = node(train=lambda message: [trained(message, with_array("bias", trap))])
    left_out(bad, tmp_path / "run", caplog, "train", "array 'bias' cannot be read")
    assert not (tmp_path / "mark").exists()


ANSWERS: dict[str, tuple[Callable[[Message], list[Message]], str]] = {
    "an error": (lambda m: [Message(Error(1, "the battery\nis empty"), reply_to=m)], "error 1: the battery is empty"),
    "no answer": (lambda m: [], "no answer within 1 s"),
    "other steps": (lambda m: [trained(m, update(1.0), steps=7)], "it reports 7 steps"),
    "loss nan": (lambda m: [trained(m, update(1.0), loss=math.nan)], "its loss is nan"),
    "loss a list": (lambda m: [trained(m, update(1.0), loss=[1.0])], "its loss is [1.0]"),
    "no records": (lambda m: [Message(RecordDict(), reply_to=m)], "its answer lacks the record"),
}


@pytest.mark.parametrize(("train", "why"), ANSWERS.values(), ids=ANSWERS)
def test_a_node_with_an_unsound_answer_is_left_out(
    train: Callable[[Message], list[Message]], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = 1.0 if why.startswith("no answer") else 60.0
    left_out(node(train=train), tmp_path / "run", caplog, "train", why, timeout)


@pytest.mark.parametrize("when", ["query", "train"])
def test_an_answer_in_the_name_of_another_is_refused(
    when: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def forged(message: Message) -> list[Message]:
        answer = trained(message, update(1.0)) if when == "train" else told(message, SOUND)
        answer.metadata.__dict__["_src_node_id"] = 1
        return [answer]

    bad = node(train=forged) if when == "train" else node(query=forged)
    left_out(bad, tmp_path / "run", caplog, when, "its answer comes in the name of node 1")


def test_an_answer_that_cannot_be_read_costs_no_other_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = FakeGrid.pull_messages

    def pulled(self: FakeGrid, ids: list[str]) -> list[Message]:
        answers = pull(self, ids)
        if any(each.metadata.src_node_id == 9 and each.metadata.message_type == "train" for each in answers):
            raise KeyError("arraychunk_ids")
        return answers

    monkeypatch.setattr(FakeGrid, "pull_messages", pulled)
    left_out(node(), tmp_path / "run", caplog, "train", "its answer cannot be read: KeyError")


def test_the_first_of_two_answers_counts(tmp_path: Path) -> None:
    def twice(message: Message) -> list[Message]:
        return [trained(message, update(0.5)), trained(message, update(2.0))]

    nodes = {1: node(value=0.5), 2: node(train=twice)}
    weights = run(nodes, settings("run.rounds=1"), tmp_path / "run")
    assert torch.equal(weights, torch.full((SIZE,), 0.75))
    (record,) = records(tmp_path / "run")
    assert [(each["node"], each["device"]) for each in record["faults"]] == [("2", 1)]
    assert record["faults"][0]["why"] == "it answered more than once; the first answer counts"
    assert record["sent"] == [0, 1]


def test_a_missing_update_costs_the_round_its_whole_deadline(tmp_path: Path) -> None:
    nodes = {1: node(), 2: node(train=lambda message: [])}
    run(nodes, settings("run.rounds=1", "wireless.deadline_s=4.0"), tmp_path / "run", timeout=1.0)
    (record,) = records(tmp_path / "run")
    assert record["latency_s"] < record["clock_s"] == 4.0


# Who comes and goes


def test_a_run_without_nodes_is_suspended_and_continued_when_they_are_back(tmp_path: Path) -> None:
    config, folder = settings("run.rounds=5"), tmp_path / "run"
    assert torch.equal(run({}, config, folder, patience=2, timeout=0.1), torch.full((SIZE,), 0.25))
    assert RunFolder.open(folder).manifest["status"] == "interrupted"
    assert [each["selected"] for each in records(folder)] == [[], []]
    weights = run({1: node(value=0.5)}, config, folder)
    assert torch.equal(weights, torch.full((SIZE,), 0.25 + 3 * 0.5))
    assert RunFolder.open(folder).manifest["status"] == "finished"
    assert [each["round"] for each in records(folder)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("policy", ["exact", "grouped", "round-robin", "proportional-fair"])
@pytest.mark.parametrize("tau_bar", ["mas", "fmas", "fmes"])
def test_nodes_join_and_leave_while_the_run_goes_on(tmp_path: Path, policy: str, tau_bar: str) -> None:
    """Node 3 joins at the third round; node 1 leaves after the fourth and is back for the seventh."""
    present = {0: [1, 2], 1: [1, 2], 2: [1, 2, 3], 3: [1, 2, 3], 4: [2, 3], 5: [2, 3], 6: [1, 2, 3], 7: [1, 2, 3]}

    class Changing(FakeGrid):
        asked = -1

        def get_node_ids(self) -> list[int]:
            return present[max(0, self.asked)]

    grid = Changing({each: node(value=0.1, said=SOUND | {"tau": float(each)}) for each in (1, 2, 3)})
    config = settings(f"scheduling.policy={policy}", f"learning.options.tau_bar={tau_bar}", "run.rounds=8")
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001)
    evaluate = strategy.config.run.evaluate_every
    assert evaluate == 5
    original = strategy.configure_train

    def counted(*args: Any) -> Any:
        grid.asked += 1
        return original(*args)

    strategy.configure_train = counted  # type: ignore[method-assign]
    strategy.start(grid, trained_arrays(module()), timeout=1)
    recorded = records(tmp_path / "run")
    assert [each["available"] for each in recorded] == [2, 2, 3, 3, 2, 2, 3, 3]
    assert {device for each in recorded for device in each["selected"]} <= {0, 1, 2}
    assert all(lr > 0 and math.isfinite(lr) for each in recorded for lr in each["lr"])
    assert all(each["faults"] == [] for each in recorded)
    assert all(2 not in each["selected"] for each in recorded[:2])
    if tau_bar == "fmas" and policy == "exact":  # what node 3 did first counts, though it was not there at first
        assert 2 in recorded[2]["selected"]
        assert recorded[2]["tau_bar"] == 3.0


def test_a_device_has_one_node_and_a_new_node_takes_over_from_one_that_is_gone(tmp_path: Path) -> None:
    claim = SOUND | {"device": 4.0}
    config = settings("run.rounds=1")
    run({1: node(said=claim), 2: node(said=claim)}, config, tmp_path / "two")
    (record,) = records(tmp_path / "two")
    assert record["selected"] == [4]
    assert [each["why"] for each in record["faults"]] == ["claims device 4, which is node 1"]

    run({1: node(), 2: node(said=SOUND | {"device": 0.0})}, config, tmp_path / "one of them claims")
    assert records(tmp_path / "one of them claims")[0]["faults"] == []

    grid = FakeGrid({1: node(said=claim)})
    strategy = FlareStrategy(settings("run.rounds=2"), folder=tmp_path / "new", poll_s=0.001)
    original = strategy.configure_train

    def replaced(number: int, *args: Any) -> Any:
        if number == 2:
            grid.nodes = {7: node(said=claim), 8: node()}
        return original(number, *args)

    strategy.configure_train = replaced  # type: ignore[method-assign]
    strategy.start(grid, trained_arrays(module()), timeout=1)
    assert [each["selected"] for each in records(tmp_path / "new")] == [[4], [0, 4]]


# What it writes down


class Killed(BaseException):
    """Ends a run as kill -9 would: nothing is put in order."""


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


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    weights = run({1: node()}, settings(), tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert torch.equal(run({}, settings(), tmp_path / "run"), weights)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


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


# What it needs


def test_the_memory_of_a_round_does_not_grow_with_the_answers() -> None:
    """A model of 1 MB; the answers are made as they are fetched, as they come over a network."""
    weights = np.zeros(250_000, dtype=np.float32)

    class Lazy(FakeGrid):
        def push_messages(self, messages: Any) -> list[str]:
            self.later = {f"{each.metadata.message_type}{each.metadata.dst_node_id}": each for each in messages}
            for name, each in self.later.items():
                each.metadata.__dict__["_message_id"] = name
            return list(self.later)

        def pull_messages(self, ids: Any) -> list[Message]:
            message = self.later[ids[0]]
            if message.metadata.message_type == "query":
                return [told(message, SOUND)]
            return [trained(message, ArrayRecord({"w": Array(weights + 1e-3)}))]

    def peak(count: int) -> int:
        grid = Lazy(dict.fromkeys(range(1, count + 1), node()))
        config = settings("run.rounds=1", "wireless.num_devices=100", "wireless.deadline_s=60")
        strategy = FlareStrategy(override(config, ["run.payload=wireless", "wireless.payload_bits=1e4"]))
        tracemalloc.start()
        try:
            strategy.start(grid, ArrayRecord({"w": Array(weights)}), timeout=60)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(12), peak(60)
    assert many < few + 4 * 2**20  # 48 more answers, of which at most four, by chance, were ready at once


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["scheduling.gamma=auto"], 'scheduling.gamma is "auto", which goes by the smoothness'),
        (
            ["learning.options.tau_bar=safe"],
            "method 'flare' with learning.options tau_bar='safe' goes by the smoothness",
        ),
        (["data.share_labels=true"], "data.share_labels is true, but nodes do not tell their labels"),
        (["data.share_norms=true"], "data.share_norms is true, but nodes do not tell the length of a gradient"),
        (
            ["scheduling.policy=power-of-choice", "scheduling.options.losses=batch"],
            "policy 'power-of-choice' asks devices before it selects.*simulate the run",
        ),
        (["scheduling.policy=oort", "data.share_losses=false"], "policy 'oort' needs training losses"),
        (["learning.method=fedprx"], "there is no method 'fedprx'"),
        (["scheduling.policy=ps"], "policy 'ps' needs scheduling.options.num_selected here"),
        (["scheduling.policy=nobody"], "there is no policy 'nobody'"),
    ],
)
def test_settings_that_a_fleet_cannot_have_are_refused_at_once(more: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FlareStrategy(settings(*more))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("max_update_norm", math.nan),
        ("max_update_norm", -1.0),
        ("max_update_norm", 1e200),
        ("max_update_norm", 10**400),
        ("max_steps", 0),
        ("query_timeout_s", 0.0),
        ("query_timeout_s", math.nan),
        ("patience", 0),
        ("poll_s", -1.0),
        ("min_nodes", True),
        ("evaluate_fn", 3),
    ],
)
def test_parameters_out_of_range_are_refused_at_once(parameter: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{parameter} is {value!r:.40}; it must be")):
        FlareStrategy(settings(), **{parameter: value})  # type: ignore[arg-type]


def test_the_greatest_limit_of_a_norm_lets_every_sound_update_pass(tmp_path: Path) -> None:
    nodes = {1: node(), 2: node(value=math.inf)}
    run(nodes, settings("run.rounds=1"), tmp_path / "run", max_update_norm=1e100)
    (one,) = records(tmp_path / "run")
    assert one["sent"] == [0]
    assert [each["why"] for each in one["faults"]] == ["its update holds numbers that are not finite"]


def test_a_start_that_is_not_finite_is_refused() -> None:
    arrays = ArrayRecord({"w": Array(np.full(3, np.nan, dtype=np.float32))})
    with pytest.raises(ValueError, match="initial arrays hold numbers that are not finite"):
        FlareStrategy(settings()).start(FakeGrid({}), arrays)


def test_thousands_of_faults_do_not_end_a_run(tmp_path: Path) -> None:
    def broken(message: Message) -> list[Message]:
        return [Message(Error(code=1, reason="\N{COLLISION SYMBOL}" * 200), reply_to=message)]

    nodes: dict[int, Node] = dict.fromkeys(range(10, 3010), broken)
    run({1: node(), **nodes}, settings("run.rounds=1"), tmp_path / "run")
    (record,) = records(tmp_path / "run")
    assert record["sent"] == [0]
    assert len(record["faults"]) == 1001
    assert record["faults"][-1]["why"] == "and 2000 more"


def test_the_norm_allowed_is_that_of_the_first_start_also_after_a_resume(tmp_path: Path) -> None:
    config = settings("run.rounds=4")
    large = module()
    for parameter in large.parameters():
        nn.init.constant_(parameter, 100.0)
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001, patience=1)
    strategy.start(FakeGrid({}), trained_arrays(large), timeout=0.01)  # nobody came: suspended
    sender = FakeGrid({1: node(value=50.0)})  # a norm of 194: more than 10 times the small start, not the large one
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001)
    strategy.start(sender, trained_arrays(module()), timeout=5)
    assert [each["sent"] for each in records(tmp_path / "run")][1:] == [[0]] * 3


def test_without_flower_the_package_works_and_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'flare']:\n    del sys.modules[name]\n"
        "sys.modules['flwr'] = None\n"
        "import flare, flare.simulation, flare.__main__\n"
        "try:\n    import flare.flower\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = ready_python.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == 'flare.flower needs Flower, which is not installed: pip install "flare-wfl[flower]"'
