"""The kinds of figure that experiments draw: panels of curves with bands, and points with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.experiment import Measure, Results
from flare.experiments.trial import Outcome
from flare.report.curves import Curve, estimate, evenly, over_seeds
from flare.report.figures import FAINT
from flare.report.run_figures import ROUND, Look, at_whole_rounds, draw_curve, legend, looks

Line = tuple[str, str]
"""What a line is called in the legend, and the curve it shows."""
MakeCurve = Callable[[Sequence[Outcome]], Curve]
WIDTH_IN, HEIGHT_IN, DPI = 3.55, 2.55, 130
_POINTS = 100


def accuracy_by_rounds(runs: Sequence[Outcome]) -> Curve:
    """Test accuracy against rounds; a run that diverged goes on as a guess."""
    tests = np.unique(np.concatenate([run.test_round for run in runs]))
    table = np.full((len(runs), len(tests)), np.nan)  # (seeds, tests)
    for row, run in zip(table, runs, strict=True):
        row[np.searchsorted(tests, run.test_round)] = run.test_accuracy
        if run.diverged:
            row[tests > run.test_round.max(initial=0.0)] = 1.0 / run.num_classes
    return over_seeds(tests, table)


def accuracy_by_seconds(runs: Sequence[Outcome]) -> Curve:
    """Test accuracy against simulated seconds, on a grid that all runs that did not diverge reach."""
    ends = [run.clock_s[-1] for run in runs if not run.diverged] or [run.clock_s[-1] for run in runs]
    grid = np.linspace(0.0, min(ends), _POINTS)[1:]
    table = np.full((len(runs), len(grid)), np.nan)
    for row, run in zip(table, runs, strict=True):
        times = run.clock_s[run.test_round.astype(int) - 1]
        if len(times):
            row[:] = np.interp(grid, times, run.test_accuracy, left=np.nan)
        if run.diverged:
            row[grid > run.clock_s[-1]] = 1.0 / run.num_classes
    keep = np.isfinite(table).all(axis=0)
    return over_seeds(grid[keep], table[:, keep])


def train_loss_by_rounds(runs: Sequence[Outcome]) -> Curve:
    """Mean training loss against rounds, averaged over neighbours where there are many."""
    length = min(len(run.train_loss) for run in runs)
    parts = np.array_split(np.arange(length), min(length, _POINTS))
    x = np.array([1.0 + part.mean() for part in parts])
    return over_seeds(x, np.array([[np.nanmean(run.train_loss[part]) for part in parts] for run in runs]))


def train_loss_by_seconds(runs: Sequence[Outcome]) -> Curve:
    """The same against the mean clock of the seeds."""
    curve = train_loss_by_rounds(runs)
    length = min(len(run.clock_s) for run in runs)
    clock_s = np.mean([run.clock_s[:length] for run in runs], axis=0)
    return Curve(np.interp(curve.x, 1.0 + np.arange(length), clock_s), curve.mean, curve.half, curve.seeds)


def test_loss_by_rounds(runs: Sequence[Outcome]) -> Curve:
    """Loss of the global model on the test samples against rounds."""
    tests = min((run.test_round for run in runs), key=len)
    return over_seeds(tests, np.array([run.test_loss[: len(tests)] for run in runs]))


test_loss_by_rounds.__test__ = False  # type: ignore[attr-defined]  # no test, whatever its name says to test tools


def panels(
    results: Results,
    lines: Callable[[str], Sequence[Line]],
    curve: MakeCurve,
    *,
    x_label: str,
    y_label: str,
    percent: bool = True,
    columns: int = 2,
) -> Figure:
    """A panel of curves for each panel of the results, with one legend."""
    names = results.panels
    rows = -(-len(names) // columns)
    figure = Figure(
        figsize=(WIDTH_IN * min(columns, len(names)), HEIGHT_IN * rows + 0.55), layout="constrained", dpi=DPI
    )
    every: dict[str, Look] = {}
    for panel in names:
        for label, _ in lines(panel):
            every.setdefault(label, Look("", (), ""))
    every = dict(zip(every, looks(len(every)), strict=True))
    for place, panel in enumerate(names):
        axes = figure.add_subplot(rows, min(columns, len(names)), place + 1)
        drawn = [(label, curve(results.runs(panel, name))) for label, name in lines(panel)]
        for number, (label, one) in reversed(list(enumerate(drawn))):
            draw_curve(axes, _thinned(one), every[label], number)
        _frame(axes, panel, x_label, y_label, percent=percent)
        _limit(axes, [one for _, one in drawn], percent=percent)
    legend(figure, every)
    return figure


def points(
    axes: Axes, x: Sequence[float], groups: Mapping[str, Sequence[Sequence[float]]], *, spread: float = 0.0
) -> dict[str, Look]:
    """Means with 95 % intervals over seeds at each x, a line for each group; `spread` sets groups apart."""
    drawn = dict(zip(groups, looks(len(groups)), strict=True))
    for place, (label, rows) in enumerate(groups.items()):
        look, means = drawn[label], [estimate(list(row)) for row in rows]
        shift = spread * (place - (len(groups) - 1) / 2)
        axes.errorbar(
            [each + shift for each in x],
            [m.mean for m in means],
            yerr=[0.0 if math.isnan(m.half) else m.half for m in means],
            color=look.colour,
            marker=look.marker,
            linestyle=(0.0, look.dash) if look.dash else "-",
            linewidth=1.4,
            markersize=4.5,
            capsize=2.0,
        )
    return drawn


def bars(axes: Axes, labels: Sequence[str], rows: Sequence[Sequence[float]], colour: str) -> None:
    """Horizontal bars of means over seeds with 95 % intervals, the first on top, each with its number."""
    means = [estimate(list(row)) for row in rows]
    error = [0.0 if math.isnan(m.half) else m.half for m in means]
    axes.barh(range(len(labels)), [m.mean for m in means], xerr=error, color=colour, height=0.7, capsize=2.0)
    for place, (mean, half) in enumerate(zip(means, error, strict=True)):
        axes.annotate(f" {mean.mean:.2f}", (mean.mean + half, place), va="center", fontsize=7.5)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.margins(x=0.14)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def mean_of(results: Results, panel: str, curve: str, measure: Measure) -> float:
    """The mean of a measure over the seeds of a curve."""
    return float(np.mean(results.values(panel, curve, measure)))


def plain(results: Results) -> Callable[[str], Sequence[Line]]:
    """Every curve of a panel under its own name."""
    return lambda panel: [(curve, curve) for curve in results.curves(panel)]


def two_axes(
    results: Results, name: str, lines: Callable[[str], Sequence[Line]], *, columns: int = 2
) -> dict[str, Figure]:
    """Test accuracy against rounds and against simulated seconds."""
    make = {"rounds": (accuracy_by_rounds, "round"), "seconds": (accuracy_by_seconds, "simulated seconds")}
    return {
        f"{name}-{axis}": panels(results, lines, curve, x_label=x_label, y_label="test accuracy", columns=columns)
        for axis, (curve, x_label) in make.items()
    }


def _frame(axes: Axes, title: str, x_label: str, y_label: str, *, percent: bool) -> None:
    axes.set_title(title, fontsize=9.5)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(color=FAINT, linewidth=0.5)
    if x_label == ROUND:
        at_whole_rounds(axes)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _limit(axes: Axes, curves: Sequence[Curve], *, percent: bool) -> None:
    """Show the means; a wide band of one curve must not squeeze the others."""
    means = np.concatenate([curve.mean for curve in curves])
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    room = (high - low) or 1.0
    top = high + 0.08 * room
    axes.set_ylim(max(0.0, low - 0.05 * room), min(1.0, top) if percent else top)


def _thinned(curve: Curve) -> Curve:
    at = evenly(len(curve.x))
    return Curve(curve.x[at], curve.mean[at], curve.half[at], curve.seeds[at])
