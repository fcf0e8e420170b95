"""One writer at a time: the lock of a run folder, held in a file of its own, so that readers need no lock."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import filelock

from flare.records.layout import LOCK
from flare.records.regular_files import refuse_irregular

_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}
_SOFT_LOCK_S = 0.5
_SYSTEM_LOCKS = Path("/proc/locks")
_PLACE = re.compile(r"([0-9a-f]+):([0-9a-f]+):([0-9]+)")  # of a file: its device in two numbers, its inode
_log = logging.getLogger(__name__)
_quiet = threading.Lock()
"""Warnings are left out for the whole process: two threads that do it at once could leave them out for ever."""


class InUseError(ValueError):
    """Another process writes into a run folder."""


def lock(folder: Path) -> Callable[[], object]:
    """Lock a folder against other writers; what comes back unlocks it.

    The system unlocks it too when this process dies, however it dies. Where the system or the disk knows no locks,
    a file with the number of the process stands for one, or nothing does; either is logged as a warning. Raises
    InUseError where another process holds the lock, OSError where the folder cannot be written.
    """
    path = folder / LOCK
    refuse_irregular(path)
    held = filelock.FileLock(path, thread_local=False)
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what filelock says there is logged below
            # A first try may find and remove what a dead process left; a second one then has the lock.
            held.acquire(timeout=_SOFT_LOCK_S if isinstance(held, filelock.SoftFileLock) else 0.0, poll_interval=0.05)
    except filelock.Timeout:
        raise InUseError(_in_use(folder, by_name=isinstance(held, filelock.SoftFileLock))) from None
    except NotImplementedError:  # how some versions of filelock say ENOSYS
        _warn_of_no_locks(folder)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn_of_no_locks(folder)
    else:
        if isinstance(held, filelock.SoftFileLock):
            _warn_of_no_locks(folder)
    return held.release


FileKey = tuple[int, int]
"""Which file of this machine it is: its device and its inode."""


def file_key(path: Path) -> FileKey | None:
    """Which file a path leads to, links not followed; None where there is none."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return _key(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)


def _key(major: int, minor: int, inode: int) -> FileKey:
    """Disks without a device of their own (major 0: btrfs, overlays, networks) have other numbers in the system's list
    of locks than a file on them says; they count as one device."""
    return os.makedev(major, minor) if major else 0, inode


def locked_files() -> frozenset[FileKey] | None:
    """The files that processes of this machine have locked now; None where the system does not tell.

    Nothing is locked by asking: who only looks must never stand in the way of a run that begins.
    """
    try:
        lines = _SYSTEM_LOCKS.read_text().splitlines()
    except OSError:
        return None
    places = (_PLACE.fullmatch(line.split()[-3]) for line in lines if len(line.split()) >= 8)  # place, begin, end
    return frozenset(_key(int(place[1], 16), int(place[2], 16), int(place[3])) for place in places if place is not None)


def _in_use(folder: Path, *, by_name: bool) -> str:
    stale = f"; if you know that none does, remove {folder / LOCK}" if by_name else ""
    return f"{folder} is being written by another process; wait for that run to end, or give another folder{stale}"


def _warn_of_no_locks(folder: Path) -> None:
    _log.warning("%s is on a disk without locks; see to it that only one process writes there", folder)
