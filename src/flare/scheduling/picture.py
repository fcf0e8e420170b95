"""One picture of one round: who sends from where, how long each device takes, and who gets which part of the band.

It is drawn in the style that matplotlib is set to: sizes of text follow `font.size`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from flare.colours import PAPER
from flare.scheduling.nobody import nobody_in_short
from flare.scheduling.picture_band import STRIP_IN, draw_band, frame_band, leaders_pt
from flare.scheduling.picture_cell import CELL_IN, draw_cell
from flare.scheduling.picture_text import CHARACTER_EM, MAX_BARS, MAX_NAME, POINTS_PER_IN, pt
from flare.scheduling.picture_times import draw_times
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule, Status
from flare.text import cut, one_line
from flare.types import Floats, Indices
from flare.units import human

WIDTH_IN = 11.4
MARGIN_IN = 0.12
PANELS = ("times", "band", "cell")


def draw_panel(
    schedule: Schedule,
    panel: str,
    axes: Axes | None,
    names: Sequence[str] | None,
    distance_m: Floats | None,
    angle_rad: Floats | None,
) -> Axes:
    """What `Schedule.plot` draws."""
    if panel not in PANELS:
        raise ValueError(f"there is no panel {panel!r:.80}; give one of {', '.join(PANELS)}")
    distance_m, angle_rad = _positions(schedule.problem, distance_m, angle_rad)
    labels, order = _labels(schedule.problem, names, distance_m, angle_rad), _widest_first(schedule)
    if axes is None:
        axes = _new_axes(panel)
    if panel == "cell":
        draw_cell(axes, schedule, order, labels, distance_m, angle_rad)
    elif schedule.num_selected == 0:
        _draw_nobody(schedule.problem, **{panel: axes})
    else:
        draw = draw_times if panel == "times" else draw_band
        draw(axes, schedule, order, labels)
    return axes


def _new_axes(panel: str) -> Axes:
    """Axes of a new figure, which a notebook shows and `pyplot.show` finds."""
    from matplotlib import pyplot

    wide, high = {"times": (7.0, 4.5), "band": (7.0, 2.2), "cell": (CELL_IN + 0.9, CELL_IN + 1.7)}[panel]
    return pyplot.figure(figsize=(pt(wide), pt(high)), layout="constrained").add_subplot(label=panel)


def schedule_figure(
    schedule: Schedule,
    *,
    names: Sequence[str] | None = None,
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
) -> Figure:
    """All panels in one figure, with the axes "cell", "times" and "band".

    Parameters
    ----------
    schedule : the answer to a round.
    names : what to call each device, shape (devices,); None counts them from 0.
    distance_m : distance of each device from the base station; None takes that of the problem, and where it has none
        places the devices by the rank of their channel.
    angle_rad : direction of each device; None takes that of the problem, and where it has none spreads them evenly.

    Raises ValueError for arguments that do not fit the round.
    """
    distance_m, angle_rad = _positions(schedule.problem, distance_m, angle_rad)
    labels = _labels(schedule.problem, names, distance_m, angle_rad)
    order = _widest_first(schedule)
    figure, cell, times, band = _panels(schedule, order, labels)
    _draw_title(figure, schedule)
    draw_cell(cell, schedule, order, labels, distance_m, angle_rad)
    if len(order):
        draw_times(times, schedule, order, labels)
        draw_band(band, schedule, order, labels)
    else:
        _draw_nobody(schedule.problem, times=times, band=band)
    _make_room(figure, cell, times)
    return figure


def _make_room(figure: Figure, cell: Axes, times: Axes) -> None:
    """A higher figure where the legend below the cell would leave it; the bars get higher, too."""
    key = cell.get_legend()
    lack_in = 0.0 if key is None else pt(MARGIN_IN) - key.get_window_extent().y0 / figure.dpi
    if lack_in <= 0.0:
        return
    before_in = figure.get_figheight()
    figure.set_figheight(before_in + lack_in)
    for axes in figure.axes:
        x, y, width, tall = axes.get_position(original=True).bounds
        y_in, tall_in = y * before_in + lack_in * (axes is cell), tall * before_in + lack_in * (axes is times)
        axes.set_position((x, y_in / (before_in + lack_in), width, tall_in / (before_in + lack_in)))


def _positions(
    problem: RoundProblem, distance_m: Floats | None, angle_rad: Floats | None
) -> tuple[Floats | None, Floats | None]:
    """Where the devices stand, as far as that is given here or with the round."""
    return (
        problem.distance_m if distance_m is None else np.asarray(distance_m, dtype=np.float64),
        problem.angle_rad if angle_rad is None else np.asarray(angle_rad, dtype=np.float64),
    )


def _labels(
    problem: RoundProblem, names: Sequence[str] | None, distance_m: Floats | None, angle_rad: Floats | None
) -> list[str]:
    """What the devices are called, after a check of everything that was given."""
    for name, values in (("names", names), ("distance_m", distance_m), ("angle_rad", angle_rad)):
        if values is not None and len(values) != problem.num_devices:
            raise ValueError(f"{name} has {len(values)} entries, the round has {problem.num_devices} devices")
    for name, numbers in (("distance_m", distance_m), ("angle_rad", angle_rad)):
        if numbers is not None and not np.isfinite(numbers).all():
            raise ValueError(f"{name} of device {int(np.flatnonzero(~np.isfinite(numbers))[0])} is not finite")
    if distance_m is not None and (distance_m < 0.0).any():
        raise ValueError(f"distance_m of device {int(np.flatnonzero(distance_m < 0.0)[0])} is negative")
    return [one_line(str(name)) for name in (range(problem.num_devices) if names is None else names)]


def _panels(schedule: Schedule, order: Indices, labels: list[str]) -> tuple[Figure, Axes, Axes, Axes]:
    """The cell on the left; on the right the times, taller with more bars, and under them the band."""
    shown = order[:MAX_BARS]
    longest = max((len(cut(labels[i], MAX_NAME)) for i in shown), default=0)
    left = 5.35 + max(0.0, longest * CHARACTER_EM * 9.0 / POINTS_PER_IN - 0.3)
    right = 10.25
    leaders_in = leaders_pt(schedule, order, labels, pt((right - left) * POINTS_PER_IN)) / pt(POINTS_PER_IN)
    height = 6.55 + leaders_in + 0.075 * max(0, len(shown) - 14)
    figure = Figure(figsize=(pt(WIDTH_IN), pt(height)), dpi=120)  # larger text, larger figure
    FigureCanvasAgg(figure)  # it remembers the sizes of texts that were measured
    top, middle = height - 1.45, 2.4 + leaders_in

    def place(label: str, x: float, y: float, width: float, tall: float) -> Axes:
        box = (x / WIDTH_IN, y / height, width / WIDTH_IN, tall / height)
        return figure.add_axes(box, label=label)

    cell = place("cell", 0.3, top - CELL_IN + 0.1, CELL_IN, CELL_IN)
    times = place("times", left, middle, right - left, top - middle)
    band = place("band", left, 0.6, right - left, STRIP_IN)
    return figure, cell, times, band


def _draw_title(figure: Figure, schedule: Schedule) -> None:
    problem = schedule.problem
    count, devices = schedule.num_selected or "none", "device" if problem.num_devices == 1 else "devices"
    sends = "send" if schedule.num_selected > 1 else "sends"
    headline = f"Policy {one_line(schedule.policy)}: {count} of {problem.num_devices} {devices} {sends}"
    place: dict[str, Any] = {"x": 0.3 / WIDTH_IN, "y": 1.0, "ha": "left", "va": "top", "parse_math": False}
    for down_in, text, size, weight in ((0.18, headline, 15.0, "bold"), (0.55, _outcome(schedule), 10.5, "normal")):
        below_top = figure.transFigure + ScaledTranslation(0.0, -pt(down_in), figure.dpi_scale_trans)
        figure.text(s=text, fontsize=pt(size), fontweight=weight, transform=below_top, **place)


def _outcome(schedule: Schedule) -> str:
    """Objective, gap and latency in words; or why nobody sends."""
    problem = schedule.problem
    if schedule.num_selected == 0:
        return f"{nobody_in_short(problem)}."
    known = f", gap {100.0 * schedule.gap:.2g} %" if math.isfinite(schedule.gap) else ""
    if schedule.status is Status.OPTIMAL:
        known = ", proven optimal (gap 0)"
    broadcast = (
        f"Broadcast {human(schedule.broadcast_s, 's')}, then" if schedule.broadcast_s else "The round ends after"
    )
    return (
        f"Objective {schedule.objective:.4g}{known}.  {broadcast} {human(schedule.latency_s, 's')} "
        f"of the {human(problem.deadline_s, 's')} that the deadline allows."
    )


def _widest_first(schedule: Schedule) -> Indices:
    """The senders, widest share first, of equal shares the last to finish first: one order for both panels."""
    problem, devices = schedule.problem, schedule.selected
    share = np.round(schedule.bandwidth_hz[devices] / problem.total_bandwidth_hz, 9)
    finish_s = schedule.compute_s[devices] + schedule.upload_s[devices]
    return devices[np.lexsort((devices, -finish_s, -share))]


def _draw_nobody(problem: RoundProblem, *, times: Axes | None = None, band: Axes | None = None) -> None:
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": pt(11.0)}
    if times is not None:
        times.set(xticks=[], yticks=[])
        times.spines[:].set_visible(False)
        times.set_facecolor(PAPER)
        times.set_title("Time of each sender", pad=24)
        why = nobody_in_short(problem).replace(", ", ",\n", 1)
        times.text(0.5, 0.5, f"Nobody sends.\n\n{why}.", transform=times.transAxes, **place)
    if band is not None:
        frame_band(band, problem)
        band.set_facecolor(PAPER)
        band.text(0.5, 0.5, "unused: nobody sends", transform=band.transAxes, **place)
