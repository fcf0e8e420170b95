"""The one algorithm of a round: what the devices report -> who sends -> what arrives -> the new model and the record.

A supplier, simulated or real, answers two questions: what do the devices report (`Observation`), and what is the next
arrival (`Arrivals.add`). The rest is here, once:

    plan = plan_round(station, state, seen)             # who sends, on how much bandwidth
    rules = local_rules(station, plan, gradients)       # what each of them is to do
    arrivals = Arrivals(station, state, plan, rules)
    arrivals.add(device, update)                        # as they come, one at a time
    state, record = arrivals.end()
"""

from flare.rounds.apply import Arrivals, untrained, with_newcomers, with_score
from flare.rounds.base_station import BaseStation
from flare.rounds.observation import Observation
from flare.rounds.plan import Plan, local_rules, plan_round
from flare.rounds.record import RoundRecord
from flare.rounds.state import RunState, RunStatus, first_state, wants_score

__all__ = [
    "Arrivals",
    "BaseStation",
    "Observation",
    "Plan",
    "RoundRecord",
    "RunState",
    "RunStatus",
    "first_state",
    "local_rules",
    "plan_round",
    "untrained",
    "wants_score",
    "with_newcomers",
    "with_score",
]
