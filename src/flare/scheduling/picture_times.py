"""The panel of times: how long each sender receives the model, computes and sends, and when the round ends.

Where the broadcast counts, all other times begin after it, that of the deadline too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from flare.colours import BLUE, EDGE, GREY, ORANGE
from flare.scheduling.picture_text import (
    MAX_BARS,
    MAX_NAME,
    POINTS_PER_IN,
    TITLE_ROOM,
    extent_pt,
    ink,
    pt,
    size_pt,
    wrapped,
)
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.text import cut
from flare.types import Indices
from flare.units import human


def draw_times(axes: Axes, schedule: Schedule, order: Indices, labels: list[str]) -> None:
    """Draw the senders in `order`, a bar each; the first of them where they are many."""
    problem = schedule.problem
    shown, more = order[:MAX_BARS], max(0, len(order) - MAX_BARS)
    place = np.arange(len(shown))
    compute_s, sending_s = schedule.compute_s[shown], schedule.upload_s[shown]
    look: dict[str, Any] = {"height": 0.68, "linewidth": 0.6, "edgecolor": ink()}
    begin_s = schedule.broadcast_s
    if begin_s:
        axes.barh(place, begin_s, color=EDGE, label="broadcast", **look)
    axes.barh(place, compute_s, left=begin_s, color=ORANGE, hatch="//////", label="computing", **look)
    axes.barh(place, sending_s, left=begin_s + compute_s, color=BLUE, label="upload", **look)

    own = np.full(len(shown), False) if problem.due_s is None else problem.due_s[shown] < problem.deadline_s
    if problem.due_s is not None and own.any():
        due: dict[str, Any] = {"color": ink(), "marker": "|", "s": pt(110.0), "linewidths": pt(1.8), "zorder": 3}
        axes.scatter(begin_s + problem.due_s[shown][own], place[own], label="own deadline", **due)

    spare = max(0.0, 5.0 - len(shown)) / 2.0  # few bars stay slim
    axes.set_ylim(len(shown) - 0.4 + spare + (1.0 if more else 0.0), -0.6 - spare)
    axes.set_yticks(place, [cut(labels[i], MAX_NAME) for i in shown], parse_math=False)
    axes.tick_params(axis="y", length=0)
    if more:
        axes.text(0.0, len(shown), f" and {more} more senders", fontsize=pt(9.0), style="italic", va="center")
    _mark_times(axes, problem, schedule, begin_s + float((compute_s + sending_s).max()))
    even = np.ptp(schedule.bandwidth_hz[order]) < 1e-6 * problem.total_bandwidth_hz
    sorting = f", {'last to finish' if even else 'widest share of the band'} first" if len(order) > 1 else ""
    wide_pt = TITLE_ROOM * extent_pt(axes)[0]
    axes.set_title(wrapped(f"Time of each sender{sorting}", "axes.titlesize", wide_pt), pad=24)
    label = wrapped("time since the start of the round (s)", "axes.labelsize", wide_pt)
    axes.set_xlabel(label, labelpad=2)
    lines_in = label.count("\n") * 1.2 * size_pt("axes.labelsize") / POINTS_PER_IN
    below = axes.transAxes + ScaledTranslation(0.0, -pt(0.42) - lines_in, axes.figure.dpi_scale_trans)
    place_at: dict[str, Any] = {"bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    axes.legend(loc="upper center", ncols=2 + bool(own.any()) + bool(begin_s), borderaxespad=0.0, **place_at)
    row_pt = extent_pt(axes)[1] / float(np.ptp(axes.get_ylim()))  # now that the layout has made room for the rest
    small_pt = min(pt(9.0 if len(shown) <= 16 else 7.5), 0.9 * row_pt)
    axes.tick_params(axis="y", labelsize=small_pt)
    _note_steps(axes, problem, shown, small_pt)


def _note_steps(axes: Axes, problem: RoundProblem, shown: Indices, size_pt: float) -> None:
    """The local steps of each device, what the objective rewards, right of its bar."""
    for place, device in enumerate(shown):
        steps = f"{problem.tau[device]:g} step" + ("s" if problem.tau[device] != 1.0 else "")
        axes.text(
            1.01, place, steps, transform=axes.get_yaxis_transform(), fontsize=size_pt, color=GREY, va="center_baseline"
        )


def _mark_times(axes: Axes, problem: RoundProblem, schedule: Schedule, last_s: float) -> None:
    """The two vertical lines. A deadline far beyond the round's end is said, not drawn: the bars would vanish."""
    end_s, deadline_s = schedule.round_s, schedule.broadcast_s + problem.deadline_s
    far = deadline_s > 25.0 * max(end_s, last_s)
    right_s = 1.5 * max(end_s, last_s) if far else 1.04 * max(deadline_s, last_s)
    axes.set_xlim(0.0, right_s)
    above: dict[str, Any] = {
        "xycoords": ("data", "axes fraction"),
        "textcoords": "offset points",
        "va": "bottom",
        "fontsize": pt(9.0),
    }
    axes.axvline(end_s, color=ink(), linewidth=1.3, gid="round-end")
    side = "right" if end_s > 0.45 * right_s else "left"
    nudge = -2 if side == "right" else 2
    axes.annotate(f"round ends {human(end_s, 's')}", (end_s, 1.0), (nudge, 3), ha=side, **above)
    if far:
        axes.annotate(f"deadline {human(deadline_s, 's')} →", (right_s, 1.0), (0, 3), ha="right", **above)
    else:
        axes.axvline(deadline_s, color=ink(), linewidth=1.5, linestyle=(0, (4, 2)), gid="deadline")
        axes.annotate(f"deadline {human(deadline_s, 's')}", (deadline_s, 1.0), (2, 3), ha="left", **above)
