"""A trial: values of the searched settings, and what runs with them came to; the file in which all trials are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, final

from flare.atomic import write_whole
from flare.reading import read_small
from flare.records.disk_errors import explained
from flare.records.lines import read_line, sealed, told_check
from flare.text import json_number
from flare.tuning.goals import Outcome, Score, Standing
from flare.tuning.space import Params

FILE = "trials.jsonl"
_MAX_BYTES = 1 << 28


class State(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"
    PRUNED = "pruned"
    IMPOSSIBLE = "impossible"


@final
@dataclass(frozen=True)
class Trial:
    """A trial that is over.

    score       of one that was pruned, the worst of those that miss the target
    outcomes    of its runs, one for each tuning seed
    at_pauses   by the number of a pause, the mean test accuracy then; where there was a test
    same_as     the number of an earlier trial with the very settings, whose runs are this one's too; -1: none
    why         why it was pruned, or why no run can have its settings
    """

    number: int
    params: Params
    state: State
    score: Score
    outcomes: tuple[Outcome, ...] = ()
    at_pauses: Mapping[int, float] = field(default_factory=dict)
    same_as: int = -1
    why: str = ""

    @property
    def reached(self) -> bool:
        """Whether the target was reached with every seed."""
        return self.state is State.COMPLETE and self.score.standing is Standing.REACHED

    @property
    def accuracy(self) -> float:
        """The mean over the seeds of the best test accuracy; of a run that diverged 0; nan where there was no test."""
        known = [0.0 if each.diverged else each.best for each in self.outcomes]
        return sum(known) / len(known) if known else math.nan


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial of the best score, of equal ones the first; None where none was carried out to its end."""
    complete = [trial for trial in trials if trial.state is State.COMPLETE]
    return min(complete, key=lambda trial: (trial.score, trial.number)) if complete else None


def write_trials(out: Path, trials: Sequence[Trial], seal: str) -> None:
    """Keep the trials in a folder, each line sealed as those of a run's rounds are (flare.records.lines), the first one
    with the `seal` of their tuning; the file appears whole or stays as it was."""
    lines, check = [], seal
    for trial in trials:
        line, check = sealed(_as_json(trial), check)
        lines.append(line)
    with explained("The trials that are over", out / FILE, "then give the same command again"):
        write_whole(out / FILE, *lines, durable=True)


def read_trials(out: Path, seal: str) -> list[Trial]:
    """The trials that a folder keeps; ValueError where the file is damaged, was edited, or is that of a tuning with
    another seal."""
    path, before = out / FILE, seal
    if not path.exists():
        return []
    trials: list[Trial] = []
    content = read_small(path, _MAX_BYTES)
    try:
        for line in content.splitlines(keepends=True):
            trials.append(_from_json(read_line(line, before)))
            before = told_check(line) or ""
            if trials[-1].number != len(trials) - 1:
                raise ValueError("a trial is missing")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{path}: line {len(trials) + 1} is damaged, or of another tuning ({type(error).__name__}: {error}); put "
            "the file back from a copy, or delete it: the same command makes it again from the runs"
        ) from None
    return trials


def _as_json(trial: Trial) -> dict[str, Any]:
    told = asdict(trial) | {"score": [int(trial.score.standing), trial.score.number]}
    told["outcomes"] = [
        {name: json_number(value) if isinstance(value, float) else value for name, value in asdict(each).items()}
        for each in trial.outcomes
    ]
    return told


def _from_json(told: dict[str, Any]) -> Trial:
    standing, number = told["score"]
    score = Score(Standing(standing), float(number))
    if not math.isfinite(score.number):
        raise ValueError("its score is no number")
    return Trial(
        int(told["number"]),
        dict(told["params"]),
        State(told["state"]),
        score,
        tuple(map(_outcome, told["outcomes"])),
        {int(pause): float(accuracy) for pause, accuracy in told["at_pauses"].items()},
        int(told["same_as"]),
        str(told["why"]),
    )


def _outcome(told: dict[str, Any]) -> Outcome:
    """An outcome; null stands for a number that is none."""
    whole: dict[str, Any] = {"seed": int(told["seed"]), "rounds": int(told["rounds"]), "status": str(told["status"])}
    rest: dict[str, Any] = {
        name: math.nan if value is None else float(value) for name, value in told.items() if name not in whole
    }
    return Outcome(**whole, **rest)
