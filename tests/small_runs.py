"""Small runs by `flare.simulate` and by the command line, for the tests of a researcher's Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

import flare
from flare.rounds import RoundRecord

SMALL: dict[str, Any] = {
    "wireless": {"num_devices": 8, "deadline_s": 0.02, "batch_size": 10},
    "learning.model": "logistic",
    "run": {"rounds": 6, "evaluate_every": 3, "checkpoint_every": 2},
}
SETTINGS = [
    "wireless.num_devices=8", "wireless.deadline_s=0.02", "wireless.batch_size=10", "learning.model=logistic",
    "run.rounds=6", "run.evaluate_every=3", "run.checkpoint_every=2",
]  # fmt: skip
"""The same as texts."""
OPTIONS = [part for text in SETTINGS for part in ("--set", text)]
"""The same on the command line."""
LARGE = {"label": "large γ / λ", "policy": "greedy", "scheduling.gamma": 100.0}
ENTRIES = ["flare:greedy", ("fedavg", "cp"), LARGE]


def timeless(records: Iterable[RoundRecord]) -> list[RoundRecord]:
    """Records without the real time that the rounds took."""
    return [replace(record, wall_s=None) for record in records]


def own_data() -> dict[str, Any]:
    """Three classes told apart by five measurements, and a model for them."""
    draw = flare.stream(5, "own data")
    y = draw.integers(0, 3, 240)
    x = draw.normal(size=(240, 5)) + y[:, np.newaxis]
    return {"dataset": (x[:200], y[:200], x[200:], y[200:]), "module": linear}


def linear() -> nn.Module:
    return nn.Linear(5, 3)


def interrupted_after(rounds: int) -> Callable[..., None]:
    """A callback that is interrupted as by Ctrl-C."""
    seen = []

    def callback(*told: Any) -> None:
        seen.append(told)
        if len(seen) == rounds:
            raise KeyboardInterrupt

    return callback


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round takes no real time, so that the same run is the same bytes."""
    for module in ("flare.simulation.drive", "flare.simulation.turn"):
        monkeypatch.setattr(sys.modules[module], "time", SimpleNamespace(perf_counter=lambda: 0.0))


def files_in(folder: Path) -> dict[str, bytes]:
    """What lies in a run folder, by name, without the manifest, which says when it was made."""
    found = (each for each in folder.rglob("*") if each.is_file() and each.name not in ("manifest.json", ".lock"))
    return {str(each.relative_to(folder)): each.read_bytes() for each in found}


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    """The rounds in a run folder, without real times and the checksums over them."""
    written = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("wall_s", "check")} for line in written]
