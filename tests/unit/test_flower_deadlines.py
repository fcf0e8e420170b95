"""Rounds of a fleet that end in real time: who is late, what becomes of it, and how long a round is given."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from flare.config import Config, override
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.flower.deadline import Deadline, share_deadline_s
from flare.records import RunFolder
from flare.records.run import read_run
from flare.report.fleet_sections import nodes_section
from flare.report.run_groups import group_runs
from tests.fleet_runs import SIZE, SOUND, module, node, records, settings, update
from tests.fleets import FakeGrid, Node

DEADLINE_S = 0.5


class Holding(FakeGrid):
    """Keeps what some nodes have trained back for as long as they are in `held`."""

    def __init__(self, nodes: dict[int, Node], held: Iterable[int]) -> None:
        super().__init__(nodes)
        self.held = set(held)
        self._from: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        self._from |= {
            message_id: message.metadata.dst_node_id
            for message_id, message in zip(ids, messages, strict=True)
            if message.metadata.message_type == "train"
        }
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return super().pull_messages([each for each in message_ids if self._from.get(each) not in self.held])


class Releasing(Holding):
    """Lets what was held back go when a node is asked for the so many-th time."""

    def __init__(self, nodes: dict[int, Node], held: Iterable[int], at: int) -> None:
        super().__init__(nodes, held)
        self.asked, self.at = 0, at

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.asked += any(each.metadata.message_type == "query" for each in messages)
        if self.asked >= self.at:
            self.held = set()
        return super().push_messages(messages)


def wall(*more: str) -> Config:
    """A deadline in real time; and updates of any length, since those of two nodes differ here."""
    return settings(f"wireless.deadline_s={DEADLINE_S}", "fleet.deadline=wall", "learning.clip=0", *more)


def started(grid: FakeGrid, config: Config, folder: Path, *, timeout: float = 30.0, **more: Any) -> torch.Tensor:
    strategy = FlareStrategy(config, folder=folder, poll_s=0.002, **more)
    result = strategy.start(grid, trained_arrays(module()), timeout=timeout)
    return Layout(result.arrays).flatten(result.arrays)


def test_a_round_ends_at_the_deadline_with_the_updates_that_came(tmp_path: Path) -> None:
    """Node 2 is late in the first round, and what it then sends comes while the third is under way."""
    grid = Releasing({1: node(value=0.5), 2: node(value=2.0)}, held=[2], at=3)
    weights = started(grid, wall("run.rounds=5"), tmp_path / "run")
    first, second, *later = records(tmp_path / "run")
    assert (first["selected"], first["sent"], first["late"]) == ([0, 1], [0], [1])
    assert first["real_deadline_s"] == first["deadline_s"] == DEADLINE_S
    assert DEADLINE_S <= first["clock_s"] < DEADLINE_S + 5.0  # real time, which ran on until the deadline
    assert (second["available"], second["selected"], second["late"]) == (1, [0], [])  # who is at work is not asked
    assert second["clock_s"] - first["clock_s"] < DEADLINE_S  # all had answered
    (came,) = [each for record in later for each in record["came_late"]]
    assert (came["device"], came["round"]) == (1, 0)
    assert came["after_s"] > DEADLINE_S
    assert later[-1]["sent"] == [0, 1]  # it takes part again
    assert all(each["faults"] == [] for each in records(tmp_path / "run"))
    steps = {(0,): 0.5, (0, 1): 1.25}
    expected = 0.25 + sum(steps[tuple(each["sent"])] for each in records(tmp_path / "run"))
    assert torch.allclose(weights, torch.full((SIZE,), expected))  # nothing of what came late is in the model
    numbers = read_run(tmp_path / "run")
    assert numbers.num_late.tolist() == [1, 0, 0, 0, 0]
    section = nodes_section(group_runs([numbers])[0])
    assert section is not None
    assert [panel.name for panel in section.panels] == ["late"]


def test_where_devices_compute_across_rounds_late_updates_count_with_their_age(tmp_path: Path) -> None:
    grid = Releasing({1: node(value=0.5), 2: node(value=2.0)}, held=[2], at=3)
    config = wall("run.rounds=4", "learning.method=fedbuff", "learning.options.inner=fedavg")
    weights = started(grid, config, tmp_path / "run")
    first, second, third, fourth = records(tmp_path / "run")
    assert (first["sent"], first["late"]) == ([0], [1])
    assert (second["selected"], second["sent"], second["late"]) == ([0, 1], [0], [1])
    assert (third["sent"], third["age"], third["late"]) == ([0, 1], [0, 2], [])  # two steps of the model since
    assert (fourth["sent"], fourth["age"]) == ([0, 1], [0, 0])
    assert all(each["came_late"] == [] and each["faults"] == [] for each in records(tmp_path / "run"))
    discounted = 2.0 / math.sqrt(3.0)
    assert torch.allclose(weights, torch.full((SIZE,), 0.25 + 0.5 + 0.5 + (0.5 + discounted) / 2 + 1.25))
    trained = [each for each in grid.pushed if each.metadata.message_type == "train"]
    assert len([each for each in trained if each.metadata.dst_node_id == 2]) == 2  # it was sent its work once


def test_a_server_that_starts_again_sends_those_at_work_the_same_work_once_more(tmp_path: Path) -> None:
    config = wall("run.rounds=3", "learning.method=fedbuff", "wireless.deadline_s=0.2")
    nodes = {1: node(value=0.5), 2: node(value=2.0)}
    (tmp_path / "run").mkdir()
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.002)
    grid = Holding(nodes, held=[2])

    class Stopped(BaseException):
        """Ends the server when the first round is written down."""

    original = strategy.configure_train

    def stopping(number: int, *args: Any) -> Any:
        if number == 2:
            raise Stopped
        return original(number, *args)

    strategy.configure_train = stopping  # type: ignore[method-assign]
    with pytest.raises(Stopped):
        strategy.start(grid, trained_arrays(module()), timeout=30)
    again = FakeGrid(nodes)
    started(again, config, tmp_path / "run")
    assert [each["age"] for each in records(tmp_path / "run")] == [[0], [0, 1], [0, 0]]

    def told(of: FakeGrid) -> tuple[dict[str, Any], torch.Tensor]:
        (first, *_) = [m for m in of.pushed if m.metadata.message_type == "train" and m.metadata.dst_node_id == 2]
        model = first.content.array_records["arrays"]
        work = dict(first.content.config_records["config"])
        return work | {"bandwidth_hz": None, "tau_bar": None}, Layout(model).flatten(model)

    (work, model), (work_again, model_again) = told(grid), told(again)
    assert work_again == work  # of the first round, with its number
    assert torch.equal(model_again, model)


def test_nobody_spins_while_all_are_at_work(tmp_path: Path) -> None:
    """Both are late; the next round begins when one of them is back."""

    class Back(Holding):
        def get_node_ids(self) -> list[int]:
            if any(each.metadata.message_type == "train" for each in self.pushed):
                self.held = {2}
            return super().get_node_ids()

    grid = Back({1: node(), 2: node()}, held=[1, 2])
    started(grid, wall("run.rounds=2"), tmp_path / "run", patience=1)
    first, second = records(tmp_path / "run")
    assert (first["sent"], first["late"]) == ([], [0, 1])
    assert (second["available"], second["sent"]) == (1, [0])
    assert [each["device"] for each in second["came_late"]] == [0]


def test_a_node_that_leaves_while_it_is_at_work_is_given_up(tmp_path: Path) -> None:
    grid = Holding({1: node(), 2: node()}, held=[2])
    strategy = FlareStrategy(wall("run.rounds=2"), folder=tmp_path / "run", poll_s=0.002)
    original = strategy.configure_train

    def leaving(number: int, *args: Any) -> Any:
        if number == 2:
            del grid.nodes[2]
        return original(number, *args)

    strategy.configure_train = leaving  # type: ignore[method-assign]
    strategy.start(grid, trained_arrays(module()), timeout=20)
    assert [(each["node"], each["why"]) for each in records(tmp_path / "run")[1]["faults"]] == [
        ("2", "it left while it was at work")
    ]


def test_a_round_in_which_nobody_is_selected_lasts_until_the_deadline(tmp_path: Path) -> None:
    config = wall("run.rounds=1", "wireless.deadline_s=0.01")  # less than the computing takes
    started(FakeGrid({1: node()}), config, tmp_path / "run")
    (record,) = records(tmp_path / "run")
    assert record["selected"] == []
    assert record["clock_s"] >= 0.01


@pytest.mark.parametrize(("deadline", "clock_s"), [("wall", 0.0), ("auto", 0.0), ("modelled", DEADLINE_S)])
def test_a_round_in_which_nobody_answers_is_over_when_asking_is(deadline: str, clock_s: float, tmp_path: Path) -> None:
    """In real time nothing is added to the clock that did not pass."""
    config = wall("run.rounds=1", f"fleet.deadline={deadline}")
    started(FakeGrid({1: lambda message: []}), config, tmp_path / "run", query_timeout_s=0.02)
    (record,) = records(tmp_path / "run")
    assert (record["available"], record["clock_s"]) == (0, clock_s)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["fleet.deadline=wall"], 'fleet.deadline is "wall", but this loop'),
        (["learning.method=fedbuff"], "devices compute across rounds, but this loop"),
    ],
)
def test_flowers_own_loop_cannot_end_rounds(more: list[str], why: str) -> None:
    strategy = FlareStrategy(settings(*more))
    with pytest.raises(ValueError, match=f"{why}.*call FlareStrategy.start"):
        strategy.configure_train(1, trained_arrays(module()), ConfigRecord(), FakeGrid({1: node()}))


def test_the_gradients_of_fedlin_have_half_of_the_deadline(tmp_path: Path) -> None:
    def without(message: Message) -> list[Message]:
        said = {"tau": 2.0, "cpu_hz": 3e9, "power_w": 0.2, "gain_db": -95.0, "num_samples": 10.0}
        return [] if message.metadata.message_type == "train.gradient" else node(said=said)(message)

    config = wall("run.rounds=1", "learning.method=fedlin")
    started(FakeGrid({1: without}), config, tmp_path / "run")
    (first,) = records(tmp_path / "run")
    assert (first["selected"], first["sent"], first["late"]) == ([0], [], [0])
    assert first["clock_s"] >= DEADLINE_S


# The deadline that follows from the times


def auto(share: float = 0.8, first_s: float = 4.0) -> Deadline:
    return Deadline.of(
        override(
            Config(),
            ["fleet.deadline=auto", f"fleet.deadline_share={share}", f"wireless.deadline_s={first_s}"],
        )
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 1.1 * 2.0), (0.75, 1.1 * 3.0), (0.76, 1.1 * 9.0), (1.0, 1.1 * 9.0), (0.01, 1.1 * 1.0)]
)
def test_the_deadline_is_that_which_the_share_makes(share: float, expected: float) -> None:
    times = {0: [3.0], 1: [1.0], 2: [9.0], 3: [2.0]}
    assert share_deadline_s(times, share) == pytest.approx(expected)
    made = sum(each[0] <= expected for each in times.values())
    assert made >= share * len(times)
    assert share_deadline_s({}, share) is None


def test_before_anything_is_known_it_is_that_of_the_settings() -> None:
    deadline = auto()
    assert (deadline.planned_s, deadline.real_s(4.0)) == (4.0, 4.0)
    deadline.came(0, 0.5)
    assert deadline.real_s(4.0) == pytest.approx(0.55)
    assert deadline.planned_s == 4.0  # a schedule is never asked for more than the settings do
    deadline.came(1, 20.0)
    assert deadline.planned_s == deadline.real_s(4.0) == pytest.approx(22.0)


def test_who_misses_it_counts_twice_until_it_comes() -> None:
    deadline = auto(share=1.0)
    deadline.came(0, 1.0)
    deadline.after_round(missed=[1], real_s=4.0, nobody=False)
    assert deadline.real_s(4.0) == pytest.approx(1.1 * 8.0)
    deadline.came_late(1, 4.5)
    assert deadline.real_s(4.0) == pytest.approx(1.1 * 4.5)
    deadline.came_late(7, 4.5)  # of a device that was never missed: nothing
    assert set(deadline.times_s) == {0, 1}


def test_who_has_left_does_not_count() -> None:
    deadline = auto(share=1.0)
    deadline.came(0, 1.0)
    deadline.after_round(missed=[1], real_s=4.0, nobody=False)
    deadline.connected = [0, 2]
    assert deadline.real_s(4.0) == pytest.approx(1.1)
    deadline.connected = [0, 1]  # it is back
    assert deadline.real_s(4.0) == pytest.approx(1.1 * 8.0)
    deadline.connected = [2]
    assert (deadline.real_s(4.0), deadline.planned_s) == (4.0, 4.0)


def test_nodes_that_come_and_vanish_do_not_lengthen_the_rounds(tmp_path: Path) -> None:
    """In every round one newcomer gets its work and leaves."""

    class Passing(FakeGrid):
        def get_node_ids(self) -> list[int]:
            newest = max(self.nodes)
            if any(m.metadata.dst_node_id == newest and m.metadata.message_type == "train" for m in self.pushed):
                del self.nodes[newest]
                self.nodes[newest + 1] = node(train=lambda message: [])
            return super().get_node_ids()

    config = settings("wireless.deadline_s=0.05", "fleet.deadline=auto", "fleet.deadline_share=1", "run.rounds=6")
    started(Passing({1: node(), 1000: node(train=lambda message: [])}), config, tmp_path / "run", timeout=1.0)
    lasted = [each["real_deadline_s"] for each in records(tmp_path / "run") if each["real_deadline_s"] is not None]
    assert sum(len(each["late"]) for each in records(tmp_path / "run")) >= 4
    assert lasted[0] == 0.05
    # If those that are gone counted, each would be 1.1 times twice the last; the node that stays is what counts.
    assert min(after / before for before, after in pairwise(lasted[:4])) < 2.0


def test_one_slow_round_does_not_count_for_a_device() -> None:
    deadline = auto(share=1.0)
    for after_s in (1.0, 1.0, 30.0, 1.0, 1.0):
        deadline.came(0, after_s)
    assert deadline.real_s(4.0) == pytest.approx(1.1)
    for _ in range(5):
        deadline.came(0, 3.0)  # from now on it takes longer, which counts
    assert deadline.real_s(4.0) == pytest.approx(3.3)
    assert len(deadline.times_s[0]) == 5


def test_where_nobody_can_be_selected_schedules_get_twice_the_time_up_to_the_timeout() -> None:
    deadline = auto(first_s=4.0)
    deadline.max_s = 10.0
    for expected in (8.0, 10.0, 10.0):
        deadline.after_round(missed=[], real_s=4.0, nobody=True)
        assert deadline.planned_s == expected
    deadline.came(0, 1.0)
    assert deadline.planned_s == 10.0  # for all rounds to come
    deadline.came(0, 1e6)
    deadline.came(0, 1e6)
    assert deadline.real_s(10.0) == 10.0


def test_a_deadline_is_the_same_after_a_checkpoint() -> None:
    deadline, other = auto(), auto()
    deadline.came(3, 2.5)
    deadline.after_round(missed=[4], real_s=1.0, nobody=True)
    other.restore(deadline.to_numbers())
    assert other == deadline
    for numbers in (None, {}, {"least_s": 0.0, "times_s": {}}, {"least_s": 1.0, "times_s": {"0": [math.nan]}}):
        with pytest.raises(ValueError, match="deadline"):
            auto().restore(numbers)


def test_the_deadline_follows_the_nodes(tmp_path: Path) -> None:
    config = settings("wireless.deadline_s=20", "fleet.deadline=auto", "run.rounds=4")
    started(FakeGrid({1: node(), 2: node()}), config, tmp_path / "run")
    recorded = records(tmp_path / "run")
    ends = [each["real_deadline_s"] for each in recorded]
    assert ends[0] == 20.0
    assert all(0.0 < each < 10.0 for each in ends[1:])  # nodes that answer at once
    assert all(each["deadline_s"] == 20.0 for each in recorded)
    times = times_in(tmp_path / "run")
    assert set(times) == {0, 1}
    assert ends[-1] <= 1.1 * max(max(each) for each in times.values())


def times_in(folder: Path) -> dict[int, list[float]]:
    """What devices took, by the checkpoint of a run."""
    with RunFolder.open(folder) as opened:
        snapshot = opened.restore()
    assert snapshot is not None
    return {int(device): each for device, each in snapshot.numbers["deadline"]["times_s"].items()}


def test_what_a_device_of_fedlin_took_holds_its_gradient(tmp_path: Path) -> None:
    """The deadline does, too."""
    took = []

    def slow(message: Message) -> list[Message]:
        if message.metadata.message_type == "train.gradient":
            time.sleep(0.1)
            arrays = update(0.1)
            return [Message(RecordDict({"arrays": arrays}), reply_to=message)]
        took.append(message.metadata.message_type)
        return node(said=SOUND | {"num_samples": 10.0})(message)

    config = settings("wireless.deadline_s=20", "fleet.deadline=auto", "run.rounds=1", "learning.method=fedlin")
    started(FakeGrid({1: slow}), config, tmp_path / "run")
    (record,) = records(tmp_path / "run")
    assert (record["sent"], took) == ([0], ["query", "train"])
    assert 0.1 < times_in(tmp_path / "run")[0][0] < 10.0


def test_across_rounds_who_was_late_counts_as_what_it_took(tmp_path: Path) -> None:
    """It is late in two rounds with one piece of work, which comes in the third."""
    grid = Releasing({1: node(value=0.5), 2: node(value=2.0)}, held=[2], at=3)
    config = settings(
        "wireless.deadline_s=0.2",
        "fleet.deadline=auto",
        "fleet.deadline_share=1",
        "learning.clip=0",
        "run.rounds=3",
        "learning.method=fedbuff",
    )
    started(grid, config, tmp_path / "run")
    first, second, third = records(tmp_path / "run")
    assert (first["late"], second["late"], third["age"]) == ([1], [1], [0, 2])
    assert second["real_deadline_s"] == pytest.approx(1.1 * 2.0 * first["real_deadline_s"])
    assert third["real_deadline_s"] == second["real_deadline_s"]  # not known to take longer
    (took_s,) = times_in(tmp_path / "run")[1]
    assert first["real_deadline_s"] < took_s <= 2.0 * first["real_deadline_s"]
    deadline = auto()
    deadline.after_round(missed=[1], real_s=4.0, nobody=False)
    deadline.came_late(1, 5.0, or_sooner=True)
    assert deadline.times_s == {1: [5.0]}
    deadline.came_late(1, 100.0, or_sooner=True)  # it lay with the SuperLink until it was selected
    assert deadline.times_s == {1: [5.0]}
