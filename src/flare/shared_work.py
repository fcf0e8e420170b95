"""Pieces of work that several processes have before them at the same time, and that one of them can do for all: each
process does some, and then the others, which are quick where what was made is found."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATIENCE_S = 60.0
"""For what other processes are at, altogether. Longer would be no gain."""
_LOOK_AGAIN_S = 0.02
_LOCKS = 64
"""Files that stand for pieces: they stay, so that there are not as many of them as of pieces."""
_in_vain: set[Path] = set()
"""Locks that this process has waited for too long."""


def share(pieces: Mapping[str, Callable[[], object]], folder: Path, threads: int) -> None:
    """Do all pieces, in so many threads: first those that no other process is at, in an order of this process's own,
    and those that another was at when that is through with them. A piece has the same name in all processes.

    Files in FOLDER are locked meanwhile; where that cannot be, nobody waits. Nor does a process wait again for what it
    has once waited for too long: who holds the lock may have been stopped. Of what goes wrong in pieces the first is
    raised when all are done. Where this is interrupted, no further piece is begun.
    """
    names = sorted(pieces, key=lambda name: _hash(f"{os.getpid()} {name}"))
    locks = {name: folder / f"{_hash(name) % _LOCKS}.lock" for name in names}
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            begun = {name: pool.submit(_do_where_free, pieces[name], locks[name]) for name in names}
            left = [name for name, done in begun.items() if done.exception() is None and not done.result()]
            end_s = time.monotonic() + _PATIENCE_S
            late = [pool.submit(_do_afterwards, pieces[name], locks[name], end_s, stop) for name in left]
            asked: list[Future[Any]] = [*begun.values(), *late]
            for each in asked:
                each.result()
        except BaseException as why:
            if not isinstance(why, Exception):
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
            raise


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def _do_where_free(piece: Callable[[], object], path: Path) -> bool:
    """Do a piece with its lock held; False where somebody else holds that."""
    from filelock import FileLock, Timeout  # takes a while

    lock = FileLock(path)
    with suppress(Exception):  # whatever locking may run into, the piece is done
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
    try:
        piece()
    finally:
        lock.release()
    return True


def _do_afterwards(piece: Callable[[], object], path: Path, end_s: float, stop: threading.Event) -> None:
    """Do a piece when nobody holds its lock any more, or when there is no patience left; not after `stop`."""
    has_patience = path not in _in_vain and time.monotonic() < end_s
    while not stop.is_set():
        if _do_where_free(piece, path):
            return
        if not has_patience or time.monotonic() >= end_s:
            if has_patience:
                _in_vain.add(path)
            piece()
            return
        time.sleep(_LOOK_AGAIN_S)
