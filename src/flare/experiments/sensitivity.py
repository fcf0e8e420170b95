"""How FLARE and FedAvg, both with Algorithm 1, respond to what the paper leaves open or fixed: gamma, fading, label
shards, the number of devices."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import DPI, points
from flare.experiments.entry import entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import final_accuracy
from flare.experiments.settings import grid, rounds, setting
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import legend

DEADLINE_S, ROUNDS = 1.0, 150
_SHARDS = "data.partition=shards"
SPF, SP = entry("flare", "greedy", _SHARDS), entry("fedavg", "greedy", _SHARDS)
LINES = (SPF, SP, entry("flare", "exact", _SHARDS))
SWEEPS: dict[str, dict[str, str]] = {
    "gamma": {f"{g:g}": f"scheduling.gamma={g}" for g in (0.1, 1.0, 10.0, 100.0, 1000.0)},
    "fading": {name: f"wireless.fading={name}" for name in ("none", "rician", "rayleigh")},
    "label shards a device": {f"{n}": f"data.shards_per_device={n}" for n in (1, 2, 4, 8)},
    "devices, K": {f"{k}": f"wireless.num_devices={k}" for k in (20, 40, 80, 160)},
}


def trials(scale: Scale) -> list[Trial]:
    """Every line at every value of every sweep, on non-i.i.d. MNIST."""
    base = setting("mnist", scale, f"wireless.deadline_s={DEADLINE_S}", rounds(scale, ROUNDS))
    made = []
    for sweep, values in SWEEPS.items():
        made += grid(scale, sweep, base, [line.at(change) for line in LINES for change in values.values()])
    return made


def claims(results: Results) -> list[Claim]:
    """Whether FLARE stays above FedAvg wherever the choice falls."""
    made = []
    for sweep, values in SWEEPS.items():
        tests = []
        for value, change in values.items():
            pair = [results.values(sweep, line.at(change).label, final_accuracy) for line in (SPF, SP)]
            tests.append(above(f"{sweep} {value}", paired(pair[0], pair[1], 100.0)))
        says = f"{SPF.full_name} ends above {SP.full_name} whatever the {sweep}"
        name = f"sensitivity-{sweep.split(',')[0].replace(' ', '-')}"
        made.append(claim(name, says, tests, measure="final test accuracy, points", paper=BEYOND))
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Final accuracy along each sweep."""
    figure = Figure(figsize=(7.1, 5.0), layout="constrained", dpi=DPI)
    drawn = {}
    for place, (sweep, values) in enumerate(SWEEPS.items()):
        axes = figure.add_subplot(2, 2, place + 1)
        changes = values.values()
        table = {
            line.full_name: [
                [100.0 * v for v in results.values(sweep, line.at(c).label, final_accuracy)] for c in changes
            ]
            for line in LINES
        }
        drawn = points(axes, range(len(values)), table, spread=0.06)
        axes.set_xticks(range(len(values)), list(values))
        axes.set(xlabel=sweep, ylabel="final test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(100.0))
        axes.grid(color=FAINT, linewidth=0.5)
    legend(figure, drawn)
    return {"sensitivity": figure}


EXPERIMENT = Experiment("sensitivity", "Sensitivity to gamma, fading, shards and K", trials, claims, draw)
