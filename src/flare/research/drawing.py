"""Curves of runs on matplotlib axes of the user's own: her style, her colours, nothing set that she did not ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.config import OTA
from flare.records.run import RunNumbers
from flare.report.curves import Curve, against_rounds, along
from flare.report.run_groups import Group, runs_of
from flare.research.quantities import AXES, get_axis, get_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND_ALPHA = 0.2


def draw_run(
    numbers: RunNumbers, quantity: str, x: str, ax: Any, label: str, style: dict[str, Any], *, legend: bool = True
) -> Axes:
    """One run as a line through the rounds that have a value; its axes."""
    values, axis = get_quantity(quantity).values(numbers), get_axis(x).values(numbers)
    _refuse_analog([numbers], x)
    known = np.isfinite(values) & np.isfinite(axis)
    axes = _axes(ax, [numbers], quantity, x)
    axes.plot(axis[known], values[known], **({"label": label} | style))
    _name_curves(axes, legend)
    return axes


def draw_groups(
    groups: Sequence[Group], quantity: str, x: str, ax: Any, band: bool, style: dict[str, Any], *, legend: bool = True
) -> Axes:
    """Of each group of seeds the mean, and the band of its 95 % interval, as far as half of its seeds go (`along` says
    where a curve begins and ends that is not against rounds); the axes."""
    curves = [_curve(group, quantity, x) for group in groups]
    runs = runs_of(groups)
    _refuse_analog(runs, x)
    axes = _axes(ax, runs, quantity, x)
    for group, curve in zip(groups, curves, strict=True):
        (line,) = axes.plot(curve.x, curve.mean, **({"label": group.label} | style))
        if band and np.isfinite(curve.half).any():
            low, high = np.clip([curve.low, curve.high], 0.0, get_quantity(quantity).max_value)
            axes.fill_between(curve.x, low, high, color=line.get_color(), alpha=_BAND_ALPHA, linewidth=0.0)
    _name_curves(axes, legend)
    return axes


def _refuse_analog(runs: Sequence[RunNumbers], x: str) -> None:
    """ValueError where runs are to be drawn against bits, and none of them sends any."""
    if x == "bits" and runs and all(run.config.uplink.air == OTA for run in runs):
        what = "the run sends" if len(runs) == 1 else "all runs send"
        others = ", ".join(f'"{name}"' for name in AXES if name != x)
        raise ValueError(f'x is "bits", but {what} over the air, analog and not in bits; take one of {others}')


def _name_curves(axes: Axes, legend: bool) -> None:
    """A legend where there is more than one curve with a name, those drawn before among them."""
    if legend and len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend()


def _curve(group: Group, quantity: str, x: str) -> Curve:
    values, axis, is_accuracy = get_quantity(quantity).values, get_axis(x).values, quantity == "accuracy"
    if x == "rounds":
        longest = max(1, *(run.num_rounds for run in group.runs))
        return against_rounds(group, values, longest, is_accuracy=is_accuracy)  # every round that has a value
    return along(group, axis, values, is_accuracy=is_accuracy)


def _axes(given: Any, runs: Sequence[RunNumbers], quantity: str, x: str) -> Axes:
    """The axes to draw on, new ones where none are given; what they say is left where it says something already."""
    from matplotlib import pyplot  # here, because it takes its time to import
    from matplotlib.ticker import MaxNLocator

    labels = {"xlabel": get_axis(x).label_of(runs), "ylabel": get_quantity(quantity).label_of(runs)}
    axes: Axes = given
    if axes is None:
        _, axes = pyplot.subplots(layout="constrained")  # no label is cut off, however small the figure
        if x == "rounds":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif not hasattr(axes, "plot") or not hasattr(axes, "fill_between"):
        raise ValueError(f"ax is a {type(given).__name__}; give matplotlib axes, or None for new ones")
    axes.set(**{name: text for name, text in labels.items() if not getattr(axes, f"get_{name}")()})
    return axes
