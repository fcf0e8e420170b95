"""A batch of trials, carried out together: all their runs go in lockstep from pause to pause, the hopeless ones stop.

A pause is a simulated time, the same for all runs. What is decided there depends on nothing but rounds that were
simulated by then: not on machines, not on who was quicker, and not on whether somebody stopped the command in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from flare.config import Config
from flare.records import RunFolder
from flare.records.manifest import is_run_folder
from flare.records.run import RunNumbers, read_rounds, run_of
from flare.rounds import RoundRecord
from flare.sweeps import Callback, Hire, Place, Task, has_ended, run_tasks
from flare.tuning.goals import Goal, Outcome, Score, Standing, accuracy_by, at_least, outcome_of, score_of
from flare.tuning.sampler import BatchTrials, ask
from flare.tuning.space import Params, check_config
from flare.tuning.study import RUNS, Tuning, run_key, same_settings
from flare.tuning.trial import State, Trial, best_of

_PRUNED = Score(Standing.MISSED, 1.0)


@final
@dataclass(frozen=True)
class _Going:
    """A trial that is under way; `place` is its number in the batch."""

    place: int
    number: int
    params: Params
    config: Config


@final
@dataclass(frozen=True)
class Carrying:
    """Where runs are carried out, who sees their rounds, who says when to stop, and who gives workers that stay."""

    out: Path
    place: Place
    callback: Callback
    stopping: Callable[[], bool]
    hire: Hire | None = None

    def run(self, tasks: Sequence[Task]) -> None:
        """Carry out those of the runs that have not ended."""
        left = [task for task in tasks if not has_ended(task)]
        run_tasks(left, self.place, callback=self.callback, stopping=self.stopping, hire=self.hire)


def next_batch(tuning: Tuning, told: Sequence[Trial], how: Carrying) -> list[Trial] | None:
    """Choose the next trials and carry them out; None where it was stopped before their end."""
    numbers = range(len(told), min(len(told) + tuning.batch, tuning.trials))
    asked = ask(tuning.space, told, numbers, tuning.space.start.seed)
    known = {config: trial.number for config, trial in same_settings(tuning, list(told)).items()}
    over: dict[int, Trial] = {trial.number: trial for trial in told}
    copies: dict[int, int] = {}
    going: list[_Going] = []
    for place, (number, params) in enumerate(zip(numbers, asked.params, strict=True)):
        config, why = _config(tuning, params)
        if config is None:
            over[number] = Trial(number, params, State.IMPOSSIBLE, Score(Standing.IMPOSSIBLE, 0.0), why=why)
        elif config in known:
            copies[number] = known[config]
        else:
            known[config] = number
            going.append(_Going(place, number, params, config))
    for pause in range(len(tuning.pauses_s) + 1):
        runs = _to_pause(tuning, going, pause, how)
        if runs is None:
            return None
        going = _settle(tuning, going, pause, runs, asked, over)
    for number, first in copies.items():
        over[number] = replace(over[first], number=number, same_as=first)
    return [over[number] for number in numbers]


def _config(tuning: Tuning, params: Params) -> tuple[Config | None, str]:
    """The settings of a trial; None, and why, where no run can have them together."""
    try:
        config = tuning.space.config(params)
        check_config(tuning.run_config(config, tuning.seeds[0]))
    except ValueError as error:
        return None, str(error)
    return config, ""


def _to_pause(
    tuning: Tuning, going: Sequence[_Going], pause: int, how: Carrying
) -> Mapping[int, list[RunNumbers]] | None:
    """Carry the runs on to a pause (behind the last one: to their end); what they are then, None where stopped."""
    pause_s = tuning.pauses_s[pause] if pause < len(tuning.pauses_s) else math.inf
    tasks = {each.number: tuning.tasks(how.out, each.number, each.config, pause_s) for each in going}
    how.run([task for own in tasks.values() for task in own])
    if how.stopping():
        return None
    return {number: [read_until(task.folder, pause_s) for task in own if task.folder] for number, own in tasks.items()}


def read_until(folder: Path, pause_s: float) -> RunNumbers:
    """A run as it was at a pause, also where it has gone further since: a tuning that was killed decides as before."""
    opened = RunFolder.open(folder)
    records: list[RoundRecord] = []
    for record in read_rounds(opened):
        if records and records[-1].clock_s >= pause_s:
            return run_of(records, opened.config, opened.manifest | {"status": "interrupted"}, folder)
        records.append(record)
    return run_of(records, opened.config, opened.manifest, folder)


def _settle(
    tuning: Tuning,
    going: Sequence[_Going],
    pause: int,
    runs: Mapping[int, list[RunNumbers]],
    asked: BatchTrials,
    over: dict[int, Trial],
) -> list[_Going]:
    """Put the trials that ended or are hopeless at a pause among those that are `over`; those that go on."""
    outcomes = {number: tuple(outcome_of(run, tuning.aim) for run in own) for number, own in runs.items()}
    for each in going:
        if all(run.ended for run in runs[each.number]):
            made, score = outcomes[each.number], score_of(outcomes[each.number], tuning.aim)
            at_pauses = _at_pauses(tuning, runs[each.number], len(tuning.pauses_s))
            over[each.number] = Trial(each.number, each.params, State.COMPLETE, score, made, at_pauses)
    rest = [each for each in going if each.number not in over]
    for each in rest:
        at_pauses = _at_pauses(tuning, runs[each.number], pause + 1)
        why = _why_hopeless(tuning, each, pause, outcomes[each.number], at_pauses, asked, list(over.values()))
        if why:
            made = outcomes[each.number]
            over[each.number] = Trial(each.number, each.params, State.PRUNED, _PRUNED, made, at_pauses, why=why)
    return [each for each in rest if each.number not in over]


def _at_pauses(tuning: Tuning, runs: Sequence[RunNumbers], until: int) -> dict[int, float]:
    """The mean accuracy at each pause before `until`, where all runs had been tested."""
    found = {}
    for pause, time_s in enumerate(tuning.pauses_s[:until]):
        accuracies = [accuracy_by(run, time_s) for run in runs]
        if all(map(math.isfinite, accuracies)):
            found[pause] = float(np.mean(accuracies))
    return found


def _why_hopeless(
    tuning: Tuning,
    each: _Going,
    pause: int,
    outcomes: Sequence[Outcome],
    at_pauses: Mapping[int, float],
    asked: BatchTrials,
    over: Sequence[Trial],
) -> str:
    """Why a trial is stopped at a pause; empty where it goes on. The start always does: it is what others are seen by.

    By time or energy: it can no longer be better than the best, which is certain. By time or accuracy: its accuracy is
    below the median of earlier trials at the same simulated time, which is a guess.
    """
    if each.number == 0 and each.config == tuning.space.start:
        return ""
    best = best_of(over)
    rival = tuning.aim.has_target and best is not None and best.reached
    if rival and best is not None and at_least(outcomes, tuning.aim) >= best.score.number:
        return f"can no longer be better than trial {best.number}"
    if tuning.aim.goal is not Goal.ENERGY and asked.falls_behind(each.place, at_pauses, pause):
        return f"below the median accuracy after {tuning.pauses_s[pause]:.3g} s"
    return ""


def mark_pruned(out: Path, trials: Sequence[Trial]) -> None:
    """Say in the folders of stopped runs that they were pruned, and remove what only a run that goes on needs."""
    for trial in trials:
        if trial.state is not State.PRUNED or trial.same_as >= 0:
            continue
        for each in trial.outcomes:
            path = out / RUNS / run_key(trial.number, each.seed)
            if each.status != "stopped" or not is_run_folder(path):
                continue
            with RunFolder.open(path) as folder:
                if folder.manifest.get("status") == "interrupted":
                    folder.restore()
                    folder.finish(str(State.PRUNED), rounds=each.rounds, clock_s=each.clock_s)
                    folder.drop_checkpoints()
