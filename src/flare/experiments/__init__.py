"""The paper put to the test: one file an experiment, with its grid of runs, its claims and its figure."""

from flare.experiments import (
    bounds,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    gap,
    rates,
    rivals,
    safe,
    sensitivity,
    systems,
    uplink,
)
from flare.experiments.experiment import Experiment

FIGURES = ("fig3", "fig4", "fig5", "fig6", "fig7", "fig8")
"""The figures of the paper."""
EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (fig3, fig4, fig5, fig6, fig7, fig8, rates, gap, rivals, sensitivity, bounds, safe, uplink, systems)
}
"""Every experiment by name: the figures, then what goes beyond the paper."""
