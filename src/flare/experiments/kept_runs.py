"""The runs of an experiment in one file, as its figures and claims see them: NAME-runs.jsonl.gz beside NAME.json.

A line is a run in one place of the experiment: its panel, curve and seed, what `Outcome` has of it, the key that names
its settings, and a check of all that. A run that stands in several places has a line for each. Who has the file can
judge the experiment again, or draw it otherwise, without the folders of the runs; and a reproduction carries out what
is in neither. The first line says what the others are. pandas reads it all by `pandas.read_json(path, lines=True)`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self, final, get_type_hints

import numpy as np

from flare.atomic import write_whole
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Trial
from flare.reading import read_small
from flare.records.run import ENDED

FORMAT = 1
_MAX_PACKED_BYTES, _MAX_BYTES = 1 << 27, 1 << 30
_WHERE = {"key": str, "panel": str, "curve": str, "seed": int}
_KINDS = _WHERE | get_type_hints(Outcome)
"""What each field of a line is: a text, a whole number, a number, or else a list of numbers."""
_TOGETHER = (("test_round", "test_s", "test_accuracy", "test_loss"), ("loss_round", "loss_s", "train_loss"))
"""Lists of equal length: rounds, the simulated times after them, and what was measured there."""
_CHECK = "check"
_MANY = 1e15  # of anything
_LIMITS = {
    "num_classes": (1, _MANY),
    "num_rounds": (0, _MANY),
    **dict.fromkeys(("end_s", "mean_devices", "mean_tau", "total_energy_j", "test_s", "loss_s"), (0.0, math.inf)),
    **dict.fromkeys(("end_train_loss", "test_loss", "train_loss"), (0.0, math.inf)),
    **dict.fromkeys(("fairness", "test_accuracy"), (0.0, 1.0)),
}
"""What numbers are between, where they are known."""
_KEY = re.compile(r"[0-9a-f]{20}")


@final
@dataclass(frozen=True)
class KeptRun:
    """A run and its place in an experiment."""

    key: str
    panel: str
    curve: str
    seed: int
    outcome: Outcome

    @classmethod
    def of(cls, trial: Trial, outcome: Outcome) -> Self:
        """A trial with what came out of it."""
        return cls(trial.key, trial.panel, trial.curve, trial.seed, outcome)

    @property
    def place(self) -> tuple[str, str, int]:
        """Where the run stands in the experiment."""
        return self.panel, self.curve, self.seed

    def to_line(self) -> str:
        """The run as a line of the file."""
        told = {name: getattr(self, name) for name in _WHERE} | self._told()
        return json.dumps(told | {_CHECK: _check_of(told)}, allow_nan=False)

    def _told(self) -> dict[str, Any]:
        """What came out of it, as JSON has it."""
        return {name: _told(value) for name, value in vars(self.outcome).items()}

    def refuse_other(self, again: Self) -> None:
        """ValueError where a run of the same key has other numbers."""
        if self._told() != again._told():
            raise ValueError(f"run {self.key} has other numbers in another place")

    @classmethod
    def from_line(cls, line: str) -> Self:
        """What `to_line` made; ValueError where it is something else."""
        told = json.loads(line)
        if not isinstance(told, dict) or told.keys() != {*_KINDS, _CHECK}:
            raise ValueError("it has not the fields of a run")
        if told.pop(_CHECK) != _check_of(told):
            raise ValueError("it was changed")
        known = {name: _known(name, kind, told[name]) for name, kind in _KINDS.items()}
        if not _KEY.fullmatch(known["key"]) or known["status"] not in ENDED:
            raise ValueError("it names no run that has ended")
        for name, (least, most) in _LIMITS.items():
            value = known[name]
            if not np.all(((value >= least) & (value <= most)) | (value != value)):  # or not known
                raise ValueError(f"{name} is not between {least:g} and {most:g}")
        for names in _TOGETHER:
            _refuse_odd_series(names, known)
        where = {name: known.pop(name) for name in _WHERE}
        return cls(**where, outcome=Outcome(**known))


def path_of(name: str, out: Path) -> Path:
    """The file of an experiment."""
    return out / f"{name}-runs.jsonl.gz"


def read_kept(name: str, out: Path, *, quick: bool) -> list[KeptRun]:
    """The runs of an experiment that are kept, with small settings (`quick`) or the paper's; none where there is no
    file. ValueError where it cannot be used, or holds runs of the other settings."""
    path = path_of(name, out)
    if not path.exists() and not path.is_symlink():
        return []
    remedy = f"move it away, and its runs are taken from {out / 'trials'}, or carried out again"
    try:
        packed = read_small(path, _MAX_PACKED_BYTES)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    try:
        lines = _unpacked(packed).decode().splitlines()
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is damaged ({error}); {remedy}") from None
    if lines and lines[0] == json.dumps(_head(name, quick=not quick)):
        held, asked = ("the paper's settings", "--quick") if quick else ("--quick", "the paper's settings")
        raise ValueError(f"{path}: holds runs of {held}, and those of {asked} are asked for; give another --out")
    if not lines or lines[0] != json.dumps(_head(name, quick=quick)):
        says = f"begins with {lines[0]!r:.80}" if lines else "is empty"
        raise ValueError(f"{path}: {says}, where {json.dumps(_head(name, quick=quick))} is expected; {remedy}")
    found: list[KeptRun] = []
    first: dict[str, KeptRun] = {}  # the first line of each run
    for number, line in enumerate(lines[1:], start=2):
        try:
            run = KeptRun.from_line(line)
            first.setdefault(run.key, run).refuse_other(run)
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: cannot be used ({error}); {remedy}") from None
        found.append(run)
    return found


def write_kept(name: str, out: Path, trials: Iterable[Trial], outcomes: Mapping[str, Outcome], *, quick: bool) -> None:
    """Write the finished runs of these trials. Other runs in the file stay, after them. Those that stood where one of
    these stands now, as of other settings, go into a file of their own, NAME-before-1-runs.jsonl.gz or the next that is
    free."""
    now = [KeptRun.of(each, outcomes[each.key]) for each in trials if each.key in outcomes]
    before = read_kept(name, out, quick=quick)
    taken = {run.place for run in now}
    kept = [*now, *(run for run in before if run.place not in taken)]
    if {(run.key, run.place) for run in now} <= {(run.key, run.place) for run in before}:
        return
    current = {run.key for run in now}
    replaced = [run for run in before if run.place in taken and run.key not in current]
    if replaced:
        number = next(at for at in count(1) if not os.path.lexists(path_of(f"{name}-before-{at}", out)))
        _write(f"{name}-before-{number}", out, _head(name, quick=quick), replaced)
    _write(name, out, _head(name, quick=quick), kept)


def _write(name: str, out: Path, head: Mapping[str, Any], runs: Iterable[KeptRun]) -> None:
    lines = [json.dumps(head), *(run.to_line() for run in runs)]
    write_whole(path_of(name, out), gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def _check_of(told: Mapping[str, Any]) -> str:
    """What differs where a field does."""
    return f"{zlib.crc32(json.dumps(told).encode()):08x}"


def _head(name: str, *, quick: bool) -> dict[str, Any]:
    return {"experiment": name, "format": FORMAT, "quick": quick}


def _refuse_odd_series(names: tuple[str, ...], known: dict[str, Any]) -> None:
    """ValueError where lists that belong together have not the same length, or their rounds and times go back."""
    if len({len(known[name]) for name in names}) > 1:
        raise ValueError(f"{', '.join(names)} have not the same length")
    rounds, times_s = known[names[0]], known[names[1]]
    if not (np.all(np.diff(rounds, prepend=0.0) > 0.0) and np.all(rounds <= known["num_rounds"])):
        raise ValueError(f"{names[0]} does not rise from 1 to {known['num_rounds']} at most")
    if names[0] == "test_round" and np.any(rounds % 1.0):
        raise ValueError("test_round is no whole number")
    if not np.all(np.diff(times_s, prepend=0.0) >= 0.0):
        raise ValueError(f"{names[1]} goes back")


def _unpacked(packed: bytes) -> bytes:
    """What was packed; ValueError where that is more than there may be, of which no more is unpacked."""
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    content = unpacking.decompress(packed, _MAX_BYTES)
    if unpacking.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {_MAX_BYTES} bytes")
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("it ends early, or goes on after its end")
    return content


def _told(value: Any) -> Any:
    """A field as JSON has it: null for nan."""
    if isinstance(value, np.ndarray):
        return [_told(each) for each in value.tolist()]
    return None if isinstance(value, float) and math.isnan(value) else value


def _known(name: str, kind: type, value: Any) -> Any:
    """What `_told` made of a field of this kind; ValueError where it is no such thing."""
    if kind in (str, int):
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r:.40}")
        return value
    if kind is float:
        return _float(name, value)
    if not isinstance(value, list):
        raise ValueError(f"{name} is {value!r:.40}, and no list")
    return np.array([_float(name, each) for each in value], dtype=np.float64)


def _float(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.40}, and no number")
    return float(value)
