"""A round of a run: its problem from what the devices can do, and its schedule with a bound to measure it against."""

from __future__ import annotations

import math
from typing import Any

from flare.config import SchedulingConfig, WirelessConfig
from flare.rng import stream
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Memory, get_policy
from flare.scheduling.schedule import Schedule
from flare.scheduling.scheduler import solve
from flare.types import Floats
from flare.wireless.compute import compute_energy_j, compute_s


def work_problem(
    wireless: WirelessConfig,
    *,
    tau: Floats,
    cpu_hz: Floats,
    snr_hz: Floats,
    payload_bits: float,
    gamma: float,
    extra_steps: Floats | float = 0.0,
) -> tuple[RoundProblem, Floats]:
    """The problem of devices that do `tau` steps (and what costs as much as `extra_steps` more) on the band of the
    settings, and the energy that their computing takes, in joule, shape (devices,)."""
    work = (tau + extra_steps, wireless.cycles_per_sample, wireless.batch_size, cpu_hz)
    problem = RoundProblem(
        tau=tau,
        compute_s=compute_s(*work),
        snr_hz=snr_hz,
        payload_bits=payload_bits,
        total_bandwidth_hz=wireless.total_bandwidth_hz,
        deadline_s=wireless.deadline_s,
        gamma=gamma,
    )
    return problem, compute_energy_j(*work, wireless.capacitance)


def schedule_round(
    problem: RoundProblem,
    config: SchedulingConfig,
    *,
    seed: int,
    index: int,
    memory: Memory,
    options: dict[str, Any],
) -> tuple[Schedule, float]:
    """The schedule by the policy of the settings, which draws from the stream of the round, and a proven bound on the
    objective; nan where the policy proves none and the settings ask for none."""
    get_policy(config.policy).check_options(options)
    schedule = solve(problem, config.policy, rng=stream(seed, "policy", index), memory=memory, **options)
    bound = schedule.lower_bound
    if math.isnan(bound) and config.bound:
        bound = solve(problem, "exact").lower_bound
    return schedule, bound
