"""Carries out runs, or what is missing of them, in lockstep batches, on one process or several.

Every run is a folder, written round by round. Stopped anywhere and by whatever, the next call continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flare.rounds import RoundRecord
from flare.simulation import Member, drive, plan_rounds
from flare.sweeps.batches import batches
from flare.sweeps.processes import in_processes
from flare.sweeps.task import Callback, Place, Task, opened


def run_tasks(
    tasks: Sequence[Task],
    place: Place,
    *,
    callback: Callback = lambda task, record, status: None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Begin or continue every run and go on to its end. Where `stopping` says so, they are left to be continued.

    Raises what a run raises: ValueError for settings that cannot be and folders that cannot be used, OSError where a
    folder cannot be written or a process was killed.
    """
    in_order = batches(tasks, place)
    if place.processes > 1 and len(in_order) > 1:
        in_processes(in_order, place, _run_batch, callback=callback, stopping=stopping)
        return
    for batch in in_order:
        if not stopping():
            _run_batch(batch, place, callback, stopping)


def _run_batch(batch: Sequence[Task], place: Place, callback: Callback, stopping: Callable[[], bool]) -> None:
    if batch[0].trained:
        _run_in_lockstep(batch, place, callback, stopping)
        return
    for task in batch:  # one after the other: there is no engine to share
        if not stopping():
            _run_in_lockstep([task], place, callback, stopping)


def _run_in_lockstep(batch: Sequence[Task], place: Place, callback: Callback, stopping: Callable[[], bool]) -> None:
    task_of = {task.key: task for task in batch}

    def tell(member: Member, record: RoundRecord) -> None:
        callback(task_of[member.key], record, member.state.status)

    members: list[Member] = []
    try:
        for task in batch:
            member = opened(task, place)
            if member is not None:
                members.append(member)
        if batch[0].trained:
            drive(members, callback=tell, stopping=stopping)
        else:
            for member in members:
                plan_rounds(member, callback=tell, stopping=stopping)
    finally:
        for member in members:
            member.keeper.close()
