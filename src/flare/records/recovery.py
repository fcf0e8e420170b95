"""Where a run can be continued: what its records and its checkpoints agree on, found first and carried out then.

A checkpoint after n rounds is used where it is as it was written, the first n records are too, it carries the check of
record n, and it holds a state of this run: it is the state after these very records. The newest such checkpoint is
taken; the records after it are cut off, and the run computes them again.

Nothing is cut off before that is certain, and nothing is lost that may be missed:
- Where the records or a newer checkpoint are damaged, the records are first kept under a second name
  (rounds.jsonl.aside-1), and the checkpoint is renamed (.aside-1).
- Where there are sound checkpoints but none fits to the records, nothing is touched: a ValueError says what is wrong.
- Where no checkpoint is sound, the run starts again from round 0, which gives the same rounds again. If there had been
  checkpoints, the records are first kept likewise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flare.records.checkpoint import Snapshot
from flare.records.checkpoints import checkpoints, read_checkpoint
from flare.records.lines import Mark
from flare.records.record_file import Survey, survey
from flare.records.regular_files import aside, keep_aside

_log = logging.getLogger(__name__)
_NO_CHECKPOINT = "no checkpoint is left, or none is sound, so that the run starts again"


@dataclass(frozen=True, eq=False)
class Recovery:
    """Where a run goes on: the snapshot (None: from the beginning), the records that stay, and what is put aside."""

    snapshot: Snapshot | None
    mark: Mark
    records: Survey
    unusable: dict[Path, str]  # newer checkpoints, and why each cannot be used


def find_recovery(
    records: Path, checkpoint_folder: Path, first: Mark, max_line_bytes: int, refuse: Callable[[Snapshot], object]
) -> Recovery:
    """The newest checkpoint that fits to the records; nothing is changed. One of which `refuse` raises ValueError is
    as good as damaged: somebody edited it and put its checksum right.

    Raises ValueError where there are sound checkpoints but none fits.
    """
    found = checkpoints(checkpoint_folder)
    surveyed = survey(records, first, max_line_bytes, {rounds for rounds, _ in found})
    unusable: dict[Path, str] = {}
    any_sound = False
    for rounds, path in found:
        try:
            snapshot, check = read_checkpoint(path)
            misfit = _misfit(rounds, snapshot.rounds_done, check, surveyed)
            if not misfit:
                refuse(snapshot)
                return Recovery(snapshot, surveyed.marks[rounds], surveyed, unusable)
            any_sound, unusable[path] = True, misfit
        except ValueError as error:
            unusable[path] = str(error)
    if any_sound:
        faults = [surveyed.fault, *(f"{path.name} cannot be used: {why}" for path, why in unusable.items())]
        raise ValueError(
            f"{records.parent} cannot be continued: {'; '.join(filter(None, faults))}; nothing was changed: put "
            f"{records.name} and {checkpoint_folder.name} back from a copy, or start the run again in another folder"
        )
    return Recovery(None, first, surveyed, unusable)


def put_aside(recovery: Recovery, records: Path, *, had_checkpoints: bool) -> None:
    """Keep the records where more is wrong than a killed process explains, rename unusable checkpoints, and say so.

    `had_checkpoints`: the run had written some. Afterwards the records may be cut back to `recovery.mark`.
    """
    surveyed, kept = recovery.records, recovery.mark.rounds
    damaged = surveyed.fault or recovery.unusable or (recovery.snapshot is None and had_checkpoints)
    if surveyed.num_bytes > recovery.mark.num_bytes:
        again = f"the first {kept} rounds are kept, all after them is dropped and computed again"
        if damaged:
            why = (
                surveyed.fault or f"{records}: {'its last rounds have no sound checkpoint' if kept else _NO_CHECKPOINT}"
            )
            _log.warning("%s; %s; the records as they were are kept in %s", why, again, keep_aside(records).name)
        else:
            _log.info("%s: %s", records, again)
    for path, why in recovery.unusable.items():
        renamed = aside(path)
        os.replace(path, renamed)
        _log.warning("checkpoint %s cannot be used: %s; set aside as %s", path, why, renamed.name)


def _misfit(rounds: int, rounds_done: int, check: str, records: Survey) -> str:
    """Why a sound checkpoint does not continue the records; "" where it does."""
    if rounds_done != rounds:
        return f"it is of round {rounds_done}, and its name says {rounds}"
    if rounds > records.sound.rounds:
        state = "are as they were written" if records.fault else "are recorded"
        return f"it is of round {rounds}, and {records.sound.rounds} rounds {state}"
    if records.marks[rounds].check != check:
        return "it continues other records than these"
    return ""
