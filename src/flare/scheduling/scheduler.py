"""The one function that turns a problem into a schedule: it asks a policy, divides the band, checks and certifies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.scheduling.answers import as_choice, checked_memory, checked_selection, checked_utility
from flare.scheduling.bandwidth import even_split, optimal_split
from flare.scheduling.history import History
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, Memory, Policy, get_policy
from flare.scheduling.schedule import Schedule, Status
from flare.scheduling.utility_knapsack import best_utility
from flare.types import Indices


def solve(
    problem: RoundProblem,
    policy: str = "exact",
    *,
    rng: np.random.Generator | None = None,
    history: History | None = None,
    memory: Memory | None = None,
    max_devices: int | None = None,
    **options: Any,
) -> Schedule:
    """Schedule one round by the named policy.

    Parameters
    ----------
    problem : the round.
    policy : a name in `POLICIES`.
    rng : the random stream of policies that draw (`flare.rng.stream`); they refuse to run without.
    history : what is known of the devices from the rounds before, for policies that ask for it; None: nothing is.
    memory : `Schedule.memory` of the round before, for policies that remember; None (or {}) in the first round.
    max_devices : how many devices may send at most under a policy that gives utilities; None: as many as fit.
    options : options of the policy, such as `num_selected=10` for "ps" or `time_limit_s=1` for "exact".

    Returns a `Schedule` whose devices all finish by the deadline, or one of status INFEASIBLE. Raises ValueError for
    an unknown policy or option, and where a policy's answer is none, or its devices do not fit.
    """
    chosen = get_policy(policy)
    chosen.check_options(options)
    limit = _checked_limit(max_devices)
    arguments = options | _asked_for(chosen, problem, rng, history, memory)
    if limit is not None and "max_devices" in chosen.options:
        arguments["max_devices"] = limit
    choice = as_choice(chosen, chosen.function(problem, **arguments))
    picked = _picked(chosen, problem, choice, limit)
    if len(picked.selected) == 0:
        return _nobody(problem, chosen, choice, picked)
    return _certified(problem, chosen, choice, picked)


@dataclass(frozen=True)
class _Picked:
    """The devices that shall send; their total utility and a bound on it, nan where the policy gave no utilities."""

    selected: Indices
    utility: float = math.nan
    utility_bound: float = math.nan


def _picked(chosen: Policy, problem: RoundProblem, choice: Choice, max_devices: int | None) -> _Picked:
    """The devices that the policy named, or those of the greatest total utility."""
    if choice.utility is not None:
        utility = checked_utility(chosen, problem, choice.utility)
        best = best_utility(problem, utility, max_devices=max_devices)
        return _Picked(best.selected, best.utility, best.bound)
    if max_devices is not None and "max_devices" not in chosen.options:
        raise ValueError(
            f"max_devices is {max_devices}, and policy '{chosen.name}' names the devices itself: it has no such limit "
            f"(its options: {', '.join(chosen.options) or 'none'})"
        )
    return _Picked(checked_selection(chosen, problem, choice.selected))


def _certified(problem: RoundProblem, chosen: Policy, choice: Choice, picked: _Picked) -> Schedule:
    """Divide the band among the devices picked."""
    selected = picked.selected
    split = even_split if chosen.split_evenly else optimal_split
    allocation = split(
        problem.compute_s[selected], problem.snr_hz[selected], problem.payload_bits, problem.total_bandwidth_hz
    )
    if chosen.split_evenly and allocation.latency_s > problem.deadline_s * (1.0 + 1e-12):
        raise ValueError(f"policy '{chosen.name}' chose devices that miss the deadline when the band is split evenly")
    bandwidth_hz = np.zeros(problem.num_devices)
    bandwidth_hz[selected] = allocation.bandwidth_hz
    objective = problem.objective(selected)
    if not choice.proven and choice.lower_bound > objective * (1.0 + 1e-9):
        raise ValueError(
            f"policy '{chosen.name}' gave the lower bound {choice.lower_bound:g}, above the objective {objective:g} of "
            "its own devices: no bound of P2 can be"
        )
    return Schedule(
        selected=selected,
        bandwidth_hz=bandwidth_hz,
        latency_s=min(allocation.latency_s, problem.deadline_s),  # the set fits: anything above is rounding
        objective=objective,
        lower_bound=objective if choice.proven else choice.lower_bound,
        status=Status.OPTIMAL if choice.proven else Status.FEASIBLE,
        policy=chosen.name,
        band_residual=allocation.band_residual,
        finish_spread=allocation.finish_spread,
        utility=picked.utility,
        utility_bound=picked.utility_bound,
        memory=checked_memory(chosen, choice.memory, problem.num_devices),
    )


def _asked_for(
    chosen: Policy,
    problem: RoundProblem,
    rng: np.random.Generator | None,
    history: History | None,
    memory: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What the policy asks for by name, beside its options."""
    arguments: dict[str, Any] = {}
    if chosen.draws:
        if rng is None:
            raise ValueError(
                f"policy '{chosen.name}' draws at random: pass rng=flare.rng.stream(seed, 'policy', round)"
            )
        arguments["rng"] = rng
    if chosen.learns:
        known = History.empty(problem.num_devices) if history is None else history
        if known.num_devices != problem.num_devices:
            raise ValueError(
                f"the history is of {known.num_devices} devices, the round has {problem.num_devices}: pass the rows of "
                "the round's devices (`History.of`), or None where nothing is known"
            )
        arguments["history"] = known
    if chosen.remembers:
        arguments["memory"] = checked_memory(chosen, memory, problem.num_devices)
    return arguments


def _checked_limit(max_devices: Any) -> int | None:
    if max_devices is None:
        return None
    if isinstance(max_devices, bool) or not isinstance(max_devices, int | np.integer) or max_devices < 1:
        raise ValueError(f"max_devices is {max_devices!r:.80}; it must be a whole number of at least 1, or none")
    return int(max_devices)


def _nobody(problem: RoundProblem, chosen: Policy, choice: Choice, picked: _Picked) -> Schedule:
    nobody_can = problem.reachable.size == 0
    return Schedule(
        selected=np.zeros(0, dtype=np.intp),
        bandwidth_hz=np.zeros(problem.num_devices),
        latency_s=math.nan,
        objective=math.inf,
        lower_bound=math.inf if nobody_can else choice.lower_bound,
        status=Status.INFEASIBLE,
        policy=chosen.name,
        utility=picked.utility,
        utility_bound=picked.utility_bound,
        memory=checked_memory(chosen, choice.memory, problem.num_devices),
    )
