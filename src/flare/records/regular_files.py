"""The files of a run folder, opened so that what somebody put in their place can do no harm.

A named pipe would make the reader wait for ever, a device has no end, a link leads to a file that is not ours to
write, and a huge file would fill the memory. None of them is opened, or no more of it is read than is allowed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from flare import reading
from flare.atomic import sync_folder, whole_file, write_all

_REMEDY = "a run folder holds regular files only: put the file back, or give another folder"
_CHUNK = 1 << 20


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, never through a link and without waiting.

    Raises ValueError where something else is there, FileNotFoundError where nothing is (unless `flags` create it).
    """
    return reading.open_regular(path, flags, follow_links=False, remedy=_REMEDY)


def refuse_irregular(path: Path) -> None:
    """ValueError where something is there that is no regular file."""
    reading.refuse_irregular(path, follow_links=False, remedy=_REMEDY)


def read_regular(path: Path, max_bytes: int) -> bytes:
    """All of a regular file; ValueError where it is something else or has more than so many bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        return reading.read_capped(file, path, max_bytes)


def folder_is_there(path: Path) -> bool:
    """Whether a folder is there; ValueError where something else is, such as a link to one."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise ValueError(
            f"{path} is {reading.kind_of(mode)}, and must be a folder; nothing was changed: put the folder back, or "
            "move away what is in its place"
        )
    return True


def aside(path: Path) -> Path:
    """The first of path.aside-1, path.aside-2, ... that is free: for what cannot be used any more but may be missed."""
    number = 1
    while os.path.lexists(kept := path.with_name(f"{path.name}.aside-{number}")):
        number += 1
    return kept


def keep_aside(path: Path) -> Path:
    """Give what a regular file holds the name `aside(path)`, too, or copy it where a file has but one name; on the disk
    before this returns. However large it is, the second name takes no room."""
    kept = aside(path)
    refuse_irregular(path)
    try:
        os.link(path, kept, follow_symlinks=False)
        sync_folder(path.parent)
    except (OSError, NotImplementedError):
        _copy(path, kept, path.stat().st_size)
    return kept


def has_other_names(path: Path) -> bool:
    """Whether a file is known by other names, too: who writes into it changes what is found there."""
    try:
        return os.lstat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def make_own(path: Path, num_bytes: int) -> None:
    """Replace a regular file by a copy of its first bytes, on the disk before this returns; under its other names the
    file stays as it is."""
    _copy(path, path, num_bytes)


def _copy(path: Path, to: Path, num_bytes: int) -> None:
    with os.fdopen(open_regular(path), "rb") as source, whole_file(to, durable=True) as file:
        left = num_bytes
        while left and (chunk := source.read(min(left, _CHUNK))):
            write_all(file, chunk)
            left -= len(chunk)
