"""Many systems side by side: a row each, a column for each cell. As pictures and as the table of a survey."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from flare.experiments.drawing import DPI, Line, title_of
from flare.experiments.experiment import Measure, Results
from flare.experiments.measures import fairness, final_accuracy, mean_devices, seconds_to, total_energy_j
from flare.report.curves import Estimate, estimate
from flare.report.figures import BLUE, FAINT, GREY, ORANGE
from flare.types import Floats

_ROW_IN, _HEAD_IN, _COLUMN_IN, _NAMES_IN = 0.17, 1.0, 1.7, 2.0
_COLUMNS_IN = 3.4  # of all columns together, at least
_MUCH, _VERY_MUCH = 5.0, 50.0
"""From these ratios on times stand on a logarithmic axis, and on one with fewer ticks."""
_GOOD = 0.9
"""Where the middle one of the accuracies is above this, the axis goes by errors."""
_BEST = 0.9999
_ACCURACIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_LOOKS = ((BLUE, "o", -0.16), (ORANGE, "s", 0.16))  # of the distributions of the data: colour, marker, where in the row


@final
@dataclass(frozen=True)
class Cell:
    """A cell in which systems are compared: its data, their distribution, its deadline, and the accuracy aimed at."""

    name: str
    dataset: str
    distribution: str
    deadline_s: float
    target: float


def columns_of(results: Results, cells: Sequence[Cell]) -> dict[tuple[str, float], list[Cell]]:
    """The cells that were run, by data set and deadline: those of a column differ in the distribution of the data."""
    columns: dict[tuple[str, float], list[Cell]] = {}
    for cell in cells:
        if cell.name in results.panels:
            columns.setdefault((cell.dataset, cell.deadline_s), []).append(cell)
    return columns


def accuracy_dots(results: Results, names: Sequence[Sequence[Line]], cells: Sequence[Cell]) -> Figure:
    """Final accuracy of every system with its 95 % interval."""
    figure = _dots(results, names, cells, lambda cell: final_accuracy, "final test accuracy (%)")
    for axes in figure.axes:
        scale_accuracies(axes)
    return figure


def scale_accuracies(axes: Axes) -> None:
    """From 0 to above the best; where most errors are small, equal ratios of them are equally long."""
    means = _marked(axes)
    if len(means) == 0:
        return
    if np.median(means) > _GOOD:
        axes.set_xscale("function", functions=(_by_error, lambda x: 1.0 - 10.0**-x))
        axes.xaxis.set_major_locator(FixedLocator(_ACCURACIES))
        axes.set_xlim(0.0, 1.0 - (1.0 - min(float(means.max()), _BEST)) / 1.5)
    else:
        axes.set_xlim(0.0, min(1.0, 1.1 * float(means.max())))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100.0 * value:g}"))


def _by_error(accuracy: Floats) -> Floats:
    """Where an accuracy stands on an axis that is logarithmic in the error."""
    return np.asarray(-np.log10(1.0 - np.minimum(accuracy, _BEST)))


def seconds_dots(results: Results, names: Sequence[Sequence[Line]], cells: Sequence[Cell]) -> Figure:
    """Simulated time to the target accuracy of every system, the mean over the seeds that have it; a hollow mark where
    some do not, none where nobody does."""

    def to_target(cell: Cell) -> Measure:
        return lambda run: seconds_to(run, cell.target)

    figure = _dots(results, names, cells, to_target, "seconds to {target:.0%}")
    for axes in figure.axes:
        _scale_times(axes)
    return figure


def _scale_times(axes: Axes) -> None:
    """Ticks that fit: on a logarithmic axis where times differ much."""
    times_s = _marked(axes)
    if len(times_s) == 0:
        axes.set_xticks([])
        axes.annotate("no run gets there", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY, fontsize=8.0)
        return
    if times_s.max() < _MUCH * times_s.min():
        axes.xaxis.set_major_locator(MaxNLocator(4))
        return
    axes.set_xscale("log")
    subs = (1.0, 2.0, 5.0) if times_s.max() < _VERY_MUCH * times_s.min() else (1.0, 3.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(_short_seconds))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short_seconds(value: float, _: int) -> str:
    """Thousands as such, so that labels do not touch."""
    return f"{value:g}" if value < 1000.0 else f"{value / 1000.0:g}k"


def _marked(axes: Axes) -> Floats:
    """What the marks of a column stand at."""
    bars = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    return np.array([x for bar in bars for x in np.asarray(bar.lines[0].get_xdata())], dtype=np.float64)


def _dots(
    results: Results,
    kinds: Sequence[Sequence[Line]],
    cells: Sequence[Cell],
    measure: Callable[[Cell], Measure],
    x_label: str,
) -> Figure:
    """A row for each system, with a line between kinds of them, a column for each data set and deadline, and a mark for
    each distribution of the data."""
    columns, names = columns_of(results, cells), [line for kind in kinds for line in kind]
    size = (_NAMES_IN + max(_COLUMN_IN * len(columns), _COLUMNS_IN), _HEAD_IN + _ROW_IN * len(names))
    figure = Figure(figsize=size, layout="constrained", dpi=DPI)
    for place, among in enumerate(columns.values()):
        axes = figure.add_subplot(1, len(columns), place + 1)
        for cell, look in zip(among, _LOOKS, strict=False):
            _marks(axes, results, names, cell, measure(cell), look)
        _frame(axes, [name if place == 0 else "" for name, _ in names], np.cumsum([len(kind) for kind in kinds])[:-1])
        axes.set_title(_title(results, among), fontsize=9.0)
        axes.set_xlabel(x_label.format(target=among[0].target), fontsize=8.5)
    _key(figure, dict.fromkeys(cell.distribution for among in columns.values() for cell in among))
    return figure


def _title(results: Results, among: Sequence[Cell]) -> str:
    """Data and deadline of a column."""
    return title_of(results, among[0].name).removeprefix(f"{among[0].distribution} ")


def _frame(axes: Axes, names: Sequence[str], breaks: Iterable[int]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(labelsize=7.5)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for row in breaks:
        axes.axhline(row - 0.5, color=GREY, linewidth=0.7)


def _key(figure: Figure, distributions: Iterable[str]) -> None:
    """What the marks mean, above the names of the rows."""
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=f"{distribution} data")
        for distribution, (colour, marker, _) in zip(distributions, _LOOKS, strict=False)
    ]
    figure.axes[0].legend(handles=handles, loc="lower right", bbox_to_anchor=(0.0, 1.0), fontsize=7.5)


def _marks(
    axes: Axes, results: Results, names: Sequence[Line], cell: Cell, measure: Measure, look: tuple[str, str, float]
) -> None:
    colour, marker, shift = look
    run = results.curves(cell.name)
    for row, (_, curve) in enumerate(names):
        if curve not in run:
            continue
        values = results.values(cell.name, curve, measure)
        mean = estimate([value if math.isfinite(value) else math.nan for value in values])
        if not mean.count:
            continue
        half = 0.0 if math.isnan(mean.half) else mean.half
        face = colour if mean.count == len(values) else "none"
        axes.errorbar(mean.mean, row + shift, xerr=half, color=colour, marker=marker, markerfacecolor=face,
                      markersize=3.6, linewidth=0.9)  # fmt: skip


# --- the table --------------------------------------------------------------------------------------------------


def table(results: Results, names: Sequence[Line], cells: Sequence[Cell]) -> str:
    """A row for each system: final accuracy, time to the target and number of senders in each cell, the energy of a
    run, and fairness."""
    columns = columns_of(results, cells)
    heads = [_title(results, among) for among in columns.values()]
    targets = [f"{among[0].target:.0%}" for among in columns.values()]
    head = ["system", *(f"{each}: accuracy, %" for each in heads)]
    head += [f"{each}: s to {target}" for each, target in zip(heads, targets, strict=True)]
    head += [f"{each}: devices a round" for each in heads]
    head += ["energy of a run, J", "fairness"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    lines += [_line([name, *_cells_of(results, curve, columns)]) for name, curve in names]
    return "\n".join(lines)


def _cells_of(results: Results, curve: str, columns: dict[tuple[str, float], list[Cell]]) -> Iterator[str]:
    """What the table says of a system."""

    def mean(cell: Cell, measure: Measure) -> tuple[Estimate, int]:
        if curve not in results.curves(cell.name):
            return Estimate(math.nan, math.nan, 0), 0
        values = results.values(cell.name, curve, measure)
        return estimate([value if math.isfinite(value) else math.nan for value in values]), len(values)

    for among in columns.values():
        yield " / ".join(
            _number(100.0 * mean(cell, final_accuracy)[0].mean, ".1f") + _lost(results, cell, curve) for cell in among
        )
    for among in columns.values():
        told = [mean(cell, lambda run, target=cell.target: seconds_to(run, target)) for cell in among]  # type: ignore[misc]
        yield " / ".join(_seconds(each, seeds) for each, seeds in told)
    for among in columns.values():
        yield " / ".join(_number(mean(cell, mean_devices)[0].mean, ".3g") for cell in among)
    everywhere = [cell for among in columns.values() for cell in among]
    by_data = dict.fromkeys(cell.dataset for cell in everywhere)
    energy = [_mean([mean(cell, total_energy_j)[0].mean for cell in everywhere if cell.dataset == d]) for d in by_data]
    yield " / ".join(_amount(each) for each in energy)
    yield _number(_mean([mean(cell, fairness)[0].mean for cell in everywhere]), ".2f")


def _lost(results: Results, cell: Cell, curve: str) -> str:
    """How many of the runs diverged, where some did."""
    runs = results.runs(cell.name, curve) if curve in results.curves(cell.name) else []
    lost = sum(run.diverged for run in runs)
    return f" ({lost} of {len(runs)} diverged)" if lost else ""


def _seconds(found: Estimate, seeds: int) -> str:
    """The mean time of the seeds that have the target, and how many have it where not all do."""
    if not found.count:
        return "–"
    return _amount(found.mean) + ("" if found.count == seeds else f" ({found.count} of {seeds})")


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else "–"


def _amount(value: float) -> str:
    """Three digits, or all before the point."""
    return _number(value, ",.0f" if abs(value) >= 100.0 else ".3g")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def told_of_runs(counts: Mapping[str, Mapping[str, tuple[int, int]]], num_seeds: int) -> str:
    """How many runs diverged, and which are missing, in words; nothing where neither is so. `counts` has, by cell and
    curve, how many runs there are, and how many of them diverged."""
    there = sum(number for curves in counts.values() for number, _ in curves.values())
    diverged = {cell: Counter({curve: bad for curve, (_, bad) in curves.items()}) for cell, curves in counts.items()}
    of_cell = {cell: of_curve.total() for cell, of_curve in diverged.items() if of_curve.total()}
    parts = []
    if of_cell:
        by_curve = sum(diverged.values(), Counter[str]()).most_common(2)
        where = "; ".join(f"{cell} ({number})" for cell, number in of_cell.items())
        number = sum(of_cell.values())
        (worst, its), (_, next_most) = (*by_curve, ("", 0))[:2]
        most = f" {its} of them are of `{worst}`." if number > its > max(next_most, 1) else ""
        parts.append(f"**What diverges.** {number} of {there:,} runs: {where}.{most}")
    lost = sum(num_seeds - number for curves in counts.values() for number, _ in curves.values())
    if lost:
        fewer = {
            cell: ", ".join(
                f"`{curve}`" + (f" ({num_seeds - number})" if number < num_seeds - 1 else "")
                for curve, (number, _) in curves.items()
                if number < num_seeds
            )
            for cell, curves in counts.items()
        }
        where = "; ".join(f"{cell}, of {those}" for cell, those in fewer.items() if those)
        parts.append(
            f"**What is missing.** {lost} of {there + lost:,} runs, which were not carried out to their end: {where}. "
            "Means there are over the other seeds, pairs over those that both have."
        )
    return "\n\n".join(parts)
