"""The sections of a report that show what each swept setting does, in pictures and in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from flare.records.run import time_in_words
from flare.report import run_figures as draw
from flare.report.curves import MIN_SEEDS, Curve
from flare.report.effects import (
    Effect,
    SweptRun,
    effects_of,
    end_of,
    measured,
    num_without_partners,
    with_partners,
)
from flare.report.page import table
from flare.report.panels import Panel, Section, nothing
from flare.report.run_words import percent, points, seconds_apart
from flare.sweeps.grid import level_text
from flare.sweeps.sweep_file import Factor
from flare.text import cut
from flare.types import Floats
from flare.units import human

MAX_CURVES = 8
"""Values of another setting that are drawn as a curve each."""
MAX_PICTURES = 4
"""Of one setting."""
MAX_TICKS = 8
"""Values of a setting that are written below the axis, each in its place."""
_MOST_ON_AXIS = 1e100
_LOG_FROM = 8.0  # how many times the least value the greatest is where the axis is logarithmic
ABOUT = (
    "Of each swept setting, what its values come to on average over all other swept settings. Runs with the same seed "
    "and the same other settings are compared in pairs; their differences to the best value, in {what}, are averaged "
    "over the other settings and then over the seeds, whose 95 % interval (Student's t) stands in brackets. {beside} "
    "The best value was picked by these very runs. An average hides what two settings do together: the pictures with "
    "several curves show it."
)
BY_ACCURACY = ("percentage points of final test accuracy", "A run that diverged counts as guessing.")


def by_time(target: float) -> tuple[str, str]:
    """What stands in `ABOUT` where runs are compared by their time to an accuracy."""
    return (
        f"time to {100.0 * target:g} % test accuracy",
        "All runs end there, so that final accuracies only tell by how much each went past it. Values with which more "
        "runs miss it come after the others, and differences are of the pairs that both reach it.",
    )


def effect_sections(factors: Sequence[Factor], runs: Sequence[SweptRun], target: float) -> list[Section]:
    """A section for each swept setting: its values in pictures and in a table."""
    counting = [each for place, factor in enumerate(factors) for each in _counting(place, factor, runs)]
    few = f" An interval takes {MIN_SEEDS} seeds." if _num_seeds(counting) < MIN_SEEDS else ""
    end = end_of(runs)
    target = end or target
    what, beside = by_time(end) if end else BY_ACCURACY
    about = " ".join(part for part in (ABOUT.format(what=what, beside=beside) + few, left_out(factors, runs)) if part)
    return [
        Section(
            f"Effect of {effect.factor.name}",
            "" if number else about,
            _panels(f"effect-{number}", effect, factors, runs, target if effect.by_time else 0.0),
            _table(effect, target, time_in_words(each.run for each in runs)),
        )
        for number, effect in enumerate(effects_of(factors, runs, target))
    ]


def _counting(place: int, factor: Factor, runs: Sequence[SweptRun]) -> list[SweptRun]:
    """The runs by which a setting is judged."""
    return [each for found in with_partners(place, factor, runs) for each in found.values()]


def left_out(factors: Sequence[Factor], runs: Sequence[SweptRun]) -> str:
    """How many runs the effects say nothing of, and why, in words; nothing where they are of all runs."""
    number = num_without_partners(factors, runs)
    if not number:
        return ""
    return (
        f"Of {len(runs):,} runs that were begun {number:,} do not count here: they, or partners of theirs, have not "
        "come to an end."
    )


def _table(effect: Effect, target: float, clock: str) -> str:
    """What each value comes to; `clock`: what the clock of the runs counts."""
    reached = [f"time to {100.0 * target:g} %", "reached"] if target else []
    header = [
        escape(effect.factor.name), "final accuracy", *difference_headings(effect), *reached, clock,
        "energy a run", "runs",
    ]  # fmt: skip
    rows = [
        [
            escape(level.label),
            f"<b>{percent(level.accuracy)}</b>",
            *differences_in_words(effect, place),
            *([human(level.to_target_s, "s", 3), f"{level.num_reached} of {level.num_runs}"] if target else []),
            human(level.clock_s, "s", 3),
            human(level.energy_j, "J", 3),
            f"{level.num_runs}" + (f", {level.num_diverged} diverged" if level.num_diverged else ""),
        ]
        for place, level in enumerate(effect.levels)
    ]
    return table(f"Effect of {effect.factor.name}", header, rows, best=effect.winner)


def difference_headings(effect: Effect) -> tuple[str, str]:
    """What `differences_in_words` tells."""
    return ("difference, time" if effect.by_time else "difference, points"), "won"


def differences_in_words(effect: Effect, place: int) -> tuple[str, str]:
    """Cells of a table: how far a value is from the best, and in how many pairs it is ahead of it. Where several are as
    good as the best, none is called so."""
    level, equals = effect.levels[place], effect.as_good_as_best()
    if equals[place] and sum(equals) > 1:
        return "no difference" if all(equals) else "best, tied", ""
    if place == effect.best:
        return "best", ""
    if level.difference is None:  # there is no best
        return "–", "–"
    apart = seconds_apart(level.difference) if effect.by_time else points(level.difference)
    return apart, f"{level.won} of {level.pairs}" if level.pairs else "–"


def _panels(
    name: str, effect: Effect, factors: Sequence[Factor], runs: Sequence[SweptRun], time_to: float
) -> list[Panel]:
    """The differences to the best value; of numbers the accuracy (or the time to one) along them, and along them by
    each other setting."""
    x = _numbers(effect.factor)
    if x is None:
        return [_difference_panel(name, effect, time_to)]
    place = next(number for number, factor in enumerate(factors) if factor is effect.factor)
    of_level = [list(found.values()) for found in with_partners(place, effect.factor, runs)]
    num_seeds = _num_seeds(_counting(place, effect.factor, runs))
    panels = [_line_panel(name, effect.factor, {"": _curve(x, of_level, time_to)}, num_seeds, time_to)]
    for other, factor in enumerate(factors):
        if other != place and 1 < len(factor.levels) <= MAX_CURVES and len(panels) < MAX_PICTURES:
            curves = {
                level_text(factor, own): _curve(
                    x, [[each for each in found if each.levels[other] == own] for found in of_level], time_to
                )
                for own in range(len(factor.levels))
            }
            panels.append(_line_panel(f"{name}-{other}", effect.factor, curves, num_seeds, time_to, factor.name))
    return panels


def _numbers(factor: Factor) -> Floats | None:
    """The values of a single setting, where all of them are numbers that an axis can have."""
    values = [level[0] for level in factor.levels]
    if len(factor.keys) > 1 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    if max(map(abs, values)) > _MOST_ON_AXIS:
        return None
    return np.array(values, dtype=np.float64)


def _num_seeds(runs: Sequence[SweptRun]) -> int:
    return len({each.run.config.seed for each in runs})


def _curve(x: Floats, of_level: Sequence[Sequence[SweptRun]], time_to: float) -> Curve:
    """Final accuracy, or the time to an accuracy, along the values of a setting, from the least on."""
    order = np.argsort(x)
    found = [measured(of_level[level], time_to) for level in order]
    mean, half = (np.array([getattr(each, name) for each in found]) for name in ("mean", "half"))
    return Curve(x[order], mean, half, np.array([each.count for each in found]), tests=x[order])


def _difference_panel(name: str, effect: Effect, time_to: float) -> Panel:
    shown = [level for level in effect.levels if level.difference is not None and level.difference.count]
    if not shown:
        return nothing(f"{effect.factor.name}: no two runs are a pair.")
    if all(effect.as_good_as_best()):
        return nothing(f"{effect.factor.name}: no difference between its values.")
    best, (scale, unit) = effect.levels[effect.best].label, (1.0, "s") if time_to else (100.0, "points")
    what = f"time to {100.0 * time_to:g} % (s)" if time_to else "final test accuracy (points)"
    rows = [(scale * each.difference.mean, scale * each.difference.half) for each in shown if each.difference]
    return Panel(
        name,
        f"Difference to the best value of {effect.factor.name}",
        f"To {best}, over pairs of runs. Bar: 95 % interval; one that reaches 0 leaves open which is better.",
        "; ".join(f"{each.label} {mean:+.2f} {unit}" for each, (mean, _) in zip(shown, rows, strict=True)) + ".",
        lambda: draw.differences(
            f"{what} less that of\n{draw.printed(cut(best, 48))}",
            [each.label for each in shown],
            rows,
            draw.looks(len(shown)),
        ),
    )


def _line_panel(
    name: str, factor: Factor, curves: Mapping[str, Curve], num_seeds: int, time_to: float, by: str = ""
) -> Panel:
    """Final accuracy, or the time to an accuracy, along the values of a setting, a curve for each label."""
    known = {label: curve for label, curve in curves.items() if np.isfinite(curve.mean).any()}
    if not known and time_to:
        return nothing(f"{factor.name}: no run that can be compared has reached {100.0 * time_to:g} %.")
    if not known:
        return nothing(f"{factor.name}: no run that can be compared has been tested.")
    what = f"Time to {100.0 * time_to:g} %" if time_to else "Final accuracy"
    best = "; ".join(f"{label} {_best_on(curve, time_to)}".strip() for label, curve in known.items())
    about = f"A curve for each value of {by}." if by else "Mean over all other settings."
    band = (
        f" Band: 95 % interval over {num_seeds} seeds."
        if num_seeds >= MIN_SEEDS and len(known) <= draw.MAX_BANDS
        else ""
    )
    return Panel(
        name,
        f"{what} along {factor.name}" + (f", by {by}" if by else ""),
        about + band,
        f"Best of each curve: {best}.",
        lambda: _lines(factor.name, known, time_to),
    )


def _best_on(curve: Curve, time_to: float) -> str:
    return human(float(np.nanmin(curve.mean)), "s", 3) if time_to else f"{100.0 * float(np.nanmax(curve.mean)):.3g} %"


def _lines(x_label: str, curves: Mapping[str, Curve], time_to: float) -> Figure:
    looks = draw.looks(len(curves))
    y_label = f"time to {100.0 * time_to:g} % (s)" if time_to else "final test accuracy"
    figure = draw.lines(x_label, y_label, list(curves.values()), looks, percent=not time_to, whole_bands=True)
    axes, x = figure.axes[0], next(iter(curves.values())).x
    if x[0] > 0.0 and x[-1] >= _LOG_FROM * x[0]:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(x) <= MAX_TICKS:
        labels = [f"{value:g}" for value in x]
        axes.set_xticks(x, labels if len(set(labels)) == len(x) else [f"{value:.12g}" for value in x])
    if len(curves) > 1:
        draw.legend(figure, dict(zip(curves, looks, strict=True)))
    return figure
