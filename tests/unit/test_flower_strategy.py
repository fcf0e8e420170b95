"""The strategy on a grid without a network: what it sends and says, who comes and goes, what it needs."""

from __future__ import annotations

import math
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from torch import nn

from flare.config import override
from flare.extras import how_to_install
from flare.flower import FlareStrategy, client_app, trained_arrays
from flare.flower.arrays import Layout
from flare.records import RunFolder
from flare.report.curves import summarise
from flare.report.run_groups import group_runs
from flare.report.run_report import read_runs
from flare.report.run_words import remarks_on
from tests import ready_python
from tests.fleet_runs import (
    SIZE,
    SOUND,
    module,
    node,
    records,
    run,
    settings,
    told,
    trained,
    update,
)
from tests.fleets import FakeGrid, Node, running

GUIDE = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()


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
    assert "The first in which nobody was selected: an update of 68 Mbit takes the quickest device" in told


def test_the_deadline_that_is_said_to_help_helps_nodes_that_choose_their_steps_by_it(tmp_path: Path) -> None:
    app = client_app(model=lambda _: module(), batches=lambda _, work: [(torch.ones(2, 4), torch.ones(2).long())] * 20)

    def why_nobody(folder: Path, deadline: float, share: float) -> tuple[list[int], str]:
        said = {"samples-per-s": 100.0, "uplink-bps": 1e7, "compute-share": share}
        changes = ("wireless.batch_size=20", "run.payload=wireless", "wireless.payload_bits=4e7", "run.rounds=1")
        run({1: running(app, 1, said)}, settings(*changes, f"wireless.deadline_s={deadline}"), folder)
        record = records(folder)[0]
        return record["selected"], record["why_nobody"]

    for share, enough in ((0.5, "8.01 s"), (0.75, "16.1 s")):
        selected, why = why_nobody(tmp_path / f"{share}", 4.25, share)
        assert selected == []
        assert (
            f"a deadline of at least {enough} (wireless.deadline_s; a node computes for {100 * share:g} % of it" in why
        )
        assert why_nobody(tmp_path / f"{share} again", float(enough.split()[0]), share) == ([0], "")


def test_what_makes_an_update_smaller_is_what_it_is_the_size_of(tmp_path: Path) -> None:
    for number, (change, words) in enumerate(
        (
            (("run.payload=model",), "(a smaller model, or uplink.codec)"),
            (
                ("run.payload=model", "uplink.codec=float16"),
                "(a smaller model, or another uplink.codec or uplink.bits)",
            ),
            (("run.payload=wireless", "wireless.payload_bits=1e4"), "(wireless.payload_bits)"),
        )
    ):
        slow = {name: value for name, value in SOUND.items() if name != "gain_db"} | {"uplink_bps": 100.0}
        run({1: node(said=slow)}, settings("run.rounds=1", *change), tmp_path / str(number))
        assert words in records(tmp_path / str(number))[0]["why_nobody"]


def test_where_no_node_is_sound_the_reason_is_that_of_the_nodes(tmp_path: Path) -> None:
    run({1: node(said={"tau": 1.0}), 2: node(said={"tau": 1.0})}, settings("run.rounds=1"), tmp_path / "run")
    (one,) = records(tmp_path / "run")
    assert one["why_nobody"] == (
        "no device gave a sound report of what it can do (cpu_hz is missing); the faults of the round say which"
    )
    strategy = FlareStrategy(settings("run.rounds=1"), folder=tmp_path / "empty")
    assert list(strategy.configure_train(1, trained_arrays(module()), ConfigRecord(), FakeGrid({}))) == []
    strategy.aggregate_train(1, [])
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


# Who comes and goes


def test_a_run_without_nodes_is_suspended_and_continued_when_they_are_back(tmp_path: Path) -> None:
    config, folder = settings("run.rounds=5"), tmp_path / "run"
    assert torch.equal(run({}, config, folder, patience=2, timeout=0.1), torch.full((SIZE,), 0.25))
    assert RunFolder.open(folder).manifest["status"] == "interrupted"
    assert records(folder) == []  # rounds are for nodes that are there
    weights = run({1: node(value=0.5)}, config, folder)
    assert torch.equal(weights, torch.full((SIZE,), 0.25 + 5 * 0.5))
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
    known = 48 * 2**14  # what is known of 48 more nodes
    assert many < few + 4 * 2**20 + known  # of their answers at most four, by chance, were ready at once


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["scheduling.gamma=auto"], 'scheduling.gamma is "auto", which goes by the smoothness'),
        (
            ["learning.options.tau_bar=safe"],
            "method 'flare' with learning.options tau_bar='safe' goes by the smoothness",
        ),
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
    assert [each["sent"] for each in records(tmp_path / "run")] == [[0]] * 4


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
    assert done.stdout.strip() == f"flare.flower needs Flower, which is not installed: {how_to_install('flower')}"


def test_a_configuration_for_tests_that_nobody_would_see_is_refused() -> None:
    strategy = FlareStrategy(settings())
    with pytest.raises(ValueError, match=r"evaluate_config has batch, but nodes that test are told nothing of it"):
        strategy.start(FakeGrid({}), trained_arrays(module()), evaluate_config=ConfigRecord({"batch": 3}))
