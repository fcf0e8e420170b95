"""Of processes with the same work before them each does some, and finds the rest done."""

from __future__ import annotations

import multiprocessing
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from flare import shared_work as module
from flare.shared_work import share

NAMES = [f"piece {number}" for number in range(12)]
CONTEXT = multiprocessing.get_context("fork")


def make(folder: Path, name: str, who: int) -> None:
    """What takes a while where it has not been made; who has made it is noted, each time."""
    if not (folder / name).exists():
        time.sleep(0.05)
        with (folder / f"{name} made by").open("a") as file:
            file.write(f"{who} ")
        (folder / name).touch()


def work(folder: Path, who: int, begin: Any, found: Any) -> None:
    begin.wait(30.0)
    share({name: partial(make, folder, name, who) for name in NAMES}, folder / "locks", 2)
    found.put(all((folder / name).exists() for name in NAMES))


def test_each_process_does_some_and_no_piece_is_done_twice(tmp_path: Path) -> None:
    begin, found = CONTEXT.Barrier(3), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=work, args=(tmp_path, who, begin, found)) for who in range(3)]
    for each in processes:
        each.start()
    assert [found.get(timeout=30.0) for _ in processes] == [True] * 3
    for each in processes:
        each.join(30.0)
    makers = [(tmp_path / f"{name} made by").read_text().split() for name in NAMES]
    assert all(len(each) == 1 for each in makers)
    assert {who for (who,) in makers} == {"0", "1", "2"}


def hold(path: Path, holds: Any, end: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        holds.set()
        end.wait(30.0)


def held(path: Path) -> tuple[Any, Any]:
    """A process that is at a piece, and what lets it end."""
    holds, end = CONTEXT.Event(), CONTEXT.Event()
    process = CONTEXT.Process(target=hold, args=(path, holds, end))
    process.start()
    assert holds.wait(30.0)
    return process, end


def test_a_piece_that_another_process_is_at_comes_last_and_when_that_is_through(tmp_path: Path) -> None:
    process, end = held(tmp_path / "b.lock")
    done: list[str] = []
    pieces = {name: partial(done.append, name) for name in "abc"}
    sharing = threading.Thread(target=share, args=(pieces, tmp_path, 1))
    sharing.start()
    until_s = time.monotonic() + 30.0
    while len(done) < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(0.1)
    assert sorted(done) == ["a", "c"]
    end.set()
    sharing.join(30.0)
    assert done[2:] == ["b"]
    process.join(30.0)


def test_who_is_ended_keeps_nobody_waiting(tmp_path: Path) -> None:
    process, _ = held(tmp_path / "a.lock")
    done: list[str] = []
    sharing = threading.Thread(target=share, args=({"a": partial(done.append, "a")}, tmp_path, 1))
    sharing.start()
    process.kill()
    sharing.join(30.0)
    assert done == ["a"]


def test_nobody_waits_for_ever_and_in_vain_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    acquire = FileLock.acquire

    def told(self: FileLock, timeout: float | None = None, **named: Any) -> Any:
        waits.extend([] if timeout is None else [timeout])
        return acquire(self, timeout=timeout and 0.05, **named)

    monkeypatch.setattr(module, "_in_vain", set())
    done: list[str] = []
    with FileLock(tmp_path / "a.lock"):
        monkeypatch.setattr(FileLock, "acquire", told)
        for _ in range(3):
            share({"a": partial(done.append, "a")}, tmp_path, 1)
    assert done == ["a"] * 3
    assert waits == [pytest.approx(module._PATIENCE_S, abs=5.0), 0.0, 0.0]


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path) -> None:
    done: list[str] = []
    (tmp_path / "file").write_text("")
    share({"a": partial(done.append, "a")}, tmp_path / "file", 1)
    (tmp_path / "b.lock").mkdir()
    share({"b": partial(done.append, "b")}, tmp_path, 1)
    assert done == ["a", "b"]


def test_what_goes_wrong_is_raised_when_all_is_done_and_lets_others_in(tmp_path: Path) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("inside")

    with pytest.raises(OSError, match="inside"):
        share({"a": fail, "b": partial(done.append, "b")}, tmp_path, 1)
    assert done == ["b"]
    with FileLock(tmp_path / "a.lock", blocking=False):
        pass
