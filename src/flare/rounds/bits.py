"""`uplink.bits = "auto"`: the base station chooses with the schedule how many bits a weight each device sends.

What is minimised is P2's objective with the noise of the codec (docs/theory.md, "Coded updates"). Three numbers of it
are no measurements here, and the manifest of a run says so:

    w_b     the codec's noise, that of independent normal entries
    g_i     |grad f_i|^2 / sigma^2 is taken for 1, a guess
    p       L tau_bar eta_l with the largest tau_bar of the round where L is known (`gamma = "auto"`, say), at most
            0.58; and 0.58, the most for which the bound is proven, where L is not known
"""

from __future__ import annotations

from typing import Any

from flare.rounds.base_station import BaseStation
from flare.scheduling import RoundProblem, Schedule, coding_noise, solve_with_bits
from flare.scheduling.bits_choice import NOBODY
from flare.theory.conditions import STEP_LIMIT
from flare.types import Indices
from flare.uplink.choices import normal_noise, payload_bits

GRADIENT_SQ = 1.0
"""g_i, for every device."""


def schedule_with_bits(station: BaseStation, problem: RoundProblem) -> tuple[Schedule, Indices]:
    """Who sends, proven best, and for each of them, in their order, which of `station.codecs` codes its update."""
    codecs = station.codecs
    noise = coding_noise(
        normal_noise(codecs, station.num_weights), problem.tau, reach=reach(station, problem), gradient_sq=GRADIENT_SQ
    )
    sizes = station.method.uplink_models * payload_bits(codecs, station.num_weights)
    limit = {"time_limit_s": own} if (own := station.policy_options.get("time_limit_s")) is not None else {}
    answer = solve_with_bits(problem, sizes, noise, **limit)
    chosen = answer.choice[answer.schedule.selected]
    assert (chosen != NOBODY).all()
    return answer.schedule, chosen


def reach(station: BaseStation, problem: RoundProblem) -> float:
    """p = L tau_bar eta_l of the largest tau_bar, at most what the bound is proven for; that where L is not known."""
    if station.smoothness is None:
        return STEP_LIMIT
    tau_bar = min(float(problem.tau.max()), station.tau_bar_limit)
    return min(STEP_LIMIT, station.smoothness * tau_bar * station.config.learning.local_lr)


def facts_of_bits(station: BaseStation) -> dict[str, Any]:
    """What the choice rests on, for the manifest of a run; nothing where there is none."""
    if not station.codecs:
        return {}
    model = {
        "bits": [codec.bits_per_weight for codec in station.codecs],
        "noise": "of independent normal entries, not measured",
        "gradient_sq": f"{GRADIENT_SQ:g}, a guess",
        "reach": f"{STEP_LIMIT:g}, as L is not known" if station.smoothness is None else "from L at the start",
    }
    return {"model_of_bits": model}
