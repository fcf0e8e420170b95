"""A batch of runs, begun or continued, and carried out in lockstep by this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from flare.records.locking import InUseError
from flare.rounds import RoundRecord
from flare.simulation import Member, drive, plan_rounds
from flare.sweeps.task import Callback, New, Place, Task, opened, opened_or_new

Opened = TypeVar("Opened")

_LOOK_S = 0.2
_FOLDERS_AT_ONCE = 16


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
        _open(batch, place, patience_s, members)
        if batch[0].trained:
            drive(members, callback=tell, stopping=stopping, shares_gpu=place.num_processes > 1)
        else:
            for member in members:
                plan_rounds(member, callback=tell, stopping=stopping)
    finally:
        for member in members:
            member.keeper.close()


def _open(batch: Sequence[Task], place: Place, patience_s: float, members: list[Member]) -> None:
    """Put the runs of a batch that are to be carried out among the members, in its order; where one fails, those that
    are open already. The folders of new ones are made side by side: each waits for the disk several times."""
    new: list[New] = []
    for task in batch:
        found = _patient(partial(opened_or_new, task, place), patience_s)
        if isinstance(found, New):
            new.append(found)
        elif found is not None:
            members.append(found)
    pool = ThreadPoolExecutor(_FOLDERS_AT_ONCE)
    made = [pool.submit(each.made) for each in new]
    try:
        wait(made)
    finally:  # also of who interrupts: what is open is closed by whoever has the members
        pool.shutdown()
        members += [each.result() for each in made if each.exception() is None]
    for each, future in zip(new, made, strict=True):
        if isinstance(future.exception(), InUseError):  # by a process that may have begun this very run meanwhile
            member = _patient(partial(opened, each.task, place), patience_s)
            members += [] if member is None else [member]
        else:
            future.result()
    at = {task.key: number for number, task in enumerate(batch)}
    members.sort(key=lambda member: at[member.key])


def _patient(open_one: Callable[[], Opened], patience_s: float) -> Opened:
    """Open a run, whose folder may be in use for a while."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return open_one()
        except InUseError:
            if time.monotonic() >= end_s:
                raise
        time.sleep(_LOOK_S)
