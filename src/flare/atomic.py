"""Files that appear whole or not at all, whatever happens to the process or the disk while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

PART = ".part"
"""How the name of a file that is still being written ends; one left by a killed process is waste."""

_BINARY = getattr(os, "O_BINARY", 0)  # some systems would otherwise translate line ends
_FOLDERS_CAN_BE_OPENED = os.name != "nt"


def write_whole(path: Path, *pieces: bytes | memoryview, durable: bool = False) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one, never half of one.

    `durable` waits until content and name are on the disk, so that they outlive a power cut. Raises OSError where
    `path` cannot be written; the old file is then still there, and nothing beside it.
    """
    with whole_file(path, durable=durable) as file:
        for piece in pieces:
            write_all(file, piece)


@contextlib.contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[int]:
    """What `write_whole` does, for content that comes bit by bit: an open file to write to, named `path` at the end.

    A link at `path` is replaced, not followed; so is one that stands where the content is gathered.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    if path.is_dir() and not path.is_symlink():
        words = "a folder stands where this file is to be written; move it away, or write elsewhere"
        raise IsADirectoryError(errno.EISDIR, words, str(path))
    try:
        partial.unlink(missing_ok=True)  # left by a killed process that had the same number, or put there by somebody
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        try:
            yield file
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_all(file: int, content: bytes | memoryview) -> None:
    """Write all of `content` to an open file: one call of the system may take only a part."""
    written = os.write(file, content)
    while written < len(content):
        content = memoryview(content)[written:]
        written = os.write(file, content)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; nothing to wait for where a system has no such call."""
    if not _FOLDERS_CAN_BE_OPENED:
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
