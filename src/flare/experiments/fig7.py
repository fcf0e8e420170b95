"""Fig. 7: devices a round and local updates a device under each policy, deadline 2 s. Nothing is trained: who sends
does not depend on what is learned."""

from __future__ import annotations

from matplotlib.figure import Figure

from flare.config import override
from flare.experiments.claims import Claim, above, claim, paired
from flare.experiments.drawing import DPI, bars, title_of
from flare.experiments.entry import entry
from flare.experiments.experiment import Experiment, Measure, Results, Scale
from flare.experiments.measures import mean_devices, mean_tau
from flare.experiments.settings import NAMES, over_seeds, setting
from flare.experiments.trial import Trial
from flare.report.figures import BLUE, ORANGE

DEADLINE_S = 2.0
LINES = tuple(entry("fedavg", policy) for policy in ("greedy", "exact", "ps", "cp", "dm", "cm"))
OURS, _, *RIVALS = LINES
"""What the paper says is best, and its rivals; with FLARE the same devices send."""
ENOUGH = 0.5
"""The share of the devices of the policy with the most that we call enough."""
GAMMA_ENOUGH = 30.0
"""From about this gamma on policy `greedy` has enough devices on MNIST too: at 20 it is not decided (five seeds)."""


def trials(scale: Scale) -> list[Trial]:
    """Six policies on the cells of both data sets; `ps` with the number of devices tuned on the cell."""
    made = []
    for dataset, name in NAMES.items():
        base = setting(dataset, scale, f"wireless.deadline_s={DEADLINE_S}", "data.partition=shards")
        for line in LINES:
            one = override(base, line.changes)
            made += over_seeds(scale, f"non-i.i.d. {name}", line.label, one, plan_only=True)
    return made


def claims(results: Results) -> list[Claim]:
    """Most local updates, and enough devices."""
    most, enough = [], []
    for at in results.panels:
        tau, devices = (
            {line.label: results.values(at, line.label, measure) for line in LINES}
            for measure in (mean_tau, mean_devices)
        )
        rivals = [line.label for line in RIVALS]
        most += [above(f"{OURS.label} over {r}, {at}", paired(tau[OURS.label], tau[r])) for r in rivals]
        largest = max(rivals, key=lambda rival: sum(devices[rival]))
        share = [ENOUGH * value for value in devices[largest]]
        enough.append(above(f"{OURS.label} against half of {largest}, {at}", paired(devices[OURS.label], share)))
    says = f"{OURS.full_name} does the most local updates a device"
    return [
        claim("fig7-updates", says, most, measure="mean updates a device"),
        claim(
            "fig7-devices",
            f"{OURS.full_name} keeps a sufficient number of devices (at least half of the rival with the most)",
            enough,
            measure="devices a round above that",
            depends=f"gamma (fails at 10, holds from about {GAMMA_ENOUGH:g}) and on what is sufficient, our threshold",
        ),
    ]


def draw(results: Results) -> dict[str, Figure]:
    """Bars of both numbers for both data sets."""
    figure = Figure(figsize=(7.1, 4.4), layout="constrained", dpi=DPI)
    kinds: tuple[tuple[str, Measure, str], ...] = (
        ("devices a round", mean_devices, BLUE),
        ("local updates a device", mean_tau, ORANGE),
    )
    for row, at in enumerate(results.panels):
        labels = [line.full_name for line in LINES]
        for column, (name, measure, colour) in enumerate(kinds):
            axes = figure.add_subplot(2, 2, 2 * row + column + 1)
            bars(axes, labels, [results.values(at, line.label, measure) for line in LINES], colour)
            axes.set_title(title_of(results, at), fontsize=9.5)
            axes.set_xlabel(name)
    return {"fig7": figure}


EXPERIMENT = Experiment("fig7", "Fig. 7: devices a round and local updates a device", trials, claims, draw)
