"""rounds.jsonl on the disk: appended to by the one writer, cut back, and read by anybody."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flare.atomic import write_all
from flare.records.lines import Mark, read_lines, seal
from flare.records.regular_files import open_regular, refuse_irregular


class RecordFile:
    """The records of a run, open to append. `mark` is where the next line goes."""

    def __init__(self, path: Path, mark: Mark, max_line_bytes: int, *, new: bool = False) -> None:
        """Open the file, as a new one or for what is in it; what comes after `mark` is cut off by `cut` only."""
        self.mark = mark
        self._path = path
        self._max_line_bytes = max_line_bytes
        self._file = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | (os.O_EXCL if new else 0))

    def append(self, record: dict[str, Any]) -> None:
        """Write the next round. A line that cannot be written whole is taken back."""
        line, mark = seal(record, self.mark)
        if len(line) > self._max_line_bytes:
            raise ValueError(
                f"the record of round {self.mark.rounds} has {len(line)} bytes, and a run of so few devices has at "
                f"most {self._max_line_bytes}; record less of a round"
            )
        try:
            write_all(self._file, line)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.mark.num_bytes)
            raise
        self.mark = mark

    def cut(self, mark: Mark) -> None:
        """Keep what comes before the mark: one call of the system, whole or not at all, that needs no room."""
        os.ftruncate(self._file, mark.num_bytes)
        self.sync()
        self.mark = mark

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; only once."""
        os.close(self._file)


def read_file(path: Path, mark: Mark, max_line_bytes: int) -> Iterator[tuple[dict[str, Any], Mark]]:
    """The records one by one, each with the mark after it, also while another process writes.

    Raises ValueError at the first line that is not as it was written, or where no such file is there.
    """
    try:
        file = os.fdopen(open_regular(path), "rb")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    with file:
        yield from read_lines(file, path, mark, max_line_bytes)


@dataclass(frozen=True)
class Survey:
    """What a file of records holds: how far it is as it was written, what is wrong then, and the marks asked for."""

    sound: Mark
    fault: str  # "": nothing
    num_bytes: int
    marks: dict[int, Mark]  # by the number of rounds before them


def survey(path: Path, first: Mark, max_line_bytes: int, rounds: Collection[int]) -> Survey:
    """Read the file to its end or its first damage; a missing file counts as an empty one.

    Raises ValueError where it is no regular file.
    """
    refuse_irregular(path)
    sound, marks, fault, num_bytes = first, {first.rounds: first}, "", 0
    if path.exists():
        try:
            for _, sound in read_file(path, first, max_line_bytes):
                if sound.rounds in rounds:
                    marks[sound.rounds] = sound
        except ValueError as error:
            fault = str(error)
        num_bytes = path.stat().st_size
    return Survey(sound, fault, num_bytes, marks)
