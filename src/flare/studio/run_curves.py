"""What the page draws of runs: curves over seeds, thinned to what the eye can see; groups compared; a round's means.

The numbers are those of the report and of `flare.load`: the same groups, the same intervals, the same pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.records.run import RunNumbers
from flare.report.comparison import as_json
from flare.report.curves import Curve, Estimate, against_rounds, along, summarise
from flare.report.paired import in_order
from flare.report.run_groups import Group, group_runs
from flare.research.quantities import get_axis, get_quantity
from flare.text import json_number
from flare.types import Floats

MAX_POINTS = 2000
MAX_BARS = 240
"""Bars of a picture of devices; of more devices, means of neighbours."""
SPLIT = ("asking devices", "broadcast", "computing", "sending", "waiting for the others", "nobody could send")
"""The parts of `RunNumbers.round_split_s`."""

Values = Callable[[RunNumbers], Floats]
Named = tuple[str, RunNumbers]
"""A run and the name of its folder, seen from the studio's."""


@dataclass(frozen=True)
class CurveWish:
    """Which curves are wanted: a quantity against an axis, between two places of it, in so many points; of the seeds
    together, or of each run by itself."""

    metric: str = "accuracy"
    x: str = "rounds"
    points: int = 400
    begin: float | None = None
    end: float | None = None
    together: bool = True

    def __post_init__(self) -> None:
        get_quantity(self.metric), get_axis(self.x)
        if not 2 <= self.points <= MAX_POINTS:
            raise ValueError(f"points is {self.points}; it must be from 2 to {MAX_POINTS}")


def curves(runs: Sequence[Named], asked: CurveWish) -> dict[str, Any]:
    """The curves of runs, those that differ in their seed alone as one with its 95 % interval."""
    groups, numbers = grouped(runs, together=asked.together), [each for _, each in runs]
    return {
        "metric": asked.metric,
        "label": get_quantity(asked.metric).label_of(numbers),
        "x_label": get_axis(asked.x).label_of(numbers),
        "curves": [{**_named(group, runs), **_points(_curve(group, asked))} for group in groups],
    }


def grouped(runs: Sequence[Named], *, together: bool = True) -> list[Group]:
    """Groups of seeds with their labels; or each run by itself, under its own name."""
    if together:
        return group_runs([numbers for _, numbers in runs])[0]
    return [Group(name, (numbers,)) for name, numbers in runs]


def compared(runs: Sequence[Named]) -> dict[str, Any]:
    """Groups in their order, each in a line; their rankings with paired differences; who took part, where time goes."""
    groups, rankings = in_order(grouped(runs))
    return {
        "groups": [{**_named(group, runs), **_summary(group), **_devices(group)} for group in groups],
        "rankings": [as_json(ranking) for ranking in rankings],
        "split_parts": SPLIT,
    }


def _curve(group: Group, asked: CurveWish) -> Curve:
    axis, values = get_axis(asked.x).values, get_quantity(asked.metric).values

    def within(run: RunNumbers) -> Floats:
        """The values between the two places that are asked for, and nan elsewhere."""
        x, y = axis(run), values(run)
        low = -np.inf if asked.begin is None else asked.begin
        high = np.inf if asked.end is None else asked.end
        return np.where((low <= x) & (x <= high), y, np.nan)

    if asked.x == "rounds":
        return against_rounds(group, within, asked.points, is_accuracy=asked.metric == "accuracy")
    if len(group.runs) == 1:  # its own places, not those of a grid for several seeds
        return _of_one(group, axis, within, asked.points)
    return along(group, axis, within, is_accuracy=asked.metric == "accuracy")


def _of_one(group: Group, axis: Values, values: Values, points: int) -> Curve:
    """A curve through the places of the one run: both axis and values are thinned in the same bins of rounds."""

    def known(run: RunNumbers) -> NDArray[np.bool_]:
        return np.isfinite(axis(run)) & np.isfinite(values(run))

    curve = against_rounds(group, lambda run: np.where(known(run), values(run), np.nan), max_points=points)
    places = against_rounds(group, lambda run: np.where(known(run), axis(run), np.nan), max_points=points)
    return Curve(places.mean, curve.mean, curve.half, curve.seeds)


def _points(curve: Curve) -> dict[str, Any]:
    return {
        "x": _list(curve.x),
        "y": _list(curve.mean),
        "low": _list(curve.low),
        "high": _list(curve.high),
        "counts": curve.seeds.tolist(),
    }


def _named(group: Group, runs: Sequence[Named]) -> dict[str, Any]:
    ids = {id(numbers): name for name, numbers in runs}
    return {
        "label": group.label,
        "full_name": group.label if group.label in ids.values() else group.full_name,
        "runs": [ids[id(run)] for run in group.runs],
        "seeds": [run.config.seed for run in group.runs],
    }


def _summary(group: Group) -> dict[str, Any]:
    line = summarise(group)
    return {
        "accuracy": _estimate(line.final),
        "rounds": line.rounds[1],
        "clock_s": json_number(line.clock_s.mean),
        "num_senders": json_number(line.devices),
        "energy_j": json_number(line.energy_j),
        "payload_bits": json_number(line.sent_bits),
        "status": line.status,
    }


def _devices(group: Group) -> dict[str, Any]:
    """Participation of each device and the parts of an average round, means over the seeds; faults by their kind."""
    num_devices = max(run.num_devices for run in group.runs)
    shares = np.zeros(num_devices)
    for run in group.runs:
        shares[: run.num_devices] += run.participation() / len(group.runs)
    faults: dict[str, int] = {}
    for run in group.runs:
        for kind, rounds in run.faults.items():
            faults[kind] = faults.get(kind, 0) + len(rounds)
    bars = np.array_split(shares, min(num_devices, MAX_BARS))
    return {
        "num_devices": num_devices,
        "participation": [float(bar.mean()) for bar in bars],
        "split_s": _list(np.mean([run.round_split_s() for run in group.runs], axis=0)),
        "faults": [{"kind": kind, "count": count} for kind, count in sorted(faults.items(), key=lambda one: -one[1])],
    }


def _estimate(value: Estimate) -> dict[str, Any]:
    return {"mean": json_number(value.mean), "half": json_number(value.half), "count": value.count}


def _list(values: Floats) -> list[float | None]:
    return [json_number(each) for each in values.tolist()]
