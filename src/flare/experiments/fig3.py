"""Fig. 3: training loss on non-i.i.d. MNIST, K = 60, M = 20, uniform selection; three groups of devices do 12, 6 and 3
steps (fixed aggregation: all do 7)."""

from __future__ import annotations

from matplotlib.figure import Figure

from flare.experiments.claims import BEYOND, Claim, above, claim, paired
from flare.experiments.drawing import panels, plain, test_loss_by_rounds, train_loss_by_rounds, train_loss_by_seconds
from flare.experiments.entry import entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import final_test_loss, final_train_loss
from flare.experiments.settings import AMPLE_S, grid, setting
from flare.experiments.trial import Trial

PANEL = "non-i.i.d. MNIST, K = 60, M = 20"
FIXED_STEPS = 7
FLARE, FLEXIBLE = entry("flare", "random"), entry("fedavg", "random")
FIXED = entry("fedavg-fixed", "random", f"learning.options.fixed_steps={FIXED_STEPS}")
"""What the paper calls flexible and fixed aggregation."""


def trials(scale: Scale) -> list[Trial]:
    """Three ways to aggregate."""
    base = setting(
        "mnist",
        scale,
        "wireless.num_devices=60",
        f"wireless.deadline_s={AMPLE_S}",
        "wireless.tau_law=groups",
        "wireless.tau_values=[12, 6, 3]",
        "scheduling.policy=random",
        "scheduling.options.num_selected=20",
        "data.partition=shards",
    )
    return grid(scale, PANEL, base, (FLARE, FLEXIBLE, FIXED))


def claims(results: Results) -> list[Claim]:
    """FLARE lies below both, in the loss of the devices and in that of the global model."""
    made = []
    for name, measure, what, printed in (
        ("fig3-loss", final_train_loss, "training loss, mean of the last tenth of the rounds", "“dramatically”"),
        ("fig3-test-loss", final_test_loss, "test loss of the global model, last five tests", BEYOND),
    ):
        ours, tests = results.values(PANEL, FLARE.label, measure), []
        for other in (FLEXIBLE, FIXED):
            effect = paired(results.values(PANEL, other.label, measure), ours)
            tests.append(above(f"{FLARE.label} against {other.label}", effect))
        says = (
            f"{FLARE.full_name} ends with less loss than {FLEXIBLE.full_name} (flexible aggregation) and "
            f"{FIXED.full_name} (fixed aggregation, {FIXED_STEPS} steps)"
        )
        made.append(claim(name, says, tests, measure=f"{what}: how much less", paper=printed))
    return made


def draw(results: Results) -> dict[str, Figure]:
    """Loss against rounds and seconds, and the global model's."""
    kinds = {
        "fig3-rounds": (train_loss_by_rounds, "round", "training loss of the devices"),
        "fig3-seconds": (train_loss_by_seconds, "simulated seconds", "training loss of the devices"),
        "fig3-test-loss": (test_loss_by_rounds, "round", "test loss of the global model"),
    }
    return {
        name: panels(results, plain(results), curve, x_label=x, y_label=y, percent=False)
        for name, (curve, x, y) in kinds.items()
    }


EXPERIMENT = Experiment("fig3", "Fig. 3: training loss under three ways to aggregate", trials, claims, draw)
