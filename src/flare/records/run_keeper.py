"""A run written down as it goes: every round its record, now and then a checkpoint, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

from flare.records.checkpoint import Snapshot
from flare.records.folder import RunFolder
from flare.records.plugin_files import excused, refuse_changed
from flare.rounds.record import RoundRecord
from flare.rounds.state import RunState, RunStatus, to_tensors

_PATIENCE_S, _WRITING_SHARE = 20.0, 0.002
"""Of a run whose checkpoints go with its end: how long none is written at least, and what writing may take of its time:
little, for up to 80 runs in lockstep write one after the other."""


@final
class RunKeeper:
    """Writes a run into its folder; with none, nowhere. Whoever supplies the rounds, the folder is written by this."""

    def __init__(
        self,
        folder: RunFolder | None,
        *,
        checkpoint_every: int,
        keep_checkpoints: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_checkpoints`: also when the run has ended; otherwise they go then, since they may be large. They only
        serve a run that is killed in that case, and one that is due waits until the rounds since the last one are worth
        it by `clock`: many runs in lockstep that hold much would else write more than they compute."""
        self.folder = folder
        self._every = checkpoint_every
        self._keep = keep_checkpoints
        self._clock, self._next_s = clock, clock() + _PATIENCE_S
        self._accept_plugins: Callable[[], None] | None = None

    def restored(
        self,
        driver: str,
        identity: Mapping[str, str],
        read: Callable[[Snapshot], RunState],
        *,
        allowed_files: Mapping[str, str | None] | None = None,
    ) -> tuple[RunState, dict[str, Any]] | None:
        """Where the newest sound checkpoint left the run, with the numbers kept beside it, and its records cut back to
        that round; None: it starts from the beginning. ValueError where the folder holds another run, or a plugin of
        the run was changed.

        `read` gives the state in a snapshot, or raises ValueError where it cannot be one of this run.
        `allowed_files`: plugins may have changed, and with them the parts of the identity that come from their files.
        """
        if self.folder is None:
            return None
        refuse_other_driver(self.folder, driver)
        self.folder.refuse_old_format()
        changed = self.folder.changed_plugins(on_disk=False)
        refuse_changed(self.folder.path, changed, allowed=allowed_files is not None)
        if self.folder.manifest.get("identity") or next(self.folder.iter_records(), None) is not None:
            but = excused(changed, allowed_files or {})
            self.folder.refuse_other(identity, but=but)  # of a run that was killed before it began nothing is known
        sound: list[RunState] = []
        snapshot = self.folder.restore(lambda each: sound.append(read(each)))
        state = None if snapshot is None else sound[-1]
        goes_on = state is None or state.status is RunStatus.RUNNING  # of one that has ended nothing is computed
        if changed and goes_on:  # when a round was computed with them: one that fails changes nothing
            done = 0 if state is None else state.rounds_done
            self._accept_plugins = partial(self.folder.accept_plugins, changed, identity, done)
        return None if state is None or snapshot is None else (state, snapshot.numbers)

    def identify(self, identity: Mapping[str, str]) -> None:
        """Write down what the run is; ValueError where the folder holds another."""
        if self.folder is not None and self._accept_plugins is None:
            self.folder.identify(identity)

    def append(self, record: RoundRecord) -> None:
        """Write down a round: first this, then `save`, for a checkpoint is never ahead of the records."""
        if self.folder is None:
            return
        if self._accept_plugins is not None:
            self._accept_plugins()
            self._accept_plugins = None
        self.folder.append(record.to_json())

    def save(self, state: RunState, numbers: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint if it is time for one, with `numbers` beside it, and how the run ended if it has."""
        if self.folder is None:
            return
        over = state.status is not RunStatus.RUNNING
        due = state.rounds_done % self._every == 0 and (self._keep or self._clock() >= self._next_s)
        if (over and self._keep) or (due and not over):
            self._checkpoint(state, numbers)
        if over:
            self.finish(state)
            if not self._keep:
                self.folder.drop_checkpoints()

    def suspend(self, state: RunState, numbers: Mapping[str, Any] | None = None, *, saves: bool = True) -> None:
        """Leave a run that goes on to be continued some other time: from this state, or where it does not save it, from
        the last checkpoint."""
        if self.folder is not None and state.status is RunStatus.RUNNING:
            if saves:
                self._checkpoint(state, numbers)
            self._say("interrupted", state)

    def finish(self, state: RunState) -> None:
        """Say how a run ended."""
        if self.folder is not None:
            self._say(state.status.value, state)

    def close(self) -> None:
        """Let another process write."""
        if self.folder is not None:
            self.folder.close()

    def _checkpoint(self, state: RunState, numbers: Mapping[str, Any] | None) -> None:
        assert self.folder is not None
        begin = self._clock()
        tensors, own = to_tensors(state)
        self.folder.checkpoint(Snapshot(state.rounds_done, tensors, {**own, **(numbers or {})}))
        now = self._clock()
        self._next_s = now + max(_PATIENCE_S, (now - begin) / _WRITING_SHARE)

    def _say(self, status: str, state: RunState) -> None:
        assert self.folder is not None
        self.folder.finish(status, rounds=state.rounds_done, clock_s=state.clock_s)


def refuse_other_driver(folder: RunFolder, driver: str) -> None:
    """ValueError where somebody else supplied the rounds of a run: "simulation", or "flower"."""
    made_by = folder.manifest.get("driver", "simulation")
    if made_by != driver:
        how = " with flwr run and the same folder" if made_by == "flower" else ""
        raise ValueError(
            f"{folder.path} is a run on {made_by}, not on {driver}; continue it there{how}, or name another folder"
        )
