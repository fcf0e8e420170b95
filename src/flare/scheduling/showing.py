"""Problems and schedules in a line, as a table of a notebook, and as what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flare.scheduling.explain import Explanation, explain
from flare.scheduling.nobody import why_nobody
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import html_table, json_number
from flare.types import Floats
from flare.units import human

MAX_IN_A_LINE = 8
"""Senders named in the line of a schedule."""
MAX_ROWS = 50
"""Devices in a table of a notebook."""


def as_dict(
    schedule: Schedule, names: Sequence[str] | None = None, detail: Explanation | None = None
) -> dict[str, Any]:
    """What `Schedule.to_dict` returns; `detail` is its explanation, where there is one already."""
    problem = schedule.problem
    if names is not None and len(names) != problem.num_devices:
        raise ValueError(f"names has {len(names)} entries, the round has {problem.num_devices} devices")
    detail = detail or explain(schedule)
    numbers = {
        "objective": schedule.objective,
        "lower_bound": schedule.lower_bound,
        "gap": schedule.gap,
        "latency_s": schedule.latency_s,
        "broadcast_s": schedule.broadcast_s,
        "downlink_bits": schedule.downlink_bits,
        "deadline_s": problem.deadline_s,
        "total_bandwidth_hz": problem.total_bandwidth_hz,
        "payload_bits": _common(problem.payload_bits),
        "gamma": problem.gamma,
        "band_residual": schedule.band_residual,
        "finish_spread": schedule.finish_spread,
        "utility": schedule.utility,
        "utility_bound": schedule.utility_bound,
    }
    asked = {
        "must": problem.must.tolist(),
        "never": problem.never.tolist(),
        "max_devices": problem.max_devices,
        "block_hz": problem.block_hz,
    }
    if names is not None:
        asked |= {name: [names[device] for device in asked[name]] for name in ("must", "never")}
    return {
        "policy": schedule.policy,
        "status": schedule.status.value,
        "num_selected": schedule.num_selected,
        "why_nobody": None if schedule.num_selected else why_nobody(problem, schedule.policy, called=names),
        **{name: json_number(value) for name, value in numbers.items()},
        **asked,
        "devices": _device_dicts(schedule, detail, names),
    }


def _device_dicts(schedule: Schedule, detail: Explanation, names: Sequence[str] | None) -> list[dict[str, Any]]:
    problem = schedule.problem
    columns = {
        "bandwidth_hz": schedule.bandwidth_hz,
        "tau": problem.tau,
        "weight": np.ones(problem.num_devices) if problem.weight is None else problem.weight,
        "payload_bits": problem.payload_bits,
        "deadline_s": problem.latest_s,
        "compute_s": schedule.compute_s,
        "upload_s": detail.upload_s,
        "finish_s": detail.finish_s,
        "objective_change": detail.objective_change,
        "update_weight": _of_devices(schedule, schedule.weights),
        "error_rate": _of_devices(schedule, schedule.error_rate),
    }
    set_by_policy = {"cpu_hz": schedule.cpu_hz, "power_w": schedule.power_w}
    columns |= {name: column for name, column in set_by_policy.items() if column is not None}
    called = range(problem.num_devices) if names is None else names
    rows = zip(*(map(json_number, column.tolist()) for column in columns.values()), strict=True)
    return [
        {"device": name, "selected": not reason, **dict(zip(columns, row, strict=True)), "reason": reason}
        for name, row, reason in zip(called, rows, detail.reason, strict=True)
    ]


def _of_devices(schedule: Schedule, of_selected: Floats | None) -> Floats:
    """Numbers of the selected devices over all devices; nan where there is none."""
    everyone = np.full(schedule.problem.num_devices, np.nan)
    if of_selected is not None:
        everyone[schedule.selected] = of_selected
    return everyone


def schedule_in_a_line(schedule: Schedule) -> str:
    """Who sends on how much bandwidth until when, and how good that is known to be."""
    problem = schedule.problem
    head = f"{schedule.policy}, {schedule.status.value}, {schedule.num_selected} of {problem.num_devices} devices send"
    if schedule.num_selected == 0:
        return f"<Schedule: {head}>"
    finish_s = explain(schedule).finish_s
    named = [
        f"{device}: {human(float(schedule.bandwidth_hz[device]), 'Hz')} until {human(float(finish_s[device]), 's')}"
        for device in schedule.selected[:MAX_IN_A_LINE].tolist()
    ]
    more = schedule.num_selected - len(named)
    bound = "" if math.isnan(schedule.lower_bound) else f", proven bound {schedule.lower_bound:.4g}"
    return f"<Schedule: {head}, objective {schedule.objective:.4g}{bound}; {', '.join(named)}" + (
        f" and {more} more>" if more else ">"
    )


def schedule_as_html(schedule: Schedule) -> str:
    """The senders as a table, and how many were left out for which reason."""
    problem, detail = schedule.problem, explain(schedule)
    rows = [
        (
            str(device),
            human(float(schedule.bandwidth_hz[device]), "Hz"),
            human(float(schedule.compute_s[device]), "s"),
            human(float(detail.upload_s[device]), "s"),
            human(float(detail.finish_s[device]), "s"),
            f"{problem.tau[device]:g}",
        )
        for device in schedule.selected[:MAX_ROWS].tolist()
    ]
    caption = (
        f"Schedule by {schedule.policy} ({schedule.status.value}): {schedule.num_selected} of {problem.num_devices} "
        f"devices send"
    )
    if schedule.num_selected:
        caption += (
            f", the round ends after {human(schedule.latency_s, 's')} of {human(problem.deadline_s, 's')}, objective "
            f"{schedule.objective:.4g}"
        )
    if schedule.broadcast_s:
        caption += f"; before it, the broadcast takes {human(schedule.broadcast_s, 's')}"
    more = [f"{schedule.num_selected - len(rows)} more senders"] if schedule.num_selected > len(rows) else []
    notes = more + ([f"left out: {detail.left_out}"] if detail.left_out else [])
    return html_table(caption, ("device", "bandwidth", "computing", "upload", "finish", "tau"), rows, "; ".join(notes))


def problem_in_a_line(problem: RoundProblem) -> str:
    """The round: its devices, and what the base station has."""
    said = [f"{what} {value}" for what, value in _station(problem)]
    return f"<RoundProblem: {problem.num_devices} devices, {', '.join(said)}>"


def problem_as_html(problem: RoundProblem) -> str:
    """What the base station has, and the range of every quantity of the devices."""
    rows: list[tuple[str, ...]] = [(*row, "", "") for row in _station(problem)]
    for what, values, unit in (
        ("tau", problem.tau, ""),
        ("computing", problem.compute_s, "s"),
        ("snr_hz", problem.snr_hz, "Hz"),
        ("update", problem.payload_bits, "bit"),
        ("weight", problem.weight, ""),
        ("own deadline", problem.due_s, "s"),
        ("coding noise", problem.coding_noise, ""),
    ):
        if values is not None:
            rows.append((what, *(_short(value, unit) for value in _range(values))))
    able = problem.reachable.size
    caption = f"RoundProblem: {problem.num_devices} devices, of which {able} could send alone on the whole band"
    return html_table(caption, ("", "least or only", "median", "greatest"), rows)


def _station(problem: RoundProblem) -> list[tuple[str, str]]:
    least, most = float(problem.payload_bits.min()), float(problem.payload_bits.max())
    said = [
        ("band", human(problem.total_bandwidth_hz, "Hz")),
        ("deadline", human(problem.deadline_s, "s")),
        ("update", human(least, "bit") if least == most else f"{human(least, 'bit')} to {human(most, 'bit')}"),
        ("gamma", f"{problem.gamma:g}"),
    ]
    if problem.block_hz is not None:
        said.append(("blocks", f"{problem.num_blocks} of {human(problem.block_hz, 'Hz')}"))
    for what, number in (("must send", len(problem.must)), ("must not send", len(problem.never))):
        if number:
            said.append((what, str(number)))
    if problem.max_devices is not None:
        said.append(("at most", f"{problem.max_devices} devices"))
    return said


def _common(values: Floats) -> float:
    """The value that all devices have; nan where they differ."""
    return float(values[0]) if (values == values[0]).all() else math.nan


def _range(values: Floats) -> list[float]:
    return [float(values.min()), float(np.median(values)), float(values.max())]


def _short(value: float, unit: str) -> str:
    return human(value, unit) if unit else f"{value:g}"
