"""The panel of the cell from above: who sends, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Circle

from flare.colours import BLUE, EDGE, FAINT, GREY, ORANGE
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.picture_text import (
    CHARACTER_EM,
    LINE,
    MAX_NAME,
    Box,
    extent_pt,
    ink,
    overlaps,
    pt,
)
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import cut
from flare.types import Floats, Indices

MAX_CELL_LABELS = 12
"""Names written into the cell; with more senders they would cover each other."""
CELL_IN = 4.3
"""Width and height of the panel, beside text of 9 points."""
GOLDEN_ANGLE_RAD = math.pi * (3.0 - math.sqrt(5.0))
LABEL_PT, RING_PT = 8.0, 7.5  # font sizes of names and of distances

_LOOKS: dict[LeftOut, dict[str, Any]] = {  # with an edge: filled with the ground
    LeftOut.NO_ROOM: {"marker": "o", "ec": GREY},
    LeftOut.WORSE: {"marker": "s", "ec": GREY},
    LeftOut.EQUAL: {"marker": "D", "ec": GREY},
    LeftOut.BETTER: {"marker": "^", "ec": ORANGE},
    LeftOut.ALONE: {"marker": "^", "ec": ORANGE},
    LeftOut.TOO_SLOW: {"marker": "x", "color": GREY},
    LeftOut.TOO_WEAK: {"marker": "+", "color": GREY},
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
    per_pt = 2.0 * edge / min(extent_pt(axes))
    written = _draw_rings(axes, rings, spot, per_pt)
    areas = _draw_devices(axes, schedule, order, spot)
    if 0 < schedule.num_selected <= MAX_CELL_LABELS:
        _name_senders(axes, order, spot, per_pt, np.sqrt(areas / math.pi), labels, written)
    meaning = "radius: rank of the channel, the strongest inmost (no distances given)"
    if distance_m is not None:
        meaning = "radius: distance from the base station"
    axes.set_xlabel(meaning + ("\nangle: arbitrary, only to spread the devices" if angle_rad is None else ""))
    key = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, handletextpad=0.3, columnspacing=1.2)
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


def _draw_rings(axes: Axes, rings: dict[float, str], spot: Floats, per_pt: float) -> list[Box]:
    """Circles, labelled along the direction that keeps farthest from all devices; where the labels lie, in points."""
    radii = np.array(list(rings))
    directions = np.linspace(0.0, 2.0 * math.pi, 72, endpoint=False)
    points = radii[:, None, None] * np.stack([np.cos(directions), np.sin(directions)], axis=-1)  # (rings, 72, 2)
    nearest = [min(np.hypot(*(spot - point).T).min() for point in points[:, j]) for j in range(len(directions))]
    best = int(np.argmax(nearest))
    boxes: list[Box] = []
    for (radius, label), (x, y) in zip(rings.items(), points[:, best].tolist(), strict=True):
        axes.add_patch(Circle((0.0, 0.0), radius, fill=False, edgecolor=FAINT, linewidth=0.9, zorder=0, clip_on=False))
        paper = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
        axes.text(x, y, label, fontsize=pt(RING_PT), color=GREY, ha="center", va="center", bbox=paper, zorder=3)
        half_wide, half_high = len(label) * CHARACTER_EM * pt(RING_PT) / 2.0 + 3.0, 0.6 * pt(RING_PT) + 1.0
        x, y = x / per_pt, y / per_pt
        boxes.append((x - half_wide, y - half_high, x + half_wide, y + half_high))
    return boxes


def _draw_devices(axes: Axes, schedule: Schedule, order: Indices, spot: Floats) -> Floats:
    """The marks, senders above all others; returns the areas of theirs, in square points."""
    problem, areas = schedule.problem, _areas(schedule.bandwidth_hz[order])
    small = float(np.clip(1600.0 / problem.num_devices, 4.0, 30.0))
    crowd = problem.num_devices > 200  # its marks are faint, so that the senders among them are seen
    thin, faint = (0.6, 0.55) if crowd else (0.9, 1.0)
    axes.scatter([0.0], [0.0], s=95, marker="^", color=ink(), zorder=5, label="base station", clip_on=False)
    if len(order):
        look: dict[str, Any] = {"s": areas, "fc": BLUE, "ec": EDGE, "linewidth": 0.9, "alpha": 0.9, "zorder": 4}
        label = f"{len(order)} {'sends' if len(order) == 1 else 'send'} (area: bandwidth)"
        axes.scatter(*spot[order].T, gid="sends", label=label, clip_on=False, **look)
    why = explain(schedule).why
    for one, marks in _LOOKS.items():
        devices = [device for device, found in enumerate(why) if found is one]
        if devices:
            look = {"s": small, "linewidth": thin, "alpha": faint, "zorder": 2.5, "clip_on": False, **marks}
            if "ec" in marks:
                look["fc"] = axes.get_facecolor()
            axes.scatter(*spot[devices].T, gid=one.name, label=one.counted(len(devices)), **look)
    return areas


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
