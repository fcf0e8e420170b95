"""The fair comparison: MaS also simply takes larger steps. Each method over a range of local rates, at its own best.

The setting is that of Fig. 4 with uniform selection. FedAvg does the tau_i steps of each device, as everyone here;
FedNova has the same reference number of steps as MaS or MeS.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import DPI, mean_of, points, title_of
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.fig4 import FEDAVG
from flare.experiments.measures import final_accuracy
from flare.experiments.settings import DISTRIBUTIONS, grid, rounds, ten_of_forty
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
METHODS: dict[str, tuple[str, ...]] = {
    "MaS": ("learning.method=flare",),
    "MeS": ("learning.method=flare", "learning.options.tau_bar=mes"),
    FEDAVG: ("learning.method=fedavg",),
    "FedNova (max)": ("learning.method=fednova", "learning.options.tau_eff=mas"),
    "FedNova (mean)": ("learning.method=fednova",),
}
ROUNDS = 200


def curve(method: str, rate: float) -> str:
    """The name of a point of a line."""
    return f"{method}, {rate:g}"


def trials(scale: Scale) -> list[Trial]:
    """Every method at every rate, for both distributions."""
    made = []
    for distribution, partition in DISTRIBUTIONS.items():
        base = ten_of_forty(scale, partition, "random", rounds(scale, ROUNDS))
        curves = [
            (curve(method, rate), (*changes, f"learning.local_lr={rate}"))
            for method, changes in METHODS.items()
            for rate in RATES
        ]
        made += grid(scale, f"{distribution} MNIST, uniform selection", base, curves)
    return made


def best_rate(results: Results, at: str, method: str) -> float:
    """The rate with the best mean final accuracy."""
    return max(RATES, key=lambda rate: mean_of(results, at, curve(method, rate), final_accuracy))


def diverges_at(results: Results, at: str, method: str) -> float:
    """The least rate at which a run of the method diverges or ends no better than twice guessing; nan for none."""
    for rate in RATES:
        runs = results.runs(at, curve(method, rate))
        if any(run.diverged or final_accuracy(run) < 2.0 / run.num_classes for run in runs):
            return rate
    return float("nan")


PAIRS = (
    ("MaS", FEDAVG),
    ("MaS", "FedNova (max)"),
    ("MaS", "FedNova (mean)"),
    ("MeS", FEDAVG),
    ("MeS", "FedNova (mean)"),
)
"""Who is compared with whom, each at its best rate."""


def claims(results: Results) -> list[Claim]:
    """What remains of the gain when everyone has its own best rate."""
    return [_claim(results, at, ours, rival) for at in results.panels for ours, rival in PAIRS]


def _claim(results: Results, at: str, ours: str, rival: str) -> Claim:
    values = [results.values(at, curve(m, best_rate(results, at, m)), final_accuracy) for m in (ours, rival)]
    distribution = at.split(" MNIST")[0]
    short = "fedavg" if rival == FEDAVG else rival.lower().replace(" (", "-").replace(")", "")
    return claim(
        f"rates-{ours.lower()}-over-{short}-{distribution.replace('.', '')}",
        f"{ours} ends above {rival} on {distribution} data when each has its best local rate",
        [above(f"{ours} over {rival}, {at}", paired(values[0], values[1], 100.0))],
        measure="final test accuracy, points",
        paper=BEYOND,
    )


def rows(results: Results) -> list[tuple[str, str, float, float, float]]:
    """For each panel and method: its best rate, the accuracy there (percent), the least rate at which it breaks."""
    made = []
    for at in results.panels:
        for method in METHODS:
            rate = best_rate(results, at, method)
            accuracy = 100.0 * mean_of(results, at, curve(method, rate), final_accuracy)
            made.append((at, method, rate, accuracy, diverges_at(results, at, method)))
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Final accuracy against the local rate."""
    figure = Figure(figsize=(7.1, 3.2), layout="constrained", dpi=DPI)
    drawn = {}
    for place, at in enumerate(results.panels):
        axes = figure.add_subplot(1, 2, place + 1)
        table = {
            m: [[100.0 * v for v in results.values(at, curve(m, rate), final_accuracy)] for rate in RATES]
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
