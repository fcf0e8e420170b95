"""Pictures of a search: the best trial so far, what each setting does, which settings mattered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from flare.report.figures import BLUE, GREY, INK, ORANGE
from flare.sweeps.grid import value_text
from flare.tuning.goals import Aim
from flare.tuning.space import Choice, Searched
from flare.tuning.trial import State, Trial, best_of
from flare.types import Floats

ROW_IN = 0.26
_LOG_FROM = 12.0  # how many times the least the greatest value is where an axis is logarithmic
_SPREAD = 0.32  # of the trials of one choice, so that they do not hide each other
_RUG = 1.045  # where trials without a value are drawn, in heights of the panel


def values_of(trials: Sequence[Trial], aim: Aim) -> Floats:
    """What the goal measures of each trial, nan where it has no such value; of a search in which no trial reached the
    target, and of one for accuracy, the accuracy. Shape (trials,)."""
    if by_accuracy(trials, aim):
        return np.array([_accuracy(trial, aim) for trial in trials])
    return np.array([trial.score.number if trial.reached else math.nan for trial in trials])


def by_accuracy(trials: Sequence[Trial], aim: Aim) -> bool:
    """Whether trials are shown by their accuracy."""
    return not aim.has_target or not any(trial.reached for trial in trials)


def _accuracy(trial: Trial, aim: Aim) -> float:
    if trial.state is not State.COMPLETE:
        return math.nan
    return trial.accuracy if aim.has_target else 1.0 - trial.score.number


def measured(trials: Sequence[Trial], aim: Aim) -> str:
    """What is shown of the trials, as the label of an axis."""
    if aim.has_target and by_accuracy(trials, aim):
        return "best test accuracy"
    return aim.measured()


def best_so_far(trials: Sequence[Trial], aim: Aim) -> Figure:
    """Every trial by its number, and the best up to then as a line."""
    figure, axes = _panel()
    values = values_of(trials, aim)
    better = np.fmax if by_accuracy(trials, aim) else np.fmin
    numbers = np.arange(len(trials), dtype=np.float64)
    axes.plot(numbers, better.accumulate(values), color=INK, drawstyle="steps-post", label="best so far")
    _points(axes, numbers, values, trials, best_of(trials), aim)
    axes.set(xlabel="trial", ylabel=measured(trials, aim))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    _finish(figure, axes, values, by_accuracy(trials, aim))
    return figure


def effect(each: Searched, trials: Sequence[Trial], aim: Aim) -> Figure:
    """Every trial by its value of a setting; trials in which it has no meaning are left out."""
    figure, axes = _panel()
    known = [trial for trial in trials if each.name in trial.params]
    values = values_of(trials, aim)[[each.name in trial.params for trial in trials]]
    if isinstance(each, Choice):
        x = _places(each, known)
        axes.set_xticks(range(len(each.values)), list(map(value_text, each.values)), parse_math=False)
        axes.set_xlim(-0.6, len(each.values) - 0.4)
        _medians(axes, each, known, values)
    else:
        x = np.array([float(trial.params[each.name]) for trial in known])
        if each.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(_minor(each.high / each.low))
    _points(axes, x, values, known, best_of(trials), aim)
    axes.set(xlabel=each.name, ylabel=measured(trials, aim))
    _finish(figure, axes, values, by_accuracy(trials, aim))
    return figure


def importance(shares: Mapping[str, float]) -> Figure:
    """A bar for each setting, the most important on top."""
    width_in, _ = matplotlib.rcParams["figure.figsize"]
    figure = Figure(figsize=(width_in, 0.75 + ROW_IN * max(2, len(shares))), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(shares))
    axes.barh(places, list(shares.values()), height=0.66, color=BLUE)
    for place, share in enumerate(shares.values()):
        axes.annotate(
            f"{100.0 * share:.0f} %", (share, place), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.set_yticks(places, list(shares), parse_math=False)
    axes.set_ylim(len(shares) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.15 * max(shares.values()))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("share of the differences between trials")
    axes.grid(visible=True, axis="x")
    return figure


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=matplotlib.rcParams["figure.figsize"], layout="constrained")
    return figure, figure.add_subplot()


def _points(axes: Axes, x: Floats, values: Floats, trials: Sequence[Trial], best: Trial | None, aim: Aim) -> None:
    """A mark for each trial: those with a value at it, the winner with a star, all others above the panel."""
    known = np.isfinite(values)
    label = "target reached" if any(trial.reached for trial in trials) and aim.has_target else "carried out"
    axes.plot(x[known], values[known], "o", color=BLUE, alpha=0.6, markeredgewidth=0.0, label=label)
    pruned = np.array([trial.state is State.PRUNED for trial in trials], dtype=bool)
    above = axes.get_xaxis_transform()
    for chosen, marker, label in ((~known & ~pruned, "x", "target missed"), (pruned, "|", "pruned")):
        if chosen.any():
            rug = np.full(int(chosen.sum()), _RUG)
            axes.plot(x[chosen], rug, marker, color=GREY, transform=above, clip_on=False, linestyle="", label=label)
    at = next((place for place, trial in enumerate(trials) if trial is best), None)
    if at is not None and known[at]:
        axes.plot(x[at], values[at], "*", color=ORANGE, markersize=11.0, markeredgecolor=INK, label="winner")


def _places(each: Choice, trials: Sequence[Trial]) -> Floats:
    """Where trials are drawn: those of one value side by side, in their order."""
    x = np.zeros(len(trials))
    for column, value in enumerate(each.values):
        own = [place for place, trial in enumerate(trials) if trial.params[each.name] == value]
        x[own] = column + (np.linspace(-_SPREAD, _SPREAD, len(own)) if len(own) > 1 else 0.0)
    return x


def _medians(axes: Axes, each: Choice, trials: Sequence[Trial], values: Floats) -> None:
    """A line at the median of each value of a choice."""
    labelled = False
    for column, value in enumerate(each.values):
        own = np.array([trial.params[each.name] == value for trial in trials], dtype=bool) & np.isfinite(values)
        if own.any():
            ends = [column - 1.2 * _SPREAD, column + 1.2 * _SPREAD]
            axes.plot(ends, [np.median(values[own])] * 2, color=INK, label=None if labelled else "median")
            labelled = True


def _minor(ratio: float) -> FuncFormatter | NullFormatter:
    """Labels between powers of ten, where the axis may have but one of them."""
    if ratio > 100.0:
        return NullFormatter()
    return FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "1235" else "")


def _finish(figure: Figure, axes: Axes, values: Floats, percent: bool) -> None:
    known = values[np.isfinite(values)]
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    elif len(known) and known.min() > 0.0 and known.max() >= _LOG_FROM * known.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(_minor(known.max() / known.min()))
    if not len(known):
        axes.set_yticks([])
    axes.grid(visible=True)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8.0, handlelength=1.2, columnspacing=1.2)
