"""Workers: what they are told, how far they are by what they write, and what happens where one is killed."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flare import plugins
from flare.config import Config, override
from flare.experiments.trial import _Told
from flare.extras import how_to_install
from flare.pools import end, get_ready, new_pool
from flare.records import RunFolder
from flare.records.lines import first_mark, seal
from flare.records.locking import lock
from flare.records.manifest import read_manifest
from flare.records.run import read_run
from flare.rounds import RoundRecord, RunStatus
from flare.scheduling import POLICIES
from flare.sweeps import Place, Task, run_tasks, runner, staying
from flare.sweeps import order as order_module
from flare.sweeps.batches import batches
from flare.sweeps.order import Fault, Order, go_signal, keep_going, say_stop, sent_plugins, work
from flare.sweeps.tail import Tail
from tests.hostile import flare
from tests.small_runs import OPTIONS, SETTINGS, timeless

RUNNING, FINISHED = RunStatus.RUNNING, RunStatus.FINISHED
SMALL = override(Config(), SETTINGS)
NUM_DEVICES = SMALL.wireless.num_devices


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same run twice, of six rounds: the real times that they took differ."""
    folders = [tmp_path_factory.mktemp("runs") / name for name in ("one", "two")]
    for folder in folders:
        run_tasks([Task("run", SMALL, folder)], Place("cpu"))
    return folders


@pytest.fixture
def folder(runs: list[Path], tmp_path: Path) -> Path:
    """A run that is beginning: its manifest says that it is running, and no round is written."""
    copied = shutil.copytree(runs[0], tmp_path / "run")
    (copied / "rounds.jsonl").write_bytes(b"")
    manifest = json.loads((copied / "manifest.json").read_text())
    del manifest["records"], manifest["result"]
    (copied / "manifest.json").write_text(json.dumps(manifest | {"status": "running"}))
    return copied


def lines(run: Path) -> list[bytes]:
    return (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)


def told(tail: Tail, *, last: bool = False) -> list[tuple[int, RunStatus]]:
    return [(record.round, status) for record, status in tail.news(last=last)]


def test_a_tail_tells_every_round_once_and_with_the_last_how_the_run_ended(runs: list[Path], folder: Path) -> None:
    tail, written = Tail(folder, NUM_DEVICES), lines(runs[0])
    assert told(tail) == []
    (folder / "rounds.jsonl").write_bytes(b"".join(written[:3]) + written[3][:20])
    assert told(tail) == [(0, RUNNING), (1, RUNNING)]  # whether the third is the last is not known yet
    assert told(tail) == []
    (folder / "rounds.jsonl").write_bytes(b"".join(written))
    assert told(tail) == [(2, RUNNING), (3, RUNNING), (4, RUNNING)]
    shutil.copy(runs[0] / "manifest.json", folder)
    assert told(tail) == [(5, FINISHED)]
    assert told(tail, last=True) == []


def test_a_tail_tells_what_is_there_when_nobody_writes_any_more(runs: list[Path], folder: Path) -> None:
    tail = Tail(folder, NUM_DEVICES)
    (folder / "rounds.jsonl").write_bytes(lines(runs[0])[0])
    assert told(tail, last=True) == [(0, RUNNING)]


def test_a_tail_begins_where_the_run_was(runs: list[Path], folder: Path) -> None:
    (folder / "rounds.jsonl").write_bytes(b"".join(lines(runs[0])[:4]))
    tail = Tail(folder, NUM_DEVICES)
    assert told(tail, last=True) == []
    (folder / "rounds.jsonl").write_bytes(b"".join(lines(runs[0])))
    assert told(tail, last=True) == [(4, RUNNING), (5, RUNNING)]


def test_a_tail_tells_no_round_twice_of_a_run_that_went_back(runs: list[Path], folder: Path) -> None:
    """Its worker was killed; the next one cut the records back and wrote the rounds anew, with other real times."""
    first, second = map(lines, runs)
    assert first[1] != second[1]
    tail = Tail(folder, NUM_DEVICES)
    (folder / "rounds.jsonl").write_bytes(b"".join(first[:4]))
    assert told(tail) == [(0, RUNNING), (1, RUNNING), (2, RUNNING)]
    (folder / "rounds.jsonl").write_bytes(b"".join(second[:2]))
    assert told(tail) == []
    (folder / "rounds.jsonl").write_bytes(b"".join(second[:5]))
    assert told(tail) == [(3, RUNNING)]
    (folder / "rounds.jsonl").write_bytes(b"".join(first))  # also where that was not seen in between
    assert told(tail, last=True) == [(4, RUNNING), (5, RUNNING)]


@pytest.mark.parametrize("told_before", [0, 3])
def test_by_seals_it_is_known_whether_what_was_told_is_what_the_file_holds(
    runs: list[Path], folder: Path, told_before: int
) -> None:
    tail, seen, seals = Tail(folder, NUM_DEVICES), _Told(folder), []
    for written in (lines(runs[1])[:told_before], lines(runs[0])):  # the run went back to its beginning, or did not
        (folder / "rounds.jsonl").write_bytes(b"".join(written))
        for record, _ in tail.news(last=written == lines(runs[0])):
            seals.append(tail.seal_of(record))
            seen.add(record, seals[-1])
    ended = json.loads((runs[0] / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(ended))
    assert len(seals) == 6
    assert seals[0].before is None
    assert seals[-1].check == ended["records"]["check"]
    pairs = [(one.check, other.before) for one, other in itertools.pairwise(seals)]
    assert [check == before for check, before in pairs] == [number != told_before - 1 for number in range(5)]
    assert (seen.run() is None) == (told_before > 0)


ODD_DEVICES = [(name, device) for name in ("selected", "sent") for device in (-3, 10**15)]


def with_odd_device(run: Path, name: str, device: int, at: int) -> None:
    """Put a device that no run has into a round, and seal it as if it were its own."""
    told = [json.loads(line) for line in lines(run)]
    told[at][name][0] = device
    mark, written = first_mark(read_manifest(run)), list[bytes]()
    for each in told:
        line, mark = seal({key: value for key, value in each.items() if key != "check"}, mark)
        written.append(line)
    (run / "rounds.jsonl").write_bytes(b"".join(written))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["records"] = {"rounds": mark.rounds, "check": mark.check}
    (run / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(("name", "device"), ODD_DEVICES)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_rounds_that_reading_the_folder_refuses_are_not_told(
    name: str, device: int, at: int, runs: list[Path], tmp_path: Path
) -> None:
    tail, seen = Tail(tmp_path / "run", NUM_DEVICES), _Told(tmp_path / "run")
    shutil.copytree(runs[0], tmp_path / "run")
    with_odd_device(tmp_path / "run", name, device, at)
    with pytest.raises(ValueError, match=f"round {at + 1} of its records names device {device}"):
        read_run(tmp_path / "run")
    for last in (False, False, True):
        for record, _ in tail.news(last=last):
            assert record.round != at
            seen.add(record, tail.seal_of(record))
    assert seen.run() is None
    whole = _Told(tmp_path / "run")  # also where nobody else has looked
    for told in RunFolder.open(tmp_path / "run").records():
        whole.add(RoundRecord.from_json(told))
    assert whole.run() is None


def test_a_tail_of_a_folder_that_is_not_there_yet(runs: list[Path], tmp_path: Path) -> None:
    tail = Tail(tmp_path / "later", NUM_DEVICES)
    assert told(tail, last=True) == []
    shutil.copytree(runs[0], tmp_path / "later")
    assert told(tail) == [*((index, RUNNING) for index in range(5)), (5, FINISHED)]


# --- what a worker is told ----------------------------------------------------------------------------------------


def order(tmp_path: Path, signal: Path, **changes: object) -> Order:
    return replace(Order((Task("run", SMALL, tmp_path / "run"),), Place("cpu"), signal), **changes)


def fault_of(one: Order) -> Fault:
    fault = work(one)
    assert fault is not None
    return fault


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    fault = fault_of(order(tmp_path, tmp_path / "elsewhere" / ".going-on-1"))
    assert "does not see what is in the folder" in str(fault.raised())
    assert isinstance(fault.raised(), ValueError)
    assert not (tmp_path / "run").exists()


def test_a_worker_with_another_version_says_so(tmp_path: Path) -> None:
    with go_signal(tmp_path) as signal:
        assert "install the same version on all machines" in fault_of(order(tmp_path, signal, version="0.0.1")).words


def test_a_worker_that_is_told_to_stop_leaves_its_runs_to_be_continued(tmp_path: Path) -> None:
    with go_signal(tmp_path) as signal:
        say_stop(signal)
        assert work(order(tmp_path, signal)) is None
    assert RunFolder.open(tmp_path / "run").manifest["status"] == "interrupted"
    assert not list(tmp_path.glob(".going-on-*"))


def test_signals_that_killed_processes_left_are_removed_once_they_are_old(tmp_path: Path) -> None:
    for name, age_s in (("old", 7200), ("young", 10)):
        (tmp_path / f".going-on-{name}").write_bytes(b"go")
        then = time.time() - age_s
        os.utime(tmp_path / f".going-on-{name}", (then, then))
    with go_signal(tmp_path) as signal:
        assert {path.name for path in tmp_path.iterdir()} == {".going-on-young", signal.name}
        keep_going(tmp_path / ".going-on-young")
        assert time.time() - (tmp_path / ".going-on-young").stat().st_mtime < 5
        assert work(order(tmp_path, signal)) is None


def test_a_worker_waits_for_one_that_was_killed_to_let_go(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    release = lock(tmp_path / "run")
    with go_signal(tmp_path) as signal:
        try:
            assert "is being written by another process" in fault_of(order(tmp_path, signal, patience_s=0.3)).words
        finally:
            release()
        assert work(order(tmp_path, signal, patience_s=0.3)) is None


def test_long_runs_are_dealt_out_evenly_where_all_begin_at_once(tmp_path: Path) -> None:
    tasks = [
        Task(f"{rounds}-{number}", override(SMALL, [f"run.rounds={rounds}"]), tmp_path / f"{rounds}-{number}")
        for rounds in (100, 10)
        for number in range(4)
    ]
    dealt = [sorted(task.config.run.rounds for task in batch) for batch in batches(tasks, Place("cpu", 2))]
    assert dealt == [[10, 10, 100, 100]] * 2
    many = [replace(task, key=f"{task.key}-{copy}") for task in tasks for copy in range(16)]  # more than fit at once
    dealt = [[task.config.run.rounds for task in batch] for batch in batches(many, Place("cpu", 2))]
    assert dealt == [[100] * 16] * 4 + [[10] * 16] * 4  # the long ones first


@pytest.mark.parametrize(
    ("runs", "processes"), [(1, 3), (9, 4), (40, 2), (48, 3), (49, 3), (120, 7), (33, 1), (200, 2)]
)
def test_batches_of_a_turn_differ_by_one_run_at_most_and_a_process_gets_one_or_none(
    tmp_path: Path, runs: int, processes: int
) -> None:
    tasks = [Task(str(number), SMALL, tmp_path / str(number)) for number in range(runs)]
    dealt = batches(tasks, Place("cpu", processes))
    assert sorted(int(task.key) for batch in dealt for task in batch) == list(range(runs))
    sizes = [len(batch) for batch in dealt]
    turns = -(-runs // (16 * processes))
    in_turn = -(-runs // turns)  # the tasks cost the same, and are dealt out in their order
    in_turns: dict[int, list[int]] = {}
    for batch in dealt:
        (turn,) = {int(task.key) // in_turn for task in batch}
        in_turns.setdefault(turn, []).append(len(batch))
    assert len(in_turns) == turns
    for of_turn in in_turns.values():
        assert max(of_turn) - min(of_turn) <= 1
        assert len(of_turn) <= processes
    assert max(sizes) <= 16
    assert sum(sizes[::processes]) <= -(-runs // processes) + turns  # of the process with the most


@pytest.mark.parametrize(
    ("model", "processes", "most"),
    [("cifar-cnn", 1, 80), ("cifar-cnn", 6, 40), ("cifar-cnn", 8, 30), ("mnist-cnn", 6, 80), ("mnist-cnn", 8, 80)],
)
def test_processes_that_share_a_gpu_have_few_runs_of_a_large_network_together(
    tmp_path: Path, model: str, processes: int, most: int
) -> None:
    config = override(SMALL, [f"learning.model={model}"])
    tasks = [Task(str(number), config, tmp_path / str(number)) for number in range(480)]
    sizes = [len(batch) for batch in batches(tasks, Place("cuda", processes))]
    turns = -(-480 // (processes * most))
    assert len(sizes) == processes * turns
    assert max(sizes) == -(-480 // (processes * turns)) <= most


def test_every_batch_has_runs_of_all_policies_and_all_seeds(tmp_path: Path) -> None:
    policies, seeds = ("greedy", "cm", "dm", "cp", "random", "all"), range(3)
    tasks = [
        Task(f"{policy}-{seed}", override(SMALL, [f"scheduling.policy={policy}", f"seed={seed}"]), tmp_path / policy)
        for policy in policies
        for seed in seeds
    ]
    for batch in batches(tasks, Place("cpu", 3)):
        assert sorted(task.config.scheduling.policy for task in batch) == sorted(policies)
        assert sorted(task.config.seed for task in batch) == [0, 0, 1, 1, 2, 2]


# --- memory that runs out -----------------------------------------------------------------------------------------


class Scarce:
    """Workers, in this process, and what this process does itself, with memory for a run alone, and for none at the
    first attempts: where it runs out, it does so after two rounds."""

    place, patience_s, killed, room = Place("cpu", 2), 0.0, (), 2

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        failing: int = 0,
        kind: type[Exception] = torch.cuda.OutOfMemoryError,
    ) -> None:
        self.batches: list[str] = []
        enough = order_module.run_batch

        def run_batch(tasks: Sequence[Task], place: Place, tell: Any, stopping: Any, **named: Any) -> None:
            self.batches.append("".join(task.key for task in tasks))
            fails, rounds = len(tasks) > 1 or self.batches.count(self.batches[-1]) <= failing, Counter[str]()

            def telling(task: Task, record: RoundRecord, status: RunStatus) -> None:
                tell(task, record, status)
                rounds[task.key] += 1
                if fails and rounds[tasks[-1].key] == 2:
                    raise kind("CUDA out of memory" if kind is not RuntimeError else "can't allocate memory")

            enough(tasks, place, telling, stopping, **named)

        monkeypatch.setattr(order_module, "run_batch", run_batch)
        monkeypatch.setattr(runner, "run_batch", run_batch)

    def submit(self, order: Order) -> Future[Fault | None]:
        done: Future[Fault | None] = Future()
        done.set_result(work(order))
        return done

    def kill(self) -> None:
        pass


ALL_ROUNDS = [(key, index) for key in "abcd" for index in range(6)]


def four(folder: Path | None) -> list[Task]:
    return [
        Task(key, override(SMALL, [f"seed={seed}"]), None if folder is None else folder / key)
        for seed, key in enumerate("abcd")
    ]


def ended(folder: Path) -> list[str]:
    return [RunFolder.open(each).manifest["status"] for each in sorted(folder.glob("[abcd]"))]


def in_batches_of(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        runner, "batches", lambda tasks, place: [list(tasks[i : i + count]) for i in range(0, len(tasks), count)]
    )


def test_runs_that_do_not_fit_into_memory_together_are_done_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batches_of(3, monkeypatch)
    workers, rounds = Scarce(monkeypatch, kind=RuntimeError), list[tuple[str, int]]()

    def tell(task: Task, record: RoundRecord, status: RunStatus) -> None:
        rounds.append((task.key, record.round))

    run_tasks(four(tmp_path), workers.place, hire=lambda tasks: workers, callback=tell)
    assert workers.batches == ["abc", "d", "ab", "c", "a", "b"]
    assert ended(tmp_path) == ["finished"] * 4
    assert sorted(rounds) == ALL_ROUNDS


@pytest.mark.parametrize("with_folders", [True, False])
def test_so_they_are_in_this_process_and_each_round_is_told_once(
    with_folders: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batches_of(3, monkeypatch)
    workers, rounds = Scarce(monkeypatch), list[tuple[str, int]]()

    def tell(task: Task, record: RoundRecord, status: RunStatus) -> None:
        rounds.append((task.key, record.round))

    run_tasks(four(tmp_path if with_folders else None), Place("cpu"), callback=tell)
    assert workers.batches == ["abc", "ab", "a", "b", "c", "d"]
    assert sorted(rounds) == ALL_ROUNDS
    assert ended(tmp_path) == ["finished"] * (4 if with_folders else 0)


def test_a_run_that_finds_no_memory_waits_for_others_and_is_at_last_done_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batches_of(1, monkeypatch)
    workers = Scarce(monkeypatch, failing=1)
    run_tasks(four(tmp_path), workers.place, hire=lambda tasks: workers)
    assert workers.batches[:4] == [*"abcd"]
    assert sorted(workers.batches[4:]) == [*"abcd"]
    assert ended(tmp_path) == ["finished"] * 4
    workers = Scarce(monkeypatch, failing=9)
    words = r"memory ran out with the run [abcd] \(OutOfMemoryError: CUDA out of memory\): .* what is done is kept"
    with pytest.raises(OSError, match=words):
        run_tasks(four(tmp_path / "more"), workers.place, hire=lambda tasks: workers)
    with pytest.raises(OSError, match=r"memory ran out with the run a \(CUDA out of memory\): .*other programs hold$"):
        run_tasks(four(None)[:1], Place("cpu"))


def test_a_worker_lets_go_of_what_an_error_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large:
        pass

    held, gone = list[weakref.ref[Large]](), list[bool]()

    def run_batch(*_: object, **__: object) -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(order_module, "run_batch", run_batch)
    monkeypatch.setattr(order_module, "let_go_of_memory", lambda: gone.append(held[0]() is None))
    with go_signal(tmp_path) as signal:
        assert fault_of(order(tmp_path, signal)).is_memory
    assert gone == [True]


def test_a_plugin_travels_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_sent", {})
    path = tmp_path / "mine.py"
    path.write_text("import flare\n@flare.policy('travelled')\ndef mine(problem):\n    'Mine.'\n    return [0]\n")
    config = override(Config(plugins=(str(path),)), [*SETTINGS, "scheduling.policy=travelled", "wireless.deadline_s=5"])
    task = Task("run", config, tmp_path / "run")
    sent = sent_plugins([task])
    path.unlink()  # another machine has no such file
    with go_signal(tmp_path) as signal:
        changed = (replace(sent[0], content=b"import os"),)
        assert "was changed on its way here" in fault_of(order(tmp_path, signal, plugins=changed)).words
        assert work(order(tmp_path, signal, tasks=(task,), plugins=sent)) is None
    records = RunFolder.open(tmp_path / "run").records()
    assert [record["selected"] for record in records] == [[0]] * 6
    del POLICIES["travelled"]


# --- processes ------------------------------------------------------------------------------------------------------


def ready_pool(number: int) -> ProcessPoolExecutor:
    """A pool whose processes begin to start."""
    pool = new_pool(number)
    get_ready(pool, number, "flare.sweeps.on_processes", "prepare", "cpu")
    return pool


@pytest.mark.usefixtures("ready_workers")
def test_processes_that_are_started_before_there_is_an_order_carry_out_all_and_are_gone_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flare.pools.num_cores", lambda: 2)
    before = set(multiprocessing.active_children())
    ended: list[str] = []

    def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
        ended.extend([task.key] if status is FINISHED else [])

    with staying(Place("cpu", 2), pool=ready_pool(2)) as hire:
        started = set(multiprocessing.active_children()) - before
        assert 1 <= len(started) <= 2  # one, where it was ready before the other was asked for
        for turn in ("one", "two"):
            tasks = [Task(f"{turn}-{seed}", override(SMALL, [f"seed={seed}"]), None) for seed in range(2)]
            run_tasks(tasks, Place("cpu", 2), callback=callback, hire=hire)
            assert set(multiprocessing.active_children()) - before == started
    assert sorted(ended) == ["one-0", "one-1", "two-0", "two-1"]
    for process in started:
        process.join(timeout=60)
        assert not process.is_alive()


@pytest.mark.usefixtures("ready_workers")
def test_no_more_processes_are_started_before_there_is_an_order_than_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flare.pools.num_cores", lambda: 2)
    before = set(multiprocessing.active_children())
    with staying(Place("cpu", 12), pool=ready_pool(12)):
        assert 1 <= len(set(multiprocessing.active_children()) - before) <= 2


def test_a_process_that_cannot_get_ready_tells_when_it_is_needed() -> None:
    pool = new_pool(1)
    get_ready(pool, 1, "flare.nosuch", "prepare")
    with pytest.raises(ValueError, match="invalid literal"):
        pool.submit(int, "one").result()
    end(pool, wait=True)


def test_processes_import_nothing_that_takes_long_before_they_are_told() -> None:
    """Nor does who starts them."""
    code = "import sys, flare.pools, flare.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "flare.pools" in modules
    assert not {"torch", "matplotlib", "flare.sweeps"} & set(modules)


def test_no_process_is_started_before_there_is_something_to_do() -> None:
    before = multiprocessing.active_children()
    with staying(Place("cpu", 1)), staying(Place("cpu", 2)):
        assert multiprocessing.active_children() == before


@pytest.mark.usefixtures("ready_workers")
def test_a_process_that_is_killed_changes_nothing_but_the_time(tmp_path: Path) -> None:
    """Two runs without a folder of their own, by two processes, one of which is killed at its work."""
    before = set(multiprocessing.active_children())
    tasks = [Task(str(seed), override(SMALL, ["run.rounds=20", f"seed={seed}"]), None) for seed in range(2)]
    seen: dict[str, list[RoundRecord]] = {"here": [], "there": []}
    ends: list[RunStatus] = []
    killed: list[int] = []

    def kill() -> bool:
        children = list(set(multiprocessing.active_children()) - before)
        if not killed and len(children) == 2 and children[0].pid is not None:
            killed.append(children[0].pid)
            children[0].kill()
        return False

    run_tasks(tasks, Place("cpu"), callback=lambda task, record, status: seen["here"].append(record))

    def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
        assert task in tasks
        seen["there"].append(record)
        ends.append(status)

    run_tasks(tasks, Place("cpu", 2), callback=callback, stopping=kill)
    assert len(killed) == 1
    assert ends.count(FINISHED) == 2
    here, there = (sorted(timeless(records), key=repr) for records in seen.values())
    assert len(here) == 40
    assert there == here


class Hanging:
    """Workers that never come to an end, unless they are killed."""

    place, patience_s, killed, room = Place("cpu", 2), 0.0, (), 2

    def __init__(self) -> None:
        self.given: list[Future[Fault | None]] = []

    def submit(self, order: Order) -> Future[Fault | None]:
        self.given.append(Future())
        return self.given[-1]

    def kill(self) -> None:
        for given in self.given:
            given.cancel()


def test_who_interrupts_a_second_time_does_not_wait_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, waited_s = Hanging(), list[float]()

    def interrupted(signal: Path) -> None:
        raise KeyboardInterrupt

    def waiting(given: Any, timeout: float, **how: Any) -> Any:
        waited_s.append(timeout)
        return wait(given, timeout=0.0, **how)

    monkeypatch.setattr(runner, "keep_going", interrupted)
    monkeypatch.setattr(runner, "wait", waiting)
    with pytest.raises(KeyboardInterrupt):
        run_tasks(four(tmp_path), workers.place, hire=lambda tasks: workers)
    assert waited_s == [runner._LOOK_S, 0.0]  # for news of them, and then for their end
    assert len(workers.given) == 2
    assert all(given.cancelled() for given in workers.given)


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--on", "moon"], "--on is 'moon'; it must be one of local, ray"),
        (["--ray-address", "10.0.0.1:6379"], "'10.0.0.1:6379' is the address of a Ray cluster; it needs --on ray"),
        (["--on", "ray", "--ray-address", "127.0.0.1:1"], "there is no Ray cluster at 127.0.0.1:1 that answers"),
        (["--on", "ray", "--ray-address", "here"], "'here' is not the address of a Ray cluster; give HOST:PORT"),
        (["--on", "ray"], f"--on ray needs ray: {how_to_install('ray')}"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_touched(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ray = ModuleType("ray") if "--ray-address" in options else None  # as where it is not installed
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    code, out, err = flare(capsys, "compare", *OPTIONS, *options)
    assert (code, out) == (2, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []
