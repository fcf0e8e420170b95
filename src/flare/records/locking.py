"""What can go wrong with a folder: somebody else writes there, or it cannot be written at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def telling(what: str, path: Path, then: str) -> Iterator[None]:
    """An OSError from inside leaves as one that says what could not be written, where, why and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        trouble = OSError(f"{what} could not be written: {path}: {reason}; make room or make it writable; {then}")
        trouble.errno = error.errno
        raise trouble from error


def lock(file: int, folder: Path) -> None:
    """Lock an open file of a folder; the system unlocks it when it is closed or its process dies, however it dies."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"{folder} is being written by another process; wait for that run to end, or give another folder"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s is on a disk without locks; see to it that only one process writes there", folder)
