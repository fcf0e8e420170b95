"""One picture of a division: how many samples of which label each device holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flare.data.partition import Counts
from flare.report.figures import BLUE, EDGE, GREY, INK, house_style, write_figure

MAX_NUMBERS = 20
"""Up to so many devices, and for counts of at most four digits, the numbers are written into the tiles."""
MAX_LINES = 100
"""With more devices than this, lines between them would cover the tiles."""
# One hue from light to dark, so that a print in grey says the same; a label that a device lacks stays white.
_SHADES = LinearSegmentedColormap.from_list("held", ["#DCEAF3", BLUE, EDGE]).with_extremes(bad="white")


def draw_division(path: Path, counts: Counts, *, title: str) -> None:
    """Draw `counts`, shape (devices, classes), into `path`, as png, svg or pdf by its suffix.

    Raises ValueError for another suffix or shape, OSError where `path` cannot be written.
    """
    write_figure(path, lambda: division_figure(counts, title=title))


def division_figure(counts: Counts, *, title: str) -> Figure:
    """The figure that `draw_division` writes, with the axes "sizes", "labels" and "scale"."""
    if counts.ndim != 2 or counts.size == 0:
        raise ValueError(f"counts has shape {counts.shape}; it must be (devices, classes), with at least one of each")
    with house_style():
        figure = Figure(figsize=(9.6, 2.9 + 0.24 * min(counts.shape[1], 40)), dpi=120, facecolor="white")
        grid = figure.add_gridspec(
            2,
            2,
            height_ratios=(1.0, 2.4),
            width_ratios=(40, 1),
            hspace=0.12,
            wspace=0.04,
            left=0.075,
            right=0.93,
            top=0.92,
        )
        sizes = figure.add_subplot(grid[0, 0], label="sizes")
        labels = figure.add_subplot(grid[1, 0], label="labels", sharex=sizes)
        _draw_sizes(sizes, counts, title)
        _draw_labels(labels, figure.add_subplot(grid[1, 1], label="scale"), counts)
    return figure


def _draw_sizes(axes: Axes, counts: Counts, title: str) -> None:
    sizes = counts.sum(axis=1)
    axes.bar(np.arange(len(sizes)), sizes, width=0.8, color=BLUE)
    axes.set_ylabel("samples")
    axes.set_title(title, parse_math=False)
    axes.tick_params(labelbottom=False, bottom=False)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))


def _draw_labels(axes: Axes, scale: Axes, counts: Counts) -> None:
    held = np.ma.masked_equal(counts.T, 0)  # (classes, devices)
    tiles = axes.imshow(
        held, aspect="auto", cmap=_SHADES, vmin=0.0, vmax=max(1.0, float(counts.max())), interpolation="nearest"
    )
    axes.set_xlim(-0.5, len(counts) - 0.5)
    axes.set_xlabel("device")
    axes.set_ylabel("label")
    axes.set_yticks(np.arange(counts.shape[1]) if counts.shape[1] <= 20 else [0, counts.shape[1] - 1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    if len(counts) <= MAX_LINES:
        axes.vlines(np.arange(len(counts) + 1) - 0.5, -0.5, counts.shape[1] - 0.5, color="white", linewidth=1.0)
    axes.hlines(np.arange(counts.shape[1] + 1) - 0.5, -0.5, len(counts) - 0.5, color="white", linewidth=1.0)
    if len(counts) <= MAX_NUMBERS and counts.max() < 10_000:
        _write_numbers(axes, counts)
    bar = axes.figure.colorbar(tiles, cax=scale)
    bar.outline.set_edgecolor(GREY)
    bar.set_label("samples of the label")


def _write_numbers(axes: Axes, counts: Counts) -> None:
    for (device, label), count in np.ndenumerate(counts):
        if count:
            ink = "white" if count > 0.4 * counts.max() else INK
            axes.text(device, label, str(count), ha="center", va="center", fontsize=7.5, color=ink)
