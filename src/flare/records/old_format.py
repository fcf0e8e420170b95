"""Run folders of format 1: what has another name in them, and what they do not say."""

from __future__ import annotations

from typing import Any

FORMAT_1 = 1
_NEW_NAMES = {"lipschitz": "smoothness"}


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of format 1 with the names of today."""
    return {_NEW_NAMES.get(name, name): value for name, value in record.items()}


def completed(record: dict[str, Any], num_devices: int) -> dict[str, Any]:
    """A record of format 1 as one of today: all devices reported, all selected ones sent, what they sent is not known.

    What is damaged stays so, for `RoundRecord.from_json` to find.
    """
    sent = record.get("sent", record.get("selected"))
    unknown = [None] * (len(sent) if isinstance(sent, list) else 0)
    added = {"available": num_devices, "sent": sent, "loss": unknown, "update_norm": unknown, "faults": []}
    return {name: value for name, value in added.items() if value is not None} | renamed(record)
