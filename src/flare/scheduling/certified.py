"""From what a policy chose to a schedule that is checked: who sends, what is proven of it, and what the policy said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.scheduling.answers import (
    checked_memory,
    checked_selection,
    checked_utility,
    of_selected,
    paid_before,
)
from flare.scheduling.bandwidth import Allocation
from flare.scheduling.explain import explain
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import POLICIES, Choice, Policy
from flare.scheduling.schedule import Schedule, Status
from flare.scheduling.utility_knapsack import best_utility
from flare.types import Indices
from flare.wireless.rate import upload_s


@dataclass(frozen=True)
class Picked:
    """The devices that shall send; their total utility and a bound on it, nan where the policy gave no utilities."""

    selected: Indices
    utility: float = math.nan
    utility_bound: float = math.nan


def picked_by(chosen: Policy, problem: RoundProblem, choice: Choice) -> Picked:
    """The devices that the policy named, or those of the greatest total utility."""
    if choice.utility is not None:
        best = best_utility(problem, checked_utility(chosen, problem, choice.utility))
        return Picked(best.selected, best.utility, best.bound)
    own_division = choice.bandwidth_hz is not None
    return Picked(checked_selection(chosen, problem, choice.selected, divided=own_division))


def certified(
    problem: RoundProblem, chosen: Policy, choice: Choice, picked: Picked, allocation: Allocation | None = None
) -> Schedule:
    """The schedule of the devices picked, among whom the band is divided by `allocation`; None: there are none."""
    schedule = Schedule(
        problem=problem,
        policy=chosen.name,
        utility=picked.utility,
        utility_bound=picked.utility_bound,
        memory=checked_memory(chosen, choice.memory, problem.num_devices),
        pilot_s=paid_before(chosen, choice, "pilot_s"),
        pilot_j=paid_before(chosen, choice, "pilot_j"),
        pilot_bits=paid_before(chosen, choice, "pilot_bits"),
        split_evenly=chosen.split_evenly,
        **(
            _nobody(problem, choice)
            if allocation is None
            else _senders(problem, chosen, choice, picked.selected, allocation)
        ),
    )
    if choice.proven and allocation is not None and not POLICIES.origin(chosen.name).built_in:
        _refuse_false_proof(schedule)
    return schedule


def _nobody(problem: RoundProblem, choice: Choice) -> dict[str, Any]:
    """What a schedule says where nobody sends."""
    return {
        "selected": np.zeros(0, dtype=np.intp),
        "bandwidth_hz": np.zeros(problem.num_devices),
        "latency_s": math.nan,
        "objective": math.inf,
        "lower_bound": choice.lower_bound if problem.possible else math.inf,
        "status": Status.INFEASIBLE,
    }


def _senders(
    problem: RoundProblem, chosen: Policy, choice: Choice, selected: Indices, allocation: Allocation
) -> dict[str, Any]:
    """What it says of those who send; ValueError where they are late, or the bound is none."""
    if chosen.split_evenly and _misses(problem, selected, allocation):
        raise ValueError(f"policy '{chosen.name}' chose devices that miss the deadline when the band is split evenly")
    bandwidth_hz = np.zeros(problem.num_devices)
    bandwidth_hz[selected] = allocation.bandwidth_hz
    objective = problem.objective(selected)
    if choice.lower_bound > objective * (1.0 + 1e-9):
        raise ValueError(
            f"policy '{chosen.name}' gave the lower bound {choice.lower_bound:g}, above the objective {objective:g} of "
            "its own devices: no bound of P2 can be"
        )
    return {
        "selected": selected,
        "bandwidth_hz": bandwidth_hz,
        "latency_s": min(allocation.latency_s, problem.deadline_s),  # the set fits: anything above is rounding
        "objective": objective,
        "lower_bound": objective if choice.proven else choice.lower_bound,
        "status": Status.OPTIMAL if choice.proven else Status.FEASIBLE,
        "band_residual": allocation.band_residual,
        "finish_spread": allocation.finish_spread,
        "weights": of_selected(chosen, choice, "weights"),
        "keep_total": bool(choice.keep_total),
        "error_rate": of_selected(chosen, choice, "error_rate", at_most=1.0),
    }


def _misses(problem: RoundProblem, selected: Indices, allocation: Allocation) -> bool:
    """Whether one of the devices is late on its bandwidth."""
    sending_s = upload_s(problem.payload_bits[selected], allocation.bandwidth_hz, problem.snr_hz[selected])
    due_s = problem.latest_s[selected]
    return bool((problem.compute_s[selected] + sending_s > due_s * (1.0 + 1e-12)).any())


def _refuse_false_proof(schedule: Schedule) -> None:
    """ValueError where one more device would better a schedule that a user's own policy calls proven optimal."""
    change = explain(schedule).objective_change
    better = np.flatnonzero(change < -1e-9 * schedule.objective)
    if better.size:
        raise ValueError(
            f"policy '{schedule.policy}' says proven=True, and with device {better[0]} beside its own the objective "
            f"would fall by {-change[better[0]]:.3g}; leave `proven` out where nothing proves that no others are better"
        )
