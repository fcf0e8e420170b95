"""About how long runs will take: a few rounds of the costliest batch are timed, on this machine and written nowhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from flare.learning.engine import compute_device
from flare.rounds import RoundRecord, RunStatus
from flare.simulation.rounds_ahead import MAX_ROUNDS
from flare.sweeps.batches import batches, cost, expected_rounds
from flare.sweeps.lockstep import run_batch
from flare.sweeps.task import LOCAL, Place, Task, placed

_MAX_S = 3.0
_MAX_ROUNDS = 1 + 2 * MAX_ROUNDS  # rounds are scheduled so many at once, in the time of the first of them
_MAX_RUNS_ON_CPU = 2  # one after the other there, so that more of them say no more


@final
@dataclass(frozen=True)
class TimeEstimate:
    """So many seconds, by rounds of runs in lockstep that were tried, which took `trial_s`."""

    seconds: float
    trial_s: float
    rounds: int
    runs: int


def estimate_time(tasks: Sequence[Task], place: Place) -> TimeEstimate:
    """How long the runs will take where nothing of them is done; ones that reach a target before their end less.

    Rounds of other lengths are taken to be as costly as `flare.sweeps.batches` thinks they are.
    """
    local = replace(place, on=LOCAL, ray_address=None)
    first = batches(tasks, local)[0]
    on_gpu = len(first) > _MAX_RUNS_ON_CPU and _computes_on_gpu(first[0], local)
    tried = [replace(task, folder=None) for task in (first if on_gpu else first[:_MAX_RUNS_ON_CPU])]
    turns_s = _timed(tried, local)
    of_turn = sum(cost(task) / expected_rounds(task.config) for task in tried)
    a_cost_s = sum(turns_s) / len(turns_s) / of_turn
    shared = min(place.num_processes, len(tasks))
    return TimeEstimate(a_cost_s * sum(map(cost, tasks)) / shared, sum(turns_s), len(turns_s), len(tried))


def _computes_on_gpu(task: Task, place: Place) -> bool:
    return compute_device(placed(task, place).learning) == "cuda"


def _timed(tasks: Sequence[Task], place: Place) -> list[float]:
    """The real times of some turns in lockstep; where there are several, without the first, which sets things up."""
    end_s = time.monotonic() + _MAX_S
    turns_s: dict[int, float] = {}

    def callback(task: Task, record: RoundRecord, _status: RunStatus) -> None:
        turns_s[record.round] = record.wall_s or 0.0  # of all runs together

    def stopping() -> bool:
        return len(turns_s) >= _MAX_ROUNDS or (len(turns_s) >= 2 and time.monotonic() > end_s)

    run_batch(tasks, place, callback, stopping)
    times_s = list(turns_s.values())
    return times_s[1:] or times_s
