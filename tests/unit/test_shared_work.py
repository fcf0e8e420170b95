"""Of processes with the same work before them each does some, and finds the rest done."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
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
    assert len({who for (who,) in makers}) > 1


def lock_of(name: str, folder: Path) -> Path:
    """The file that stands for a piece."""
    return folder / f"{module._hash(name) % module._LOCKS}.lock"


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


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30.0
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert is_so()


def test_pieces_that_stand_in_other_files_are_told_apart() -> None:
    assert len({lock_of(name, Path()) for name in "abc"}) == 3  # as the tests here have it


def test_a_piece_that_another_process_is_at_comes_last_and_when_that_is_through(tmp_path: Path) -> None:
    process, end = held(lock_of("b", tmp_path))
    done: list[str] = []
    pieces = {name: partial(done.append, name) for name in "abc"}
    sharing = threading.Thread(target=share, args=(pieces, tmp_path, 1))
    sharing.start()
    until(lambda: len(done) == 2)
    time.sleep(0.1)
    assert sorted(done) == ["a", "c"]
    end.set()
    sharing.join(30.0)
    assert done[2:] == ["b"]
    process.join(30.0)
    with FileLock(lock_of("b", tmp_path), blocking=False):  # it is let go of again
        pass


def test_who_is_ended_keeps_nobody_waiting(tmp_path: Path) -> None:
    process, _ = held(lock_of("a", tmp_path))
    done: list[str] = []
    pieces = {name: partial(done.append, name) for name in "ab"}
    sharing = threading.Thread(target=share, args=(pieces, tmp_path, 1))
    sharing.start()
    until(lambda: done == ["b"])
    time.sleep(0.1)
    assert sharing.is_alive()
    process.kill()
    sharing.join(30.0)
    assert done == ["b", "a"]


def test_nobody_waits_for_ever_and_in_vain_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_in_vain", set())
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    done, looks = list[str](), list[Path]()
    do = module._do_where_free
    monkeypatch.setattr(module, "_do_where_free", lambda piece, path: looks.append(path) or do(piece, path))
    with FileLock(lock_of("a", tmp_path)):
        share({"a": partial(done.append, "a")}, tmp_path, 1)
        assert len(looks) > 3
        looks.clear()
        share({"a": partial(done.append, "a")}, tmp_path, 1)
    assert done == ["a", "a"]
    assert len(looks) == 2  # at first, and once more


def test_where_patience_is_used_up_others_are_not_said_to_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_in_vain", set())
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    done: list[str] = []
    with FileLock(lock_of("a", tmp_path)), FileLock(lock_of("b", tmp_path)):
        share({name: partial(done.append, name) for name in "ab"}, tmp_path, 1)
    assert sorted(done) == ["a", "b"]
    assert len(module._in_vain) == 1


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    (tmp_path / "file").write_text("")
    share({"a": partial(done.append, "a")}, tmp_path / "file", 1)
    lock_of("b", tmp_path).mkdir()
    share({"b": partial(done.append, "b")}, tmp_path, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("says the test")

    monkeypatch.setattr(FileLock, "acquire", fail)
    share({"c": partial(done.append, "c")}, tmp_path, 1)
    assert done == ["a", "b", "c"]


def test_what_goes_wrong_is_raised_when_all_is_done_and_lets_others_in(tmp_path: Path) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("inside")

    with pytest.raises(OSError, match="inside"):
        share({"a": fail, "b": partial(done.append, "b")}, tmp_path, 1)
    assert done == ["b"]
    with FileLock(lock_of("a", tmp_path), blocking=False):
        pass


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="only on POSIX a signal is sent to a thread")
def test_ctrl_c_ends_it_soon_also_where_others_are_waited_for(tmp_path: Path) -> None:
    process, end = held(lock_of("a", tmp_path))
    done: list[str] = []
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        share({"a": partial(done.append, "a")}, tmp_path, 1)
    assert not done
    assert time.monotonic() - begin_s < 0.5 * module._PATIENCE_S
    end.set()
    process.join(30.0)
