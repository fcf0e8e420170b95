"""Runs driven to their end, and what they recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.config import Config, LearningConfig
from flare.learning.job import Update
from flare.learning.methods import PlainMethod, equal_rates, make_method
from flare.records import RunFolder
from flare.rounds import Plan, RunState
from flare.rounds.coding import Incoming
from flare.rounds.state import to_tensors
from flare.simulation import Member, RoundRecord, Simulation, drive, resume
from flare.simulation.run import Jobs
from flare.simulation.turn import applied as applied_together


def settings_of_method(name: str) -> tuple[str, ...]:
    """A method, with the codec that it asks for where it does."""
    codec = make_method(LearningConfig(method=name)).needs_codec
    return (f"learning.method={name}", *((f"uplink.codec={codec}", "run.payload=model") if codec else ()))


def followed(members: Sequence[Member]) -> list[list[RoundRecord]]:
    """The records of each member, driven to its end in lockstep, without the real time that they took."""
    seen: dict[str, list[RoundRecord]] = {}
    for number, member in enumerate(members):
        member.key = str(number)
        seen[member.key] = []
    drive(members, callback=lambda member, record: seen[member.key].append(replace(record, wall_s=None)))
    return list(seen.values())


def applied(
    simulation: Simulation,
    state: RunState,
    plan: Plan,
    work: Jobs,
    updates: Sequence[Update],
    heard: Sequence[Incoming] = (),
) -> tuple[RunState, RoundRecord]:
    """What becomes of a round of one run whose updates were computed by hand, as where runs are driven."""
    member = Member(simulation)
    member.state = state
    (done,) = applied_together([member], [plan], [work], [updates], [heard])
    return done


def stop_after(config: Config, folder: Path, rounds: int) -> None:
    """Begin a run in a folder, and leave it after so many rounds."""
    turns = itertools.count()
    with RunFolder.create(folder, config) as made:
        drive([Member(Simulation(config), made)], stopping=lambda: next(turns) >= rounds)


def continued(config: Config, folder: Path) -> tuple[Member, list[RoundRecord], int]:
    """A run that was left in a folder, driven to its end; all records, and after how many rounds it was left."""
    with RunFolder.open(folder) as found:
        resume(member := Member(Simulation(config), found))
        done = member.state.rounds_done
        drive([member])
        return member, [replace(RoundRecord.from_json(each), wall_s=None) for each in found.records()], done


def same_state(one: RunState, other: RunState) -> bool:
    """Whether two states are the same bit for bit; nan is nan."""
    return same_tensors(to_tensors(one)[0], to_tensors(other)[0])


def same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors are the same bit for bit; nan is nan."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name].numpy(), other[name].numpy(), equal_nan=one[name].is_floating_point()) for name in one
    )


@dataclass(frozen=True)
class InPlace(PlainMethod):
    """A user's method with a momentum that it changes in place when a round is begun."""

    def start(self, num_weights: int, num_devices: int) -> dict[str, Tensor]:
        return {"momentum": torch.zeros(num_weights)}

    def rules(self, state: Any, now: Any, common_gradient: Any) -> Any:
        state["momentum"].mul_(0.9).add_(1e-3)
        return [replace(rule, lr=rule.lr * (1.0 + float(state["momentum"][0]))) for rule in equal_rates(now)]
