"""The panel of the band: who gets which part of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes

from flare.colours import BLUE, EDGE, PALE
from flare.scheduling.picture_text import (
    CHARACTER_EM,
    LINE,
    MAX_BARS,
    MAX_NAME,
    POINTS_PER_IN,
    TITLE_ROOM,
    extent_pt,
    pt,
    spread,
    wrapped,
)
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import cut
from flare.types import Floats, Indices
from flare.units import human

STRIP_IN = 0.8
"""Height of the strip, beside text of 9 points."""
_LEADER_PT = 7.0  # font size of the names above the strip, of shares too narrow to hold theirs
_LEADER_NAME = 6  # characters of those names
_LEADER_GAP_PT = 10.0  # from the strip to the names


def draw_band(axes: Axes, schedule: Schedule, order: Indices, labels: list[str]) -> None:
    """Draw the shares of the senders in `order`, each with its name; the last ones as one block where they are many."""
    problem = schedule.problem
    widths_hz, texts = _shares(schedule, order, labels)
    starts_hz = np.cumsum(widths_hz) - widths_hz
    wide_pt, tall_pt = extent_pt(axes)
    room_pt = widths_hz * (wide_pt / problem.total_bandwidth_hz)
    line_pt = float(np.clip(0.15 * room_pt.min(), 0.2, 1.2))  # between narrow shares a thin line
    bars = axes.barh(
        np.zeros(len(texts)), widths_hz, left=starts_hz, height=1.0, color=BLUE, edgecolor="white", linewidth=line_pt
    )
    rest = max(0, len(order) - MAX_BARS)
    if rest:
        bars[-1].set_facecolor(PALE)
    outside: dict[float, str] = {}
    for place, (text, room) in enumerate(zip(texts, room_pt.tolist(), strict=True)):
        middle_hz, width_hz = float(starts_hz[place] + widths_hz[place] / 2.0), float(widths_hz[place])
        colour = "white" if place < MAX_BARS else EDGE
        if not _name_inside(axes, middle_hz, (room, tall_pt), (text, human(width_hz, "Hz")), colour):
            outside[middle_hz] = text
    _name_outside(axes, outside, problem.total_bandwidth_hz)
    frame_band(
        axes,
        problem,
        f": {len(texts) - 1} shares + {rest} more" if rest else "",
        leaders_pt=_height_pt(outside.values()),
    )


def _shares(schedule: Schedule, order: Indices, labels: list[str]) -> tuple[Floats, list[str]]:
    """How wide the shares are, and what they are called."""
    shown, rest = order[:MAX_BARS], order[MAX_BARS:]
    texts, widths_hz = [cut(labels[i], MAX_NAME) for i in shown], schedule.bandwidth_hz[shown]
    if len(rest):
        texts.append(f"{len(rest)} more")
        widths_hz = np.append(widths_hz, math.fsum(schedule.bandwidth_hz[rest]))
    return widths_hz, texts


def leaders_pt(schedule: Schedule, order: Indices, labels: list[str], wide_pt: float) -> float:
    """How much height the names of shares need that are too narrow for theirs, where the band is drawn so wide."""
    widths_hz, texts = _shares(schedule, order, labels)
    room_pt = widths_hz * (wide_pt / schedule.problem.total_bandwidth_hz)
    named = zip(widths_hz.tolist(), texts, room_pt.tolist(), strict=True)
    tall_pt = pt(STRIP_IN * POINTS_PER_IN)
    outside = [text for hz, text, room in named if _written_inside(room, tall_pt, (text, human(hz, "Hz"))) is None]
    return _height_pt(outside)


def _height_pt(names: Iterable[str]) -> float:
    """The height of names above the strip, with their lines; 0 where there are none."""
    longest = max((len(cut(name, _LEADER_NAME)) for name in names), default=0)
    return _LEADER_GAP_PT + (longest + 1) * CHARACTER_EM * pt(_LEADER_PT) if longest else 0.0


def _written_inside(
    room_pt: float, tall_pt: float, lines: tuple[str, str]
) -> tuple[float, tuple[str, ...], bool] | None:
    """Size, lines and whether upright of what a share has room for: name and bandwidth across, else upright, else the
    name alone; None where it has room for nothing."""
    fitting = cut(lines[0], int((tall_pt - 4.0) / (CHARACTER_EM * pt(7.0))))
    for size_pt, written, upright in ((pt(9.0), lines, False), (pt(8.0), lines, True), (pt(7.0), (fitting,), True)):
        long_pt = max(map(len, written)) * CHARACTER_EM * size_pt + 4.0
        thick_pt = 1.2 * size_pt * len(written) + 2.0
        if (long_pt <= tall_pt and thick_pt <= room_pt) if upright else long_pt <= room_pt:
            return size_pt, written, upright
    return None


def _name_inside(
    axes: Axes, middle_hz: float, room_pt: tuple[float, float], lines: tuple[str, str], colour: str
) -> bool:
    """Write into a share what it has room for; False where that is nothing."""
    written = _written_inside(*room_pt, lines)
    if written is None:
        return False
    size_pt, said, upright = written
    axes.text(
        middle_hz, 0.0, "\n".join(said), ha="center", va="center", rotation=90.0 if upright else 0.0,
        fontsize=size_pt, color=colour, parse_math=False, linespacing=1.15, gid="share-name",
    )  # fmt: skip
    return True


def _name_outside(axes: Axes, names: dict[float, str], band_hz: float) -> None:
    """The names of narrow shares above the strip, upright, each with a line to the middle of its share."""
    size_pt, (wide_pt, tall_pt) = pt(_LEADER_PT), extent_pt(axes)
    apart_hz = 1.25 * size_pt * band_hz / wide_pt
    places = spread(list(names), apart_hz, 0.5 * apart_hz, band_hz - 0.5 * apart_hz)
    for (middle_hz, text), place_hz in zip(names.items(), places, strict=True):
        axes.annotate(
            cut(text, _LEADER_NAME),
            (middle_hz, 0.5),
            (place_hz, 0.5 + _LEADER_GAP_PT / tall_pt),
            ha="center", va="bottom", rotation=90.0, fontsize=size_pt, parse_math=False, annotation_clip=False,
            gid="share-name", arrowprops={**LINE, "relpos": (0.5, 0.0)},
        )  # fmt: skip


def frame_band(axes: Axes, problem: RoundProblem, remark: str = "", *, leaders_pt: float = 0.0) -> None:
    """The axis of the band and its title."""
    axes.set(xlim=(0.0, problem.total_bandwidth_hz), ylim=(-0.5, 0.5), yticks=[])
    axes.spines[:].set_visible(True)
    axes.xaxis.set_major_formatter(lambda hz, _: f"{hz * 1e-6:g}")
    axes.set_xlabel("bandwidth (MHz)", labelpad=2)
    of_what = f"the band of {human(problem.total_bandwidth_hz, 'Hz')}"
    if problem.block_hz is not None:
        of_what = f"{problem.num_blocks} blocks of {human(problem.block_hz, 'Hz')}"
    title = f"Division of {of_what}{remark}"
    axes.set_title(wrapped(title, "axes.titlesize", TITLE_ROOM * extent_pt(axes)[0]), pad=6.0 + leaders_pt)
