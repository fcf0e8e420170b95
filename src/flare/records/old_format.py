"""Run folders of format 1: what has another name in them. They can be read and reported on, not continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FORMAT_1 = 1
_NEW_NAMES = {"lipschitz": "smoothness"}


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of format 1 with the names of today."""
    return {_NEW_NAMES.get(name, name): value for name, value in record.items()}


def refuse_to_continue(folder: Path, written_by: object) -> None:
    """ValueError for a run folder of format 1, whose records carry no checks."""
    raise ValueError(
        f"{folder} was made by an older flare (version {written_by}) and can be reported on, but not continued; start "
        f"the run again with flare run {folder / 'config.toml'} --out and another folder"
    )
