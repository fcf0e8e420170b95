"""The folder of checkpoints: the newest ones on disk, and what to do when one of them is damaged."""

from __future__ import annotations

import errno
import logging
import os
import re
from pathlib import Path

from flare.records.checkpoint import Snapshot, decode

_NAME = re.compile(r"round-(\d+)\.safetensors")
_KEPT = 2
_log = logging.getLogger(__name__)


def checkpoint_path(folder: Path, rounds_done: int) -> Path:
    """The file of the checkpoint after so many rounds."""
    return folder / f"round-{rounds_done:06d}.safetensors"


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Rounds done and file of every checkpoint, the newest first."""
    found = ((_NAME.fullmatch(each.name), each) for each in (folder.iterdir() if folder.is_dir() else ()))
    return sorted(((int(match[1]), each) for match, each in found if match), reverse=True)


def drop_old(folder: Path, kept: int = _KEPT) -> None:
    """Remove all checkpoints but the last ones."""
    for _, old in checkpoints(folder)[kept:]:
        old.unlink()


def newest_sound(folder: Path, recorded_rounds: int) -> Snapshot | None:
    """The newest checkpoint that is as it was written and not ahead of the records; newer ones are set aside."""
    for rounds_done, path in checkpoints(folder):
        try:
            snapshot = decode(_content(path))
            if snapshot.rounds_done == rounds_done <= recorded_rounds:
                return snapshot
            fault = f"it is of round {snapshot.rounds_done}, and {recorded_rounds} rounds are recorded"
        except ValueError as error:
            fault = str(error)
        aside = path.with_name(f"{path.name}.damaged")
        os.replace(path, aside)
        _log.warning("checkpoint %s cannot be used: %s; set aside as %s", path, fault, aside.name)
    return None


def _content(path: Path) -> bytes:
    """The content of a file; ValueError where the disk has lost it."""
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ValueError("the disk cannot read it") from None
