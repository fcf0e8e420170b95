"""The winner beside the start, with seeds that no trial has seen: what is found with some seeds may be luck with them.

Runs with the same seed saw the same cell and the same data, so that they are compared in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flare.config import Config
from flare.records.run import RunNumbers, read_run
from flare.report.curves import Estimate, estimate
from flare.report.paired import Difference, difference_of
from flare.sweeps import Task, has_ended
from flare.tuning.batch import Carrying
from flare.tuning.goals import Aim, Outcome, outcome_of
from flare.tuning.study import JUDGED, Tuning
from flare.tuning.trial import Trial

START_LABEL = "start settings"


@final
@dataclass(frozen=True)
class Quantity:
    """Something that is compared, over the seeds in which both have a value: the start, the winner, the difference
    winner less start, and the ratio of the two (with the ends of its 95 % interval; nan below three seeds). Where there
    is no such seed, start and winner are over those that each has."""

    name: str
    unit: str
    start: Estimate
    best: Estimate
    difference: Difference
    ratio: tuple[float, float, float]


@final
@dataclass(frozen=True, eq=False)
class Judgement:
    """The runs of winner and start with fresh seeds. `best` is the start itself where no trial was better."""

    aim: Aim
    trial: Trial
    best_config: Config
    start: tuple[Outcome, ...]
    best: tuple[Outcome, ...]
    runs: tuple[RunNumbers, ...]
    is_start: bool

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What is compared: time and energy to the target, where there is one, and the accuracy at the end."""
        when = "where runs end, the target or their time" if self.aim.has_target else "at the end of the time"
        compared = [_quantity(f"test accuracy {when}", "", [(a.accuracy, b.accuracy) for a, b in self._pairs])]
        if self.aim.has_target:
            times = [(a.time_s, b.time_s) for a, b in self._pairs]
            energies = [(_to_target_j(a), _to_target_j(b)) for a, b in self._pairs]
            compared = [
                _quantity("simulated time to the target", "s", times),
                _quantity("energy to the target", "J", energies),
                *compared,
            ]
        return tuple(compared)

    @property
    def _pairs(self) -> list[tuple[Outcome, Outcome]]:
        return list(zip(self.start, self.best, strict=True))

    def reached(self, outcomes: Sequence[Outcome]) -> str:
        """With how many seeds the target was reached."""
        return f"{sum(each.reached for each in outcomes)} of {len(outcomes)}"


def judged_tasks(tuning: Tuning, best: Trial, out: Path) -> list[Task]:
    """The runs of start and winner with fresh seeds; those of the start alone where it has won."""
    config, start = tuning.space.config(best.params), tuning.space.start
    named = [("start", START_LABEL, start)]
    if config != start:
        named.append((f"trial-{best.number:04d}", f"best settings (trial {best.number})", config))
    return [
        Task(
            f"judged {name}-seed{seed}",
            tuning.run_config(whole, seed),
            out / JUDGED / f"{name}-seed{seed}",
            keep_checkpoints=False,
            label=label,
        )
        for name, label, whole in named
        for seed in tuning.fresh
    ]


def judge(tuning: Tuning, best: Trial, how: Carrying) -> Judgement | None:
    """Carry out the winner and the start with fresh seeds; None where it was stopped."""
    tasks = judged_tasks(tuning, best, how.out)
    how.run(tasks)
    if how.stopping() and not all(map(has_ended, tasks)):
        return None
    runs = tuple(read_run(task.folder) for task in tasks if task.folder is not None)
    outcomes = tuple(outcome_of(run, tuning.aim) for run in runs)
    number = len(tuning.fresh)
    config = tuning.space.config(best.params)
    return Judgement(
        tuning.aim,
        best,
        tuning.run_config(config, tuning.space.start.seed),
        outcomes[:number],
        outcomes[-number:],
        runs,
        config == tuning.space.start,
    )


def _to_target_j(outcome: Outcome) -> float:
    return outcome.energy_j if outcome.reached else math.nan


def _quantity(name: str, unit: str, pairs: Sequence[tuple[float, float]]) -> Quantity:
    known = [(start, best) for start, best in pairs if math.isfinite(start) and math.isfinite(best)]
    positive = [(start, best) for start, best in known if start > 0.0 and best > 0.0]
    shown = known or pairs
    logs = difference_of([math.log(best) for _, best in positive], [math.log(start) for start, _ in positive]).mean
    return Quantity(
        name,
        unit,
        estimate([start for start, _ in shown]),
        estimate([best for _, best in shown]),
        difference_of([best for _, best in known], [start for start, _ in known]),
        (math.exp(logs.mean), math.exp(logs.mean - logs.half), math.exp(logs.mean + logs.half)),
    )
