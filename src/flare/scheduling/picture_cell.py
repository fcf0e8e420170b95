"""The panel of the cell from above: who sends, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Circle
from matplotlib.transforms import ScaledTranslation

from flare.colours import BLUE, EDGE, FAINT, GREY, ORANGE
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.picture_text import (
    CHARACTER_EM,
    LINE,
    MAX_NAME,
    POINTS_PER_IN,
    TITLE_ROOM,
    Box,
    extent_pt,
    ink,
    overlaps,
    pt,
    size_pt,
    wrapped,
)
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import cut
from flare.types import Floats, Indices

MAX_CELL_LABELS = 12
"""Names written into a cell of full size, less in a smaller one; with more senders they would cover each other."""
CROWD = 200
"""Devices whose marks can be told apart; those of more are faint, and may be written on."""
CELL_IN = 4.3
"""Width and height of the panel, beside text of 9 points."""
GOLDEN_ANGLE_RAD = math.pi * (3.0 - math.sqrt(5.0))
LABEL_PT, RING_PT = 8.0, 7.5  # font sizes of names and of distances

_LOOKS: dict[LeftOut, dict[str, Any]] = {  # with an edge: filled with the ground
    LeftOut.NO_ROOM: {"marker": "o", "ec": GREY},
    LeftOut.NOT_CHOSEN: {"marker": "h", "ec": GREY},
    LeftOut.WORSE: {"marker": "s", "ec": GREY},
    LeftOut.EQUAL: {"marker": "D", "ec": GREY},
    LeftOut.BETTER: {"marker": "^", "ec": ORANGE},
    LeftOut.ALONE: {"marker": "^", "ec": ORANGE},
    LeftOut.TOO_SLOW: {"marker": "x", "color": GREY},
    LeftOut.TOO_WEAK: {"marker": "+", "color": GREY},
    LeftOut.FULL: {"marker": "v", "ec": GREY},
    LeftOut.HELD_UP: {"marker": "p", "ec": GREY},
    LeftOut.NEVER: {"marker": "1", "color": GREY},
}


def draw_cell(
    axes: Axes,
    schedule: Schedule,
    order: Indices,
    labels: list[str],
    distance_m: Floats | None,
    angle_rad: Floats | None,
) -> None:
    """Draw the devices where they stand, or by the rank of their channel; the senders in `order`, later ones on top."""
    problem = schedule.problem
    spot = _spots(problem, distance_m, angle_rad)
    rings = {0.5: "best 25 %", 0.5**0.5: "best 50 %", 1.0: "all"} if distance_m is None else _rings(distance_m)
    edge = 1.06 * max(rings)
    axes.set(xlim=(-edge, edge), ylim=(-edge, edge), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    axes.set_title("The cell from above", pad=17)
    meaning = "radius: rank of the channel, the strongest inmost (no distances given)"
    if distance_m is not None:
        meaning = "radius: distance from the base station"
    meaning += "\nangle: arbitrary, only to spread the devices" if angle_rad is None else ""
    axes.set_xlabel(wrapped(meaning, "axes.labelsize", TITLE_ROOM * extent_pt(axes)[0]))
    marks = _draw_devices(axes, schedule, order, spot)
    _draw_key(axes)
    side_pt = min(extent_pt(axes))  # now that all is there which the layout of a figure makes room for
    per_pt = 2.0 * edge / side_pt
    smaller = min(1.0, side_pt / pt(CELL_IN * POINTS_PER_IN))
    areas = _areas(schedule.bandwidth_hz[order]) * smaller**2
    for mark in marks:
        mark.set_sizes(areas if mark.get_gid() == "sends" else mark.get_sizes() * smaller)
    reach = np.full(problem.num_devices, 4.0)
    reach[order] = np.sqrt(areas / math.pi)
    written = _draw_rings(axes, rings, spot, order, reach, per_pt)
    if 0 < schedule.num_selected <= MAX_CELL_LABELS * min(1.0, 1.3 * smaller):
        _name_senders(axes, order, spot, per_pt, reach[order], labels, written)


def _draw_key(axes: Axes) -> None:
    """The legend below the axis label: in two columns, or in one where those would be wider than the panel."""
    lines = 1 + axes.get_xlabel().count("\n")
    down_in = (axes.xaxis.labelpad + 1.25 * size_pt("axes.labelsize") * lines + 8.0) / POINTS_PER_IN
    below = axes.transAxes + ScaledTranslation(0.0, -down_in, axes.figure.dpi_scale_trans)
    look: dict[str, Any] = {"borderaxespad": 0.0, "handletextpad": 0.3, "columnspacing": 1.2}
    for columns in (2, 1):
        key = axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=columns, **look)
        if key.get_window_extent().width <= TITLE_ROOM * axes.get_window_extent().width:
            break
    for handle in key.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([45.0])
            handle.set_alpha(1.0)


def _spots(problem: RoundProblem, distance_m: Floats | None, angle_rad: Floats | None) -> Floats:
    """Where the devices are drawn, seen from the base station, shape (devices, 2)."""
    ranked = -problem.snr_hz if distance_m is None else distance_m
    rank = np.argsort(np.argsort(ranked, kind="stable"), kind="stable")
    radius = np.sqrt((rank + 0.5) / problem.num_devices) if distance_m is None else distance_m
    angle = rank * GOLDEN_ANGLE_RAD if angle_rad is None else angle_rad
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


def _rings(distance_m: Floats) -> dict[float, str]:
    """Three to five round distances, the last one beyond the farthest device."""
    farthest = float(distance_m.max()) or 1.0
    power = 10.0 ** math.floor(math.log10(farthest / 5.0))
    step = next(power * nice for nice in (1.0, 2.0, 5.0, 10.0) if power * nice * 5.0 >= farthest * (1.0 - 1e-9))
    count = math.ceil(farthest / step - 1e-9)
    return {step * ring: f"{step * ring:g} m" for ring in range(1, count + 1)}


def _draw_rings(
    axes: Axes, rings: dict[float, str], spot: Floats, order: Indices, reach: Floats, per_pt: float
) -> list[Box]:
    """Circles, labelled along the direction that keeps farthest from all devices; a label that would cover a mark
    there, of a radius of `reach` points, moves along its circle, and is left out where it would cover a sender or
    another label everywhere, unless it is the outermost. Returns where the labels lie, in points."""
    directions = np.linspace(0.0, 2.0 * math.pi, 72, endpoint=False)
    around = np.column_stack([np.cos(directions), np.sin(directions)])
    nearest = [min(np.hypot(*(spot - radius * way).T).min() for radius in rings) for way in around]
    turned = np.arange(72) - int(np.argmax(nearest))
    nearest_first = around[np.argsort(np.minimum(turned % 72, -turned % 72), kind="stable")]
    marks = [_around(x, y, far) for (x, y), far in zip((spot / per_pt).tolist(), reach.tolist(), strict=True)]
    others = np.delete(np.array(marks), order if len(spot) <= CROWD else slice(None), axis=0)
    never = np.array([_around(0.0, 0.0, 7.0), *(marks[i] for i in order)])  # the base station and the senders
    boxes: list[Box] = []
    for radius, label in reversed(rings.items()):
        axes.add_patch(Circle((0.0, 0.0), radius, fill=False, edgecolor=FAINT, linewidth=0.9, zorder=0, clip_on=False))
        half_wide, half_high = len(label) * CHARACTER_EM * pt(RING_PT) / 2.0 + 3.0, 0.6 * pt(RING_PT) + 1.0
        places = (nearest_first * (radius / per_pt)).tolist()
        sides = [(x - half_wide, y - half_high, x + half_wide, y + half_high) for x, y in places]
        costs = [1000 * _met(side, never) + _met(side, others) for side in sides]
        best = int(np.argmin(costs))
        if costs[best] >= 1000 and boxes:
            continue
        boxes.append(sides[best])
        never, (x, y) = np.vstack([never, boxes[-1:]]), places[best]
        paper = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
        axes.text(
            x * per_pt, y * per_pt, label, fontsize=pt(RING_PT), color=GREY, ha="center", va="center", bbox=paper,
            zorder=3, gid="ring",
        )  # fmt: skip
    return boxes


def _met(box: Box, others: Floats) -> int:
    """How many of the boxes, shape (boxes, 4), a box overlaps."""
    left, bottom, right, top = box
    return int(((others[:, 0] < right) & (others[:, 2] > left) & (others[:, 1] < top) & (others[:, 3] > bottom)).sum())


def _draw_devices(axes: Axes, schedule: Schedule, order: Indices, spot: Floats) -> list[PathCollection]:
    """The marks of the base station, the senders, above all others, and those others, by reason."""
    problem = schedule.problem
    small = float(np.clip(1600.0 / problem.num_devices, 4.0, 30.0))
    crowd = problem.num_devices > CROWD  # its marks are faint, so that the senders among them are seen
    thin, faint = (0.6, 0.55) if crowd else (0.9, 1.0)
    station = axes.scatter([0.0], [0.0], s=95, marker="^", color=ink(), zorder=5, label="base station", clip_on=False)
    drawn = [station]
    if len(order):
        look: dict[str, Any] = {"fc": BLUE, "ec": EDGE, "linewidth": 0.9, "alpha": 0.9, "zorder": 4}
        label = f"{len(order)} {'sends' if len(order) == 1 else 'send'} (area: bandwidth)"
        drawn.append(axes.scatter(*spot[order].T, gid="sends", label=label, clip_on=False, **look))
    why = explain(schedule).why
    for one, marks in _LOOKS.items():
        devices = [device for device, found in enumerate(why) if found is one]
        if devices:
            look = {"s": small, "linewidth": thin, "alpha": faint, "zorder": 2.5, "clip_on": False, **marks}
            if "ec" in marks:
                look["fc"] = axes.get_facecolor()
            drawn.append(axes.scatter(*spot[devices].T, gid=one.name, label=one.counted(len(devices)), **look))
    return drawn


def _areas(bandwidth_hz: Floats) -> Floats:
    """Marker areas in square points, proportional to bandwidth; less each where many would cover the cell."""
    if len(bandwidth_hz) == 0:
        return bandwidth_hz
    return bandwidth_hz * min(320.0 / float(bandwidth_hz.max()), 4200.0 / float(bandwidth_hz.sum()))


def _name_senders(
    axes: Axes, order: Indices, spot: Floats, per_pt: float, reach: Floats, labels: list[str], written: list[Box]
) -> None:
    """Each sender's name beside its marker, where it covers the least of names, rings' labels, senders and others; with
    a line to the marker where that is farther off. Places are reckoned in points from the base station."""
    points, edge = spot / per_pt, axes.get_xlim()[1] / per_pt + 6.0
    centre = points[order].tolist()
    taken = [(box, 3.0) for box in written]  # what a name should not cover, and how little it should
    taken.append((_around(0.0, 0.0, 7.0), 4.0))  # the base station
    taken += [(_around(x, y, 4.0), 1.0) for x, y in np.delete(points, order, axis=0).tolist()]
    senders = [((x, y), r) for (x, y), r in zip(centre, reach.tolist(), strict=True)]
    for at, (device, ((x, y), radius)) in enumerate(zip(order.tolist(), senders, strict=True)):
        text = cut(labels[device], MAX_NAME)
        others = [(_around(*place, r + 5.0), 4.0) for place, r in senders[:at] + senders[at + 1 :]]  # it is not theirs
        sides = _sides(x, y, radius, len(text) * CHARACTER_EM * pt(LABEL_PT), 1.2 * pt(LABEL_PT))
        box, far = min(sides, key=lambda side: _cost(side[0], taken + others, edge) + (0.5 if side[1] else 0.0))
        taken.append((box, 5.0))
        axes.annotate(
            text,
            (x * per_pt, y * per_pt),
            ((box[0] + box[2]) / 2.0 * per_pt, (box[1] + box[3]) / 2.0 * per_pt),
            ha="center", va="center", fontsize=pt(LABEL_PT), parse_math=False, zorder=6, annotation_clip=False,
            arrowprops=LINE if far else None, gid="sender-name",
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "alpha": 0.8, "pad": 0.3},
        )  # fmt: skip


def _around(x: float, y: float, reach: float) -> Box:
    return (x - reach, y - reach, x + reach, y + reach)


def _sides(x: float, y: float, radius: float, wide: float, high: float) -> Iterator[tuple[Box, bool]]:
    """Boxes of that size around a marker, and whether they lie so far off that a line should lead to it."""
    for gap, far in ((2.5, False), (12.0, True), (24.0, True)):
        for turn in range(8):
            across, up = math.cos(turn * math.pi / 4.0), math.sin(turn * math.pi / 4.0)
            middle_x = x + across * (radius + gap) + (0.0 if abs(across) < 0.1 else math.copysign(wide / 2.0, across))
            middle_y = y + up * (radius + gap) + (0.0 if abs(up) < 0.1 else math.copysign(high / 2.0, up))
            yield (middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2), far


def _cost(box: Box, taken: list[tuple[Box, float]], edge: float) -> float:
    """How much a name there would cover; leaving the panel costs more than anything."""
    outside = max(-box[0], box[2], -box[1], box[3]) > edge
    return sum(cost for other, cost in taken if overlaps(box, other)) + (100.0 if outside else 0.0)
