"""A turn of runs in lockstep: one round of each, with an engine that sees the devices of all of them at once.

It is cut in two. `begin` ends where devices train: a GPU is at work then, and nobody waits for it. `Begun.finish` takes
in what came of it. Until then nothing of the round has come into the state of a run: it can be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from flare.learning.aggregate import RunningMean
from flare.learning.engine.base import Engine, Launched
from flare.learning.job import Update, norm_of, which_are_finite
from flare.learning.together import MeansTogether
from flare.rounds import Plan, RoundRecord, RunState
from flare.rounds.coding import Incoming, transmit
from flare.simulation.dealing import as_one, dealt, dealt_out
from flare.simulation.member import Callback, Member
from flare.simulation.probing import planned
from flare.simulation.run import Jobs


@final
@dataclass(frozen=True, eq=False)
class Begun:
    """A round of each member, whose devices train; `start_s` is when it was begun."""

    engine: Engine
    members: Sequence[Member]
    plans: Sequence[Plan]
    work: Sequence[Jobs]
    launched: Launched
    start_s: float

    def finish(self, callback: Callback | None) -> None:
        """Take in what the devices send: the new state of each run, and its record, which `callback` sees."""
        done = _scored(self.engine, self.members, self._applied())
        wall_s = time.perf_counter() - self.start_s
        for member, (state, record) in zip(self.members, done, strict=True):
            record = record.that_took(wall_s)
            member.keeper.append(record)
            member.state = state
            member.keeper.save(state)
            if callback is not None:
                callback(member, record)

    def _applied(self) -> list[tuple[RunState, RoundRecord]]:
        """What becomes of the round of each run, without the test scores."""
        trained = dealt_out(self.launched.read(), [each.jobs for each in self.work])
        updates = [
            member.simulation.updates_made(plan, own, made)
            for member, plan, own, made in zip(self.members, self.plans, self.work, trained, strict=True)
        ]
        sent = [
            member.simulation.updates_out(member.state, plan, own, made)
            for member, plan, own, made in zip(self.members, self.plans, self.work, updates, strict=True)
        ]
        return applied(self.members, self.plans, self.work, updates, dealt(transmit, sent))


def begin(engine: Engine, members: Sequence[Member]) -> Begun:
    """Begin a round of each member; while a GPU is at work on it, the next ones are prepared."""
    start_s = time.perf_counter()
    plans = planned(engine, [(member.simulation, member.state) for member in members])
    models = dealt(transmit, [member.simulation.model_out(plan) for member, plan in zip(members, plans, strict=True)])
    plans = [member.simulation.received(plan, told) for member, plan, told in zip(members, plans, models, strict=True)]
    work = _work(engine, members, plans)
    jobs = as_one([each.jobs for each in work])
    launched = engine.launch(jobs) if jobs else Launched.done([])
    if launched.under_way:
        _look_ahead(members)
    return Begun(engine, members, plans, work, launched, start_s)


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


def applied(
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
    new_means = [means.new_mean if is_plain else RunningMean for is_plain in plain]
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
