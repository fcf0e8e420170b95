"""From what a cell drew to the question that its base station asks."""

from __future__ import annotations

from flare.scheduling.problem import RoundProblem
from flare.wireless.cell import CellRound


def round_problem(drawn: CellRound, *, gamma: float = 10.0) -> RoundProblem:
    """Problem P2 of a drawn round, with the band, the deadline (less its guard) and the payload of its cell; and, for
    pictures, where its devices stand."""
    return RoundProblem(
        tau=drawn.tau,
        compute_s=drawn.compute_s,
        snr_hz=drawn.snr_hz,
        payload_bits=drawn.config.payload_bits,
        total_bandwidth_hz=drawn.config.total_bandwidth_hz,
        deadline_s=drawn.config.usable_s,
        gamma=gamma,
        block_hz=drawn.config.block_hz or None,
        distance_m=drawn.distance_m,
        angle_rad=drawn.angle_rad,
    )
