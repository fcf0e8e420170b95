"""The kinds of picture in a report of runs: curves with bands, ranges, stacked bars and a strip of devices.

Every picture tells groups apart by colour, line style and marker, so that it can be printed in grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from flare.report.curves import Curve
from flare.report.figures import BLUE, EDGE, FAINT, GREY, INK, ORANGE, PALE
from flare.report.inline_svg import BROWN, GREEN, PURPLE, SKY, VERMILION
from flare.text import cut
from flare.types import Floats, Indices

MAX_CURVES = 10
"""Groups with a colour of their own; with more of them the others are thin grey lines."""
MAX_BANDS = 6
"""Groups that are drawn with bands; those of more hide each other."""
MAX_CELLS = 250
"""Of a strip; with more devices a cell is the mean of neighbours."""
MAX_BARS = 60
"""Of a picture over rounds; with more rounds a bar stands for several."""
MAX_CHARACTERS = 30
"""Of a label beside a bar."""
ROW_IN, LEGEND_ROW_IN = 0.25, 0.2
ALL_ZERO = 0.01
"""How far an axis reaches where all values are 0: one per cent of a share."""
SEEN = 1e-4
"""Parts of a bar that are smaller than this share of the longest are errors of rounding, and not named."""
ROUND, DEVICES = "round", "devices"
WHOLE = (ROUND, DEVICES)
"""What axes are called whose ticks are whole numbers."""
SPLIT = ("asking", "broadcast", "computing", "upload", "waiting", "nobody can send")

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK, SKY, BROWN)
_DASHES = ((), (5.0, 1.8), (1.2, 1.4), (6.0, 1.6, 1.2, 1.6))
_MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class Look:
    """How a group is drawn; `dash` in line widths; no marker for a group that is only background."""

    colour: str
    dash: tuple[float, ...]
    marker: str


def looks(number: int) -> list[Look]:
    """A look for each group, the first ones to be told apart."""
    named = number if number <= MAX_CURVES else MAX_CURVES - 1
    colours = _colours()
    own = [
        Look(colours[i % len(colours)], _DASHES[(i + i // len(colours)) % len(_DASHES)], _MARKERS[i])
        for i in range(named)
    ]
    return own + [Look(FAINT, (), "")] * (number - named)


def _colours() -> Sequence[str]:
    """Ours, or those of a style that brings its own."""
    cycle, usual = (source["axes.prop_cycle"] for source in (matplotlib.rcParams, matplotlib.rcParamsDefault))
    if cycle == usual or "color" not in cycle.keys:
        return _COLOURS
    return [to_hex(colour) for colour in cycle.by_key()["color"]]


_HANDLE = 3.2  # as wide as so many letters: dashes show


def legend(figure: Figure, drawn: Mapping[str, Look], *, inside: bool = False, columns: int = 0) -> None:
    """The key to the curves, below all panels, in so many `columns` (0: as many as fit), or `inside` the first, where
    the style of the moment says; groups in the background are one entry."""
    named = {label: look for label, look in drawn.items() if look.marker}
    if len(named) < len(drawn):
        named[f"{len(drawn) - len(named)} others"] = Look(FAINT, (), "")
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            linestyle=(0.0, look.dash) if look.dash else "-",
            marker=look.marker or None,
            label=printed(label),
        )
        for label, look in named.items()
    ]
    if inside:
        figure.axes[0].legend(handles=handles, fontsize=_key_size(), handlelength=_HANDLE)
        return
    columns = columns or columns_for(list(named), float(figure.get_figwidth()))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, fontsize=_key_size(), handlelength=_HANDLE
    )


def _key_size() -> float | str:
    """The size of the text of a key: that of the style of the moment, where it has one of its own."""
    size: float | str = matplotlib.rcParams["legend.fontsize"]
    return 8.0 if size == matplotlib.rcParamsDefault["legend.fontsize"] else size


def columns_for(labels: Sequence[str], width_in: float) -> int:
    """As many columns as fit a width: a letter is about 0.065 inch wide, a handle takes 0.6."""
    widest = 0.6 + 0.065 * max(map(len, labels))
    return max(1, min(len(labels), int(width_in / widest)))


def printed(text: str) -> str:
    """A name as it is: dollar signs in it are no mathematics."""
    return text.replace("$", r"\$")


def at_whole_numbers(axes: Axes) -> None:
    """Ticks of the lower axis at whole numbers: there is no half round, and no half device."""
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def lines(
    x_label: str,
    y_label: str,
    curves: Sequence[Curve],
    drawn: Sequence[Look],
    *,
    percent: bool = False,
    whole_bands: bool = False,
) -> Figure:
    """Means with their bands, of more than `MAX_BANDS` without, the first curve on top; pale where only some of the
    seeds go on. `whole_bands`: the panel reaches as far as they do."""
    figure, axes = _panel()
    are_shares = percent and all((curve.mean <= 1.0).all() for curve in curves)
    for place, (curve, look) in reversed(list(enumerate(zip(curves, drawn, strict=True)))):
        draw_curve(axes, curve, look, place, most=1.0 if are_shares else math.inf, band=len(curves) <= MAX_BANDS)
    if _spans_decades(np.concatenate([curve.mean for curve in curves])):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        beyond = math.inf if whole_bands else 0.3
        axes.set_ylim(*_reach(curves, beyond if len(curves) <= MAX_BANDS else 0.0))
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if are_shares:
            axes.set_ylim(top=min(axes.get_ylim()[1], 1.01))
    if x_label in WHOLE:
        at_whole_numbers(axes)
    axes.set(xlabel=x_label, ylabel=y_label)
    of_style = matplotlib.rcParams["axes.grid.axis"] if matplotlib.rcParams["axes.grid"] else "both"
    axes.grid(visible=True, axis=of_style)  # type: ignore[arg-type]  # matplotlib has checked it
    return figure


def _reach(curves: Sequence[Curve], beyond: float) -> tuple[float, float]:
    """What a panel shows: all means, and of the bands what reaches no farther `beyond` them than this share of their
    height; nothing below zero is needed."""
    means = np.concatenate([curve.mean for curve in curves])
    bands = np.concatenate([part for curve in curves for part in (curve.low, curve.high)] + [means])
    low, high = np.nanmin(means), np.nanmax(means)
    if low == high == 0.0:
        return -0.04 * ALL_ZERO, ALL_ZERO
    room = (high - low) or abs(high)
    bottom = max(np.nanmin(bands), low - beyond * room, min(low, 0.0)) - 0.04 * room
    return bottom, min(np.nanmax(bands), high + beyond * room) + 0.04 * room


def draw_curve(axes: Axes, curve: Curve, look: Look, place: int, *, most: float = math.inf, band: bool = True) -> None:
    """A mean, with a band that ends at `most` or without; `place`, the number of the curve, shifts its marks against
    those of others."""
    if not len(curve.x):
        return
    style = (0.0, look.dash) if look.dash else "-"
    whole = np.where(curve.seeds == curve.seeds.max(), curve.mean, np.nan)
    axes.plot(curve.x, curve.mean, color=look.colour, linewidth=0.9, alpha=0.5, linestyle=style)
    if not look.marker:
        return
    if band and np.isfinite(curve.half).any():
        axes.fill_between(
            curve.x, curve.low, np.minimum(curve.high, most), color=look.colour, alpha=0.16, linewidth=0.0
        )
    axes.plot(curve.x, whole, color=look.colour, linestyle=style)
    if curve.tests is None:  # too many to be marked: a few marks that do not meet those of other curves
        every = max(1, len(curve.x) // 7)
        marked = curve.x[place * every // 10 % every :: every]
    else:
        marked = curve.tests
    y = np.interp(marked, curve.x, curve.mean)
    axes.plot(marked, y, color=look.colour, linestyle="", marker=look.marker, markeredgewidth=0.0)


def ranges(
    x_label: str,
    labels: Sequence[str],
    rows: Sequence[Floats],
    drawn: Sequence[Look],
    *,
    lines_at: Sequence[float] = (),
    percent: bool = False,
) -> Figure:
    """Of each group the middle half of its values (thick), all but the outer tenth (thin) and the mean (mark).

    `lines_at` are values to mark by an upright line, one for each group, nan for none.
    """
    figure, axes = _rows(labels)
    known = [values[np.isfinite(values)] for values in rows]
    for place, (values, look) in enumerate(zip(known, drawn, strict=True)):
        if not len(values):
            axes.text(0.01, place, "none known", transform=axes.get_yaxis_transform(), color=GREY, va="center")
            continue
        colour = look.colour if look.marker else GREY
        for low, high, width in ((0.05, 0.95, 1.2), (0.25, 0.75, 5.0)):
            axes.plot(np.quantile(values, [low, high]), [place, place], color=colour, linewidth=width, alpha=0.55)
        axes.plot(values.mean(), place, look.marker or "o", color=colour, markersize=6.0, markeredgewidth=0.0)
    axes.scatter(lines_at, range(len(lines_at)), marker="|", s=110.0, color=INK, zorder=3)
    if percent:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    elif x_label in WHOLE:
        at_whole_numbers(axes)
    elif _spans_decades(np.concatenate(known)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if not np.concatenate(known).any():
        axes.set_xlim(-0.04 * ALL_ZERO, ALL_ZERO)
    axes.set_xlabel(_on_lines(x_label))
    return figure


def split_bars(x_label: str, labels: Sequence[str], splits_s: Floats, deadline_s: Sequence[float]) -> Figure:
    """Where the time of a round goes, `splits_s` of shape (groups, 6) in the order of `SPLIT`, and the deadline."""
    seen = splits_s.max(axis=0) > SEEN * splits_s.sum(axis=1).max()
    named = ["deadline", *(name for name, shown in zip(SPLIT, seen, strict=True) if shown)]
    one_row_in = sum(0.4 + 0.065 * len(name) for name in named)
    columns = len(named) if one_row_in <= matplotlib.rcParams["figure.figsize"][0] else 3
    figure, axes = _rows(labels, extra_in=0.1 + LEGEND_ROW_IN * -(-len(named) // columns))
    left_s = np.zeros(len(labels))
    looks_of_parts = zip(_colours_of_parts(), ("++++", "xxxx", "", "", "////", "...."), strict=True)
    for name, values_s, shown, (colour, hatch) in zip(SPLIT, splits_s.T, seen, looks_of_parts, strict=True):
        if shown:
            axes.barh(
                range(len(labels)), values_s, left=left_s, height=0.66, color=colour, hatch=hatch, edgecolor=GREY,
                linewidth=0.4, label=name,
            )  # fmt: skip
        left_s = left_s + values_s
    axes.scatter(deadline_s, range(len(labels)), marker="|", s=110.0, color=INK, label="deadline", zorder=3)
    axes.set_xlim(0.0, 1.05 * max([*left_s, *deadline_s]))
    axes.set_xlabel(_on_lines(x_label))
    figure.legend(loc="outside upper left", ncols=columns, fontsize=_key_size(), handlelength=1.2, columnspacing=1.0)
    return figure


def _colours_of_parts() -> tuple[str, ...]:
    """Of the parts of a round: ours, or the first ones of a style that brings its own."""
    own = _colours()
    if own is _COLOURS:
        return SKY, EDGE, ORANGE, BLUE, PALE, FAINT
    return own[4 % len(own)], own[3 % len(own)], own[1 % len(own)], own[0], own[2 % len(own)], FAINT


def differences(
    x_label: str, labels: Sequence[str], rows: Sequence[tuple[float, float]], drawn: Sequence[Look]
) -> Figure:
    """Means with their 95 % intervals, (mean, half) for each label, against the zero line; no bar where half is nan."""
    figure, axes = _rows(labels)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    for place, ((mean, half), look) in enumerate(zip(rows, drawn, strict=True)):
        colour = look.colour if look.marker else GREY
        if math.isfinite(half):
            axes.plot([mean - half, mean + half], [place, place], color=colour, linewidth=2.0)
        axes.plot(mean, place, look.marker or "o", color=colour, markersize=6.0, markeredgewidth=0.0)
    figure.supxlabel(x_label, fontsize=matplotlib.rcParams["axes.labelsize"])  # below the names of the rows, too
    return figure


def counts_by_kind(y_label: str, rounds: int, kinds: Mapping[str, Indices]) -> Figure:
    """Stacked bars over the rounds: how often each kind happened; `kinds` has a round, from 0, for each time."""
    figure, axes = _panel()
    bins = min(max(1, rounds), MAX_BARS)
    edges = np.unique(np.linspace(0, max(1, rounds), bins + 1).round())
    below = np.zeros(len(edges) - 1)
    hatches = ("", "////", "....", "xxxx", "----", "")
    for place, (kind, happened) in enumerate(kinds.items()):
        number, _ = np.histogram(happened, edges)
        axes.bar(
            edges[:-1] + 0.5, number, np.diff(edges), below, align="edge", color=(*_COLOURS, GREY)[place % 9],
            hatch=hatches[place % 6], edgecolor=FAINT, linewidth=0.3, label=printed(cut(kind, 60)),
        )  # fmt: skip
        below = below + number
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    at_whole_numbers(axes)
    axes.set(xlabel=ROUND, ylabel=y_label, xlim=(0.5, max(1, rounds) + 0.5), ylim=(0.0, 1.08 * max(1.0, below.max())))
    axes.grid(visible=True, axis="y")
    figure.legend(loc="outside lower center", fontsize=_key_size())
    return figure


def share_bars(x_label: str, labels: Sequence[str], parts: Sequence[int], wholes: Sequence[int]) -> Figure:
    """The share of `parts` in `wholes`, with the numbers beside the bars."""
    figure, axes = _rows(labels)
    shares = np.array(parts) / np.maximum(1, wholes)
    axes.barh(range(len(labels)), shares, height=0.66, color=GREY)
    for place, (part, whole) in enumerate(zip(parts, wholes, strict=True)):
        axes.annotate(
            f"{part:,} of {whole:,}",
            (shares[place], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_xlim(0.0, max(0.01, 1.35 * shares.max()))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_xlabel(_on_lines(x_label))
    return figure


def strip(x_label: str, labels: Sequence[str], shares: Floats) -> Figure:
    """A row for each group, a cell for each device, darker the more often it sent; nan where there is no such device.

    `shares` has shape (groups, devices). The colour is see-through, so that the page shows where nobody sent.
    """
    largest = float(np.nanmax(shares, initial=0.0)) or 1.0
    colour = _colours()[0]
    colours = LinearSegmentedColormap.from_list("share", [(*to_rgb(colour), opaque) for opaque in (0.04, 1.0)])
    figure, axes = _rows(labels, min_in=0.35)
    groups, devices = shares.shape
    if devices > MAX_CELLS:
        shares = np.stack([part.mean(axis=1) for part in np.array_split(shares, MAX_CELLS, axis=1)], axis=1)
    image = axes.imshow(
        shares, cmap=colours, vmin=0.0, vmax=largest, aspect="auto", interpolation="none",
        extent=(0.5, devices + 0.5, groups - 0.5, -0.5),
    )  # fmt: skip
    axes.grid(visible=False)
    axes.set_yticks(np.arange(len(labels)) + 0.5, minor=True)
    axes.grid(axis="y", which="minor", color=GREY, linewidth=0.4)
    axes.tick_params(axis="y", which="minor", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_xlabel(_on_lines(x_label))
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, aspect=12, anchor=(0.0, 1.0))
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    bar.outline.set_linewidth(0.4)
    return figure


def _panel(height_in: float | None = None) -> tuple[Figure, Axes]:
    """A picture as wide as the style of the moment says, and as high unless a height is given."""
    width_in, usual_in = matplotlib.rcParams["figure.figsize"]
    figure = Figure(figsize=(width_in, height_in or usual_in), layout="constrained")
    return figure, figure.add_subplot()


def _rows(labels: Sequence[str], *, extra_in: float = 0.0, min_in: float = ROW_IN) -> tuple[Figure, Axes]:
    """A panel with a row for each label, the first on top."""
    figure, axes = _panel(0.75 + extra_in + max(ROW_IN, min(min_in, 1.5 / len(labels))) * max(2, len(labels)))
    axes.set_yticks(range(len(labels)), list(map(_in_row, labels)), parse_math=False, linespacing=0.95)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    return figure, axes


def _in_row(label: str) -> str:
    """A name beside its row: a long one on two lines, what sets it apart below method and policy."""
    head, comma, rest = label.partition(", ")
    if len(label) <= MAX_CHARACTERS or not rest:
        return cut(label, MAX_CHARACTERS)
    return f"{cut(head, MAX_CHARACTERS)}{comma.strip()}\n{cut(rest, MAX_CHARACTERS)}"


def _on_lines(label: str) -> str:
    """A long label of an axis that long names leave little room for, on two lines."""
    return label.replace(" (", "\n(", 1) if len(label) > 24 else label


def _spans_decades(values: Floats) -> bool:
    """Whether positive values are better shown on a logarithmic axis; a few far out do not count."""
    known = values[np.isfinite(values)]
    if not len(known) or known.min() <= 0.0:
        return False
    low, high = np.quantile(known, [0.05, 0.95])
    return math.log10(high / low) > 1.5
