"""One run of an experiment, what is kept of it, and the file that keeps it.

A trial is named by its configuration alone: experiments that ask for the same run share it, and a reproduction that was
stopped finds what it has already done.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.atomic import write_whole
from flare.config import Config
from flare.simulation import RoundRecord
from flare.types import Floats

_FORMAT = 1  # of the files; part of a trial's name, so that another format is another file
_DIGITS = 7  # significant digits kept


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

    @property
    def key(self) -> str:
        """The name of the run: the same for the same settings, wherever and by whatever engine it is computed."""
        settings = replace(self.config, learning=replace(self.config.learning, engine="auto", device="auto"))
        text = "\n".join([f"{_FORMAT} {self.plan_only}", *_changes("", settings, Config())])
        return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What is kept of a run. The first arrays have shape (rounds,), the last three (tests,)."""

    status: str
    num_classes: int
    clock_s: Floats
    train_loss: Floats  # mean over the local steps of the devices; nan where nobody sent
    devices: Floats  # how many sent
    tau: Floats  # mean steps of those that sent; nan where nobody did
    objective: Floats  # P2's, nan where nobody sent
    lower_bound: Floats  # of P2's objective, nan where not asked for
    test_round: Floats  # rounds done at the test
    test_accuracy: Floats
    test_loss: Floats

    @property
    def diverged(self) -> bool:
        """Whether the weights stopped being numbers."""
        return self.status == "diverged"


_OF_ROUND = ("clock_s", "train_loss", "objective", "lower_bound")
_BY_ROUND = (*_OF_ROUND, "devices", "tau")
_BY_TEST = ("test_round", "test_accuracy", "test_loss")
_ARRAYS = (*_BY_ROUND, *_BY_TEST)


def _changes(section: str, settings: Any, default: Any) -> list[str]:
    """The settings that are not the default's: one that is added some day changes no name."""
    changed = []
    for each in fields(settings):
        name, value, usual = f"{section}{each.name}", getattr(settings, each.name), getattr(default, each.name)
        if is_dataclass(value):
            changed += _changes(f"{name}.", value, usual)
        elif value != usual:
            changed.append(f"{name}={value!r}")
    return changed


def outcome_of(records: Sequence[RoundRecord], status: str, num_classes: int) -> Outcome:
    """What is kept of the records of a run."""
    tests = [record for record in records if record.test_accuracy is not None]
    return Outcome(
        status=status,
        num_classes=num_classes,
        devices=np.array([float(len(record.selected)) for record in records]),
        tau=np.array([_mean(record.tau) for record in records]),
        test_round=np.array([float(record.round + 1) for record in tests]),
        test_accuracy=_numbers(tests, "test_accuracy"),
        test_loss=_numbers(tests, "test_loss"),
        **{name: _numbers(records, name) for name in _OF_ROUND},
    )


def write_outcome(path: Path, trial: Trial, outcome: Outcome) -> None:
    """Write the file of a finished run, whole or not at all."""
    arrays = {name: [_short(value) for value in getattr(outcome, name).tolist()] for name in _ARRAYS}
    content = {"key": trial.key, "status": outcome.status, "num_classes": outcome.num_classes} | arrays
    write_whole(path, json.dumps(content, separators=(",", ":"), allow_nan=False).encode())


def read_outcome(path: Path) -> Outcome | None:
    """What a file keeps; None where there is none, or none that can be used: the run is then done again."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        arrays = {name: _array(content[name]) for name in _ARRAYS}
        if content["key"] != path.stem:
            return None
        lengths = [{len(arrays[name]) for name in names} for names in (_BY_ROUND, _BY_TEST)]
        if any(len(different) > 1 for different in lengths):
            return None
        return Outcome(status=str(content["status"]), num_classes=int(content["num_classes"]), **arrays)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _numbers(records: Sequence[RoundRecord], name: str) -> Floats:
    return _array([getattr(record, name) for record in records])


def _array(values: Sequence[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _short(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
