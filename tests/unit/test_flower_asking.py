"""Large fleets: which nodes are asked, and which test the model; what nodes find is told."""

from __future__ import annotations

import copy
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from torch import nn

from flare.config import Config
from flare.flower import FlareStrategy, classifier_score, client_app, load_arrays, trained_arrays
from flare.flower.arrays import Layout
from flare.flower.asking import Asking, drawn_to_test
from flare.flower.evaluation import Findings
from flare.flower.fleet import ROUNDS_KEPT, Fleet, Uplink
from flare.records.run import read_run
from flare.report.fleet_sections import nodes_section
from flare.report.run_groups import group_runs
from tests.fleet_runs import SOUND, Killed, module, node, records, run, settings, trained, update
from tests.fleets import FakeGrid, Node, running

ASK = "fleet.ask=3"


def chosen(config: Config, rounds: int, nodes: range, asking: Asking | None = None) -> list[list[int]]:
    asking, fleet = asking or Asking(), Fleet(100)
    return [asking.chosen(config, index, nodes, fleet) for index in range(rounds)]


def test_so_many_nodes_are_drawn_and_others_in_the_next_round() -> None:
    rounds = chosen(settings("fleet.ask=10"), 200, range(100, 140))
    assert all(len(set(each)) == 10 for each in rounds)
    counts = Counter(node for each in rounds for node in each)
    assert set(counts) == set(range(100, 140))
    assert max(abs(count - 50) for count in counts.values()) < 25  # 50 rounds each are expected, 6 the deviation
    assert rounds == chosen(settings("fleet.ask=10"), 200, range(100, 140))
    assert rounds != chosen(settings("fleet.ask=10", "seed=2"), 200, range(100, 140))


def test_few_nodes_are_all_asked_in_the_order_in_which_they_come() -> None:
    for more in ((), ("fleet.ask=40",), ("fleet.ask=50", "fleet.ask_by=longest-unseen")):
        assert chosen(settings(*more), 1, range(100, 140)) == [list(range(100, 140))]


def test_nobody_is_asked_again_before_all_others_were() -> None:
    config, asking = settings("fleet.ask=7", "fleet.ask_by=longest-unseen"), Asking()
    rounds = chosen(config, 12, range(40, 61), asking)  # three rounds for all of the 21
    for start in range(0, 12, 3):
        assert sorted(node for each in rounds[start : start + 3] for node in each) == list(range(40, 61))
    assert rounds[0] != rounds[3]  # equals are drawn
    (newcomers,) = [asking.chosen(config, 12, [*range(40, 61), 7, 8], Fleet(100))]
    assert {7, 8} <= set(newcomers)


def test_a_round_in_which_all_were_asked_counts() -> None:
    config, asking, fleet = settings("fleet.ask=2", "fleet.ask_by=longest-unseen"), Asking(), Fleet(100)
    assert asking.chosen(config, 0, [1, 2], fleet) == [1, 2]
    assert sorted(asking.chosen(config, 1, [1, 2, 3, 4], fleet)) == [3, 4]


def test_nodes_that_are_gone_are_forgotten() -> None:
    config, asking, fleet = settings("fleet.ask=3"), Asking(), Fleet(100, device_of={7: 0})
    asking.last_asked[7] = 0  # at work, and so not free
    for index in range(20):  # a fleet in which every node is started again in every round
        asking.chosen(config, index, range(100 + 5 * index, 105 + 5 * index), fleet)
    assert asking.last_asked.pop(7) == 0
    assert set(asking.last_asked) <= set(range(195, 200))
    everybody = Asking()
    everybody.chosen(settings(), 0, range(50), fleet)
    assert everybody.last_asked == {}  # who is asked in every round needs no memory


def test_delays_of_a_node_that_never_sends_are_those_of_the_last_rounds() -> None:
    uplink = Uplink()
    for index in range(100):
        uplink.asked(index, 1.0 + index)
    assert set(uplink.delays_s) == set(range(99 - ROUNDS_KEPT, 100))


def test_who_was_asked_is_the_same_after_a_checkpoint() -> None:
    asking, other = Asking(), Asking()
    chosen(settings(ASK), 4, range(9), asking)
    other.restore(asking.to_numbers())
    assert other == asking
    for numbers in (None, {"x": 1}, {"1": "much"}):
        with pytest.raises(ValueError, match="nodes that were asked cannot be read"):
            Asking().restore(numbers)


@pytest.mark.parametrize("by", ["random", "longest-unseen"])
def test_a_run_asks_some_and_a_killed_one_asks_the_same(tmp_path: Path, by: str) -> None:
    config = settings(ASK, f"fleet.ask_by={by}", "run.rounds=8")

    def nodes(die_at: int | None) -> dict[int, Node]:
        def train(message: Message) -> list[Message]:
            if message.content.config_records["config"]["round"] == die_at:
                raise Killed
            return [trained(message, update(0.01 * message.metadata.dst_node_id))]

        return {k: node(train=train) for k in range(1, 11)}

    whole = run(nodes(None), config, tmp_path / "whole")
    recorded = records(tmp_path / "whole")
    assert all(each["available"] == len(each["sent"]) == 3 for each in recorded)
    with pytest.raises(Killed):
        run(nodes(5), config, tmp_path / "cut")
    assert torch.equal(run(nodes(None), config, tmp_path / "cut"), whole)
    assert [each["sent"] for each in records(tmp_path / "cut")] == [each["sent"] for each in recorded]
    times = Counter(device for each in recorded for device in each["sent"])
    if by == "longest-unseen":
        assert len(times) == 10
        assert set(times.values()) <= {2, 3}


def test_the_device_of_a_node_that_was_not_asked_is_its_own(tmp_path: Path) -> None:
    claim = SOUND | {"device": 0.0}
    nodes = {1: node(said=claim), 2: node(said=claim)}  # both claim it, and one of them is asked
    run(nodes, settings("fleet.ask=1", "fleet.ask_by=longest-unseen", "run.rounds=2"), tmp_path / "run")
    first, second = records(tmp_path / "run")
    assert first["sent"] == [0]
    assert second["sent"] == []
    (fault,) = second["faults"]
    assert fault["why"].startswith("claims device 0, which is node ")


# Tests on nodes


def finding(accuracy: Any, **more: Any) -> Node:
    """A node that finds this accuracy of the model."""

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type != "evaluate":
            return node()(message)
        return [Message(RecordDict({"metrics": MetricRecord({"accuracy": accuracy, **more})}), reply_to=message)]

    return answer


@pytest.mark.parametrize("loss", [-0.5, math.nan, math.inf, 2e9])
def test_a_loss_that_cannot_be_is_a_fault_of_its_node(loss: float, tmp_path: Path) -> None:
    config = settings("fleet.evaluate_share=1", "run.rounds=1", "run.evaluate_every=1")
    run({1: finding(0.5, loss=1.0), 2: finding(0.9, loss=loss)}, config, tmp_path / "run")
    (record,) = records(tmp_path / "run")
    assert (record["tested"], record["node_accuracy_mean"], record["node_loss_mean"]) == ([0], 0.5, 1.0)
    (fault,) = record["faults"]
    assert (fault["node"], fault["when"]) == ("2", "evaluate")
    assert fault["why"].startswith("its loss is")


def test_what_nodes_find_is_recorded_with_mean_and_spread(tmp_path: Path) -> None:
    def without(message: Message) -> list[Message]:
        untested = Message(Error(1, "it has no test"), reply_to=message)
        return [untested] if message.metadata.message_type == "evaluate" else node()(message)

    nodes = {1: finding(0.5, loss=1.0), 2: finding(0.9, loss=3.0), 3: finding(0.7), 4: finding(1.5), 5: without}
    config = settings("fleet.evaluate_share=1", "run.rounds=4", "run.evaluate_every=2")
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001)
    result = strategy.start(FakeGrid(nodes), trained_arrays(module()), timeout=5)
    first, second, _, fourth = records(tmp_path / "run")
    assert (first["tested"], first["node_accuracy"], first["node_accuracy_mean"]) == ([], [], None)
    for each in (second, fourth):
        assert each["tested"] == [0, 1, 2]
        assert each["node_accuracy"] == [0.5, 0.9, 0.7]
        assert each["node_accuracy_mean"] == pytest.approx(0.7)
        assert each["node_accuracy_std"] == pytest.approx(math.sqrt(0.08 / 3))
        assert (each["node_loss_mean"], each["node_loss_std"]) == (2.0, 1.0)  # of the two that told it
        assert each["test_accuracy"] is None
        assert {(fault["node"], fault["when"], fault["why"]) for fault in each["faults"]} == {
            ("4", "evaluate", "its accuracy is 1.5; it must be a number from 0 to 1"),
            ("5", "evaluate", "error 1: it has no test"),
        }
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4]
    assert result.evaluate_metrics_clientapp[2]["accuracy_mean"] == pytest.approx(0.7)
    assert result.evaluate_metrics_clientapp[2]["num_nodes"] == 3
    numbers = read_run(tmp_path / "run")
    assert np.isnan(numbers.of_round["node_accuracy_mean"]).tolist() == [True, False, True, False]
    section = nodes_section(group_runs([numbers])[0])
    assert section is not None
    assert [panel.name for panel in section.panels] == ["node-accuracy", "node-loss"]  # no round ended in real time
    assert "70 %" in section.panels[0].alt


def test_a_share_of_the_nodes_tests_the_model_another_time_others() -> None:
    fleet = Fleet(100, device_of={node: node for node in range(30)})
    config = settings("fleet.evaluate_share=0.1")
    drawn = [drawn_to_test(config, index, range(30), fleet) for index in range(40)]
    assert {len(each) for each in drawn} == {3}
    assert len({node for each in drawn for node in each}) > 25
    assert drawn_to_test(settings("fleet.evaluate_share=0.001"), 0, range(30), fleet) != []  # one at least
    assert drawn_to_test(config, 0, [], fleet) == []


def test_without_a_test_at_the_server_the_nodes_end_the_run(tmp_path: Path) -> None:
    config = settings("fleet.evaluate_share=1", "run.rounds=9", "run.evaluate_every=1", "run.target_accuracy=0.6")
    run({1: finding(0.5), 2: finding(0.8)}, config, tmp_path / "nodes")
    assert len(records(tmp_path / "nodes")) == 1  # the mean is 0.65

    def poor(*_: object) -> MetricRecord:
        return MetricRecord({"accuracy": 0.1})

    run({1: finding(0.5), 2: finding(0.8)}, config, tmp_path / "server", evaluate_fn=poor)
    assert len(records(tmp_path / "server")) == 9  # its own test counts


def test_nobody_found_anything() -> None:
    assert Findings().metrics() is None
    assert Findings().score is None


# What a node does


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


def fleet_of(built: nn.Module, folder: Path, **parts: Any) -> ArrayRecord:
    """Two nodes and three rounds."""
    app = client_app(model=lambda _: copy.deepcopy(built), batches=lambda _, work: batches(work.steps), **parts)
    nodes = {k: running(app, k, {"tau": 3, "cpu-hz": 3e9, "gain-db": -95.0}) for k in (1, 2)}
    config = settings("fleet.evaluate_share=1", "run.evaluate_every=1")
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001)
    return strategy.start(FakeGrid(nodes), trained_arrays(built), timeout=30).arrays


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(6, track_running_stats=False)], ids=lambda layer: type(layer).__name__
)
def test_layers_that_a_mean_of_weights_serves_are_trained_and_tested(layer: nn.Module, tmp_path: Path) -> None:
    """What is drawn depends on run, round and device: twice the same model, whatever was drawn before."""
    built, modes = network(layer), []

    def evaluate(context: Any, module: nn.Module) -> dict[str, float]:
        modes.append(module.training)
        return classifier_score(module, batches(4))

    ends = []
    for name in ("one", "two"):
        torch.rand(len(name) + len(ends))
        ends.append(fleet_of(built, tmp_path / name, evaluate=evaluate))
    weights = [Layout(each).flatten(each) for each in ends]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], Layout(trained_arrays(built)).flatten(trained_arrays(built)))
    assert modes == [False] * 12
    recorded = records(tmp_path / "two")
    assert all(each["faults"] == [] and each["tested"] == [0, 1] for each in recorded)
    final = copy.deepcopy(built)
    load_arrays(final, ends[-1])
    expected = classifier_score(final.eval(), batches(4))
    assert recorded[-1]["node_accuracy"] == [expected["accuracy"]] * 2
    assert recorded[-1]["node_loss_mean"] == pytest.approx(expected["loss"])


def test_dropout_drops_while_a_node_trains(tmp_path: Path) -> None:
    ends = [
        fleet_of(network(layer), tmp_path / name, evaluate=lambda *_: {"accuracy": 0.5})
        for name, layer in (("dropping", nn.Dropout(0.5)), ("keeping", nn.Dropout(0.0)))
    ]
    assert not torch.equal(*(Layout(each).flatten(each) for each in ends))


def test_a_layer_with_running_statistics_is_refused_by_the_server(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm1d\) keeps statistics.*track_running_stats=False"):
        fleet_of(network(nn.BatchNorm1d(6)), tmp_path / "run")


def test_a_node_without_a_test_says_what_to_give_it() -> None:
    app = client_app(model=lambda _: module(), batches=lambda *_: [])
    asked = Message(RecordDict({"arrays": trained_arrays(module())}), 1, "evaluate")
    with pytest.raises(ValueError, match="this node has no test: give client_app evaluate"):
        running(app, 1)(asked)


def test_a_score_needs_samples() -> None:
    with pytest.raises(ValueError, match="there is no sample to test the model on"):
        classifier_score(module(), [])
