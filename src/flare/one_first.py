"""What several processes begin at the same time, and what one of them has made serves all: one of them goes first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_S = 60.0
"""For another process that is at it. Longer would be no gain."""
_in_vain: set[Path] = set()
"""Locks that this process has waited for too long."""


@contextmanager
def one_first(path: Path) -> Iterator[None]:
    """Of processes that are here at the same time one goes on, and the others when it is through, all at once then.
    PATH is a file that they lock; where that cannot be, nobody waits. Nor does a process wait again for what it has
    once waited for too long: who holds the lock may have been stopped."""
    from filelock import FileLock, Timeout  # takes a while

    lock = FileLock(path)
    with suppress(OSError, NotImplementedError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            try:
                lock.acquire(timeout=0.0 if path in _in_vain else _PATIENCE_S, poll_interval=0.02)
                lock.release()
            except Timeout:
                _in_vain.add(path)
    try:
        yield
    finally:
        lock.release()
