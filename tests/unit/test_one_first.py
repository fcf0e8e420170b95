"""Of processes that begin the same one goes first, and the others when it is through, all at once."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from flare import one_first as module
from flare.one_first import one_first


def hold(path: Path, holds: threading.Event, end: threading.Event) -> None:
    with one_first(path):
        holds.set()
        end.wait(30.0)


def test_the_first_is_waited_for_and_then_nobody_waits(tmp_path: Path) -> None:
    path, context = tmp_path / "made" / "lock", multiprocessing.get_context("fork")
    holds, end = context.Event(), context.Event()
    first = context.Process(target=hold, args=(path, holds, end))
    first.start()
    assert holds.wait(30.0)
    both = threading.Barrier(2, timeout=30.0)
    over: list[bool] = []

    def next_one() -> None:
        with one_first(path):
            over.append(end.is_set())
            both.wait()  # each is in it while the other one is

    others = [threading.Thread(target=next_one) for _ in range(2)]
    for each in others:
        each.start()
    time.sleep(0.2)
    assert not over
    end.set()
    for each in (first, *others):
        each.join(30.0)
    assert over == [True, True]


def test_who_is_ended_keeps_nobody_waiting(tmp_path: Path) -> None:
    path, context = tmp_path / "lock", multiprocessing.get_context("fork")
    holds, end = context.Event(), context.Event()
    first = context.Process(target=hold, args=(path, holds, end))
    first.start()
    assert holds.wait(30.0)
    first.kill()
    first.join(30.0)
    with one_first(path):
        pass


def test_nobody_waits_for_ever_and_in_vain_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    acquire = FileLock.acquire

    def told(self: FileLock, timeout: float | None = None, **named: Any) -> Any:
        waits.extend([] if timeout is None else [timeout])
        return acquire(self, timeout=timeout and 0.05, **named)

    monkeypatch.setattr(module, "_in_vain", set())
    with FileLock(tmp_path / "lock"):
        monkeypatch.setattr(FileLock, "acquire", told)
        for _ in range(3):
            with one_first(tmp_path / "lock"):
                pass
    assert waits == [module._PATIENCE_S, 0.0, 0.0]


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with one_first(tmp_path / "file" / "lock"):
        pass
    (tmp_path / "folder").mkdir()
    with one_first(tmp_path / "folder"):
        pass


def test_what_goes_wrong_inside_is_raised_and_lets_the_next_one_in(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inside"), one_first(tmp_path / "lock"):
        raise OSError("inside")
    with FileLock(tmp_path / "lock", blocking=False):
        pass
