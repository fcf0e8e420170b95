"""A round as the screens draw it: where devices stand, who sends on what part of the band, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flare.scheduling import Schedule, Status
from flare.scheduling.explain import Explanation
from flare.text import json_number
from flare.types import Floats

View = dict[str, Any]
"""What JSON holds of a round: see `view_of`."""


def view_of(
    schedule: Schedule,
    detail: Explanation,
    *,
    index: int,
    names: Sequence[str] | None = None,
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
    cpu_hz: Floats | None = None,
    power_w: Floats | None = None,
    remedies: Sequence[str | None] | None = None,
    solve_s: float | None = None,
    radius_m: float | None = None,
) -> View:
    """The view of a schedule, in round `index`. What is not known of the devices is None.

    `cpu_hz` and `power_w` are what the devices have; where the policy set others, those are shown.
    """
    problem = schedule.problem
    distance_m = problem.distance_m if distance_m is None else distance_m
    angle_rad = problem.angle_rad if angle_rad is None else angle_rad
    numbers = {
        "bandwidth_hz": problem.total_bandwidth_hz,
        "deadline_s": problem.deadline_s,
        "gamma": problem.gamma,
        "objective": schedule.objective,
        "lower_bound": schedule.lower_bound,
        "gap": schedule.gap,
        "utility": schedule.utility,
        "utility_bound": schedule.utility_bound,
        "latency_s": schedule.latency_s,
        "broadcast_s": schedule.broadcast_s,
    }
    if radius_m is None and distance_m is not None:
        radius_m = float(distance_m.max())
    return {
        "round": index,
        "policy": schedule.policy,
        "status": schedule.status.value,
        "proven": schedule.status is Status.OPTIMAL,
        **{name: json_number(value) for name, value in numbers.items()},
        "solve_ms": None if solve_s is None else 1e3 * solve_s,
        "radius_m": radius_m,
        "num_selected": schedule.num_selected,
        "devices": _devices(schedule, detail, names, distance_m, angle_rad, cpu_hz, power_w, remedies),
    }


def _devices(
    schedule: Schedule,
    detail: Explanation,
    names: Sequence[str] | None,
    distance_m: Floats | None,
    angle_rad: Floats | None,
    cpu_hz: Floats | None,
    power_w: Floats | None,
    remedies: Sequence[str | None] | None,
) -> list[dict[str, Any]]:
    problem = schedule.problem
    placed = None if distance_m is None or angle_rad is None else distance_m * np.exp(1j * angle_rad)
    columns = {
        "x_m": None if placed is None else placed.real,
        "y_m": None if placed is None else placed.imag,
        "distance_m": distance_m,
        "tau": problem.tau,
        "compute_s": schedule.compute_s,
        "cpu_hz": cpu_hz if schedule.cpu_hz is None else schedule.cpu_hz,
        "power_w": power_w if schedule.power_w is None else schedule.power_w,
        "snr_hz": schedule.snr_hz,
        "payload_bits": problem.payload_bits,
        "weight": problem.weight,
        "due_s": problem.due_s,
        "needed_hz": problem.needed_hz,
        "bandwidth_hz": schedule.bandwidth_hz,
        "upload_s": detail.upload_s,
        "finish_s": detail.finish_s,
    }
    number = problem.num_devices
    lists = {
        "index": range(number),
        "name": [str(name) for name in (range(number) if names is None else names)],
        "sends": (schedule.bandwidth_hz > 0.0).tolist(),
        **{name: _numbers(column, number) for name, column in columns.items()},
        "reason": [reason or None for reason in detail.reason],
        "remedy": [None] * number if remedies is None else remedies,
    }
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _numbers(column: Floats | None, number: int) -> list[float | None]:
    """A column as JSON holds it: None where it is not known, or no finite number."""
    if column is None:
        return [None] * number
    if np.isfinite(column).all():
        return column.tolist()  # type: ignore[no-any-return]
    return [json_number(value) for value in column.tolist()]
