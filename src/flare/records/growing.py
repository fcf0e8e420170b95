"""A run as numbers that grow with it: each round is read once, and its place is kept, to find it again."""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path
from typing import final

from flare.records.folder import RunFolder
from flare.records.following import Follower
from flare.records.lines import first_mark, max_line_bytes, read_line
from flare.records.manifest import ROUNDS, read_manifest
from flare.records.regular_files import open_regular
from flare.records.run import Columns, RunNumbers, round_of
from flare.rounds.record import RoundRecord

_LOOK_EVERY = 64  # rounds between two looks at the clock


@final
class GrowingRun:
    """The numbers of a run folder, read as far as `read_on` was given time. Not for several threads at once.

    fault     what is wrong with the records after those that were read; "": nothing
    is_whole  whether all that is in the file now has been read, up to its end or its first damage
    """

    def __init__(self, folder: Path) -> None:
        """Open a run; ValueError where the folder holds none."""
        self.folder = folder
        self.fault, self.is_whole = "", False
        self._begin()

    def _begin(self) -> None:
        self._opened = RunFolder.open(self.folder)
        self._opened.refuse_changed_config()
        self._max_line_bytes = max_line_bytes(self._opened.config.wireless.num_devices)
        self._follower = Follower(self.folder, self._max_line_bytes)
        self._forget()

    def _forget(self) -> None:
        self._columns = Columns()
        self._ends = array("Q")  # the bytes before the end of each line
        self._checks: list[str | None] = []
        self._numbers: RunNumbers | None = None
        self._faulty: tuple[int, int] | None = None  # size and time of a file that was found damaged

    @property
    def num_rounds(self) -> int:
        """Rounds that were read."""
        return len(self._ends)

    @property
    def share_read(self) -> float:
        """Which part of the file was read, from 0 to 1."""
        try:
            size = os.stat(self.folder / ROUNDS).st_size
        except OSError:
            return 1.0
        return 1.0 if self.is_whole or not size else min(1.0, (self._ends[-1] if self._ends else 0) / size)

    def read_on(self, max_s: float = float("inf")) -> None:
        """Read what was written since, for about so long; ValueError where the folder no longer holds a run."""
        manifest = read_manifest(self.folder)
        if manifest["config_sha256"] != self._opened.manifest["config_sha256"]:
            self._begin()
        if manifest != self._opened.manifest:
            self._opened.manifest, self._numbers = manifest, None
        try:
            status = os.stat(self.folder / ROUNDS)
        except FileNotFoundError:
            self._forget()
            self._follower.mark, self.is_whole = None, True
            return
        seen = (status.st_size, status.st_mtime_ns)
        if seen == self._faulty:  # not again until somebody mends it
            return
        self.fault, self._faulty = "", None
        try:
            self.is_whole = self._read_lines(max_s)
        except ValueError as error:
            self.fault, self._faulty, self.is_whole = str(error), seen, True

    def _read_lines(self, max_s: float) -> bool:
        begin = time.monotonic()
        for told, mark in self._follower.read_on():
            if mark.rounds <= self.num_rounds:  # lines that were read have been written anew
                self._forget()
            self._columns.add(round_of(self._opened, told, mark.rounds))
            self._ends.append(mark.num_bytes)
            self._checks.append(mark.check)
            self._numbers = None
            if mark.rounds % _LOOK_EVERY == 0 and time.monotonic() - begin > max_s:
                return False
        mark_now, size = self._follower.mark, os.stat(self.folder / ROUNDS).st_size
        if mark_now is not None and mark_now.num_bytes > size:
            self._forget()
        return True

    @property
    def numbers(self) -> RunNumbers:
        """What was read, as arrays."""
        if self._numbers is None:
            self._numbers = self._columns.run(self.folder, self._opened.config, self._opened.manifest)
        return self._numbers

    def record(self, index: int) -> RoundRecord:
        """One round that was read, read again from its place; ValueError where it is not there or no longer so."""
        if not 0 <= index < self.num_rounds:
            raise ValueError(f"there is no round {index}; {self.num_rounds} are recorded, counted from 0")
        begin = self._ends[index - 1] if index else 0
        first = first_mark(self._opened.manifest)
        with os.fdopen(open_regular(self.folder / ROUNDS), "rb") as file:
            file.seek(begin)
            line = file.read(min(self._ends[index] - begin, self._max_line_bytes))
        try:
            told = read_line(line, self._checks[index - 1] if index else first.check)
        except ValueError as error:
            raise ValueError(f"round {index} is no longer what it was: {error}") from None
        return round_of(self._opened, told, index + 1)
