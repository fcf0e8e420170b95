"""The kinds of figure that experiments draw: panels of curves with bands, and points with error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.experiment import Measure, Results
from flare.experiments.measures import LAST, final_accuracy
from flare.experiments.outcome import Outcome
from flare.experiments.settings import NAMES
from flare.report.curves import MAX_MARKS, Curve, estimate, evenly, over_seeds
from flare.report.figures import FAINT, GREY
from flare.report.run_figures import ROUND, Look, at_whole_numbers, draw_curve, legend, looks
from flare.types import Floats

Line = tuple[str, str]
"""What a line is called in the legend, and the curve it shows."""
MakeCurve = Callable[[Sequence[Outcome]], Curve]
WIDTH_IN, HEIGHT_IN, DPI = 3.55, 2.55, 130
EXTRA_ROW_IN = 0.1
"""Height of each further row of a long legend."""
ROUGH = 0.5
"""Width of the bands against the distance of the curves from which bands are left away."""


def accuracy_by_rounds(runs: Sequence[Outcome]) -> Curve:
    """Test accuracy against rounds; a run that diverged goes on as a guess."""
    tests = np.unique(np.concatenate([run.test_round for run in runs]))
    table = np.full((len(runs), len(tests)), np.nan)  # (seeds, tests)
    for row, run in zip(table, runs, strict=True):
        row[np.searchsorted(tests, run.test_round)] = run.test_accuracy
        if run.diverged:
            row[tests > run.test_round.max(initial=0.0)] = 1.0 / run.num_classes
    return replace(over_seeds(tests, table), tests=tests if len(tests) <= MAX_MARKS // 2 else None)  # small panels


def accuracy_by_seconds(runs: Sequence[Outcome]) -> Curve:
    """The same against the mean clock of the seeds, as far as a run goes that did not diverge."""
    curve, going = accuracy_by_rounds(runs), [run for run in _going(runs) if len(run.test_round)]
    known = curve.x <= min((run.num_rounds for run in going), default=0)
    times_s = _mean([np.interp(curve.x[known], run.test_round, run.test_s) for run in going])
    tests = None if curve.tests is None else times_s
    return Curve(times_s, curve.mean[known], curve.half[known], curve.seeds[known], tests)


def _going(runs: Sequence[Outcome]) -> Sequence[Outcome]:
    """The runs that did not diverge, or all where each did."""
    return [run for run in runs if not run.diverged] or runs


def train_loss_by_rounds(runs: Sequence[Outcome]) -> Curve:
    """Mean training loss against rounds, by the stretches of the shortest run."""
    x = min((run.loss_round for run in runs), key=lambda rounds: float(rounds.max(initial=0.0)))
    return over_seeds(x, np.array([_at(x, run.loss_round, run.train_loss) for run in runs]))


def train_loss_by_seconds(runs: Sequence[Outcome]) -> Curve:
    """The same against the mean clock of the seeds."""
    curve = train_loss_by_rounds(runs)
    return replace(curve, x=_mean([_at(curve.x, run.loss_round, run.loss_s) for run in _going(runs)]))


def _at(x: Floats, known_x: Floats, known: Floats) -> Floats:
    """What is known, between its places where others are asked for."""
    return known if np.array_equal(x, known_x) else np.interp(x, known_x, known)


def _mean(rows: Sequence[Floats]) -> Floats:
    """The mean of rows of equal length; nothing of none."""
    mean: Floats = np.mean(rows, axis=0) if rows else np.empty(0)
    return mean


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
    """A panel of curves for each panel of the results, with one legend.

    The first line of every panel looks alike, the second, and so on. Where they have other names in other panels, the
    legend has a column for each set of names.

    Where the bands of accuracies would bury the curves, each point is the mean of the last five tests, and the final
    accuracies stand to the right with their intervals.
    """
    names = results.panels
    rows = -(-len(names) // columns)
    every: dict[str, Look] = {}
    for panel in names:
        labels = [label for label, _ in lines(panel)]
        every |= dict(zip(labels, looks(len(labels)), strict=True))
    sets = len(every) // len(labels)
    height_in = HEIGHT_IN * rows + 0.55 + (EXTRA_ROW_IN * len(labels) if sets > 1 else 0.0)
    figure = Figure(figsize=(WIDTH_IN * min(columns, len(names)), height_in), layout="constrained", dpi=DPI)
    for place, panel in enumerate(names):
        axes = figure.add_subplot(rows, min(columns, len(names)), place + 1)
        drawn = [(label, curve(results.runs(panel, name))) for label, name in lines(panel)]
        rough = percent and is_rough([one for _, one in drawn])
        if rough:
            drawn = [(label, steady(one)) for label, one in drawn]
            _end_bars(axes, results, panel, lines(panel), [(every[label], one) for label, one in drawn])
        for number, (label, one) in reversed(list(enumerate(drawn))):
            draw_curve(axes, _thinned(one), every[label], number)
        quantity = f"{y_label},\nmean of {LAST} tests" if rough else y_label
        _frame(axes, title_of(results, panel), x_label, quantity, percent=percent)
        _limit(axes, [one for _, one in drawn], percent=percent)
    legend(figure, every, columns=sets if sets > 1 else 0)
    return figure


def title_of(results: Results, panel: str) -> str:
    """A panel with the data that devices really hold, where small settings stand in for the paper's."""
    used, title = results.data_of(panel), panel
    if used.isdisjoint(NAMES):
        for name in NAMES.values():
            title = title.replace(name, " and ".join(sorted(used)) or name)
    return title


def is_rough(curves: Sequence[Curve]) -> bool:
    """Whether the bands would bury the curves: more than half as wide as all curves together are apart."""
    tests = min(len(curve.x) for curve in curves)
    means, halves = (np.array([getattr(curve, name)[:tests] for curve in curves]) for name in ("mean", "half"))
    if len(curves) < 2 or not tests or not np.isfinite(halves).all():
        return False
    apart = np.maximum(means.max(axis=0) - means.min(axis=0), 1e-9)
    return bool(np.median(halves.mean(axis=0) / apart) > ROUGH)


def steady(curve: Curve) -> Curve:
    """The mean of each test and the up to four before it, without a band: its last point is the final accuracy."""
    means = np.array([curve.mean[max(0, at + 1 - LAST) : at + 1].mean() for at in range(len(curve.x))])
    return replace(curve, mean=means, half=np.full(len(means), np.nan))


def _end_bars(
    axes: Axes, results: Results, panel: str, lines: Sequence[Line], drawn: Sequence[tuple[Look, Curve]]
) -> None:
    """The final accuracy of each line with its 95 % interval, behind a line to the right, one beside the other."""
    right = max(float(one.x[-1]) for _, one in drawn)
    axes.axvline(1.015 * right, color=GREY, linewidth=0.8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value <= right else "")  # there is no time there
    axes.annotate("final", (1.015 * right, 0.0), (2.0, 2.0), ("data", "axes fraction"), "offset points", fontsize=7.0,
                  color=GREY, va="bottom")  # fmt: skip
    for place, ((_, name), (look, _)) in enumerate(zip(lines, drawn, strict=True)):
        final = estimate(results.values(panel, name, final_accuracy))
        x, half = right * (1.03 + 0.02 * place), 0.0 if math.isnan(final.half) else final.half
        axes.errorbar(x, final.mean, yerr=half, color=look.colour, marker=look.marker, markersize=3.5, linewidth=1.2)


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
    axes.margins(x=0.2)
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
        at_whole_numbers(axes)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _limit(axes: Axes, curves: Sequence[Curve], *, percent: bool) -> None:
    """Show the means; a wide band of one curve must not squeeze the others."""
    means = np.concatenate([curve.mean for curve in curves])
    if axes.containers:  # and the bars at the end, of which there are few
        means = np.append(means, [y for bar in axes.containers for line in bar[2] for y in _heights(line)])
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    room = (high - low) or 1.0
    top = high + 0.08 * room
    axes.set_ylim(max(0.0, low - 0.05 * room), min(1.0, top) if percent else top)


def _heights(bars: LineCollection) -> list[float]:
    """The ends of error bars."""
    return [float(y) for segment in bars.get_segments() for y in segment[:, 1]]


def _thinned(curve: Curve) -> Curve:
    at = evenly(len(curve.x))
    return Curve(curve.x[at], curve.mean[at], curve.half[at], curve.seeds[at], curve.tests)
