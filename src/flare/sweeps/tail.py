"""How far runs are, told by their folders: the rounds that were written since the last look.

So it does not matter who carries the runs out, and where. Of each folder the place is kept up to which it was read;
only whole new lines are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

from flare.records.lines import Mark, first_mark, max_line_bytes, read_lines
from flare.records.manifest import ROUNDS, is_run_folder, read_manifest
from flare.records.regular_files import open_regular
from flare.records.run import ENDED
from flare.rounds import RoundRecord, RunStatus

News = tuple[RoundRecord, RunStatus]


@final
class Tail:
    """Reads on in the records of a run that another process carries out.

    Each round is told once, also where the run went back to a checkpoint in between and did it again; rounds that
    were there at the beginning are not told. The last one is held back until it is known whether the run ended with it.
    """

    def __init__(self, folder: Path, num_devices: int) -> None:
        self._folder, self._path = folder, folder / ROUNDS
        self._max_line_bytes = max_line_bytes(num_devices)
        self._mark: Mark | None = None
        self._held: RoundRecord | None = None
        self._rounds = 0  # that were there, or have been read
        if is_run_folder(folder):
            for _ in self._new_records():
                pass
        self._held = None

    def news(self, *, last: bool = False) -> list[News]:
        """The rounds since the last call; with `last` also the one that was held back."""
        told: list[News] = []
        for record in self._new_records():
            if self._held is not None:
                told.append((self._held, RunStatus.RUNNING))
            self._held = record
        if self._held is not None:
            status = self._status(self._held)
            if last or status is not RunStatus.RUNNING:
                told.append((self._held, status))
                self._held = None
        return told

    def _new_records(self) -> Iterator[RoundRecord]:
        """The records of rounds that were not seen before. What cannot be read now is left for the next call: a run
        that was cut back, or a folder that is being made."""
        try:
            mark = self._mark or self._first()
            if os.stat(self._path).st_size < mark.num_bytes:
                mark = self._first()
            try:
                yield from self._after(mark)
            except ValueError:  # lines that were read have been written anew
                yield from self._after(self._first())
        except (ValueError, OSError):
            self._mark = None

    def _first(self) -> Mark:
        return first_mark(read_manifest(self._folder)["config_sha256"])

    def _after(self, mark: Mark) -> Iterator[RoundRecord]:
        with os.fdopen(open_regular(self._path), "rb") as file:
            file.seek(mark.num_bytes)
            for told, after in read_lines(file, self._path, mark, self._max_line_bytes):
                self._mark = after
                if after.rounds > self._rounds:
                    self._rounds = after.rounds
                    yield RoundRecord.from_json(told)

    def _status(self, record: RoundRecord) -> RunStatus:
        """Whether the run ended with this round, by its manifest."""
        try:
            manifest = read_manifest(self._folder)
        except (ValueError, OSError):
            return RunStatus.RUNNING
        over = manifest.get("status") in ENDED and manifest.get("records", {}).get("rounds") == record.round + 1
        return RunStatus(manifest["status"]) if over else RunStatus.RUNNING
