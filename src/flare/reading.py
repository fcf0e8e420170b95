"""Files that somebody else wrote, read so that none of them can do harm: no waiting, no more memory than allowed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe must not wait for somebody who writes into it
_BINARY = getattr(os, "O_BINARY", 0)  # some systems would otherwise translate line ends
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_REMEDY = "it cannot be read: give a regular file"
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
            return read_capped(file, path, max_bytes)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from None


def open_small(path: str | Path, max_bytes: int) -> BinaryIO:
    """A regular file that has at most `max_bytes`, open for reading bytes.

    Raises ValueError with the path and what is wrong: it is not there, may not be read, is no regular file (a folder, a
    named pipe, /dev/zero) or is too large. Nothing of such a file is read, and nothing waits.
    """
    try:
        opened = os.fdopen(open_regular(path), "rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    size = os.fstat(opened.fileno()).st_size
    if size > max_bytes:
        opened.close()
        raise ValueError(f"{path}: has {size} bytes; such a file may have at most {max_bytes}")
    return opened


def read_capped(file: BinaryIO, path: str | Path, max_bytes: int) -> bytes:
    """The rest of a file; ValueError where that is more than `max_bytes`, of which no more is read.

    A file may grow, and some do not say how long they are: only reading shows it.
    """
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path}: has more than the {max_bytes} bytes that such a file may have")
    return content


def open_regular(
    path: str | Path, flags: int = os.O_RDONLY, *, follow_links: bool = True, remedy: str = _REMEDY
) -> int:
    """Open a regular file without waiting: its descriptor.

    Raises ValueError where something else is there, ending in `remedy`, and OSError where nothing is (unless `flags`
    create it) or it may not be opened.
    """
    # A pipe or a device may do things on opening: look first, and again at what was opened.
    refuse_irregular(path, follow_links=follow_links, remedy=remedy)
    file = os.open(path, flags | _NO_WAITING | _BINARY | (0 if follow_links else _NO_LINK), 0o666)
    try:
        _refuse_kind(path, os.fstat(file).st_mode, remedy)
    except BaseException:
        os.close(file)
        raise
    return file


def refuse_irregular(path: str | Path, *, follow_links: bool = True, remedy: str = _REMEDY) -> None:
    """ValueError where something is there that is no regular file."""
    if "\0" in os.fspath(path):
        raise ValueError(f"{path}: cannot be read (the name has a NUL in it)")
    try:
        mode = os.stat(path, follow_symlinks=follow_links).st_mode
    except FileNotFoundError:
        return
    _refuse_kind(path, mode, remedy)


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _refuse_kind(path: str | Path, mode: int, remedy: str) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is {kind_of(mode)}; {remedy}")
