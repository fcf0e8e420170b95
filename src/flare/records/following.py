"""The records of a run that may still be written, read on from where they were read last: whole new lines alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from flare.records.lines import Mark, first_mark, read_lines
from flare.records.manifest import ROUNDS, read_manifest
from flare.records.regular_files import open_regular


@final
class Follower:
    """Reads on in rounds.jsonl. `mark` is how far it was read; None: from the beginning."""

    def __init__(self, folder: Path, max_line_bytes: int) -> None:
        self.mark: Mark | None = None
        self._folder, self._path = folder, folder / ROUNDS
        self._max_line_bytes = max_line_bytes

    def read_on(self) -> Iterator[tuple[dict[str, Any], Mark]]:
        """The records since the last call, each with the mark after it. Where lines that were read are no longer what
        they were (the run went back to a checkpoint and did its last rounds again, or was begun anew), all of them
        come again, from round 0 on.

        Raises ValueError where lines are damaged or the folder is no run, OSError where it cannot be read.
        """
        mark = self.mark or self._first()
        if os.stat(self._path).st_size < mark.num_bytes:
            mark = self._first()
        try:
            yield from self._after(mark)
        except ValueError:
            if mark.rounds == 0:
                raise
            yield from self._after(self._first())

    def _first(self) -> Mark:
        return first_mark(read_manifest(self._folder))

    def _after(self, mark: Mark) -> Iterator[tuple[dict[str, Any], Mark]]:
        with os.fdopen(open_regular(self._path), "rb") as file:
            file.seek(mark.num_bytes)
            for told, after in read_lines(file, self._path, mark, self._max_line_bytes):
                self.mark = after
                yield told, after
