"""A batch of runs, begun or continued, and carried out in lockstep by this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flare.records.locking import InUseError
from flare.rounds import RoundRecord
from flare.simulation import Member, drive, plan_rounds
from flare.sweeps.task import Callback, Place, Task, opened

_LOOK_S = 0.2


def run_batch(
    batch: Sequence[Task],
    place: Place,
    callback: Callback,
    stopping: Callable[[], bool],
    *,
    patience_s: float = 0.0,
) -> None:
    """Go on with every run of a batch to its end, or until `stopping` says so.

    A folder in which another process writes is waited for, `patience_s` at most: where the one before was killed, it
    may still be on its way out.
    """
    if batch[0].trained:
        _run_in_lockstep(batch, place, callback, stopping, patience_s)
        return
    for task in batch:  # one after the other: there is no engine to share
        if not stopping():
            _run_in_lockstep([task], place, callback, stopping, patience_s)


def _run_in_lockstep(
    batch: Sequence[Task], place: Place, callback: Callback, stopping: Callable[[], bool], patience_s: float
) -> None:
    task_of = {task.key: task for task in batch}

    def tell(member: Member, record: RoundRecord) -> None:
        callback(task_of[member.key], record, member.state.status)

    members: list[Member] = []
    try:
        for task in batch:
            member = _opened(task, place, patience_s)
            if member is not None:
                members.append(member)
        if batch[0].trained:
            drive(members, callback=tell, stopping=stopping, shares_gpu=place.num_processes > 1)
        else:
            for member in members:
                plan_rounds(member, callback=tell, stopping=stopping)
    finally:
        for member in members:
            member.keeper.close()


def _opened(task: Task, place: Place, patience_s: float) -> Member | None:
    """The run of a task; see `flare.sweeps.task.opened`."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return opened(task, place)
        except InUseError:
            if time.monotonic() >= end_s:
                raise
        time.sleep(_LOOK_S)
