"""The picture of a cell from above: who sends, who is not chosen, and who could not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Circle

from flare.report.figures import BLUE, EDGE, FAINT, GREY, INK
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import cut
from flare.types import Floats, Indices

MAX_CELL_LABELS = 12
"""Names written into the cell; with more senders they would cover each other."""
MAX_NAME = 18
"""Characters of a name in a picture."""
CELL_IN = 4.3
"""Width and height of the panel."""
POINTS_PER_IN = 72.0
CHARACTER_EM = 0.56
"""Width of an average character of the font, in font sizes."""

Box = tuple[float, float, float, float]  # left, bottom, right, top

GOLDEN_ANGLE_RAD = math.pi * (3.0 - math.sqrt(5.0))
LABEL_PT = 8.0  # font size of names


def draw_cell(
    axes: Axes,
    problem: RoundProblem,
    schedule: Schedule,
    order: Indices,
    labels: list[str],
    distance_m: Floats | None,
    angle_rad: Floats | None,
) -> None:
    """Draw the devices where they stand, or by the rank of their channel; the senders are `order`."""
    ranked = -problem.snr_hz if distance_m is None else distance_m
    rank = np.argsort(np.argsort(ranked, kind="stable"), kind="stable")
    radius = np.sqrt((rank + 0.5) / problem.num_devices) if distance_m is None else distance_m
    angle = rank * GOLDEN_ANGLE_RAD if angle_rad is None else angle_rad
    spot = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])  # (devices, 2)
    rings = {0.5: "best 25 %", 0.5**0.5: "best 50 %", 1.0: "all"} if distance_m is None else _rings(distance_m)

    edge = max(rings)
    axes.set(xlim=(-1.06 * edge, 1.06 * edge), ylim=(-1.06 * edge, 1.06 * edge), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    axes.set_title("The cell from above", pad=17)
    _draw_rings(axes, rings, spot)
    _draw_devices(axes, problem, schedule, order, spot)
    if 0 < len(order) <= MAX_CELL_LABELS:
        _name_senders(axes, schedule, order, spot, labels)
    meaning = "radius: rank of the channel, the strongest inmost (no distances given)"
    if distance_m is not None:
        meaning = "radius: distance from the base station"
    axes.set_xlabel(meaning + ("\nangle: arbitrary, only to spread the devices" if angle_rad is None else ""))
    key = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, handletextpad=0.3, columnspacing=1.2)
    for handle in key.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([55.0])


def _rings(distance_m: Floats) -> dict[float, str]:
    """Three to five round distances, the last one beyond the farthest device."""
    farthest = float(distance_m.max()) or 1.0
    power = 10.0 ** math.floor(math.log10(farthest / 5.0))
    step = next(power * nice for nice in (1.0, 2.0, 5.0, 10.0) if power * nice * 5.0 >= farthest * (1.0 - 1e-9))
    count = math.ceil(farthest / step - 1e-9)
    return {step * ring: f"{step * ring:g} m" for ring in range(1, count + 1)}


def _draw_rings(axes: Axes, rings: dict[float, str], spot: Floats) -> None:
    """Circles, labelled along the direction that keeps farthest from all devices."""
    radii = np.array(list(rings))
    directions = np.linspace(0.0, 2.0 * math.pi, 72, endpoint=False)
    points = radii[:, None, None] * np.stack([np.cos(directions), np.sin(directions)], axis=-1)  # (rings, 72, 2)
    nearest = [min(np.hypot(*(spot - point).T).min() for point in points[:, j]) for j in range(len(directions))]
    best = int(np.argmax(nearest))
    for (radius, label), (x, y) in zip(rings.items(), points[:, best], strict=True):
        axes.add_patch(Circle((0.0, 0.0), radius, fill=False, edgecolor=FAINT, linewidth=0.9, zorder=0, clip_on=False))
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
        axes.text(x, y, label, fontsize=7.5, color=GREY, ha="center", va="center", bbox=paper, zorder=1)


def _draw_devices(axes: Axes, problem: RoundProblem, schedule: Schedule, order: Indices, spot: Floats) -> None:
    waits = np.setdiff1d(np.arange(problem.num_devices), schedule.selected)
    unable = waits[problem.needed_hz[waits] > problem.capacity_hz]
    passed_over = waits[problem.needed_hz[waits] <= problem.capacity_hz]
    areas = _areas(schedule.bandwidth_hz[order]) if len(order) else np.zeros(0)
    small = float(np.clip(1600.0 / problem.num_devices, 7.0, 34.0))
    common: dict[str, Any] = {"clip_on": False, "linewidth": 0.9}
    # The smaller marks lie on top, so that a wide share hides no neighbour.
    above = 3.5 if len(order) and areas.min() > 2.0 * small else 2.5
    axes.scatter([0.0], [0.0], s=95, marker="^", color=INK, zorder=5, label="base station")
    groups: list[tuple[str, Indices, str, dict[str, Any]]] = [
        ("sends", order, "sending (area: bandwidth)", {"s": areas, "fc": BLUE, "ec": EDGE, "zorder": 3}),
        ("not-chosen", passed_over, "not chosen", {"s": small, "fc": "white", "ec": GREY, "zorder": above}),
        ("unable", unable, "too late even alone", {"s": small, "marker": "x", "color": GREY, "zorder": above}),
    ]
    for kind, devices, label, look in groups:
        if len(devices):
            x, y = spot[devices].T
            axes.scatter(x, y, gid=kind, label=f"{len(devices)} {label}", **common, **look)


def _areas(bandwidth_hz: Floats) -> Floats:
    """Marker areas in square points, proportional to bandwidth; less each where many would cover the cell."""
    return bandwidth_hz * min(320.0 / float(bandwidth_hz.max()), 4200.0 / float(bandwidth_hz.sum()))


def _name_senders(axes: Axes, schedule: Schedule, order: Indices, spot: Floats, labels: list[str]) -> None:
    """Each sender's name beside its marker, on the side where it covers the fewest other senders and names."""
    span = axes.get_xlim()[1] - axes.get_xlim()[0]
    points = spot * (CELL_IN * POINTS_PER_IN / span)  # from the base station, (devices, 2)
    centre, others = points[order], np.delete(points, order, axis=0)
    reach = np.sqrt(_areas(schedule.bandwidth_hz[order]) / math.pi)
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(centre.tolist(), reach.tolist(), strict=True)]
    taken.append((-7.0, -7.0, 7.0, 7.0))  # the base station
    taken += [(x - 4.0, y - 4.0, x + 4.0, y + 4.0) for x, y in others.tolist()]
    for device, (x, y), radius in zip(order, centre.tolist(), reach.tolist(), strict=True):
        text = cut(labels[device], MAX_NAME)
        wide, high = len(text) * CHARACTER_EM * LABEL_PT, 1.2 * LABEL_PT
        gap = radius + 2.5
        sides: list[tuple[Box, str, str, float, float]] = [
            ((x + gap, y - high / 2, x + gap + wide, y + high / 2), "left", "center", gap, 0.0),
            ((x - gap - wide, y - high / 2, x - gap, y + high / 2), "right", "center", -gap, 0.0),
            ((x - wide / 2, y + gap, x + wide / 2, y + gap + high), "center", "bottom", 0.0, gap),
            ((x - wide / 2, y - gap - high, x + wide / 2, y - gap), "center", "top", 0.0, -gap),
        ]
        box, across, upright, dx, dy = min(sides, key=lambda side: _clashes(side[0], taken))
        taken.append(box)
        axes.annotate(
            text, tuple(spot[device]), (dx, dy), textcoords="offset points", ha=across, va=upright, fontsize=LABEL_PT,
            parse_math=False, zorder=6, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.3},
        )  # fmt: skip


def _clashes(box: Box, taken: list[Box]) -> int:
    """How many boxes of `taken` the box covers; leaving the panel counts as many."""
    covered = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
    return covered + (10 if max(-box[0], box[2]) > CELL_IN * POINTS_PER_IN / 2 + 15.0 else 0)
