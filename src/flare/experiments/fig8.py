"""Fig. 8: the best accuracy within 300 simulated seconds on MNIST, deadlines from 0.4 to 2 s."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.claims import Claim, above, claim, effect_of, paired, within
from flare.experiments.drawing import DPI, points, title_of
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import best_by
from flare.experiments.settings import DISTRIBUTIONS, over_seeds, setting
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

DEADLINES_S = (0.4, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0)
SECONDS = 300.0
TESTS = 20
"""Times, evenly spaced, at which a line is looked at: as many for every deadline, or the best would favour some."""
SPF, SP = entry("flare", "greedy"), entry("fedavg", "greedy")
LINES = (SPF, SP, entry("flare", "exact"))
BOTH = f"{SPF.full_name} and {SP.full_name}"
CONSISTENT = 1.0
"""Percentage points within which we call accuracies consistent."""


QUICK_SECONDS = 6.0


def seconds(scale: Scale) -> float:
    """How long a run lasts, simulated."""
    return QUICK_SECONDS if scale.quick else SECONDS


def point(line: Entry, deadline_s: float) -> Entry:
    """A point of a line."""
    return line.at(f"wireless.deadline_s={deadline_s}")


def trials(scale: Scale) -> list[Trial]:
    """Three lines over seven deadlines, for both distributions; tested twenty times and more."""
    made = []
    for distribution, partition in DISTRIBUTIONS.items():
        for line in LINES:
            for deadline in DEADLINES_S:
                one = point(line, deadline)
                config = setting(
                    "mnist",
                    scale,
                    f"data.partition={partition}",
                    "run.rounds=100000",
                    f"run.seconds={seconds(scale)}",
                    f"run.evaluate_every={max(1, round(seconds(scale) / TESTS / deadline))}",
                    *one.changes,
                )
                made += over_seeds(scale, f"{distribution} MNIST", one.label, config)
    return made


def _best(results: Results, at: str, line: Entry) -> list[list[float]]:
    """Best accuracies in percent: for each deadline, one a seed."""
    times_s = np.linspace(0.0, seconds(results.scale), TESTS + 1)[1:]
    measure = partial(best_by, times_s=times_s)
    return [[100.0 * v for v in results.values(at, point(line, d).label, measure)] for d in DEADLINES_S]


def claims(results: Results) -> list[Claim]:
    """What the end of Section V-C says, for FLARE and FedAvg with Algorithm 1."""
    even, uneven = results.panels
    falling, near, flat = [], [], []
    for line in (SPF, SP):
        table = np.array(_best(results, even, line))  # (deadlines, seeds)
        slopes = np.polyfit(DEADLINES_S, table, 1)[0]
        falling.append(above(f"{line.label}: fall for each second of deadline", effect_of(-slopes)))
        table = np.array(_best(results, uneven, line))
        at = DEADLINES_S.index(0.6)
        near += [
            above(f"{line.label}: 0.6 s over {d:g} s", paired(table[at], table[k]))
            for k, d in enumerate(DEADLINES_S)
            if k != at
        ]
        later = table[at + 1 :]
        flat.append(
            within(f"{line.label}: best less worst deadline above 0.6 s", effect_of(_range(later)), -np.inf, CONSISTENT)
        )
    return [
        claim("fig8-iid-falls", f"{BOTH}: i.i.d. accuracy falls with the deadline", falling, measure="points a second"),
        claim(
            "fig8-best-at-0.6",
            f"{BOTH}: on non-i.i.d. data the best deadline is 0.6 s",
            near,
            measure="best test accuracy, points",
            paper="0.6 s",
            depends="the channel's reference gain and the value of gamma, which the paper does not tell",
        ),
        claim(
            "fig8-consistent",
            f"{BOTH}: above 0.6 s the accuracy on non-i.i.d. data stays within {CONSISTENT:g} point",
            flat,
            measure="spread over deadlines, points",
            depends="what is consistent: our threshold",
        ),
    ]


def _range(table: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    """For each seed, the accuracy at the deadline that is best on average less that at the worst."""
    means = table.mean(axis=1)
    return list(table[means.argmax()] - table[means.argmin()])


def draw(results: Results) -> dict[str, Figure]:
    """Best accuracy against the deadline."""
    figure = Figure(figsize=(7.1, 3.1), layout="constrained", dpi=DPI)
    drawn = {}
    for place, at in enumerate(results.panels):
        axes = figure.add_subplot(1, 2, place + 1)
        drawn = points(axes, DEADLINES_S, {line.full_name: _best(results, at, line) for line in LINES}, spread=0.012)
        axes.set_title(title_of(results, at), fontsize=9.5)
        axes.set(xlabel="deadline, s", ylabel=f"best accuracy within {seconds(results.scale):g} s")
        axes.yaxis.set_major_formatter(PercentFormatter(100.0))
        axes.grid(color=FAINT, linewidth=0.5)
    legend(figure, drawn)
    return {"fig8": figure}


EXPERIMENT = Experiment("fig8", "Fig. 8: best accuracy within 300 s against the deadline", trials, claims, draw)
