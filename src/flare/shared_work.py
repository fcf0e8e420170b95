"""Pieces of work that several processes have before them at the same time, and that one of them can do for all: each
process does some, and then the others, which are quick where what was made is found."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATIENCE_S = 60.0
"""For what other processes are at, altogether. Longer would be no gain."""
_in_vain: set[Path] = set()
"""Locks that this process has waited for too long."""


def share(pieces: Mapping[str, Callable[[], object]], folder: Path, threads: int) -> None:
    """Do all pieces, in so many threads: first those that no other process is at, in an order of this process's own,
    and those that another was at when that is through with them. A piece has the same name in all processes.

    Files in FOLDER are locked meanwhile; where that cannot be, nobody waits. Nor does a process wait again for what it
    has once waited for too long: who holds the lock may have been stopped. Of what goes wrong in pieces the first is
    raised when all are done.
    """
    names = sorted(pieces, key=lambda name: hashlib.sha256(f"{os.getpid()} {name}".encode()).digest())
    locks = {name: folder / f"{name}.lock" for name in names}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        begun = {name: pool.submit(_do_where_free, pieces[name], locks[name]) for name in names}
        left = [name for name, done in begun.items() if done.exception() is None and not done.result()]
        end_s = time.monotonic() + _PATIENCE_S
        late = [pool.submit(_do_afterwards, pieces[name], locks[name], end_s) for name in left]
    asked: list[Future[Any]] = [*begun.values(), *late]
    for each in asked:
        each.result()


def _do_where_free(piece: Callable[[], object], path: Path) -> bool:
    """Do a piece with its lock held; False where another process holds that."""
    from filelock import FileLock, Timeout  # takes a while

    lock = FileLock(path)
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
    try:
        piece()
    finally:
        lock.release()
    return True


def _do_afterwards(piece: Callable[[], object], path: Path, end_s: float) -> None:
    """Do a piece when nobody holds its lock any more, or when there is no patience left."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with suppress(OSError, NotImplementedError):
        try:
            lock.acquire(timeout=0.0 if path in _in_vain else max(0.0, end_s - time.monotonic()), poll_interval=0.02)
            lock.release()
        except Timeout:
            _in_vain.add(path)
    piece()
