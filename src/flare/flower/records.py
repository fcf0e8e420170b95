"""The run folder of a fleet: written after every round, so that a server that dies loses none that was finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import final

from flare.config import Config
from flare.flower.faults import log
from flare.flower.fleet import Fleet
from flare.learning.record import Record
from flare.learning.state import RunState, RunStatus, from_tensors, to_tensors
from flare.records import RunFolder, Snapshot

_MANIFEST = "manifest.json"


@final
@dataclass
class Keeper:
    """Writes a run down; with no path, nowhere."""

    path: Path | None
    config: Config
    fleet: Fleet
    shapes: dict[str, list[int]]  # of the model's arrays, by name
    _folder: RunFolder | None = field(default=None, init=False)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.close()

    def restored(self, start: RunState) -> RunState:
        """Where the run in the folder stands; `start` where there is none.

        ValueError where the folder holds a run of other settings or of another model.
        """
        if self.path is None:
            return start
        if not (self.path / _MANIFEST).exists():
            self._folder = RunFolder.create(self.path, self.config, facts={"driver": "flower", "arrays": self.shapes})
            return start
        folder = RunFolder.open(self.path)
        if folder.manifest.get("driver") != "flower":
            raise ValueError(f"{self.path} holds a simulated run; give another folder")
        if folder.config != self.config:
            raise ValueError(f"{self.path} holds a run of other settings; give another folder, or the same settings")
        if folder.manifest.get("arrays") != self.shapes:
            raise ValueError(f"{self.path} holds a run of a model with other arrays; give another folder")
        snapshot = folder.restore()
        self._folder = folder
        if snapshot is None:
            return start
        state = from_tensors(snapshot.rounds_done, snapshot.tensors, snapshot.numbers, method=start.method)
        self.fleet.restore(snapshot.numbers["fleet"])
        log.info("continuing %s after round %d", self.path, state.rounds_done)
        return state

    def keep(self, state: RunState, record: Record) -> None:
        """The record first, then the state: a checkpoint is never ahead of the records."""
        if self._folder is None:
            return
        self._folder.append(record)
        tensors, numbers = to_tensors(state)
        numbers["fleet"] = self.fleet.to_numbers()
        self._folder.checkpoint(Snapshot(state.rounds_done, tensors, numbers))

    def close_run(self, state: RunState) -> None:
        """Say how the run ended, or that it waits to be started again."""
        if self._folder is not None:
            status = "interrupted" if state.status is RunStatus.RUNNING else state.status.value
            self._folder.finish(status, rounds=state.rounds_done, clock_s=state.clock_s)
