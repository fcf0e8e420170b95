"""From what a cell drew to the question that its base station asks."""

from __future__ import annotations

from flare.config import WirelessConfig
from flare.scheduling.problem import RoundProblem
from flare.wireless.cell import CellRound


def round_problem(config: WirelessConfig, gamma: float, drawn: CellRound) -> RoundProblem:
    """Problem P2 of a drawn round."""
    return RoundProblem(
        tau=drawn.tau,
        compute_s=drawn.compute_s,
        snr_hz=drawn.snr_hz,
        payload_bits=config.payload_bits,
        total_bandwidth_hz=config.total_bandwidth_hz,
        deadline_s=config.deadline_s,
        gamma=gamma,
    )
