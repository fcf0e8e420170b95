"""One round of a run as the screens draw it: drawn again where its settings allow, otherwise as it is recorded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from flare.records.growing import GrowingRun
from flare.records.run import RunNumbers
from flare.research.quantities import AXES, get_axis
from flare.rounds import RoundRecord
from flare.simulation.redraw import Redraw
from flare.studio.run_folders import below
from flare.studio.view import View, view_of
from flare.text import json_number, one_line
from flare.types import Floats

MAX_DEVICES = 10_000
"""A cell of more devices is not drawn: only those that send are."""
_KEPT = 16  # runs whose cells are kept to draw their next rounds
_MAX_FAULTS = 100
_UNKNOWN = ("x_m", "y_m", "distance_m", "snr_hz", "due_s", "needed_hz", "reason", "remedy")


@final
class RoundViews:
    """The rounds of runs below a folder; the cells that were drawn last are kept. For one thread at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._redraws: OrderedDict[tuple[str, str], Redraw | str] = OrderedDict()
        self._axes: tuple[RunNumbers, dict[str, Floats]] | None = None  # of the run that was asked for last

    def view(self, run: str, growing: GrowingRun, index: int) -> View:
        """The round with that number, counted from 0, and what became of it; ValueError where there is none."""
        record, numbers = growing.record(index), growing.numbers
        redraw = self._redraw(run, numbers)
        untold = redraw if isinstance(redraw, str) else ""
        view: View | None = None
        if not isinstance(redraw, str):
            try:
                view = _drawn(redraw, record)
            except (ValueError, OSError) as error:
                untold = str(error)
        view = view or _recorded(record, numbers)
        lost = set(record.lost) | (set(record.selected) - set(record.sent) if numbers.trained else set())
        for device in view["devices"]:
            device["lost"] = int(device["name"]) in lost
        places = {name: json_number(float(axis[index])) for name, axis in self._axes_of(numbers).items()}
        return {**view, "outcome": {**_outcome(record, numbers), "places": places}, "untold": one_line(untold)}

    def nearest(self, growing: GrowingRun, x: str, value: float) -> int:
        """The round whose place on an axis is nearest to this, counted from 0."""
        get_axis(x)
        places = self._axes_of(growing.numbers)[x]
        known = np.flatnonzero(np.isfinite(places))
        if not len(known) or not np.isfinite(value):
            return 0
        return int(known[np.argmin(np.abs(places[known] - value))])

    def _axes_of(self, numbers: RunNumbers) -> dict[str, Floats]:
        """Where each round lies on each axis."""
        if self._axes is None or self._axes[0] is not numbers:
            self._axes = (numbers, {name: axis.values(numbers) for name, axis in AXES.items()})
        return self._axes[1]

    def _redraw(self, run: str, numbers: RunNumbers) -> Redraw | str:
        """What draws the rounds of a run again, or why that cannot be."""
        key = (run, str(numbers.manifest["config_sha256"]))
        if key not in self._redraws:
            try:
                self._redraws[key] = self._new_redraw(numbers)
            except (ValueError, OSError) as error:
                self._redraws[key] = str(error)
        self._redraws.move_to_end(key)
        while len(self._redraws) > _KEPT:
            self._redraws.popitem(last=False)
        return self._redraws[key]

    def _new_redraw(self, numbers: RunNumbers) -> Redraw:
        wireless = numbers.config.wireless
        if wireless.num_devices > MAX_DEVICES:
            raise ValueError(f"its cell has more than {MAX_DEVICES} devices, of which only those that send are drawn")
        if not wireless.trace:
            return Redraw(numbers.config, numbers.manifest)
        try:
            trace = below(self._root, wireless.trace)
        except ValueError:
            raise ValueError("the trace of its cell lies outside the studio's folder, or behind a link") from None
        inside = replace(numbers.config, wireless=replace(wireless, trace=str(trace)))
        return Redraw(inside, numbers.manifest)


def _drawn(redraw: Redraw, record: RoundRecord) -> View:
    again = redraw.round(record)
    return view_of(
        again.schedule,
        again.detail,
        index=record.round,
        distance_m=again.cell.distance_m,
        angle_rad=again.cell.angle_rad,
        cpu_hz=again.cell.cpu_hz,
        power_w=again.cell.power_w,
        radius_m=again.cell.config.max_distance_m,
    )


def _recorded(record: RoundRecord, numbers: RunNumbers) -> View:
    """What the record alone says: only of the selected devices, which are called by their numbers, and not where they
    are."""
    bound = record.lower_bound
    gap = record.objective / bound - 1.0 if record.objective is not None and bound else None
    return {
        "round": record.round,
        "policy": numbers.config.scheduling.policy,
        "status": record.status,
        "proven": record.status == "optimal",
        "bandwidth_hz": numbers.config.wireless.total_bandwidth_hz,
        "deadline_s": record.deadline_s,
        "gamma": record.gamma,
        "objective": record.objective,
        "lower_bound": bound,
        "gap": gap,
        "latency_s": record.latency_s,
        "broadcast_s": record.broadcast_s,
        "solve_ms": None,
        "radius_m": None,
        "num_selected": len(record.selected),
        "devices": [_device(record, place) for place in range(len(record.selected))],
    }


def _device(record: RoundRecord, place: int) -> dict[str, Any]:
    index = record.selected[place]
    at = record.sent.index(index) if index in record.sent else None
    compute_s, upload_s = record.compute_s[place], record.upload_s[place]
    return {
        "index": place,
        "name": str(index),
        "sends": True,
        "tau": record.tau[place],
        "compute_s": compute_s,
        "cpu_hz": record.cpu_hz[place] if record.cpu_hz else None,
        "power_w": record.power_w[place] if record.power_w else None,
        "payload_bits": None if at is None else record.payload_bits[at],
        "weight": record.weights[place] if record.weights else None,
        "bandwidth_hz": record.bandwidth_hz[place],
        "upload_s": upload_s,
        "finish_s": compute_s + upload_s,
        **dict.fromkeys(_UNKNOWN),
    }


def _outcome(record: RoundRecord, numbers: RunNumbers) -> dict[str, Any]:
    """What became of the round: for a line below its picture."""
    tests = numbers.evaluated[: int(np.searchsorted(numbers.evaluated, record.round, side="right"))]
    accuracy = float(numbers.of_round["test_accuracy"][tests[-1]]) if len(tests) else None
    return {
        "rounds": numbers.num_rounds,
        "clock_s": record.clock_s,
        "train_loss": record.train_loss,
        "accuracy": accuracy,
        "tested_after": int(tests[-1]) + 1 if len(tests) else None,
        "available": record.available,
        "num_sent": len(record.sent),
        "energy_j": float(sum(record.compute_energy_j) + sum(record.upload_energy_j) + sum(record.probe_energy_j)),
        "num_faults": len(record.faults),
        "faults": [
            {name: one_line(str(value))[:200] for name, value in fault.items()} for fault in record.faults[:_MAX_FAULTS]
        ],
    }
