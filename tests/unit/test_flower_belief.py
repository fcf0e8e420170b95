"""Whom the strategy believes: resources, updates and answers that cannot be, on a grid without a network."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from tests.fleet_runs import (
    SIZE,
    SOUND,
    node,
    records,
    run,
    settings,
    told,
    trained,
    update,
)
from tests.fleets import FakeGrid, Node

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
