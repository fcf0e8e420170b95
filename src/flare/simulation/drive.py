"""Drives simulated runs: one, or many in lockstep, so that an engine sees the devices of all of them at once.

Each turn every run that is still going does one round. Runs of the same data, model and batch size share an engine, or
on a GPU two (`lanes`). After a round each run has its record on disk, and every few rounds a checkpoint: a process that
dies at any moment continues with `resume` as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from flare.records import Snapshot
from flare.rounds import RunState, RunStatus
from flare.rounds.restored import restored_state
from flare.simulation.lanes import Lane, joined, lanes_of, num_lanes, one_lane, take_turn
from flare.simulation.member import Callback, Member, going
from flare.simulation.run import Simulation


def drive(
    members: Sequence[Member],
    *,
    callback: Callback | None = None,
    stopping: Callable[[], bool] = lambda: False,
    shares_gpu: bool = False,
) -> None:
    """Run every member to its end, or to its pause. `callback` sees each record; where `stopping` says so, all runs are
    checkpointed after the turn and left to be resumed. `shares_gpu`: other processes keep the GPU busy, too, so that
    there is one lane: a second one would only take memory."""
    number = one_lane if shares_gpu else num_lanes
    drive_in(lanes_of(members, number, shares_gpu=shares_gpu), members, callback, stopping)


def drive_in(
    groups: Sequence[Sequence[Lane]],
    members: Sequence[Member],
    callback: Callback | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Run members to their end in the lanes of which each group has some. A round that was begun when all is to stop is
    finished."""
    with _kept(members), joined([lane for lanes in groups for lane in lanes]):
        while any(going(members)) and not stopping():
            for lanes in groups:
                take_turn(lanes, callback)
        for lanes in groups:
            for lane in lanes:
                lane.finish(callback)


def plan_rounds(
    member: Member, *, callback: Callback | None = None, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Carry out all rounds of a run in which nothing is trained: who would send, on what bandwidth, how long.

    These rounds are quick: a checkpoint is written only where `stopping` says so, and at the end.
    """
    with _kept([member]):
        while any(going([member])) and not stopping():
            _plan_round(member, callback)


def _plan_round(member: Member, callback: Callback | None) -> None:
    start = time.perf_counter()
    state, record = member.simulation.untrained(member.state, member.simulation.plan(member.state))
    record = record.that_took(time.perf_counter() - start)
    member.keeper.append(record)
    member.state = state
    if state.status is not RunStatus.RUNNING:
        member.keeper.save(state)
    if callback is not None:
        callback(member, record)


@contextmanager
def _kept(members: Sequence[Member]) -> Iterator[None]:
    """Rounds are carried out in it; runs that go on after it are left to be resumed."""
    for member in members:
        if member.state.status is not RunStatus.RUNNING:  # resumed after its end, and compared with its folder then
            member.keeper.finish(member.state)
        elif member.folder is not None:
            member.keeper.identify(member.simulation.identity)
    try:
        yield
    except BaseException:
        _leave(members)
        raise
    _suspend(members)


def resume(member: Member, *, allow_changed_plugins: bool = False) -> None:
    """Put a member where its folder's newest sound checkpoint left it; its records are cut back to that round.

    A run whose plugins were changed is refused, unless that is allowed; then the folder says so.
    """
    files = member.simulation.code_files if allow_changed_plugins else None
    read = partial(_state_in, member.simulation)
    restored = member.keeper.restored("simulation", member.simulation.identity, read, allowed_files=files)
    if restored is not None:
        member.state = restored[0]


def _state_in(simulation: Simulation, snapshot: Snapshot) -> RunState:
    return restored_state(simulation.station, snapshot.rounds_done, snapshot.tensors, snapshot.numbers, fleet=False)


def _suspend(members: Sequence[Member]) -> None:
    for member in members:
        member.keeper.suspend(member.state)


def _leave(members: Sequence[Member]) -> None:
    """Leave runs in the middle of a turn where their last round ended, whatever stopped it; what cannot be written then
    is done again. A method of a user's own may have changed its state in place: its run keeps the last checkpoint."""
    for member in members:
        with suppress(Exception):
            member.keeper.suspend(member.state, saves=not member.simulation.is_own_method)
