"""What lies in a run folder, by name: which files are a run's own, and which folders a new run may take."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from flare.atomic import PART
from flare.records.manifest import CHECKPOINTS, CONFIG, FILE, ROUNDS, is_run_folder, never_began
from flare.records.regular_files import folder_is_there

LOCK = ".lock"
_PARTIAL = re.compile(
    r"\.(config\.toml|manifest\.json|rounds\.jsonl(?:\.aside-\d+)?|round-\d+\.safetensors)\.\d+" + re.escape(PART)
)


def remove_partial(folder: Path) -> None:
    """Remove what a killed process was writing."""
    inner = folder / CHECKPOINTS
    for each in (*folder.iterdir(), *(inner.iterdir() if folder_is_there(inner) else ())):
        if _PARTIAL.fullmatch(each.name):
            each.unlink()


def remove_run(folder: Path) -> None:
    """Remove records, checkpoints and configuration; the manifest and what others put into the folder stay."""
    remove_partial(folder)  # first: it refuses a link in the place of the checkpoints
    for each in (
        *(folder / CHECKPOINTS).glob("round-*.safetensors*"),
        *folder.glob(f"{ROUNDS}.aside-*"),
        folder / CONFIG,
        folder / ROUNDS,
    ):
        each.unlink(missing_ok=True)


def refuse_occupied(path: Path, force: bool) -> None:
    """ValueError where a new run may not be written into the folder."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file; give a folder for the run")
    begun = not never_began(path)
    if all(_is_remains(each) or (not begun and each.name in (FILE, CHECKPOINTS)) for each in path.iterdir()):
        return
    if begun and not is_run_folder(path):
        raise ValueError(
            f"{path} is not empty and not a run folder, so that nothing is written there; give another, or move it "
            "away, where it is what is left of a run whose manifest.json is damaged"
        )
    if not force and not begun:
        raise ValueError(f"{path} is not empty: it holds files beside a run that never began; give another, or --force")
    if not force:
        raise ValueError(
            f"{path} already holds a run; continue it with --resume, write over it with --force, or give another folder"
        )


def _is_remains(path: Path) -> bool:
    """Whether a file is what is left of a run that could not be started."""
    status = path.lstat()
    is_empty_file = stat.S_ISREG(status.st_mode) and status.st_size == 0
    return path.name == LOCK or bool(_PARTIAL.fullmatch(path.name)) or (path.name == ROUNDS and is_empty_file)
