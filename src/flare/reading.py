"""Files that somebody else wrote, read so that none of them can do harm: no waiting, no more memory than allowed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe must not wait for somebody who writes into it
_BINARY = getattr(os, "O_BINARY", 0)  # some systems would otherwise translate line ends
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_small(path: str | Path, max_bytes: int) -> bytes:
    """All of a regular file that has at most `max_bytes`; ValueError as by `open_small`."""
    with open_small(path, max_bytes) as file:
        try:
            content = file.read(max_bytes + 1)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > max_bytes:  # it grew, or is one of those that do not say how long they are
        raise ValueError(f"{path}: has more than the {max_bytes} bytes that such a file may have")
    return content


def open_small(path: str | Path, max_bytes: int) -> BinaryIO:
    """A regular file that has at most `max_bytes`, open for reading bytes.

    Raises ValueError with the path and what is wrong: it is not there, may not be read, is no regular file (a folder, a
    named pipe, /dev/zero) or is too large. Nothing of such a file is read, and nothing waits.
    """
    try:
        # A pipe or a device may do things on opening: look first, and again at what was opened.
        _refuse_other_kinds(path, os.stat(path).st_mode)
        file = os.open(path, os.O_RDONLY | _NO_WAITING | _BINARY)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise ValueError(f"{path}: cannot be read (the name has a NUL in it)") from None
    opened = os.fdopen(file, "rb")
    try:
        about = os.fstat(file)
        _refuse_other_kinds(path, about.st_mode)
        if about.st_size > max_bytes:
            raise ValueError(f"{path}: has {about.st_size} bytes; such a file may have at most {max_bytes}")
    except BaseException:
        opened.close()
        raise
    return opened


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _refuse_other_kinds(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: cannot be read: it is {kind_of(mode)}; give a regular file")
