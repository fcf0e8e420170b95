"""Runs in two lanes are those that they are in one, to the bit and however they end; and lanes take turns."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flare
from flare.config import Config
from flare.data.dataset import Dataset
from flare.learning.engine import BatchedEngine, SequentialEngine, make_engines
from flare.learning.engine.base import Launched
from flare.learning.job import Job
from flare.records import RunFolder
from flare.rng import stream
from flare.rounds import RoundRecord, RunStatus
from flare.simulation import Member, Simulation, drive
from flare.simulation import lanes as lanes_module
from flare.simulation.drive import drive_in
from flare.simulation.lanes import lanes_of, num_lanes, take_turn
from flare.sweeps import Place, Task
from flare.sweeps.lockstep import run_batch
from tests.driving import InPlace, continued, followed, same_state
from tests.plugin_files import registries_as_they_were
from tests.unit.test_simulation import small

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
ROUNDS = (5, 2, 3, 5, 4)
"""Of runs in two lanes: the first has those of 5, 3 and 4 rounds."""

Told = Callable[[Member, RoundRecord], None]


def members_of(configs: Sequence[Config], folders: Sequence[RunFolder | None] = ()) -> list[Member]:
    folders = folders or [None] * len(configs)
    made = [Member(Simulation(config), folder) for config, folder in zip(configs, folders, strict=True)]
    for number, member in enumerate(made):
        member.key = str(number)
    return made


def drive_in_two(members: Sequence[Member], callback: Told | None = None, **named: Any) -> None:
    drive_in(lanes_of(members, lambda group: 2), members, callback, **named)


def followed_in(members: Sequence[Member], lanes: int = 2, **named: Any) -> list[list[RoundRecord]]:
    """As `followed`, in two lanes, or as many as are said."""
    seen: dict[str, list[RoundRecord]] = {member.key: [] for member in members}

    def callback(member: Member, record: RoundRecord) -> None:
        seen[member.key].append(replace(record, wall_s=None))

    drive_in(lanes_of(members, lambda group: lanes), members, callback, **named)
    return list(seen.values())


def assert_same(mine: Sequence[Member], wanted: Sequence[Member]) -> None:
    for one, other in zip(mine, wanted, strict=True):
        assert one.state.status is other.state.status
        assert one.state.rounds_done == other.state.rounds_done
        assert same_state(one.state, other.state)


def uneven(*settings: str) -> list[Config]:
    return [small(*settings, f"seed={seed}", f"run.rounds={rounds}") for seed, rounds in enumerate(ROUNDS)]


def after(rounds: int) -> Callable[[], bool]:
    turns = itertools.count()
    return lambda: next(turns) >= rounds


@pytest.fixture
def own_code() -> Iterator[None]:
    with registries_as_they_were():
        yield


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is said to be at work until it is read, as on a GPU: next rounds are prepared meanwhile."""
    launch = SequentialEngine.launch

    def launched(engine: SequentialEngine, jobs: Sequence[Job]) -> Launched:
        return replace(launch(engine, jobs), under_way=True)

    monkeypatch.setattr(SequentialEngine, "launch", launched)


KINDS = [
    (),
    ("learning.method=fedlin",),
    ("learning.method=scaffold",),
    ("learning.method=moon", "learning.model=mlp"),
    ("learning.method=fedbuff",),
    ("learning.method=fedlin", "uplink.codec=topk", "run.payload=model"),
    ("scheduling.policy=power-of-choice", "data.share_losses=true"),
    ("scheduling.policy=exact", "wireless.fading=rayleigh"),
    ("learning.engine=reference", "scheduling.policy=random", "scheduling.options.num_selected=4"),
    ("data.shared_fraction=0.1", "data.warm_up_epochs=1"),
]


@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: " ".join(settings) or "plain")
def test_runs_in_two_lanes_are_those_of_one(settings: tuple[str, ...], busy: None) -> None:
    one, two = members_of(uneven(*settings)), members_of(uneven(*settings))
    assert followed_in(two) == followed(one)
    assert [member.state.rounds_done for member in two] == list(ROUNDS)
    assert_same(two, one)


def test_runs_of_several_groups_have_lanes_of_their_own(busy: None) -> None:
    configs = [*uneven(), *uneven("wireless.batch_size=7")]
    one, two = members_of(configs), members_of(configs)
    assert [len(lanes) for lanes in lanes_of(members_of(configs), lambda group: 2)] == [2, 2]
    assert followed_in(two) == followed(one)
    assert_same(two, one)


class LoggedLane:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def begin(self) -> None:
        self.log.append(f"begin {self.name}")

    def finish(self, callback: object) -> None:
        self.log.append(f"finish {self.name}")


def test_a_lane_is_finished_after_the_other_has_begun() -> None:
    log: list[str] = []
    take_turn([LoggedLane("A", log)], None)  # type: ignore[list-item]
    assert log == ["begin A", "finish A"]
    log.clear()
    lanes: Any = [LoggedLane(name, log) for name in "AB"]
    for _ in range(2):
        take_turn(lanes, None)
    assert log == ["begin A", "finish B", "begin B", "finish A"] * 2


def test_a_cpu_has_one_lane() -> None:
    members = members_of(uneven())
    assert num_lanes(members) == 1
    assert [len(lanes) for lanes in lanes_of(members)] == [1]


@pytest.mark.parametrize(("processes", "lanes"), [(1, 2), (3, 1)])
def test_a_gpu_that_processes_share_has_one_lane_of_each(
    monkeypatch: pytest.MonkeyPatch, processes: int, lanes: int
) -> None:
    counted: list[tuple[int, bool]] = []

    def counting(
        members: Sequence[Member], how_many: Callable[[Sequence[Member]], int], *, shares_gpu: bool
    ) -> list[Any]:
        with monkeypatch.context() as on_gpu:
            on_gpu.setattr(lanes_module, "compute_device", lambda learning: "cuda")
            counted.append((how_many(members), shares_gpu))
        return lanes_of(members)

    monkeypatch.setattr(sys.modules[drive.__module__], "lanes_of", counting)
    tasks = [Task(str(number), config, None) for number, config in enumerate(uneven())]
    run_batch(tasks, Place(processes=processes), lambda task, record, status: None, lambda: False)
    assert counted == [(lanes, processes > 1)]


@pytest.mark.parametrize("rounds", [0, 1, 2, 3])
def test_all_runs_stop_after_the_same_turn(rounds: int, busy: None) -> None:
    one, two = members_of(uneven()), members_of(uneven())
    wanted = followed(members_of(uneven()))
    before = followed_in(two, stopping=after(rounds))
    drive(one, stopping=after(rounds))
    assert [member.state.rounds_done for member in two] == [min(rounds, each) for each in ROUNDS]
    assert_same(two, one)
    rest = followed_in(two)
    assert [some + more for some, more in zip(before, rest, strict=True)] == wanted


def test_runs_that_are_told_to_stop_by_what_they_show_are_left_between_rounds(tmp_path: Path, busy: None) -> None:
    configs = uneven("run.checkpoint_every=50")
    wanted, seen = followed(members_of(configs)), []
    with ExitStack() as stack:
        folders = [stack.enter_context(RunFolder.create(tmp_path / str(at), each)) for at, each in enumerate(configs)]
        members = members_of(configs, folders)
        drive_in_two(
            members, lambda member, record: seen.append((member.key, record.round)), stopping=lambda: len(seen) > 6
        )
    left = [member.state.rounds_done for member in members]
    assert 0 < sum(left) == len(seen) < sum(ROUNDS)
    for number, config in enumerate(configs):
        _, records, done = continued(config, tmp_path / str(number))
        assert (records, done) == (wanted[number], left[number])


def test_runs_come_to_their_pause_and_go_on(busy: None) -> None:
    configs = uneven("scheduling.policy=exact")
    wanted = members_of(configs)
    records = followed(wanted)
    pauses_s = [each[1].clock_s for each in records]  # the second round ends there, and no other begins
    members = members_of(configs)
    for member, pause_s in zip(members, pauses_s, strict=True):
        member.pause_s = pause_s
    before = followed_in(members)
    assert [member.state.rounds_done for member in members] == [2] * len(members)
    for member in members:
        member.pause_s = math.inf
    rest = followed_in(members)
    assert [some + more for some, more in zip(before, rest, strict=True)] == records
    assert_same(members, wanted)


@pytest.mark.parametrize(
    ("at", "error"),
    [(1, KeyboardInterrupt), (3, ValueError), (4, KeyboardInterrupt), (7, ValueError), (11, ValueError)],
)
def test_an_error_leaves_every_run_where_its_last_round_ended(
    at: int, error: type[BaseException], tmp_path: Path, busy: None
) -> None:
    configs = uneven("run.checkpoint_every=50")
    wanted, seen = followed(members_of(configs)), itertools.count(1)

    def failing(member: Member, record: RoundRecord) -> None:
        if next(seen) == at:
            raise error

    with ExitStack() as stack:
        folders = [stack.enter_context(RunFolder.create(tmp_path / str(at), each)) for at, each in enumerate(configs)]
        members = members_of(configs, folders)
        with pytest.raises(error):
            drive_in_two(members, failing)
    left = [member.state.rounds_done for member in members]
    assert sum(left) == at
    for number, config in enumerate(configs):
        _, records, done = continued(config, tmp_path / str(number))
        assert (records, done) == (wanted[number], left[number])
    members = [member for member in members if member.state.status is RunStatus.RUNNING]
    for member in members:
        member.folder, member.keeper.folder = None, None
    drive_in_two(members)  # they can also go on as they are: what was dropped has left nothing behind
    for member in members:
        done = wanted[int(member.key)]
        assert (member.state.rounds_done, member.state.clock_s) == (len(done), done[-1].clock_s)


@pytest.mark.parametrize("how", ["stops", "fails"])
def test_a_method_that_changes_its_state_in_place_is_not_left_in_a_round_that_was_begun(
    how: str, tmp_path: Path, own_code: None, busy: None
) -> None:
    flare.method("in-place")(InPlace)
    settings = ("run.checkpoint_every=2", "run.rounds=6", "learning.device=cpu")
    names = ("in-place", "in-place", "fedavg", "in-place")
    configs = [small(*settings, f"learning.method={name}", f"seed={seed}") for seed, name in enumerate(names)]
    wanted, seen = followed(members_of(configs)), []

    def watched(member: Member, record: RoundRecord) -> None:
        seen.append(record.round)
        if how == "fails" and record.round == 2:
            raise KeyboardInterrupt

    with ExitStack() as stack:
        folders = [stack.enter_context(RunFolder.create(tmp_path / str(at), each)) for at, each in enumerate(configs)]
        members = members_of(configs, folders)
        if how == "fails":
            with pytest.raises(KeyboardInterrupt):
                drive_in_two(members, watched)
        else:
            drive_in_two(members, watched, stopping=after(3))
    left_at = []
    for number, config in enumerate(configs):
        _, records, done = continued(config, tmp_path / str(number))
        assert records == wanted[number]
        left_at.append(done)
    assert left_at == ([3] * 4 if how == "stops" else [2] * 4)


@pytest.mark.parametrize("engine", ["reference", "sequential", "batched"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_what_is_launched_can_be_read_later(engine: str, device: str) -> None:
    simulation = Simulation(small(f"learning.engine={engine}", f"learning.device={device}"))
    plan = simulation.plan(simulation.start())
    jobs = simulation.jobs(simulation.start(), plan, []).jobs
    first, second = make_engines(simulation.module, simulation.dataset, simulation.config.learning, 2)
    begun = [each.launch(jobs) for each in (first, second)]
    assert all(each.under_way == (engine == "batched" and device == "cuda") for each in begun)
    wanted = first.train(jobs)
    for launched in begun:
        for mine, other in zip(launched.read(), wanted, strict=True):
            assert torch.equal(mine.delta, other.delta)
            assert (mine.loss, mine.squared_loss, mine.norm) == (other.loss, other.squared_loss, other.norm)


def test_engines_side_by_side_share_data_and_make_room_for_each_other() -> None:
    simulation = Simulation(small("learning.engine=batched"))
    one, two = make_engines(simulation.module, simulation.dataset, simulation.config.learning, 2)
    assert isinstance(one, BatchedEngine)
    assert isinstance(two, BatchedEngine)
    assert one._data is two._data
    narrow = two._with_model(simulation.module)
    assert [each._chunks._bytes_for_job(10) // each._bytes_for_a_job(10) for each in (one, narrow)] == [2, 2]
    for engine in (one, two, narrow):
        engine._graphs["kind",] = None  # type: ignore[assignment]
    attempts: list[int] = []

    def short(items: Sequence[int], width: int) -> list[int]:
        attempts.append(len(items))
        if len(attempts) == 1:
            raise torch.cuda.OutOfMemoryError
        return list(items)

    assert narrow._chunks.run([1, 2], 10, short) == [1, 2]
    assert [each._graphs for each in (one, two, narrow)] == [{}] * 3


def images(num_train: int = 400, num_test: int = 100) -> Dataset:
    draw = stream(0, "images")
    x = draw.standard_normal((num_train + num_test, 1, 12, 12), dtype=np.float32)
    y = draw.integers(0, 5, size=len(x))
    return Dataset("images", x[:num_train], y[:num_train], x[num_train:], y[num_train:], num_classes=5)


def network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(sample_shape[0], 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, num_classes)
    )


def members_on(device: str, data: Dataset, *settings: str) -> list[Member]:
    """Seven runs of uneven lengths in which all devices train; on a CPU, shorter ones."""
    held = np.split(np.arange(len(data.train_y)), 8)
    many = ("scheduling.policy=random", "scheduling.options.num_selected=6", "wireless.deadline_s=100")
    configs = [
        small(*many, *settings, f"learning.device={device}", f"seed={seed}", f"run.rounds={rounds}")
        for seed, rounds in enumerate((12, 5, 9, 12, 7, 12, 3) if device == "cuda" else (4, 2, 3, 4, 2, 4, 1))
    ]
    made = [Member(Simulation(config, dataset=data, held=held, module=network)) for config in configs]
    for number, member in enumerate(made):
        member.key = str(number)
    return made


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_CUDA), "cpu"])
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("learning.method=fedlin",),
        ("learning.method=scaffold",),
        ("learning.method=heterofl",),
        ("learning.method=moon",),
        ("uplink.codec=topk", "run.payload=model"),
        ("uplink.codec=qsgd", "run.payload=model"),
        ("scheduling.policy=power-of-choice", "data.share_losses=true"),
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_runs_of_a_convolutional_network_in_two_lanes_are_those_of_one(settings: tuple[str, ...], device: str) -> None:
    data = images()
    one, two = members_on(device, data, *settings), members_on(device, data, *settings)
    assert num_lanes(two) == (2 if device == "cuda" else 1)
    assert followed_in(two, lanes=2) == followed_in(one, lanes=1)
    for mine, wanted in zip(two, one, strict=True):
        assert mine.state.weights.device.type == device
        assert torch.equal(mine.state.weights.view(torch.int32), wanted.state.weights.view(torch.int32))


@NEEDS_CUDA
def test_on_a_gpu_lanes_use_the_streams_of_the_drive_before() -> None:
    data = images()
    streams = []
    for _ in range(2):
        (lanes,) = lanes_of(members_on("cuda", data))
        streams.append([lane._stream for lane in lanes])
    assert streams[0] == streams[1]
    assert len(set(streams[0])) == 2
    assert torch.cuda.current_stream() not in streams[0]


class MadeUpStream:
    """As of a GPU; `now` is the one in use, whatever the device."""

    now: MadeUpStream

    def __init__(self) -> None:
        self.device, self.waits_for = "cuda:0", list[MadeUpStream]()

    def wait_stream(self, other: MadeUpStream) -> None:
        self.waits_for.append(other)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        before, MadeUpStream.now = MadeUpStream.now, self
        try:
            yield
        finally:
            MadeUpStream.now = before


@pytest.mark.parametrize("fails", [False, True])
def test_all_of_a_lane_happens_in_its_stream(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, outside = [MadeUpStream(), MadeUpStream()], MadeUpStream()
    monkeypatch.setattr(MadeUpStream, "now", outside, raising=False)
    monkeypatch.setattr(lanes_module, "_streams", lambda device, number: streams)
    monkeypatch.setattr(torch.cuda, "stream", MadeUpStream.in_use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: MadeUpStream.now)
    members = members_of(uneven("learning.method=fedlin", "uplink.codec=topk", "run.payload=model"))
    own = {id(member.simulation): streams[at % 2] for at, member in enumerate(members)}
    used: set[str] = set()

    def watch(name: str) -> None:
        plain = getattr(Simulation, name)

        def watched(simulation: Simulation, *given: Any, **named: Any) -> Any:
            used.add(name)
            assert MadeUpStream.now is own[id(simulation)]
            return plain(simulation, *given, **named)

        monkeypatch.setattr(Simulation, name, watched)

    steps = ("warm_up_jobs", "warmed_up", "plan", "gradients_out", "jobs", "updates_out", "arrived", "applied", "score")
    for step in steps:
        watch(step)

    def callback(member: Member, record: RoundRecord) -> None:
        assert MadeUpStream.now is own[id(member.simulation)]
        if fails and record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        drive_in_two(members, callback)
    assert used == set(steps)
    assert MadeUpStream.now is outside
    assert outside.waits_for == streams
    assert [each.waits_for for each in streams] == [[outside], [outside]]
