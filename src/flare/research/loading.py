"""Runs from folders: one, or all below a folder."""

from __future__ import annotations

import os
from pathlib import Path

from flare.records.manifest import FILE, is_run_folder, read_manifest
from flare.research.run import Run
from flare.research.runs import Runs
from flare.sweeps import listed


def load(folder: str | os.PathLike[str]) -> Run | Runs:
    """Read what a folder holds: a `Run` where it is the folder of a run (--out of `flare run`), otherwise `Runs`, all
    that lie anywhere below it (--out of `flare compare` or `flare reproduce`, or a folder of your own), also if that is
    only one.

    The runs of a comparison are in the order of its entries, others in that of their paths; each is named by its path
    below the folder. Raises ValueError where there is none, or where one of them is damaged.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"a folder is given as a {type(folder).__name__}; give the path of a run folder as text")
    base = Path(folder)
    if is_run_folder(base):
        return Run.read(base)
    return Runs(Run.read(each, each.relative_to(base).as_posix()) for each in run_folders_in(base))


def run_folders_in(folder: Path) -> list[Path]:
    """The folder itself if it holds a run, otherwise every run folder below it; ValueError where there is none."""
    if is_run_folder(folder):
        return [folder]
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give the folder of a run (--out of flare run)")
    # What vanishes meanwhile, or may not be entered, is passed over: runs may be going on there.
    found = sorted(Path(each) for each, _, names in os.walk(folder) if FILE in names and is_run_folder(Path(each)))
    if not found:
        if os.path.lexists(folder / FILE):
            read_manifest(folder)  # says what is wrong with it
        raise ValueError(f"{folder} is no run folder and contains none; give the folder of a run (--out of flare run)")
    return [*_in_order(folder, found)]


def _in_order(folder: Path, found: list[Path]) -> list[Path]:
    """Those of a comparison first, in its order."""
    try:
        first = [each for each in listed(folder) if each in found]
    except (ValueError, OSError):
        first = []
    return first + [each for each in found if each not in first]
