"""Runs driven to their end, and what they recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flare.simulation import Member, RoundRecord, drive


def followed(members: Sequence[Member]) -> list[list[RoundRecord]]:
    """The records of each member, driven to its end in lockstep, without the real time that they took."""
    seen: dict[str, list[RoundRecord]] = {}
    for number, member in enumerate(members):
        member.key = str(number)
        seen[member.key] = []
    drive(members, callback=lambda member, record: seen[member.key].append(replace(record, wall_s=None)))
    return list(seen.values())
