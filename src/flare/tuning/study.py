"""A tuning: what is searched, for what, with which seeds; and the folder that knows it again.

DIR/tuning.json     what is tuned, so that the next call knows that it continues the same tuning
DIR/trials.jsonl    every trial that is over
DIR/runs/NAME/      the run folders of the trials
DIR/judged/NAME/    those of the winner and of the start, with fresh seeds
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import final

from flare.atomic import write_whole
from flare.config import Config
from flare.sweeps import Task
from flare.sweeps.description import (
    Description,
    begin_described,
    changed_settings,
    described_files,
    differing_files,
    differing_settings,
    plain,
    read_description,
)
from flare.tuning.goals import Aim, Goal
from flare.tuning.space import Choice, Searched, Space, check_config
from flare.tuning.trial import FILE as TRIALS
from flare.tuning.trial import State, Trial, read_trials

FILE, RUNS, JUDGED = "tuning.json", "runs", "judged"
MAX_TRIALS = 100_000
_FORMAT = "flare-tuning"
_PAUSES = (64, 32, 16, 8, 4, 2)  # the time of a run divided by each: when it is looked who is hopeless
_ROOM = 10.0  # rounds that a run may have, over those of full length that fit into a time that a user has given


@final
@dataclass(frozen=True)
class Tuning:
    """All that a tuning is, where it is carried out aside.

    seeds        of every trial
    fresh        seeds with which the winner is judged beside the start; none of `seeds`
    batch        trials that are chosen together, by the results of those before; with others, other trials are chosen
    prune        whether hopeless trials are stopped
    timed        whether a user has said how much simulated time there is: then the number of rounds is no limit
    trials       how many in all
    """

    space: Space
    aim: Aim
    seeds: tuple[int, ...]
    fresh: tuple[int, ...]
    batch: int
    prune: bool
    timed: bool
    trials: int

    @cached_property
    def pauses_s(self) -> tuple[float, ...]:
        """The simulated times at which it is looked who is hopeless."""
        if not self.prune:
            return ()
        times_s = (self.aim.within_s / part for part in _PAUSES)
        return tuple(each for each in times_s if each >= self.space.start.wireless.deadline_s)

    def run_config(self, config: Config, seed: int) -> Config:
        """The settings of a run: it ends at the target, or when its time is over.

        Where the time is that of so many rounds, a run whose rounds are shorter has more of them.
        """
        start = self.space.start
        rounds = start.run.rounds * start.wireless.deadline_s / config.wireless.deadline_s
        if self.timed:
            rounds = max(rounds, _ROOM * self.aim.within_s / config.wireless.deadline_s)
        limits = replace(
            config.run,
            target_accuracy=self.aim.target if self.aim.has_target else 0.0,
            seconds=self.aim.within_s,
            rounds=math.ceil(round(rounds, 6)),
        )
        return replace(config, seed=seed, run=limits)

    def tasks(self, out: Path, number: int, config: Config, pause_s: float = math.inf) -> list[Task]:
        """The runs of a trial, up to a pause. Of each that has ended, what reports need is kept."""
        return [
            Task(
                run_key(number, seed),
                self.run_config(config, seed),
                out / RUNS / run_key(number, seed),
                keep_checkpoints=False,
                pause_s=pause_s,
            )
            for seed in self.seeds
        ]


def run_key(number: int, seed: int) -> str:
    """The name of a run of a trial."""
    return f"trial-{number:04d}-seed{seed}"


def begin_tuning(tuning: Tuning, out: Path) -> bool:
    """Write down what is tuned in the folder `out`, or find that it is the same; whether it was there.

    More trials than before are the same tuning, continued; fewer than are over are not. ValueError where the folder
    holds another tuning, or something else; nothing is touched then.
    """
    described, file = _description(tuning), out / FILE
    before = read_description(file, _FORMAT, "tuning").get("trials") if file.exists() else None
    asked_for = tuning.trials
    if isinstance(before, int) and before != asked_for:
        described = {**described, "trials": before}
    there = begin_described(
        file,
        described,
        "tuning",
        check=lambda: check_config(tuning.run_config(tuning.space.start, tuning.seeds[0])),
        differing=lambda found: _difference(found, described),
    )
    told = len(read_trials(out, seal_of(tuning)))
    if asked_for < told:
        raise ValueError(
            f"{out} holds {told} trials of this tuning, and the number of trials is {asked_for}; give as many or more, "
            "or another folder"
        )
    if before not in (None, asked_for):
        write_whole(file, (json.dumps({**described, "trials": asked_for}, indent=1) + "\n").encode())
    return there


def seal_of(tuning: Tuning) -> str:
    """What differs where a tuning does in anything but the number of its trials: its file of trials begins with it."""
    described = {**_description(tuning), "trials": None}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _description(tuning: Tuning) -> Description:
    aim = tuning.aim
    return {
        "format": _FORMAT,
        "goal": str(aim.goal),
        "target": aim.target,
        "within_s": aim.within_s,
        "timed": tuning.timed,
        "seeds": list(tuning.seeds),
        "fresh_seeds": list(tuning.fresh),
        "batch": tuning.batch,
        "prune": tuning.prune,
        "searched": [_as_json(each) for each in tuning.space.searched],
        "settings": changed_settings(tuning.space.start),
        "plugins": {},
        **described_files([tuning.space.start]),
        "trials": tuning.trials,
    }


def _as_json(each: Searched) -> dict[str, object]:
    if isinstance(each, Choice):
        return {"setting": each.name, "values": plain(each.values)}
    return {"setting": each.name, "from": each.low, "to": each.high, "log": each.log, "whole": each.whole}


_OPTIONS = {
    "goal": "--goal", "target": "--target", "within_s": "--within", "timed": "--within", "seeds": "--seeds",
    "fresh_seeds": "--fresh-seeds", "batch": "--batch", "prune": "--no-prune",
}  # fmt: skip


def _difference(there: Description, here: Description) -> str:
    """The first thing in which two descriptions differ."""
    for key, option in _OPTIONS.items():
        if there.get(key) != here[key]:
            return f"its {key} is {there.get(key)}, here {here[key]}: {option}"
    if there.get("searched") != here["searched"]:
        return "its searched settings are others, or their ranges"
    return differing_files(there, here) or differing_settings(there, here)


def same_settings(tuning: Tuning, trials: list[Trial]) -> dict[Config, Trial]:
    """The first trial with each settings, of those that a run can have."""
    found: dict[Config, Trial] = {}
    for trial in (each for each in trials if each.state is not State.IMPOSSIBLE):
        found.setdefault(tuning.space.config(trial.params), trial)
    return found


def refuse_foreign(tuning: Tuning, trials: Sequence[Trial], out: Path) -> None:
    """ValueError where a trial that a folder keeps is none of this tuning: of other settings or other seeds."""
    searched = {each.name for each in tuning.space.searched}
    for trial in trials:
        seeds = () if trial.state is State.IMPOSSIBLE else tuning.seeds
        why = ""
        if not trial.params.keys() <= searched:
            why = f"it has values of {', '.join(sorted(trial.params.keys() - searched))}"
        elif tuple(each.seed for each in trial.outcomes) != seeds:
            why = f"its runs have the seeds {[each.seed for each in trial.outcomes]!s:.60}"
        elif not -1 <= trial.same_as < trial.number:
            why = f"it is said to be the same as trial {trial.same_as}"
        if why:
            raise ValueError(
                f"{out / TRIALS}: trial {trial.number} is not of this tuning: {why}; put the file back from a copy, or "
                "give another --out"
            )


__all__ = ["Goal", "Tuning", "begin_tuning", "refuse_foreign", "run_key", "same_settings", "seal_of"]
