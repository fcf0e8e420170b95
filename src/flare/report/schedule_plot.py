"""One picture of one round: who sends from where, how long each device takes, and who gets which part of the band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from flare.report.cell_panel import CELL_IN, CHARACTER_EM, MAX_NAME, POINTS_PER_IN, draw_cell
from flare.report.figures import BLUE, GREY, INK, ORANGE, PALE, PAPER, house_style, write_figure
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule, Status
from flare.text import cut, one_line
from flare.types import Floats, Indices
from flare.units import human
from flare.wireless.rate import upload_s

MAX_BARS = 30
"""Devices shown one by one in the panels of times and of the band; the rest is one block."""

WIDTH_IN, STRIP_IN = 11.4, 0.8


def draw_schedule(
    path: Path,
    problem: RoundProblem,
    schedule: Schedule,
    *,
    names: Sequence[str],
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
) -> None:
    """Draw a round into `path`, as png, svg or pdf by its suffix. The file appears whole or not at all.

    Parameters
    ----------
    problem, schedule : the round and its answer.
    names : what to call each device, shape (devices,).
    distance_m : distance of each device from the base station; None places them by the rank of their channel.
    angle_rad : direction of each device; None spreads them evenly.

    Raises ValueError for another suffix and for arguments that do not fit the round, OSError where `path` cannot be
    written.
    """
    write_figure(
        path, lambda: schedule_figure(problem, schedule, names=names, distance_m=distance_m, angle_rad=angle_rad)
    )


def schedule_figure(
    problem: RoundProblem,
    schedule: Schedule,
    *,
    names: Sequence[str],
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
) -> Figure:
    """The figure that `draw_schedule` writes, with the axes "cell", "times" and "band"."""
    _check(problem, names, distance_m, angle_rad)
    labels = [one_line(name) for name in names]
    order = _widest_first(problem, schedule)
    shown = order[:MAX_BARS]
    with house_style():
        figure, cell, times, band = _panels(len(shown), max((len(cut(labels[i], MAX_NAME)) for i in shown), default=0))
        _draw_title(figure, problem, schedule)
        draw_cell(cell, problem, schedule, order, labels, distance_m, angle_rad)
        if len(order):
            _draw_times(times, problem, schedule, order, labels)
            _draw_band(band, problem, schedule, order, labels)
        else:
            _draw_nobody(times, band, problem)
    return figure


def _check(problem: RoundProblem, names: Sequence[str], distance_m: Floats | None, angle_rad: Floats | None) -> None:
    for name, values in (("names", names), ("distance_m", distance_m), ("angle_rad", angle_rad)):
        if values is not None and len(values) != problem.num_devices:
            raise ValueError(f"{name} has {len(values)} entries, the round has {problem.num_devices} devices")
    for name, numbers in (("distance_m", distance_m), ("angle_rad", angle_rad)):
        if numbers is not None and not np.isfinite(numbers).all():
            raise ValueError(f"{name} of device {int(np.flatnonzero(~np.isfinite(numbers))[0])} is not finite")
    if distance_m is not None and (distance_m < 0.0).any():
        raise ValueError(f"distance_m of device {int(np.flatnonzero(distance_m < 0.0)[0])} is negative")


def _panels(num_bars: int, longest_name: int) -> tuple[Figure, Axes, Axes, Axes]:
    """The cell on the left; on the right the times, taller with more bars, and under them the band."""
    height = 6.55 + 0.075 * max(0, num_bars - 14)
    figure = Figure(figsize=(WIDTH_IN, height), dpi=120, facecolor="white")
    left = 5.35 + max(0.0, longest_name * CHARACTER_EM * 9.0 / POINTS_PER_IN - 0.3)
    right, top = 10.25, height - 1.45

    def place(label: str, x: float, y: float, width: float, tall: float) -> Axes:
        box = (x / WIDTH_IN, y / height, width / WIDTH_IN, tall / height)
        return figure.add_axes(box, label=label)

    cell = place("cell", 0.3, top - CELL_IN + 0.1, CELL_IN, CELL_IN)
    times = place("times", left, 2.4, right - left, top - 2.4)
    band = place("band", left, 0.6, right - left, STRIP_IN)
    return figure, cell, times, band


def _draw_title(figure: Figure, problem: RoundProblem, schedule: Schedule) -> None:
    height = figure.get_figheight()
    count, devices = schedule.num_selected or "none", "device" if problem.num_devices == 1 else "devices"
    sends = "send" if schedule.num_selected > 1 else "sends"
    headline = f"Policy {one_line(schedule.policy)}: {count} of {problem.num_devices} {devices} {sends}"
    place: dict[str, Any] = {"x": 0.3 / WIDTH_IN, "ha": "left", "va": "top", "parse_math": False}
    figure.text(y=1.0 - 0.18 / height, s=headline, fontsize=15, fontweight="bold", **place)
    figure.text(y=1.0 - 0.55 / height, s=_outcome(problem, schedule), fontsize=10.5, **place)


def _outcome(problem: RoundProblem, schedule: Schedule) -> str:
    """Objective, gap and latency in words; or why nobody sends."""
    if schedule.num_selected == 0:
        return f"{_why_nobody(problem)}."
    known = f", gap {100.0 * schedule.gap:.2g} %" if math.isfinite(schedule.gap) else ""
    if schedule.status is Status.OPTIMAL:
        known = ", proven optimal (gap 0)"
    return (
        f"Objective {schedule.objective:.4g}{known}.  The round ends after {human(schedule.latency_s, 's')} "
        f"of the {human(problem.deadline_s, 's')} that the deadline allows."
    )


def _why_nobody(problem: RoundProblem) -> str:
    deadline, able = human(problem.deadline_s, "s"), problem.reachable.size
    if able == 0:
        return f"No device can meet the deadline of {deadline}, not even with the whole band for itself"
    return f"The policy found no device for the deadline of {deadline}, though {able} could meet it alone"


def _widest_first(problem: RoundProblem, schedule: Schedule) -> Indices:
    """The senders, widest share first, of equal shares the last to finish first: one order for both panels."""
    devices = schedule.selected
    share = np.round(schedule.bandwidth_hz[devices] / problem.total_bandwidth_hz, 9)
    finish_s = problem.compute_s[devices] + _upload_s(problem, schedule, devices)
    return devices[np.lexsort((devices, -finish_s, -share))]


def _upload_s(problem: RoundProblem, schedule: Schedule, devices: Indices) -> Floats:
    return upload_s(problem.payload_bits, schedule.bandwidth_hz[devices], problem.snr_hz[devices])


def _draw_times(axes: Axes, problem: RoundProblem, schedule: Schedule, order: Indices, labels: list[str]) -> None:
    shown, more = order[:MAX_BARS], max(0, len(order) - MAX_BARS)
    place = np.arange(len(shown))
    compute_s, sending_s = problem.compute_s[shown], _upload_s(problem, schedule, shown)
    look: dict[str, Any] = {"height": 0.68, "linewidth": 0.6, "edgecolor": INK}
    axes.barh(place, compute_s, color=ORANGE, hatch="//////", label="computing", **look)
    axes.barh(place, sending_s, left=compute_s, color=BLUE, label="upload", **look)

    spare = max(0.0, 5.0 - len(shown)) / 2.0  # few bars stay slim
    axes.set_ylim(len(shown) - 0.4 + spare + (1.0 if more else 0.0), -0.6 - spare)
    small = 9.0 if len(shown) <= 16 else 7.5
    axes.set_yticks(place, [cut(labels[i], MAX_NAME) for i in shown], fontsize=small, parse_math=False)
    axes.tick_params(axis="y", length=0)
    _note_steps(axes, problem, shown, small)
    if more:
        axes.text(0.0, len(shown), f" and {more} more senders", fontsize=9, style="italic", va="center")
    _mark_times(axes, problem, schedule, float((compute_s + sending_s).max()))
    even = np.ptp(schedule.bandwidth_hz[order]) < 1e-6 * problem.total_bandwidth_hz
    sorting = f", {'last to finish' if even else 'widest share of the band'} first" if len(order) > 1 else ""
    axes.set_title(f"Time of each sender{sorting}", pad=24)
    axes.set_xlabel("time since the start of the round (s)", labelpad=2)
    below = axes.transAxes + ScaledTranslation(0.0, -0.42, axes.figure.dpi_scale_trans)
    place_at: dict[str, Any] = {"bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    axes.legend(loc="upper center", ncols=2, borderaxespad=0.0, **place_at)


def _note_steps(axes: Axes, problem: RoundProblem, shown: Indices, size_pt: float) -> None:
    """The local steps of each device, what the objective rewards, right of its bar."""
    for place, device in enumerate(shown):
        steps = f"{problem.tau[device]:g} step" + ("s" if problem.tau[device] != 1.0 else "")
        axes.text(
            1.01, place, steps, transform=axes.get_yaxis_transform(), fontsize=size_pt, color=GREY, va="center_baseline"
        )


def _mark_times(axes: Axes, problem: RoundProblem, schedule: Schedule, last_s: float) -> None:
    """The two vertical lines. A deadline far beyond the round's end is said, not drawn: the bars would vanish."""
    end_s, deadline_s = schedule.latency_s, problem.deadline_s
    far = deadline_s > 25.0 * max(end_s, last_s)
    right_s = 1.5 * max(end_s, last_s) if far else 1.04 * max(deadline_s, last_s)
    axes.set_xlim(0.0, right_s)
    above: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "bottom",
        "fontsize": 9,
    }
    axes.axvline(end_s, color=INK, linewidth=1.3, gid="round-end")
    side = "right" if end_s > 0.45 * right_s else "left"
    nudge = -2 if side == "right" else 2
    axes.annotate(f"round ends {human(end_s, 's')}", (end_s, 1.0), (nudge, 3), ha=side, **above)
    if far:
        axes.annotate(f"deadline {human(deadline_s, 's')} →", (right_s, 1.0), (0, 3), ha="right", **above)
    else:
        axes.axvline(deadline_s, color=INK, linewidth=1.5, linestyle=(0, (4, 2)), gid="deadline")
        axes.annotate(f"deadline {human(deadline_s, 's')}", (deadline_s, 1.0), (2, 3), ha="left", **above)


def _draw_band(axes: Axes, problem: RoundProblem, schedule: Schedule, order: Indices, labels: list[str]) -> None:
    shown, rest = order[:MAX_BARS], order[MAX_BARS:]
    texts = [cut(labels[i], MAX_NAME) for i in shown]
    widths_hz = schedule.bandwidth_hz[shown]
    if len(rest):
        texts.append(f"{len(rest)} more")
        widths_hz = np.append(widths_hz, math.fsum(schedule.bandwidth_hz[rest]))
    starts_hz = np.cumsum(widths_hz) - widths_hz
    room_pt = widths_hz * (axes.get_position().width * WIDTH_IN * POINTS_PER_IN / problem.total_bandwidth_hz)
    line_pt = float(np.clip(0.15 * room_pt.min(), 0.2, 1.2))  # between narrow shares a thin line
    bars = axes.barh(
        np.zeros(len(texts)), widths_hz, left=starts_hz, height=1.0, color=BLUE, edgecolor="white", linewidth=line_pt
    )
    if len(rest):
        bars[-1].set_facecolor(PALE)
    _frame_band(axes, problem, f": {len(shown)} shares + {len(rest)} more" if len(rest) else "")
    for place, text in enumerate(texts):
        colour = "white" if place < len(shown) else INK
        lines = (text, human(widths_hz[place], "Hz"))
        _name_share(axes, starts_hz[place] + widths_hz[place] / 2.0, room_pt[place], lines, colour)


def _name_share(axes: Axes, middle_hz: float, room_pt: float, lines: tuple[str, str], colour: str) -> None:
    """Name and bandwidth inside a share: across where there is room, else upright, else the name, else nothing."""
    tall_pt = STRIP_IN * POINTS_PER_IN
    fitting = cut(lines[0], int((tall_pt - 4.0) / (CHARACTER_EM * 7.0)))
    for size_pt, written, upright in ((9.0, lines, False), (8.0, lines, True), (7.0, (fitting,), True)):
        long_pt = max(map(len, written)) * CHARACTER_EM * size_pt + 4.0
        thick_pt = 1.2 * size_pt * len(written) + 2.0
        if (long_pt <= tall_pt and thick_pt <= room_pt) if upright else long_pt <= room_pt:
            axes.text(
                middle_hz, 0.0, "\n".join(written), ha="center", va="center", rotation=90.0 if upright else 0.0,
                fontsize=size_pt, color=colour, parse_math=False, linespacing=1.15,
            )  # fmt: skip
            return


def _frame_band(axes: Axes, problem: RoundProblem, remark: str = "") -> None:
    axes.set(xlim=(0.0, problem.total_bandwidth_hz), ylim=(-0.5, 0.5), yticks=[])
    axes.spines[:].set_visible(True)
    axes.xaxis.set_major_formatter(lambda hz, _: f"{hz * 1e-6:g}")
    axes.set_xlabel("bandwidth (MHz)", labelpad=2)
    axes.set_title(f"Division of the band of {human(problem.total_bandwidth_hz, 'Hz')}{remark}")


def _draw_nobody(times: Axes, band: Axes, problem: RoundProblem) -> None:
    times.set(xticks=[], yticks=[])
    times.spines[:].set_visible(False)
    times.set_facecolor(PAPER)
    times.set_title("Time of each sender", pad=24)
    why = _why_nobody(problem).replace(", ", ",\n", 1)
    times.text(0.5, 0.5, f"Nobody sends.\n\n{why}.", ha="center", va="center", transform=times.transAxes, fontsize=11)
    _frame_band(band, problem)
    band.set_facecolor(PAPER)
    band.text(0.5, 0.5, "unused: nobody sends", ha="center", va="center", transform=band.transAxes, fontsize=11)
