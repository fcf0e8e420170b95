"""The scatter plot of the testbed: what was predicted against what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flare.report.figures import BLUE, GREY, INK, ORANGE, house_style, write_figure
from flare.testbed.measured import Delivery, by_round, last_s

_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def draw_scatter(path: Path, delivered: Mapping[str, Sequence[Delivery]]) -> None:
    """Draw into `path`, as png, svg or pdf by its suffix."""
    write_figure(path, lambda: scatter_figure(delivered))


def scatter_figure(delivered: Mapping[str, Sequence[Delivery]]) -> Figure:
    """The figure that `draw_scatter` writes, with the axes "uploads" and "rounds"; a mark for each policy."""
    with house_style():
        figure = Figure(figsize=(9.6, 4.4), dpi=120, facecolor="white", layout="constrained")
        uploads, rounds = figure.subplots(1, 2)
        for mark, (policy, those) in zip(_cycled(len(delivered)), delivered.items(), strict=True):
            _points(
                uploads,
                mark,
                policy,
                [each.upload_s for each in those],
                [each.measured_upload_s for each in those],
                [each.net_upload_s for each in those],
            )
            by = list(by_round(those).values())
            _points(
                rounds,
                mark,
                policy,
                [max(each.finish_s for each in one) for one in by],
                [last_s(one, lambda each: each.measured_finish_s) for one in by],
                [last_s(one, lambda each: each.net_finish_s) for one in by],
            )
        deadlines = {each.deadline_s for those in delivered.values() for each in those}
        if len(deadlines) == 1:
            rounds.axhline(deadlines.pop(), color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label="deadline")
        lost = {
            (policy, each.round, each.device) for policy, those in delivered.items() for each in those if not each.came
        }
        _finish(uploads, "uploads", _title("Upload of a device", len(lost), "came"))
        _finish(rounds, "rounds", _title("Round", len({each[:2] for each in lost}), "ended"))
        _legend(rounds)
        return figure


def _cycled(number: int) -> list[str]:
    return [_MARKS[each % len(_MARKS)] for each in range(number)]


def _points(
    axes: Axes,
    mark: str,
    policy: str,
    predicted: Sequence[float],
    measured: Sequence[float],
    net: Sequence[float],
) -> None:
    measured, net = ([each if math.isfinite(each) else math.nan for each in these] for these in (measured, net))
    small: dict[str, Any] = {"s": 16.0, "linewidths": 0.7, "marker": mark}
    axes.scatter(predicted, measured, facecolors="none", edgecolors=ORANGE, **small)
    axes.scatter(predicted, net, color=BLUE, alpha=0.75, **{**small, "linewidths": 0.0})
    axes.scatter([], [], color=INK, label=policy, **small)


def _title(what: str, lost: int, happened: str) -> str:
    """The title of a plot, which says how many points are infinitely high and so not in it."""
    return f"{what} ({lost} never {happened})" if lost else what


def _finish(axes: Axes, gid: str, title: str) -> None:
    axes.set_gid(gid)
    axes.set_title(title)
    axes.set_xlabel("predicted (s)")
    axes.set_ylabel("measured (s)")
    end = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([0.0, end], [0.0, end], color=GREY, linewidth=0.8, zorder=0)
    axes.set_xlim(0.0, end)
    axes.set_ylim(0.0, end)
    axes.set_aspect("equal")
    axes.grid(True)


def _legend(axes: Axes) -> None:
    axes.scatter([], [], facecolors="none", edgecolors=ORANGE, s=16.0, marker="o", label="as measured")
    axes.scatter([], [], color=BLUE, s=16.0, marker="o", label="less the overhead")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0))
