"""A run among those that are driven together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from flare.records import RunFolder
from flare.records.run_keeper import RunKeeper
from flare.rounds import RoundRecord, RunState, RunStatus
from flare.simulation.run import Simulation


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
"""Sees each record."""


def going(members: Iterable[Member]) -> Iterator[Member]:
    """Those with a round to carry out: they have neither ended nor come to their pause."""
    return (m for m in members if m.state.status is RunStatus.RUNNING and m.state.clock_s < m.pause_s)
