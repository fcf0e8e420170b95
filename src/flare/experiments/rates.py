"""The fair comparison: MaS also simply takes larger steps. Each method over a range of local rates, at its own best.

The setting is that of Fig. 4 with uniform selection. `fedavg` does the tau_i steps of each device, as everyone here;
`fednova` has the same reference number of steps as `flare` (tau_eff, tau_bar).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import DPI, mean_of, points, title_of
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.fig4 import curve_of, panel
from flare.experiments.measures import final_accuracy
from flare.experiments.settings import DISTRIBUTIONS, grid, rounds, ten_of_forty
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
_TAU_EFF = "learning.options.tau_eff"
MAS, MES = curve_of("mas", "random"), curve_of("mes", "random")
FEDAVG = curve_of("fedavg", "random")
NOVA_MAS = entry("fednova", "random", f"{_TAU_EFF}=mas", told_by=(_TAU_EFF,))
NOVA_MES = entry("fednova", "random", told_by=(_TAU_EFF,))  # the mean is FedNova's default
METHODS = (MAS, MES, FEDAVG, NOVA_MAS, NOVA_MES)
ROUNDS = 200


def point(method: Entry, rate: float) -> Entry:
    """A point of a line."""
    return method.at(f"learning.local_lr={rate}")


def trials(scale: Scale) -> list[Trial]:
    """Every method at every rate, for both distributions."""
    made = []
    for distribution, partition in DISTRIBUTIONS.items():
        base = ten_of_forty(scale, partition, "random", rounds(scale, ROUNDS))
        curves = [point(method, rate) for method in METHODS for rate in RATES]
        made += grid(scale, panel(distribution, "random"), base, curves)
    return made


def best_rate(results: Results, at: str, method: Entry) -> float:
    """The rate with the best mean final accuracy."""
    return max(RATES, key=lambda rate: mean_of(results, at, point(method, rate).label, final_accuracy))


def diverges_at(results: Results, at: str, method: Entry) -> float:
    """The least rate at which a run of the method diverges or ends no better than twice guessing; nan for none."""
    for rate in RATES:
        runs = results.runs(at, point(method, rate).label)
        if any(run.diverged or final_accuracy(run) < 2.0 / run.num_classes for run in runs):
            return rate
    return float("nan")


PAIRS = ((MAS, FEDAVG), (MAS, NOVA_MAS), (MAS, NOVA_MES), (MES, FEDAVG), (MES, NOVA_MES))
"""Who is compared with whom, each at its best rate."""
_SHORT = {MAS: "mas", MES: "mes", FEDAVG: "fedavg", NOVA_MAS: "fednova-max", NOVA_MES: "fednova-mean"}


def claims(results: Results) -> list[Claim]:
    """What remains of the gain when everyone has its own best rate."""
    return [_claim(results, at, ours, rival) for at in results.panels for ours, rival in PAIRS]


def _claim(results: Results, at: str, ours: Entry, rival: Entry) -> Claim:
    values = [results.values(at, point(m, best_rate(results, at, m)).label, final_accuracy) for m in (ours, rival)]
    distribution = at.split(" MNIST")[0]
    return claim(
        f"rates-{_SHORT[ours]}-over-{_SHORT[rival]}-{distribution.replace('.', '')}",
        f"{ours.full_name}, ends above {rival.full_name} on {distribution} data when each has its best local rate",
        [above(f"{ours.label} over {rival.label}, {at}", paired(values[0], values[1], 100.0))],
        measure="final test accuracy, points",
        paper=BEYOND,
    )


def rows(results: Results) -> list[tuple[str, str, float, float, float]]:
    """For each panel and method: its best rate, the accuracy there (percent), the least rate at which it breaks."""
    made = []
    for at in results.panels:
        for method in METHODS:
            rate = best_rate(results, at, method)
            accuracy = 100.0 * mean_of(results, at, point(method, rate).label, final_accuracy)
            made.append((at, method.full_name, rate, accuracy, diverges_at(results, at, method)))
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Final accuracy against the local rate."""
    figure = Figure(figsize=(7.1, 3.2), layout="constrained", dpi=DPI)
    drawn = {}
    for place, at in enumerate(results.panels):
        axes = figure.add_subplot(1, 2, place + 1)
        table = {
            m.full_name: [
                [100.0 * v for v in results.values(at, point(m, rate).label, final_accuracy)] for rate in RATES
            ]
            for m in METHODS
        }
        drawn = points(axes, RATES, table)
        axes.set_xscale("log", base=2)
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES], rotation=45, fontsize=7.5)
        axes.axvline(0.005, color=FAINT, zorder=0)
        axes.set_title(title_of(results, at), fontsize=9.5)
        axes.set(xlabel="local rate (the paper's: 0.005)", ylabel="final test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(100.0))
        axes.grid(color=FAINT, linewidth=0.5)
        top = max(float(np.mean(row)) for rows in table.values() for row in rows)
        axes.set_ylim(0.0, min(100.0, top + 3.0))
    legend(figure, drawn)
    return {"rates": figure}


EXPERIMENT = Experiment("rates", "The fair comparison: every method at its own best rate", trials, claims, draw)
