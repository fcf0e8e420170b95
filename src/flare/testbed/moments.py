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

from flare.reading import read_small

SENT, TRAINED, FETCHED = "sent", "trained", "fetched"
"""The server begins to send out the work of a device; the device has done it; the server has its answer in hand."""

MAX_S = 1e10
"""The latest time that a moment can have, some centuries after 1970."""
MAX_FILE_BYTES = 1 << 28
"""A file of moments has no more: some million lines, where a testbed writes three for each update."""


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
    """The moments in a file; ValueError names the file, and the line that is none."""
    for number, line in enumerate(read_small(path, MAX_FILE_BYTES).splitlines(), start=1):
        try:
            told: dict[str, Any] = json.loads(line)
            yield _checked(Moment(**told))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: line {number} is no moment of a testbed ({error})") from None


def _checked(moment: Moment) -> Moment:
    """ValueError where a part of a moment is not what it must be."""
    for name, kind in (("what", str), ("run", str), ("round", int), ("device", int)):
        if type(value := getattr(moment, name)) is not kind:
            raise ValueError(f"{name} is {value!r:.40}")
    for name in ("time_s", "began_s", "busy_s"):
        value = getattr(moment, name)
        if type(value) not in (int, float) or not 0.0 <= value <= MAX_S:
            raise ValueError(f"{name} is {value!r:.40}; it must be a number of seconds")
    return moment
