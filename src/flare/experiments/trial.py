"""One run of an experiment: what names it, and the folder that keeps it.

A trial is named by its configuration alone: experiments that ask for the same run share it, and a reproduction that was
stopped finds what it has already done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from flare.config import Config, Options, settings_of
from flare.config.names import MOVED
from flare.experiments.outcome import Outcome, outcome_of
from flare.records import RunFolder
from flare.records.lines import Mark, first_mark, seal
from flare.records.manifest import read_manifest
from flare.records.run import Columns, RunNumbers, read_run, refuse_odd_devices
from flare.simulation import RoundRecord, RunStatus
from flare.sweeps import Hire, Place, Task, anywhere, run_tasks
from flare.sweeps.tail import Seal

_FORMAT = 1  # part of a trial's name: raised where the same settings would give another run


@dataclass(frozen=True)
class Trial:
    """A run as a place in an experiment: in which panel, on which curve; its seed is that of the configuration."""

    panel: str
    curve: str
    config: Config
    plan_only: bool = False  # rounds are drawn and scheduled, nothing is trained

    @property
    def seed(self) -> int:
        """The seed of all that is drawn."""
        return self.config.seed

    @cached_property
    def key(self) -> str:
        """The name of the run: the same for the same settings, wherever and by whatever engine it is computed."""
        text = "\n".join([f"{_FORMAT} {self.plan_only}", *_changes(anywhere(self.config))])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


Callback = Callable[[Trial, int, bool], None]
"""Sees the number of rounds that a trial has done, and whether it has ended."""


def run_trials(
    trials: Iterable[Trial],
    folder: Path,
    place: Place,
    *,
    callback: Callback = lambda trial, rounds, ended: None,
    stopping: Callable[[], bool] = lambda: False,
    hire: Hire | None = None,
    known: Mapping[str, Outcome] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """The outcome of every trial by its key, fewer where `stopping` says so; run folders FOLDER/KEY keep them.

    Trials with the same key are one run. Those that are `known` or there are not run again; the callback sees them
    first. A run that was carried out and cannot be read, since its folder was damaged before or meanwhile, is done
    anew, once, and one that workers left, though nobody told them to, is continued; ValueError where it still cannot be
    read. `hire` is that of `run_tasks`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {trial.key: trial for trial in trials}
    done: dict[str, Outcome] = {}
    for key, trial in wanted.items():
        if stopping():
            break
        if (outcome := known.get(key) or read_outcome(folder / key, trial)) is not None:
            done[key] = outcome
            callback(trial, outcome.num_rounds, True)
    missing = {key: trial for key, trial in wanted.items() if key not in done}
    told: dict[str, _Told] = {}
    seals: dict[str, Seal] = {}  # of the rounds that are told now
    over: set[str] = set()  # of which the callback has seen the end: it does not see them done anew

    def sealed(task: Task, seal: Seal) -> None:
        seals[task.key] = seal

    def take_in(key: str) -> None:
        if key not in done and (outcome := read_outcome(folder / key, wanted[key], told.pop(key, None))) is not None:
            done[key] = outcome

    def tell(task: Task, record: RoundRecord, status: RunStatus) -> None:
        ended = status is not RunStatus.RUNNING
        if task.key not in over:
            callback(wanted[task.key], record.round + 1, ended)
        over.update([task.key] if ended else [])
        if record.round == 0:
            told[task.key] = _Told(folder / task.key)
        if task.key in told:
            told[task.key].add(record, seals.pop(task.key, None))
        if ended:
            take_in(task.key)  # while other workers are still at it

    for again in (False, True):
        tasks = [
            replace(task_of(trial, folder), anew=again and not _is_unfinished(folder / key))
            for key, trial in missing.items()
            if key not in done
        ]
        if not tasks or stopping():
            break
        run_tasks(tasks, place, callback=tell, stopping=stopping, hire=hire, sealed=sealed)
        for key in missing:
            take_in(key)
    if not stopping():
        done |= {key: _outcome(folder / key, trial) for key, trial in missing.items() if key not in done}
    return {key: done[key] for key in wanted if key in done}


def task_of(trial: Trial, folder: Path) -> Task:
    """The run of a trial, in the folder of all trials. Only what the measures need is kept when it has ended."""
    return Task(
        trial.key,
        trial.config,
        folder / trial.key,
        trained=not trial.plan_only,
        keep_checkpoints=False,
        expendable=True,
    )


def read_outcome(folder: Path, trial: Trial, told: _Told | None = None) -> Outcome | None:
    """What the run folder of a trial says; None where there is none that has ended and can be used. Its records are not
    read again where they are what was `told`."""
    try:
        return _read(folder, trial, told)
    except (OSError, ValueError):
        return None


def _read(folder: Path, trial: Trial, told: _Told | None = None) -> Outcome:
    """What `read_outcome` gives; ValueError or OSError where there is none."""
    run = (None if told is None else told.run()) or read_run(folder)
    if not run.ended:
        raise ValueError(f"{folder}: the run has not come to its end")
    if Trial("", "", run.config, not run.trained).key != trial.key:
        raise ValueError(f"{folder} holds a run of other settings")
    return outcome_of(run)


def _is_unfinished(folder: Path) -> bool:
    """Whether a folder holds a run that has not come to its end, and is whole so far."""
    try:
        return not read_run(folder).ended
    except (OSError, ValueError):
        return False


def _outcome(folder: Path, trial: Trial) -> Outcome:
    """The outcome of a run that was carried out, and anew when it could not be read; ValueError where it still cannot
    be."""
    try:
        return _read(folder, trial)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the run in {folder} was carried out, and its folder cannot be used ({error}): see that nothing else "
            "writes or removes files there, and give the same command again; all other runs are kept"
        ) from error


@final
class _Told:
    """The rounds of a run as they were told, sealed as in its file. One that was killed and goes on from a checkpoint
    does rounds again, of which the first ones were told and the last ones are in the file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._columns = folder, Columns()
        self._mark: Mark | None = None

    def add(self, record: RoundRecord, sealed: Seal | None = None) -> None:
        """Take in a round, with its seal where that is known. One that is refused, as it would be in the folder, is
        missing from then on, so that the folder is read."""
        with suppress(ValueError, OSError):  # where the folder cannot be read, the end says so
            refuse_odd_devices(record)
            mark = self._after(record) if sealed is None else self._sealed(record, sealed)
            self._columns.add(record)
            self._mark = mark

    def _after(self, record: RoundRecord) -> Mark:
        """The mark after this round; ValueError where it is not the next."""
        mark = first_mark(read_manifest(self._folder)) if self._mark is None else self._mark
        return seal(record.to_json(), mark)[1]

    def _sealed(self, record: RoundRecord, sealed: Seal) -> Mark:
        """The mark after this round, whose line comes after that of the last one; ValueError where it does not."""
        rounds, check = (0, None) if self._mark is None else (self._mark.rounds, self._mark.check)
        if (record.round, sealed.before) != (rounds, check):
            raise ValueError(f"round {record.round} comes after another line than that of the round before it")
        return Mark(rounds + 1, 0, sealed.check)

    def run(self) -> RunNumbers | None:
        """The run; None where its file holds other rounds than were told."""
        opened = RunFolder.open(self._folder)
        opened.refuse_changed_config()
        held = opened.manifest.get("records", {})
        if self._mark is None or (held.get("rounds"), held.get("check")) != (self._mark.rounds, self._mark.check):
            return None
        return self._columns.run(self._folder, opened.config, opened.manifest)


def _changes(config: Config) -> list[str]:
    """The settings that are not the default: one that is added some day changes no name."""
    usual = _usual()
    return [
        line
        for name, value in settings_of(config).items()
        if value != usual[name]
        for line in (_option_lines(name, value) if isinstance(value, Options) else [f"{name}={value!r}"])
    ]


@cache
def _usual() -> dict[str, Any]:
    """The defaults of all settings."""
    return settings_of(Config())


def _option_lines(name: str, options: Options) -> list[str]:
    """Options; one that was a setting of its own when the first trials were run has the name that it had then."""
    former = {moved.where: moved.former for moved in MOVED if moved.section != "scheduling"}
    own = {option: former[f"{name}.{option}"] for option in options if f"{name}.{option}" in former}
    rest = options.only(set(options) - set(own))
    return [f"{own[option]}={options[option]!r}" for option in own] + ([f"{name}={rest!r}"] if rest else [])
