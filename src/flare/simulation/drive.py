"""Drives simulated runs: one, or many in lockstep, so that an engine sees the devices of all of them at once.

Each turn every run that is still going does one round. Runs of the same data, model and batch size share an engine.
After a turn each run has its record on disk, and every few rounds a checkpoint: a process that dies at any moment
continues with `resume` as if nothing had happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from flare.learning.aggregate import RunningMean
from flare.learning.engine import compute_device, make_engine
from flare.learning.engine.base import Engine
from flare.learning.job import Update, norm_of, which_are_finite
from flare.learning.together import MeansTogether
from flare.records import RunFolder, Snapshot
from flare.records.run_keeper import RunKeeper
from flare.rounds import Plan, RoundRecord, RunState, RunStatus
from flare.rounds.coding import Incoming, transmit
from flare.rounds.restored import restored_state
from flare.simulation.dealing import dealt
from flare.simulation.probing import planned
from flare.simulation.run import Jobs, Simulation


@dataclass
class Member:
    """A run in a lockstep group: its simulation, where it stands, and where it is written down (None: nowhere).

    `key` names it to whoever drives it. `keep_checkpoints`: also when the run has ended. `pause_s`: the simulated time
    from which on it is left to be continued.
    """

    simulation: Simulation
    folder: RunFolder | None = None
    key: str = ""
    keep_checkpoints: bool = True
    pause_s: float = math.inf
    state: RunState = field(init=False)
    keeper: RunKeeper = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.simulation.start()
        every = self.simulation.config.run.checkpoint_every
        self.keeper = RunKeeper(self.folder, checkpoint_every=every, keep_checkpoints=self.keep_checkpoints)


Callback = Callable[[Member, RoundRecord], None]


def drive(
    members: Sequence[Member], *, callback: Callback | None = None, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Run every member to its end, or to its pause. `callback` sees each record; where `stopping` says so, all runs are
    checkpointed after the turn and left to be resumed."""
    groups = _engine_groups(members)

    def turn() -> None:
        for engine, group in groups:
            going = list(_going(group))
            if going:
                _turn(engine, going, callback)

    _until_the_end(members, turn, stopping)


def plan_rounds(
    member: Member, *, callback: Callback | None = None, stopping: Callable[[], bool] = lambda: False
) -> None:
    """Carry out all rounds of a run in which nothing is trained: who would send, on what bandwidth, how long.

    These rounds are quick: a checkpoint is written only where `stopping` says so, and at the end.
    """

    def turn() -> None:
        start = time.perf_counter()
        state, record = member.simulation.untrained(member.state, member.simulation.plan(member.state))
        record = record.that_took(time.perf_counter() - start)
        member.keeper.append(record)
        member.state = state
        if state.status is not RunStatus.RUNNING:
            member.keeper.save(state)
        if callback is not None:
            callback(member, record)

    _until_the_end([member], turn, stopping)


def _until_the_end(members: Sequence[Member], turn: Callable[[], None], stopping: Callable[[], bool]) -> None:
    """Take turns until every run has ended or is to stop; those that go on are left to be resumed."""
    for member in members:
        if member.state.status is not RunStatus.RUNNING:  # resumed after its end, and compared with its folder then
            member.keeper.finish(member.state)
        elif member.folder is not None:
            member.keeper.identify(member.simulation.identity)
    try:
        while any(_going(members)) and not stopping():
            turn()
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


def _going(members: Iterable[Member]) -> Iterable[Member]:
    return (m for m in members if m.state.status is RunStatus.RUNNING and m.state.clock_s < m.pause_s)


def _turn(engine: Engine, members: Sequence[Member], callback: Callback | None) -> None:
    """One round of each member."""
    start = time.perf_counter()
    plans = planned(engine, [(member.simulation, member.state) for member in members])
    models = dealt(transmit, [member.simulation.model_out(plan) for member, plan in zip(members, plans, strict=True)])
    plans = [member.simulation.received(plan, told) for member, plan, told in zip(members, plans, models, strict=True)]
    work = _work(engine, members, plans)
    trained = dealt(partial(engine.train, meanwhile=partial(_look_ahead, members)), [each.jobs for each in work])
    updates = [
        member.simulation.updates_made(plan, own, made)
        for member, plan, own, made in zip(members, plans, work, trained, strict=True)
    ]
    sent = [
        member.simulation.updates_out(member.state, plan, own, made)
        for member, plan, own, made in zip(members, plans, work, updates, strict=True)
    ]
    heard = dealt(transmit, sent)
    done = _scored(engine, members, _applied(members, plans, work, updates, heard))
    wall_s = time.perf_counter() - start
    for member, (state, record) in zip(members, done, strict=True):
        record = record.that_took(wall_s)
        member.keeper.append(record)
        member.state = state
        member.keeper.save(state)
        if callback is not None:
            callback(member, record)


def _look_ahead(members: Sequence[Member]) -> None:
    """What can be done for the next rounds while a GPU is at work."""
    for member in members:
        member.simulation.look_ahead(member.state)


def _work(engine: Engine, members: Sequence[Member], plans: Sequence[Plan]) -> list[Jobs]:
    """What the devices of each run are to compute. Gradients that the methods need first are forgotten with this call:
    while the devices train there is no room for them."""
    asked = [member.simulation.gradient_jobs(plan) for member, plan in zip(members, plans, strict=True)]
    gradients = dealt(engine.gradients, asked)
    turns = list(zip(members, plans, gradients, strict=True))
    heard = dealt(transmit, [member.simulation.gradients_out(member.state, plan, own) for member, plan, own in turns])
    return [
        member.simulation.jobs(member.state, plan, own, told)
        for (member, plan, own), told in zip(turns, heard, strict=True)
    ]


def _applied(
    members: Sequence[Member],
    plans: Sequence[Plan],
    work: Sequence[Jobs],
    updates: Sequence[Sequence[Update]],
    heard: Sequence[Sequence[Incoming]],
) -> list[tuple[RunState, RoundRecord]]:
    """What becomes of the round of each run. A GPU is waited for once, and once more where updates are coded. Updates
    of all runs are added up together, but for those with a method of a user's own: it may change what it has added."""
    taken = [
        member.simulation.updates_heard(own, made, told)
        for member, own, made, told in zip(members, work, updates, heard, strict=True)
    ]
    plain = [not member.simulation.is_own_method for member in members]
    means = MeansTogether(
        update.delta for each, is_plain in zip(taken, plain, strict=True) if is_plain for update in each
    )
    new_means = [means.new if is_plain else RunningMean for is_plain in plain]
    coded = [each if member.simulation.station.codes else [] for member, each in zip(members, taken, strict=True)]
    arrived = [
        member.simulation.arrived(member.state, plan, own, each, new_mean, norms)
        for member, plan, own, each, new_mean, norms in zip(
            members, plans, work, taken, new_means, dealt(_norms, coded), strict=True
        )
    ]
    weights = {at: made for at, each in enumerate(arrived) if (made := each.reduce()) is not None}
    finite = dict(zip(weights, which_are_finite(list(weights.values())), strict=True))
    return [
        member.simulation.applied(each, own, told, finite=finite.get(at))
        for at, (member, each, own, told) in enumerate(zip(members, arrived, work, heard, strict=True))
    ]


def _norms(updates: Sequence[Update]) -> list[float]:
    """The length of each update."""
    norms: list[float] = torch.stack([norm_of(update.delta) for update in updates]).tolist()
    return norms


def _scored(
    engine: Engine, members: Sequence[Member], done: list[tuple[RunState, RoundRecord]]
) -> list[tuple[RunState, RoundRecord]]:
    due = [i for i, (state, _) in enumerate(done) if members[i].simulation.wants_score(state)]
    scores = engine.evaluate([done[i][0].weights for i in due]) if due else []
    for i, score in zip(due, scores, strict=True):
        done[i] = members[i].simulation.score(*done[i], score)
    return done


def _suspend(members: Sequence[Member]) -> None:
    for member in members:
        member.keeper.suspend(member.state)


def _leave(members: Sequence[Member]) -> None:
    """Leave runs in the middle of a turn where their last round ended, whatever stopped it; what cannot be written then
    is done again. A method of a user's own may have changed its state in place: its run keeps the last checkpoint."""
    for member in members:
        with suppress(Exception):
            member.keeper.suspend(member.state, saves=not member.simulation.is_own_method)


def _engine_groups(members: Sequence[Member]) -> list[tuple[Engine, list[Member]]]:
    """Members by what an engine is made for: the data, the architecture and where it computes."""
    groups: dict[tuple[object, ...], list[Member]] = {}
    for member in members:
        groups.setdefault(member.simulation.engine_key, []).append(member)
    made = [(_engine_of(group), group) for group in groups.values()]
    for engine, group in made:
        _warm_up(engine, list(_going(group)))
    return made


def _warm_up(engine: Engine, members: Sequence[Member]) -> None:
    """Train the start models of runs that are at their beginning and warm theirs up."""
    updates = dealt(engine.train, [member.simulation.warm_up_jobs(member.state) for member in members])
    for member, made in zip(members, updates, strict=True):
        member.state = member.simulation.warmed_up(member.state, made)


def _engine_of(group: Sequence[Member]) -> Engine:
    first = group[0].simulation
    for member in group:
        device, state = compute_device(first.config.learning), member.state
        underway = None if state.underway is None else state.underway.on(device)
        member.state = replace(state, weights=state.weights.to(device), underway=underway)
    return make_engine(first.module, first.dataset, first.config.learning)
