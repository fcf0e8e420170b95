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

_FIGURES = {one.EXPERIMENT.name: one.EXPERIMENT for one in (fig3, fig4, fig5, fig6, fig7, fig8)}
EXPERIMENTS: dict[str, Experiment] = {
    **_FIGURES,
    **{one.EXPERIMENT.name: one.EXPERIMENT for one in (rates, gap, rivals, sensitivity, bounds, safe, uplink)},
    **{one.name: one for one in systems.EXPERIMENTS},
}
"""Every experiment by name: the figures, then what goes beyond the paper."""
FIGURES = tuple(_FIGURES)
"""The figures of the paper."""
LOTS: dict[str, tuple[str, ...]] = {
    "all": FIGURES,
    "beyond": tuple(name for name in EXPERIMENTS if name not in FIGURES),
    "systems": tuple(one.name for one in systems.EXPERIMENTS),
}
"""Names that stand for several experiments."""
