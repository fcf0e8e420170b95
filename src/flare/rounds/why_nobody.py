"""Why nobody was selected in a round, for its record and the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flare.rounds import air
from flare.rounds.base_station import BaseStation
from flare.rounds.plan import Plan
from flare.scheduling.nobody import setting_names, why_nobody


def why_nobody_sends(station: BaseStation, plan: Plan) -> str:
    """Why a plan has nobody who sends, in one sentence with the numbers, and what would help."""
    if station.air is not None:
        air_s = air.air_link(station.config.wireless, plan.seen).air_s(station.num_weights)
        return air.why_nobody(station.config, plan.problem, air_s)
    called = [str(device) for device in plan.seen.devices.tolist()]
    names = setting_names(station.config.wireless)
    return why_nobody(plan.problem, station.config.scheduling.policy, names, called)


def nobody_reported(faults: Sequence[Mapping[str, Any]]) -> str:
    """Why there was nobody whom a policy could select; `faults` are those of nodes that were asked."""
    if not faults:
        return "no device reported what it can do; start some, or wait for them"
    reasons = {str(each.get("why", "")) for each in faults}
    first = min(reasons)
    more = f", and {len(reasons) - 1} other reasons" if len(reasons) > 1 else ""
    return f"no device gave a sound report of what it can do ({first}{more}); the faults of the round say which"
