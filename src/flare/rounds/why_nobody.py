"""Why nobody was selected in a round, for its record and the log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flare.config.guard import Guard
from flare.rounds import air
from flare.rounds.base_station import BaseStation
from flare.rounds.plan import Plan
from flare.scheduling.nobody import Advice, Names, setting_names, why_nobody
from flare.text import plural


def why_nobody_sends(station: BaseStation, plan: Plan) -> str:
    """Why a plan has nobody who sends, in one sentence with the numbers, and what would help."""
    if station.air is not None:
        air_s = air.air_link(station.config.wireless, plan.seen).air_s(station.num_weights)
        return air.why_nobody(station.config, plan.problem, air_s)
    called = [str(device) for device in plan.seen.devices.tolist()]
    policy = station.config.scheduling.policy
    return why_nobody(plan.problem, policy, _names(station), called, _advice(station, plan))


def _names(station: BaseStation) -> Names:
    """The settings that would help; the size of an update is that of the model, of what the codec makes of it, or
    set."""
    due = setting_names(station.config.wireless).due
    if station.codes:
        return Names(payload="a smaller model, or another uplink.codec or uplink.bits", due=due)
    if station.config.run.payload == "model":
        return Names(payload="a smaller model, or uplink.codec", due=due)
    return Names(payload="wireless.payload_bits", due=due)


def _advice(station: BaseStation, plan: Plan) -> Advice:
    """What the advice depends on beside the problem."""
    share = plan.seen.compute_share
    if share is not None:
        share = np.where(plan.problem.tau == plan.seen.tau, share, math.nan)  # a method may have steps of its own
    return Advice(
        Guard.of(station.config.wireless.guard),
        compute_share=share,
        rate_is_told=plan.seen.rate_is_told,
    )


def nobody_reported(faults: Sequence[Mapping[str, Any]]) -> str:
    """Why there was nobody whom a policy could select; `faults` are those of nodes that were asked."""
    if not faults:
        return "no device reported what it can do; start some, or wait for them"
    reasons = {str(each.get("why", "")) for each in faults}
    first = min(reasons)
    more = f", and {plural(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
    return f"no device gave a sound report of what it can do ({first}{more}); the faults of the round say which"
