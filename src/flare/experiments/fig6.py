"""Fig. 6: the policies on CIFAR-10, deadlines 1.5 and 5 s, i.i.d. and non-i.i.d.; and ours beside them."""

from __future__ import annotations

from matplotlib.figure import Figure

from flare.experiments import policies
from flare.experiments.claims import Claim
from flare.experiments.drawing import two_axes
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.trial import Trial

DATASET, DEADLINES_S = "cifar10", (1.5, 5.0)


def trials(scale: Scale) -> list[Trial]:
    """Eight lines in four panels."""
    return policies.trials(DATASET, DEADLINES_S, scale)


def claims(results: Results) -> list[Claim]:
    """What Section V-C says."""
    return policies.claims("fig6", DATASET, DEADLINES_S, results)


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against rounds and seconds."""
    return two_axes(results, "fig6", lambda panel: policies.lines(results, panel))


EXPERIMENT = Experiment("fig6", "Fig. 6: policies on CIFAR-10", trials, claims, draw)
