"""Fig. 5: the policies on MNIST, deadlines 0.4 and 1 s, i.i.d. and non-i.i.d.; and ours beside them."""

from __future__ import annotations

from matplotlib.figure import Figure

from flare.experiments import policies
from flare.experiments.claims import Claim
from flare.experiments.drawing import two_axes
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.trial import Trial

DATASET, DEADLINES_S = "mnist", (0.4, 1.0)


def trials(scale: Scale) -> list[Trial]:
    """Eight lines in four panels."""
    return policies.trials(DATASET, DEADLINES_S, scale)


def claims(results: Results) -> list[Claim]:
    """What Section V-C says."""
    return policies.claims("fig5", DATASET, DEADLINES_S, results)


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against rounds and seconds."""
    return two_axes(results, "fig5", lambda panel: policies.lines(results, panel))


EXPERIMENT = Experiment("fig5", "Fig. 5: policies on MNIST", trials, claims, draw)
