"""Nodes that fail and lie, and a server that is killed: real processes on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.records import RunFolder
from flare.records.checkpoints import checkpoints
from tests.flower_processes import ROOT, World, last_weights, wait_until, world
from tests.integration.kill_helper import num_lines

APP = ROOT / "tests" / "hostile_fleet"
TIMEOUT_S = 15.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, ready=True) as made:
        yield made


def nodes(place: World, does: Mapping[int, str]) -> None:
    """Start nodes, given what each device does."""
    words = [word for device, one in does.items() for word in (str(device), one)]
    command = [sys.executable, str(APP / "node.py"), f"127.0.0.1:{place.port('superlink')}", *words]
    place.start(f"nodes-from-{words[0]}", command)


def start_run(place: World, *settings: str) -> Path:
    """A server, and a run on it that goes on in the background; its folder."""
    place.superlink("--insecure")
    place.connect(address=f"127.0.0.1:{place.port('superlink')}", insecure=True)
    folder = place.folder / "run"
    timeout = () if any(each.startswith("timeout-s") for each in settings) else (f"timeout-s={TIMEOUT_S}",)
    settings = (f"folder='{folder}'", *timeout, *settings)
    command = ["flwr", "run", str(APP), "fleet", "--stream", "--run-config", " ".join(settings)]
    place.start("run", command)
    return folder


def rounds(folder: Path) -> int:
    return num_lines(folder / "rounds.jsonl")


def ended(folder: Path) -> bool:
    """Whether the run is over; a folder that is just being made has a manifest and no records yet."""
    return (folder / "rounds.jsonl").exists() and RunFolder.open(folder).manifest["status"] != "running"


def expected(recorded: Sequence[dict[str, Any]]) -> float:
    """Every weight, from who is said to have sent in each round: the mean of 0.01 (d + 1) over them."""
    return sum(0.01 * (1 + np.mean(each["sent"])) for each in recorded if each["sent"])


@pytest.mark.waits(seconds=90)
def test_the_sound_nodes_train_on_whatever_the_others_do(place: World) -> None:
    does = [
        *("is sound", "is sound", "lies", "poisons", "is late", "dies asked", "dies training", "dies later"),
        *("answers twice", "never delivers", "is unreadable"),
    ]
    folder = start_run(place, f"min-nodes={len(does)}", "patience=1")
    nodes(place, dict(enumerate(does)))
    wait_until(lambda: rounds(folder) >= 3, 120, "three rounds are over")
    newcomer = len(does)
    nodes(place, {newcomer: "is sound"})
    back = {4, newcomer}  # who was late, and who came late
    wait_until(
        lambda: rounds(folder) >= 6 and back <= set(RunFolder.open(folder).records()[-1]["sent"]), 120, "all are in"
    )
    last = rounds(folder) - 1  # later rounds may be cut short by what follows
    place.kill(place.alive("node.py"))
    wait_until(lambda: ended(folder), 60, "the run is suspended")

    recorded = RunFolder.open(folder).records()
    ids = [re.findall(r"^node (\d+)$", place.said(f"node-{d}"), re.MULTILINE)[0] for d in range(len(does))]
    sent = [set(each["sent"]) for each in recorded]

    def why(device: int, number: int) -> str:
        (fault,) = [each for each in recorded[number]["faults"] if each["node"] == ids[device]]
        assert device not in sent[number]
        return f"{fault['when']}: {fault['why']}"

    assert all({0, 1, 8} <= each for each in sent[: last + 1])  # the sound ones, and who answers twice, in every round
    for number, reason in enumerate(
        ["tau is nan", "cpu_hz is -3000000000.0", "power_w is 1e+30", "gain_db and uplink"]
    ):
        assert why(2, number).startswith(f"query: {reason}")
    for number, reason in enumerate(["'b' has shape (3, 1)", "'w' is float64", "holds numbers", "has norm 1.39e+29"]):
        assert why(3, number).startswith("train: ")
        assert reason in why(3, number)
    assert why(10, 3).startswith("train: its answer cannot be read")
    silent = f"no answer within {TIMEOUT_S:g} s"
    assert why(5, 4) == f"query: {silent}"
    assert [why(device, 4) for device in (4, 6, 9)] == [f"train: {silent}"] * 3
    assert 7 in sent[4]
    assert why(7, 5).startswith("query: ")
    assert {2, 3, 9, 10} <= sent[last]  # who became sound takes part again
    assert {4} <= set().union(*sent[5:])
    assert all(not each & {5, 6, 7} for each in sent[5:])
    assert "answered twice" in place.said("node-8")

    assert recorded[-1]["available"] == 0
    assert RunFolder.open(folder).manifest["status"] == "interrupted"
    assert np.allclose(
        last_weights(folder).numpy(), expected(recorded), rtol=1e-5
    )  # of the sound updates, and of nothing else
    place.started["run"].wait(60)  # what it streams may come out at its end only
    logged = re.findall(r"WARNING.*node (\d+\)?, (?:query|train): .*)", place.said("run"))
    assert len(logged) == len(set(logged)) > 12
    assert {each.partition(",")[0].rstrip(")") for each in logged} >= {*ids[2:8], *ids[9:]}


@pytest.mark.waits(seconds=30)
def test_a_killed_server_continues_after_the_last_finished_round(place: World) -> None:
    folder = start_run(place, "run.rounds=9", "min-nodes=2")
    nodes(place, {0: "is sound", 1: "is sound"})
    wait_until(lambda: rounds(folder) >= 3, 120, "three rounds are over")
    place.kill([pid for name in ("serverapp", "superlink", "superexec") for pid in place.alive(name)])
    place.kill(place.alive("node.py"))
    before = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    assert 3 <= len(before) < 9
    (finished, _), *_ = checkpoints(folder / "checkpoints")  # a round is finished when its checkpoint is written
    assert len(before) - finished in {0, 1}
    assert RunFolder.open(folder).manifest["status"] == "running"

    start_run(place, "run.rounds=9", "min-nodes=2")
    nodes(place, {0: "is sound", 1: "is sound"})  # with new ids: they take over the devices that they say to be
    wait_until(lambda: ended(folder), 120, "the run is finished")
    recorded = RunFolder.open(folder).records()
    assert (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)[:finished] == before[:finished]
    assert [each["round"] for each in recorded] == list(range(9))
    assert all(each["sent"] == [0, 1] for each in recorded)
    assert RunFolder.open(folder).manifest["status"] == "finished"
    assert np.allclose(last_weights(folder).numpy(), expected(recorded), rtol=1e-5)


@pytest.mark.waits(seconds=40)
def test_a_round_ends_at_its_deadline_and_what_comes_late_is_dropped(place: World) -> None:
    """Device 1 takes 13 s in the fifth round, whose deadline is 8 s of real time."""
    settings = ("fleet.deadline='wall'", "wireless.deadline_s=8.0", "timeout-s=60.0", "run.rounds=14", "min-nodes=2")
    folder = start_run(place, *settings)
    nodes(place, {0: "is sound", 1: "is late by 13"})
    wait_until(lambda: ended(folder), 180, "the run is finished")
    recorded = RunFolder.open(folder).records()
    (missed,) = [each for each in recorded if each["late"]]
    assert (missed["round"], missed["late"], missed["sent"]) == (4, [1], [0])
    assert 8.0 <= missed["clock_s"] - recorded[3]["clock_s"] < 11.0
    (came,) = [(each["round"], late) for each in recorded for late in each["came_late"]]
    assert (came[1]["device"], came[1]["round"]) == (1, 4)
    assert 13.0 <= came[1]["after_s"] < 20.0
    without = [each["round"] for each in recorded if each["sent"] == [0]]
    assert without[0] == 4
    assert len(without) > 1  # it was not asked while it was at work
    assert recorded[-1]["sent"] == [0, 1]
    assert all(each["faults"] == [] for each in recorded)
    assert np.allclose(last_weights(folder).numpy(), expected(recorded), rtol=1e-5)
