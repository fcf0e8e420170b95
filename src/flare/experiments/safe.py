"""Theory put to use: `safe` caps tau_bar by the condition on the step size, gamma "auto" weighs participation by 1 / L.

Each against the defaults (tau_bar mas, gamma 10) on non-i.i.d. MNIST, scheduled by Algorithm 1, at small and large
rates.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import DPI, points
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Measure, Results, Scale
from flare.experiments.measures import final_accuracy, mean_devices
from flare.experiments.settings import grid, rounds, setting
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

DEADLINE_S, ROUNDS = 1.0, 150
PANEL = "non-i.i.d. MNIST, 1 s"
RATES = (0.005, 0.02, 0.08, 0.32)
TAU_BAR, RATE, GAMMA = "learning.options.tau_bar", "learning.local_lr", "scheduling.gamma"


def _line(*changes: str) -> Entry:
    return entry("flare", "greedy", *changes, told_by=(TAU_BAR, GAMMA))


DEFAULT = _line()
LINES = {
    "default": DEFAULT,
    "tau-bar": _line(f"{TAU_BAR}=safe"),
    "auto": _line(f"{GAMMA}=auto"),
    "auto-lr": _line(f"{GAMMA}=auto-lr"),
}


def point(line: Entry, rate: float) -> Entry:
    """A point of a line."""
    return line.at(f"{RATE}={rate}", TAU_BAR, RATE, GAMMA)


def trials(scale: Scale) -> list[Trial]:
    """Every line at every rate."""
    base = setting(
        "mnist",
        scale,
        f"wireless.deadline_s={DEADLINE_S}",
        "data.partition=shards",
        rounds(scale, ROUNDS),
    )
    return grid(scale, PANEL, base, [point(line, rate) for line in LINES.values() for rate in RATES])


def claims(results: Results) -> list[Claim]:
    """Whether each helps, at the paper's rate and at the largest."""
    made = []
    for name, line in list(LINES.items())[1:]:
        for rate, word in ((RATES[0], "paper's"), (RATES[-1], "largest")):
            values = [results.values(PANEL, point(one, rate).label, final_accuracy) for one in (line, DEFAULT)]
            made.append(
                claim(
                    f"safe-{name}-at-{rate:g}",
                    f"{line.label}, ends above {DEFAULT.full_name} at the {word} rate, {rate:g}",
                    [above(f"rate {rate:g}", paired(values[0], values[1], 100.0))],
                    measure="final test accuracy, points",
                    paper=BEYOND,
                )
            )
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Final accuracy and devices a round against the local rate."""
    figure = Figure(figsize=(7.1, 3.1), layout="constrained", dpi=DPI)
    kinds: tuple[tuple[str, Measure, float], ...] = (
        ("final test accuracy", final_accuracy, 100.0),
        ("devices a round", mean_devices, 1.0),
    )
    drawn = {}
    for place, (name, measure, scale) in enumerate(kinds):
        axes = figure.add_subplot(1, 2, place + 1)
        table = {
            line.full_name: [
                [scale * v for v in results.values(PANEL, point(line, rate).label, measure)] for rate in RATES
            ]
            for line in LINES.values()
        }
        drawn = points(axes, RATES, table)
        axes.set_xscale("log", base=2)
        axes.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axes.set(xlabel="local rate", ylabel=name, ylim=(0.0, 100.0 if place == 0 else None))
        if place == 0:
            axes.yaxis.set_major_formatter(PercentFormatter(100.0))
        axes.grid(color=FAINT, linewidth=0.5)
    legend(figure, drawn)
    return {"safe": figure}


EXPERIMENT = Experiment("safe", "Theory put to use: safe and gamma auto", trials, claims, draw)
