"""Coded vectors between nodes and server: what travels, what a node keeps, and what hostile bytes lead to."""

from __future__ import annotations

import copy
import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto

from flare.config import Config, override
from flare.flower import FlareStrategy, from_run_config, trained_arrays
from flare.flower.arrays import Layout
from flare.flower.coding import UPLINK, Coding, Sender
from flare.flower.vectors import Reader
from flare.rounds.residuals import Part
from flare.simulation import Member, Simulation
from flare.uplink import NotFiniteError, keys, make_codec
from tests.driving import followed
from tests.fleets import FakeGrid, Node, cell_app, running

SIZE = 650  # weights of the logistic model on digits
QSGD = ("uplink.codec=qsgd", "uplink.bits=3")
TOPK = ("uplink.codec=topk", "uplink.share=0.02")


def settings(*more: str) -> Config:
    common = ["wireless.num_devices=4", "wireless.deadline_s=5", "learning.model=logistic", "scheduling.policy=all"]
    return override(Config(), [*common, "learning.device=cpu", "run.rounds=2", *more])


def fleet(config: Config) -> tuple[Simulation, dict[int, Node]]:
    """Four nodes, each a device of the cell."""
    simulation = Simulation(config)
    app = cell_app(simulation.cell, lambda: copy.deepcopy(simulation.module), simulation.dataset, simulation.held)
    return simulation, {10 + device: running(app, 10 + device, {"partition-id": device}) for device in range(4)}


def run(config: Config, nodes: dict[int, Node], simulation: Simulation) -> tuple[list[dict[str, Any]], torch.Tensor]:
    """The records of a run on these nodes, and its weights."""
    records: list[dict[str, Any]] = []
    strategy = FlareStrategy(config, poll_s=0.001)
    begin = strategy._begin

    def listening(arrays: ArrayRecord) -> Any:
        begun = begin(arrays)
        begun.keeper.append = lambda record: records.append(record.to_json())  # type: ignore[method-assign]
        return begun

    strategy._begin = listening  # type: ignore[method-assign]
    result = strategy.start(FakeGrid(nodes), trained_arrays(simulation.module), timeout=30)
    return records, Layout(result.arrays).flatten(result.arrays)


def changed(node: Node, change: Callable[[RecordDict], None], action: str = "train") -> Node:
    """A node whose answers to some messages are changed."""

    def answer(message: Message) -> list[Message]:
        answers = node(message)
        if message.metadata.message_type == action:
            change(answers[0].content)
        return answers

    return answer


def test_the_broadcast_is_on_the_clock_of_a_fleet_as_on_that_of_the_simulator() -> None:
    config = settings("wireless.downlink=broadcast", "learning.method=scaffold")
    simulation, nodes = fleet(config)
    records, _ = run(config, nodes, simulation)
    (told,) = followed([Member(simulation)])
    assert [each["downlink_bits"] for each in records] == [2.0 * 32.0 * SIZE] * 2
    for name in ("broadcast_s", "clock_s"):
        assert [each[name] for each in records] == pytest.approx([getattr(each, name) for each in told], rel=1e-9)
    assert records[0]["clock_s"] == records[0]["broadcast_s"] + records[0]["latency_s"]


# --- what travels ------------------------------------------------------------------------------------------------


def test_what_travels_is_the_bytes_and_no_arrays() -> None:
    config = settings(*QSGD, "learning.method=scaffold", "run.rounds=1")
    simulation, nodes = fleet(config)
    seen: list[RecordDict] = []
    records, _ = run(config, {name: changed(node, seen.append) for name, node in nodes.items()}, simulation)
    bits = make_codec("qsgd", {"bits": 3}).bits(SIZE)
    assert len(seen) == 4
    for content in seen:
        wire = recorddict_to_proto(content).SerializeToString()
        assert 8 * len(wire) < 2 * bits + 8 * 300  # the rest are names and metrics
        assert recorddict_from_proto(RecordDictProto.FromString(wire)) == content
        assert set(content) == {UPLINK, "metrics"}
        assert {name: 8 * len(each) for name, each in content[UPLINK].items()} == {"update": bits, "control": bits}  # type: ignore[arg-type]
    assert records[0]["payload_bits"] == [2.0 * bits] * 4
    assert records[0]["faults"] == []


def test_without_a_codec_nothing_of_it_is_in_a_message() -> None:
    config = settings("learning.method=scaffold", "run.rounds=1")
    simulation, nodes = fleet(config)
    grid = FakeGrid(nodes)
    FlareStrategy(config, poll_s=0.001).start(grid, trained_arrays(simulation.module), timeout=30)
    asked = [each for each in grid.pushed if each.metadata.message_type == "train"]
    assert [set(each.content) for each in asked] == [{"arrays", "config", "drift"}] * 4


def test_the_codec_is_a_setting_of_the_run_configuration() -> None:
    config = from_run_config({"uplink.codec": "topk", "uplink.share": 0.1, "uplink.options.error_feedback": False})
    assert config.uplink.given == {"share": 0.1, "error_feedback": False}
    with pytest.raises(ValueError, match=r"uplink.bits is 4, but codec 'topk' has no such option"):
        FlareStrategy(override(config, ["uplink.bits=4"]))


# --- hostile answers ---------------------------------------------------------------------------------------------

LENGTH = make_codec("qsgd", {"bits": 3}).bits(SIZE) // 8
NAN, MINUS = struct.pack("<f", float("nan")), struct.pack("<f", -1.0)


def put(name: str, value: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[UPLINK] = ConfigRecord({**content[UPLINK], name: value})  # type: ignore[dict-item]

    return change


def told(name: str, value: float) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content["metrics"] = MetricRecord({**content["metrics"], name: value})  # type: ignore[dict-item]

    return change


def without_record(content: RecordDict) -> None:
    del content[UPLINK]


def as_arrays(content: RecordDict) -> None:
    content[UPLINK] = ArrayRecord([])


HOSTILE: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "short": (put("update", bytes(LENGTH - 1)), f"has {LENGTH - 1} bytes; Qsgd sends {LENGTH} for 650 weights"),
    "empty": (put("update", b""), "has 0 bytes"),
    "long": (put("update", bytes(50_000_000)), "has 50000000 bytes"),
    "text": (put("update", "x" * LENGTH), "lacks the bytes 'update'"),
    "a list": (put("update", [1, 2, 3]), "lacks the bytes 'update'"),
    "scale nan": (put("update", NAN + bytes(LENGTH - 4)), "a scale that is negative, infinite or not a number"),
    "scale negative": (put("update", MINUS + bytes(LENGTH - 4)), "a scale that is negative"),
    "no level": (put("update", bytes(4) + b"\xff" * (LENGTH - 4)), "stands for no level"),
    "too long a vector": (put("update", struct.pack("<f", 3e38) + bytes(LENGTH - 4)), "its update has norm"),
    "no control": (put("control", b""), "its change of its control cannot be decoded"),
    "no record": (without_record, "lacks the bytes 'update' in a record 'uplink'"),
    "arrays": (as_arrays, "lacks the bytes 'update' in a record 'uplink'"),
    "norm nan": (told("update_norm", float("nan")), "its update_norm is nan; it must be a number from 0 to"),
    "norm large": (told("update_norm", 1e30), "its update_norm is 1e+30"),
    "norm negative": (told("update_norm", -1.0), "its update_norm is -1.0"),
}


@pytest.fixture(scope="module")
def scaffold() -> Config:
    return settings(*QSGD, "learning.method=scaffold", "run.rounds=1")


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_answer_is_a_fault_of_its_node_alone(kind: str, scaffold: Config) -> None:
    change, why = HOSTILE[kind]
    simulation, nodes = fleet(scaffold)
    nodes[12] = changed(nodes[12], change)
    records, weights = run(scaffold, nodes, simulation)
    (fault,) = records[0]["faults"]
    assert (fault["node"], fault["device"], fault["when"]) == ("12", 2, "train")
    assert why in fault["why"]
    assert records[0]["sent"] == [0, 1, 3]
    assert len(records[0]["payload_bits"]) == 3
    assert bool(torch.isfinite(weights).all())


def test_bytes_of_a_wrong_length_lead_to_no_allocation(scaffold: Config) -> None:
    from flare.learning.methods import make_method
    from flare.rounds import BaseStation

    simulation, _ = fleet(scaffold)
    station = BaseStation(scaffold, make_method(scaffold.learning), SIZE)
    reader = Reader(station, Layout(trained_arrays(simulation.module)), 10.0)
    hostile = Message(RecordDict({UPLINK: ConfigRecord({"update": bytes(50_000_000)})}), 5, "train")
    tracemalloc.start()
    with pytest.raises(ValueError, match="cannot be decoded"):
        reader.read(hostile, Part.UPDATE, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000


def test_a_hostile_gradient_is_a_fault_too() -> None:
    config = settings(*QSGD, "learning.method=fedlin", "run.rounds=1")
    simulation, nodes = fleet(config)
    nodes[11] = changed(nodes[11], put("gradient", bytes(7)), "train.gradient")
    records, weights = run(config, nodes, simulation)
    assert [fault["why"] for fault in records[0]["faults"]] == [
        f"its gradient cannot be decoded: a message has 7 bytes; Qsgd sends {LENGTH} for 650 weights"
    ]
    assert records[0]["sent"] == [0, 2, 3]
    assert bool(torch.isfinite(weights).all())


# --- bits chosen for each device ------------------------------------------------------------------------------------

AUTO = ("uplink.codec=qsgd", "uplink.bits=auto", "scheduling.policy=exact", "wireless.deadline_s=0.5",
        "wireless.total_bandwidth_hz=2e3", "wireless.batch_size=10", "run.rounds=1", "seed=5")  # fmt: skip


def test_each_node_is_told_the_bits_that_were_chosen_for_it_and_sends_as_many() -> None:
    config = settings(*AUTO, "learning.method=fedlin")
    simulation, nodes = fleet(config)
    grid = FakeGrid(nodes)
    FlareStrategy(config, poll_s=0.001).start(grid, trained_arrays(simulation.module), timeout=30)
    chosen = simulation.plan(simulation.start()).own_codecs
    assert len({codec.bits_per_weight for codec in chosen.values()}) > 1
    for action in ("train", "train.gradient"):
        asked = [each for each in grid.pushed if each.metadata.message_type == action]
        told = {each.metadata.dst_node_id - 10: json.loads(each.content[UPLINK]["options"])["bits"] for each in asked}
        assert told == {device: codec.bits_per_weight for device, codec in chosen.items()}


@pytest.mark.parametrize(
    ("part", "action"), [("update", "train"), ("control", "train"), ("gradient", "train.gradient")]
)
def test_a_node_that_sends_with_other_bits_than_it_was_told_is_at_fault(part: str, action: str) -> None:
    """The bytes would have been right of another device, and of the codec in the settings."""
    config = settings(*AUTO, f"learning.method={'fedlin' if part == 'gradient' else 'scaffold'}")
    simulation, nodes = fleet(config)
    chosen = simulation.plan(simulation.start()).own_codecs
    liar, length = next(iter(chosen)), chosen[next(iter(chosen))].bits(SIZE) // 8
    other = next(codec for codec in simulation.station.codecs if codec.bits(SIZE) // 8 != length)
    nodes[10 + liar] = changed(nodes[10 + liar], put(part, bytes(other.bits(SIZE) // 8)), action)
    records, weights = run(config, nodes, simulation)
    (fault,) = records[0]["faults"]
    assert fault["device"] == liar
    assert f"has {other.bits(SIZE) // 8} bytes; Qsgd sends {length} for 650 weights" in fault["why"]
    sound = [device for device in chosen if device != liar]
    assert records[0]["sent"] == sound
    assert records[0]["payload_bits"] == [2.0 * chosen[device].bits(SIZE) for device in sound]
    assert bool(torch.isfinite(weights).all())


def test_the_rate_of_a_node_is_measured_with_the_bits_that_it_sent() -> None:
    config = settings(*AUTO)
    simulation, _ = fleet(config)
    plan = simulation.plan(simulation.start())
    reader = Reader(simulation.station, Layout(trained_arrays(simulation.module)), 10.0, plan.own_codecs)
    assert [reader.bits(device) for device in plan.selected.tolist()] == plan.payload_bits.tolist()


def far_away(node: Node, clock_s: float, upload_s: float) -> Node:
    """A node whose clock is wrong, and whose updates take a while to come."""

    def answer(message: Message) -> list[Message]:
        answers = node(message)
        sending_s = upload_s if message.metadata.message_type == "train" else 0.0
        answers[0].metadata.created_at += clock_s - sending_s
        return answers

    return answer


def test_the_uplink_is_measured_by_each_nodes_own_bits_and_by_clocks_that_differ() -> None:
    config = settings(*AUTO, "learning.method=fedlin")
    simulation, nodes = fleet(config)
    chosen = simulation.plan(simulation.start()).own_codecs
    assert len({codec.bits(SIZE) for codec in chosen.values()}) > 1
    nodes = {node: far_away(each, 1e4 * (node - 11), upload_s=5.0) for node, each in nodes.items()}
    strategy = FlareStrategy(config, poll_s=0.001)
    strategy.start(FakeGrid(nodes), trained_arrays(simulation.module), timeout=30)
    for device, codec in chosen.items():
        rate, sure = strategy._fleet.uplink(10 + device).rates[0]
        assert rate == pytest.approx(codec.bits(SIZE) / 5.0, rel=0.2)  # of 5 s, some may pass in this process
        assert sure


# --- what a node keeps -------------------------------------------------------------------------------------------


def context() -> Context:
    return Context(run_id=1, node_id=5, node_config={}, state=RecordDict(), run_config={})


def sender(here: Context, index: int) -> Sender:
    return Sender(Coding("topk", json.dumps({"share": 0.5}), 3, index, 7), here)


def test_a_node_adds_what_was_lost_to_what_it_sends_next() -> None:
    here, codec = context(), make_codec("topk", {"share": 0.5})
    first, second = torch.tensor([4.0, 1.0, -3.0, 2.0]), torch.tensor([0.5, 0.5, 0.5, 0.5])
    one = sender(here, 0)
    one.add(Part.UPDATE, first)
    message = one.record()["update"]
    assert codec.decode(message, 4).tolist() == [4.0, 0.0, -3.0, 0.0]  # type: ignore[arg-type]
    two = sender(here, 1)
    two.add(Part.UPDATE, second)  # and [0, 1, 0, 2] from before
    assert codec.decode(two.record()["update"], 4).tolist() == [0.0, 1.5, 0.0, 2.5]  # type: ignore[arg-type]
    started_anew = sender(context(), 2)
    started_anew.add(Part.UPDATE, second)
    assert codec.decode(started_anew.record()["update"], 4).tolist() == [0.5, 0.5, 0.0, 0.0]  # type: ignore[arg-type]


def test_nothing_is_kept_of_an_answer_that_fails() -> None:
    here = context()
    failing = sender(here, 0)
    failing.add(Part.UPDATE, torch.tensor([4.0, 1.0]))
    with pytest.raises(NotFiniteError, match="training has diverged"):
        failing.add(Part.GRADIENT, torch.tensor([float("inf"), 0.0]))
    assert not here.state


def test_a_node_draws_what_the_simulator_draws() -> None:
    update, codec = torch.linspace(-1.0, 1.0, 300), make_codec("qsgd", {"bits": 4})
    node = Sender(Coding("qsgd", json.dumps({"bits": 4}), 3, 11, 7), context())
    node.add(Part.UPDATE, update)
    assert node.record()["update"] == codec.encode(update, int(keys(3, 11, [7])[0]))


def test_a_node_that_is_started_again_goes_on_without_what_it_held_back() -> None:
    config = settings(*TOPK, "run.rounds=3")
    simulation, nodes = fleet(config)
    _, restarted = fleet(config)
    asked: list[int] = []

    def sometimes(message: Message) -> list[Message]:
        asked.append(1)
        return (nodes if len(asked) <= 2 else restarted)[13](message)  # a query and a round, then another context

    records, weights = run(config, {**nodes, 13: sometimes}, simulation)
    _, steady = run(config, fleet(config)[1], simulation)
    assert [record["faults"] for record in records] == [[], [], []]
    assert [record["sent"] for record in records] == [[0, 1, 2, 3]] * 3
    assert bool(torch.isfinite(weights).all())
    assert not torch.equal(weights, steady)
