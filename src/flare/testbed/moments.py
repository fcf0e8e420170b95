"""When things happened on the testbed: lines of JSON that the nodes and the server write beside each other.

All programs of a testbed share one machine and so one clock; times are seconds since 1970, as those of the frames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SENT, TRAINED, FETCHED = "sent", "trained", "fetched"
"""The server has sent out the work of a device; the device has done it; the server has its answer in hand."""


@dataclass(frozen=True)
class Moment:
    """Something that happened to a device in a round of a run."""

    what: str
    run: str
    round: int
    device: int
    time_s: float
    began_s: float = 0.0  # of work: when the device began with it
    busy_s: float = 0.0  # of work: how long the device was busy with it; until the moment it waited


def note(path: Path, moment: Moment) -> None:
    """Add a moment to a file; lines of several programs do not mix, for each is written at once."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, (json.dumps(vars(moment)) + "\n").encode())
    finally:
        os.close(file)


def read_moments(path: Path) -> Iterator[Moment]:
    """The moments in a file; ValueError names the line that is none."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            told: dict[str, Any] = json.loads(line)
            yield Moment(**told)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: line {number} is no moment of a testbed ({error})") from None
