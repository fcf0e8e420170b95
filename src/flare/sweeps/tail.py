"""How far runs are, told by their folders: the rounds that were written since the last look.

So it does not matter who carries the runs out, and where. Of each folder the place is kept up to which it was read;
only whole new lines are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

from flare.records.following import Follower
from flare.records.lines import max_line_bytes
from flare.records.manifest import is_run_folder, read_manifest
from flare.records.run import ENDED, refuse_odd_devices
from flare.rounds import RoundRecord, RunStatus

News = tuple[RoundRecord, RunStatus]


class Seal(NamedTuple):
    """The check of a line of a run's records, and that of the line before it; None: it is the first. They say of which
    rounds a file is made, as far as this one, without a look at them (`flare.records.lines`)."""

    before: str | None
    check: str | None


@final
class Tail:
    """Reads on in the records of a run that another process carries out.

    Each round is told once, also where the run went back to a checkpoint in between and did it again; rounds that
    were there at the beginning are not told. The last one is held back until it is known whether the run ended with it.
    """

    def __init__(self, folder: Path, num_devices: int) -> None:
        self._folder = folder
        self._follower = Follower(folder, max_line_bytes(num_devices))
        self._held: RoundRecord | None = None
        self._seals: dict[int, Seal] = {}
        self._rounds = 0  # that were there, or have been read
        if is_run_folder(folder):
            for _ in self._new_records():
                pass
        self._held = None
        self._seals.clear()

    def seal_of(self, record: RoundRecord) -> Seal:
        """That of a round that was told just now, once."""
        return self._seals.pop(record.round)

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
            before = None if self._follower.mark is None else self._follower.mark.check
            for told, after in self._follower.read_on():
                seal = Seal(None if after.rounds == 1 else before, after.check)
                before = after.check
                if after.rounds > self._rounds:
                    self._rounds = after.rounds
                    self._seals[after.rounds - 1] = seal
                    record = RoundRecord.from_json(told)
                    refuse_odd_devices(record)
                    yield record
        except (ValueError, OSError):
            self._follower.mark = None

    def _status(self, record: RoundRecord) -> RunStatus:
        """Whether the run ended with this round, by its manifest."""
        try:
            manifest = read_manifest(self._folder)
        except (ValueError, OSError):
            return RunStatus.RUNNING
        over = manifest.get("status") in ENDED and manifest.get("records", {}).get("rounds") == record.round + 1
        return RunStatus(manifest["status"]) if over else RunStatus.RUNNING
