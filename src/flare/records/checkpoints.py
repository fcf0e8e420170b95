"""The folder of checkpoints: the newest ones on disk."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from flare.records.checkpoint import Snapshot, decode
from flare.records.regular_files import folder_is_there, open_regular

_NAME = re.compile(r"round-(\d+)\.safetensors")
_KEPT = 2


def checkpoint_path(folder: Path, rounds_done: int) -> Path:
    """The file of the checkpoint after so many rounds."""
    return folder / f"round-{rounds_done:06d}.safetensors"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Rounds done and file of every checkpoint, the newest first; ValueError where the folder is no folder."""
    found = ((_NAME.fullmatch(each.name), each) for each in (folder.iterdir() if folder_is_there(folder) else ()))
    return sorted(((int(match[1]), each) for match, each in found if match), reverse=True)


def drop_old(folder: Path, kept: int = _KEPT) -> None:
    """Remove all checkpoints but the last ones."""
    for _, old in checkpoints(folder)[kept:]:
        old.unlink()


def read_checkpoint(path: Path) -> tuple[Snapshot, str]:
    """The snapshot in a file and the check of the last record before it; ValueError where it is not as it was written.

    Where the disk has lost the file's content, that is a ValueError too.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return decode(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ValueError("the disk cannot read it") from None
