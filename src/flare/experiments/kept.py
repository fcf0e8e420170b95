"""The runs of an experiment in one file, as its figures and claims see them: NAME-runs.jsonl.gz beside NAME.json.

A line is a run: its panel, curve and seed, what `Outcome` has of it, and the key that names its settings. Who has the
file can judge the experiment again, or draw it otherwise, without the folders of the runs; and a reproduction carries
out what is in neither. The first line says what the others are. pandas reads it all by
`pandas.read_json(path, lines=True)`.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from flare.atomic import write_whole
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Trial
from flare.reading import read_small
from flare.records.run import ENDED

FORMAT = 1
_MAX_PACKED_BYTES, _MAX_BYTES = 1 << 27, 1 << 30
_WHERE = {"key": str, "panel": str, "curve": str, "seed": int}
_LISTS = {each.name for each in fields(Outcome) if each.type == "Floats"}
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

    def to_line(self) -> str:
        """The run as a line of the file."""
        told = {name: getattr(self, name) for name in _WHERE}
        return json.dumps(told | {name: _told(value) for name, value in vars(self.outcome).items()}, allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """What `to_line` made; ValueError where it is something else."""
        told = json.loads(line)
        expected = {*_WHERE, *(each.name for each in fields(Outcome))}
        if not isinstance(told, dict) or told.keys() != expected:
            raise ValueError("it has not the fields of a run")
        for name, kind in {**_WHERE, "status": str, "num_classes": int, "num_rounds": int}.items():
            if type(told[name]) is not kind:
                raise ValueError(f"{name} is {told[name]!r:.40}")
        if (
            not _KEY.fullmatch(told["key"])
            or told["status"] not in ENDED
            or min(told["num_classes"] - 1, told["num_rounds"]) < 0
        ):
            raise ValueError("it names no run that has ended")
        where = {name: told.pop(name) for name in _WHERE}
        outcome = Outcome(**{name: _number(name, value) for name, value in told.items()})
        for names in (("test_s", "test_accuracy", "test_loss"), ("loss_s", "train_loss")):
            sizes = {len(told[name]) for name in (*names, "test_round" if "test_s" in names else "loss_round")}
            if len(sizes) > 1:
                raise ValueError(f"{', '.join(names)} have not the same length")
        return cls(**where, outcome=outcome)


def path_of(name: str, out: Path) -> Path:
    """The file of an experiment."""
    return out / f"{name}-runs.jsonl.gz"


def read_kept(name: str, out: Path) -> dict[str, KeptRun]:
    """The runs of an experiment that are kept, by key; none where there is no file. ValueError where it cannot be
    used."""
    path = path_of(name, out)
    if not path.exists() and not path.is_symlink():
        return {}
    packed = read_small(path, _MAX_PACKED_BYTES)
    remedy = f"move it away, and its runs are taken from {out / 'trials'}, or carried out again"
    try:
        lines = _unpacked(packed).decode().splitlines()
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is damaged ({error}); {remedy}") from None
    found: dict[str, KeptRun] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if number == 1:
                _refuse_other_head(json.loads(line), name)
                continue
            run = KeptRun.from_line(line)
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: cannot be used ({error}); {remedy}") from None
        found[run.key] = run
    if not lines:
        raise ValueError(f"{path}: is empty; {remedy}")
    return found


def write_kept(name: str, out: Path, trials: Iterable[Trial], outcomes: Mapping[str, Outcome]) -> None:
    """Keep the runs of an experiment as far as they are there, before those that were kept already and are not among
    them: of other seeds, or of other settings."""
    now = {each.key: KeptRun.of(each, outcomes[each.key]) for each in trials if each.key in outcomes}
    before = read_kept(name, out)
    if not now:
        return
    kept = now | {key: run for key, run in before.items() if key not in now}
    lines = [json.dumps(_head(name)), *(run.to_line() for run in kept.values())]
    write_whole(path_of(name, out), gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def _head(name: str) -> dict[str, Any]:
    return {"experiment": name, "format": FORMAT}


def _refuse_other_head(told: Any, name: str) -> None:
    if told != _head(name):
        raise ValueError(f"it says {str(told)!r:.80} where {_head(name)} is expected")


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


def _number(name: str, value: Any) -> Any:
    """What `_told` made of a field."""
    if name in ("status", "num_classes", "num_rounds"):
        return value
    if name in _LISTS:
        if not isinstance(value, list):
            raise ValueError(f"{name} is {value!r:.40}, and no list")
        return np.array([_float(name, each) for each in value], dtype=np.float64)
    return _float(name, value)


def _float(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.40}, and no number")
    return float(value)
