"""Algorithm 1 against the proven optimum of P2: how far above it lies, over gamma and the deadline. Nothing is trained;
what the gap is worth in accuracy is in Figs. 5, 6 and 8."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.config import override
from flare.experiments.claims import BEYOND, Claim, above, claim, effect_of
from flare.experiments.drawing import DPI, points
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Measure, Results, Scale
from flare.experiments.measures import mean_devices, mean_gap, mean_tau
from flare.experiments.settings import over_seeds, rounds, setting
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

GAMMAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
DEADLINES_S = (0.4, 1.0, 2.0)
GREEDY, EXACT = LINES = (entry("flare", "greedy"), entry("flare", "exact"))


def point(line: Entry, gamma: float) -> Entry:
    """A point of a line."""
    return line.at(f"scheduling.gamma={gamma}")


def panel(deadline_s: float) -> str:
    """The name of a panel."""
    return f"MNIST cell, {deadline_s:g} s"


def trials(scale: Scale) -> list[Trial]:
    """Both policies at every deadline and gamma, with the bound proven every round."""
    made = []
    for deadline in DEADLINES_S:
        base = setting("mnist", scale, f"wireless.deadline_s={deadline}", "scheduling.bound=true", rounds(scale, 100))
        for one in [point(line, gamma) for line in LINES for gamma in GAMMAS]:
            made += over_seeds(scale, panel(deadline), one.label, override(base, one.changes), plan_only=True)
    return made


def claims(results: Results) -> list[Claim]:
    """The gap is there at the default gamma, and ours is none."""
    tests = [
        above(at, effect_of([100.0 * v for v in results.values(at, point(GREEDY, 10.0).label, mean_gap)]))
        for at in results.panels
    ]
    ours = max(
        float(np.max(results.values(at, point(EXACT, gamma).label, mean_gap)))
        for at in results.panels
        for gamma in GAMMAS
    )
    if ours > 1e-6:
        raise ValueError(f"the exact schedules lie {ours:.2g} above their bound: they are not proven")
    says = f"{GREEDY.full_name}, whose schedules are Algorithm 1's, lies above the optimum of P2 at gamma 10"
    return [claim("gap-greedy", says, tests, measure="objective above the optimum, per cent", paper=BEYOND)]


def draw(results: Results) -> dict[str, Figure]:
    """The gap, the devices a round and their steps against gamma."""
    figure = Figure(figsize=(9.2, 3.0), layout="constrained", dpi=DPI)
    axes = figure.add_subplot(1, 3, 1)
    gaps = {
        f"{d:g} s": [[100.0 * v for v in results.values(panel(d), point(GREEDY, g).label, mean_gap)] for g in GAMMAS]
        for d in DEADLINES_S
    }
    drawn = points(axes, GAMMAS, gaps)
    axes.set(xscale="log", xlabel="gamma", ylabel=f"objective of {GREEDY.full_name}\nabove the optimum of P2")
    axes.yaxis.set_major_formatter(PercentFormatter(100.0))
    axes.grid(color=FAINT, linewidth=0.5)
    axes.legend(
        handles=axes.containers, labels=[f"deadline {label}" for label in drawn], fontsize=7.5, loc="upper left"
    )
    drawn = {}
    kinds: tuple[tuple[str, Measure], ...] = (("devices a round", mean_devices), ("local steps a device", mean_tau))
    for place, (name, measure) in enumerate(kinds):
        axes = figure.add_subplot(1, 3, place + 2)
        table = {
            line.full_name: [results.values(panel(1.0), point(line, g).label, measure) for g in GAMMAS]
            for line in LINES
        }
        drawn = points(axes, GAMMAS, table)
        axes.set(xscale="log", xlabel="gamma", ylabel=name, ylim=(0.0, None))
        axes.set_title("deadline 1 s", fontsize=9.5)
        axes.grid(color=FAINT, linewidth=0.5)
    legend(figure, drawn)
    return {"gap": figure}


EXPERIMENT = Experiment("gap", "Algorithm 1 against the optimum of P2", trials, claims, draw)
