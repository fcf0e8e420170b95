"""FedProx, FedNova, SCAFFOLD and FedLin in the setting of Fig. 4, with what they send and compute on the clock.

Everyone does the tau_i steps of each device, `fedavg` too.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import plain, two_axes
from flare.experiments.entry import entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.fig4 import panel
from flare.experiments.measures import final_accuracy
from flare.experiments.settings import DISTRIBUTIONS, grid, rounds, ten_of_forty
from flare.experiments.trial import Trial

METHODS = {name: entry(name, "random") for name in ("flare", "fedavg", "fedprox", "fednova", "scaffold", "fedlin")}
ROUNDS = 200


def trials(scale: Scale) -> list[Trial]:
    """Six methods, both distributions, uniform selection."""
    made = []
    for distribution, partition in DISTRIBUTIONS.items():
        base = ten_of_forty(scale, partition, "random", rounds(scale, ROUNDS))
        made += grid(scale, panel(distribution, "random"), base, METHODS.values())
    return made


def claims(results: Results) -> list[Claim]:
    """FLARE against each at the paper's rate."""
    made, (ours, *rivals) = [], METHODS.values()
    for name, rival in zip(list(METHODS)[1:], rivals, strict=True):
        tests = []
        for at in results.panels:
            values = [results.values(at, method.label, final_accuracy) for method in (ours, rival)]
            tests.append(above(f"{at}", paired(values[0], values[1], 100.0)))
        says = f"{ours.full_name} at its local rate ends above {rival.full_name} after the same rounds"
        made.append(claim(f"rivals-{name}", says, tests, measure="final test accuracy, points", paper=BEYOND))
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against rounds and seconds."""
    return two_axes(results, "rivals", plain(results))


EXPERIMENT = Experiment("rivals", "Other methods in the setting of Fig. 4", trials, claims, draw)
