"""Runs driven to their end, and what they recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flare.config import LearningConfig
from flare.learning.methods import make_method
from flare.simulation import Member, RoundRecord, drive


def settings_of_method(name: str) -> tuple[str, ...]:
    """A method, with the codec that it asks for where it does."""
    codec = make_method(LearningConfig(method=name)).needs_codec
    return (f"learning.method={name}", *((f"uplink.codec={codec}", "run.payload=model") if codec else ()))


def followed(members: Sequence[Member]) -> list[list[RoundRecord]]:
    """The records of each member, driven to its end in lockstep, without the real time that they took."""
    seen: dict[str, list[RoundRecord]] = {}
    for number, member in enumerate(members):
        member.key = str(number)
        seen[member.key] = []
    drive(members, callback=lambda member, record: seen[member.key].append(replace(record, wall_s=None)))
    return list(seen.values())
