"""Run folders of format 1: what has another name in them, and what they do not say.

They can be read and reported on, not continued.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FORMAT_1 = 1
_NEW_NAMES = {"lipschitz": "smoothness"}


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of format 1 with the names of today."""
    return {_NEW_NAMES.get(name, name): value for name, value in record.items()}


def completed(record: dict[str, Any], num_devices: int) -> dict[str, Any]:
    """A renamed record with what it does not say: all devices reported, the selected ones sent what is not known.

    What is damaged stays so, for `RoundRecord.from_json` to find.
    """
    sent = record.get("sent", record.get("selected"))
    unknown = [None] * (len(sent) if isinstance(sent, list) else 0)
    added = {"available": num_devices, "sent": sent, "loss": unknown, "update_norm": unknown, "faults": []}
    return {name: value for name, value in added.items() if value is not None} | record


def refuse_to_continue(folder: Path, written_by: object) -> None:
    """ValueError for a run folder of format 1, whose records carry no checks."""
    raise ValueError(
        f"{folder} was made by an older flare (version {written_by}) and can be reported on, but not continued; start "
        f"the run again with flare run {folder / 'config.toml'} --out and another folder"
    )
