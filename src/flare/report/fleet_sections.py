"""What a report says of real nodes: their own tests of the model, and who was late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from flare.records.run import RunNumbers
from flare.report.curves import Curve, against_rounds
from flare.report.panels import Panel, Section, line_panel
from flare.report.run_figures import ROUND
from flare.report.run_groups import Group
from flare.types import Floats

SPREAD = "Mean over the nodes that tested the model, each counting once; band: one standard deviation over them."


def nodes_section(groups: Sequence[Group]) -> Section | None:
    """What nodes found and who was late; None where no run has either."""
    panels = [
        *_spread_panel(groups, "node-accuracy", "Accuracy on the nodes' own data", "accuracy (%)", "node_accuracy"),
        *_spread_panel(groups, "node-loss", "Loss on the nodes' own data", "loss", "node_loss"),
        *_late(groups),
    ]
    return Section("Nodes", "", panels) if panels else None


def _spread_panel(groups: Sequence[Group], name: str, title: str, label: str, quantity: str) -> list[Panel]:
    """What nodes found, with how far they are apart; none where no run has it."""
    curves = [_with_spread(group, _of_round(f"{quantity}_mean"), _of_round(f"{quantity}_std")) for group in groups]
    if not any(len(curve.x) for curve in curves):
        return []
    return [line_panel(name, title, SPREAD, (ROUND, label), groups, curves)]


def _with_spread(group: Group, mean: Callable[[RunNumbers], Floats], std: Callable[[RunNumbers], Floats]) -> Curve:
    """A mean over nodes with the spread over them as its band; both are means over the seeds."""
    return replace(against_rounds(group, mean), half=against_rounds(group, std).mean)


def _of_round(name: str) -> Callable[[RunNumbers], Floats]:
    return lambda run: run.of_round[name]


def _late(groups: Sequence[Group]) -> list[Panel]:
    """Which share of the devices missed the deadline; none where rounds did not end in real time."""
    if not any(np.isfinite(run.of_round["real_deadline_s"]).any() for group in groups for run in group.runs):
        return []
    return [
        line_panel(
            "late",
            "Devices that missed the deadline",
            "Of those that were selected: nothing was there when the deadline was over in real time. Mean over the "
            "seeds.",
            (ROUND, "share of the selected devices (%)"),
            groups,
            [against_rounds(group, _late_share) for group in groups],
        )
    ]


def _late_share(run: RunNumbers) -> Floats:
    """nan of a round in which nobody was selected."""
    return run.num_late / np.where(run.num_selected > 0, run.num_selected, np.nan)
