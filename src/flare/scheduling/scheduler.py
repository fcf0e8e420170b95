"""The one function that turns a problem into a schedule: it asks a policy, divides the band, checks and certifies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling.bandwidth import even_split, optimal_split
from flare.scheduling.policy_options import checked_options
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, Policy, get_policy
from flare.scheduling.schedule import Schedule, Status
from flare.types import Floats, Indices


def solve(
    problem: RoundProblem,
    policy: str = "exact",
    *,
    rng: np.random.Generator | None = None,
    memory: Floats | None = None,
    **options: Any,
) -> Schedule:
    """Schedule one round by the named policy.

    Parameters
    ----------
    problem : the round.
    policy : a name in `POLICIES`.
    rng : the random stream of policies that draw (`flare.rng.stream`); they refuse to run without.
    memory : `Schedule.memory` of the round before, for policies that remember; None in the first round.
    options : options of the policy, such as `num_selected=10` for "ps" or `time_limit_s=1` for "exact".

    Returns a `Schedule` whose devices all finish by the deadline, or one of status INFEASIBLE. Raises ValueError for
    an unknown policy or option, and where a policy's devices do not fit.
    """
    chosen = get_policy(policy)
    arguments = _arguments(chosen, problem, rng, memory, options)
    answer = chosen.function(problem, **arguments)
    choice = answer if isinstance(answer, Choice) else Choice(answer)
    selected = _checked_selection(chosen, problem, choice.selected)
    if len(selected) == 0:
        return _nobody(problem, chosen, choice)
    split = even_split if chosen.split_evenly else optimal_split
    allocation = split(
        problem.compute_s[selected], problem.snr_hz[selected], problem.payload_bits, problem.total_bandwidth_hz
    )
    if chosen.split_evenly and allocation.latency_s > problem.deadline_s * (1.0 + 1e-12):
        raise ValueError(f"policy '{policy}' chose devices that miss the deadline when the band is split evenly")
    bandwidth_hz = np.zeros(problem.num_devices)
    bandwidth_hz[selected] = allocation.bandwidth_hz
    objective = problem.objective(selected)
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
        memory=choice.memory,
    )


def admit(
    problem: RoundProblem, order: Iterable[int], *, most: int | None = None, stop_at_first: bool = False
) -> Indices:
    """Go through the devices in `order` and take each one that still fits before the deadline, up to `most` of them.

    With `stop_at_first` the walk ends at the first device that does not fit; devices that could not meet the
    deadline even alone are passed over in either case.
    """
    taken: list[int] = []
    used_hz = 0.0
    needed, capacity = problem.needed_hz.tolist(), problem.capacity_hz
    limit = problem.num_devices if most is None else most
    for device in order:
        if len(taken) >= limit:
            break
        if needed[device] > capacity:
            continue
        if used_hz + needed[device] <= capacity:
            taken.append(int(device))
            used_hz += needed[device]
        elif stop_at_first:
            break
    while taken and not problem.fits(np.array(taken)):  # a running sum may round the other way than the exact one
        taken.pop()
    return np.array(taken, dtype=np.intp)


def _arguments(
    chosen: Policy,
    problem: RoundProblem,
    rng: np.random.Generator | None,
    memory: Floats | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    arguments = checked_options(chosen, options)
    if chosen.draws:
        if rng is None:
            raise ValueError(
                f"policy '{chosen.name}' draws at random: pass rng=flare.rng.stream(seed, 'policy', round)"
            )
        arguments["rng"] = rng
    if chosen.remembers:
        if memory is not None and np.shape(memory) != (problem.num_devices,):
            raise ValueError(
                f"memory of policy '{chosen.name}' has shape {np.shape(memory)}, the round has "
                f"{problem.num_devices} devices: pass the memory of the same cell's last round, or None to start"
            )
        arguments["memory"] = memory
    return arguments


def _checked_selection(chosen: Policy, problem: RoundProblem, selected: ArrayLike) -> Indices:
    answer = np.asarray(selected)
    if answer.ndim != 1 or not (answer.size == 0 or np.issubdtype(answer.dtype, np.integer)):
        raise ValueError(
            f"policy '{chosen.name}' answered {selected!r:.80}; it must answer a list of device indices "
            "(for a mask, np.flatnonzero)"
        )
    devices = np.unique(answer.astype(np.intp))
    if devices.size != answer.size:
        raise ValueError(f"policy '{chosen.name}' named a device twice")
    if devices.size and not (devices[0] >= 0 and devices[-1] < problem.num_devices):
        raise ValueError(f"policy '{chosen.name}' named a device outside 0 to {problem.num_devices - 1}")
    if not problem.fits(devices):
        raise ValueError(
            f"policy '{chosen.name}' chose {devices.size} devices that need "
            f"{math.fsum(problem.needed_hz[devices]):.6g} Hz to meet the deadline, of {problem.total_bandwidth_hz:.6g} "
            f"Hz there are: build the choice with flare.scheduling.admit, or check it with problem.fits"
        )
    return devices


def _nobody(problem: RoundProblem, chosen: Policy, choice: Choice) -> Schedule:
    nobody_can = problem.reachable.size == 0
    return Schedule(
        selected=np.zeros(0, dtype=np.intp),
        bandwidth_hz=np.zeros(problem.num_devices),
        latency_s=math.nan,
        objective=math.inf,
        lower_bound=math.inf if nobody_can else choice.lower_bound,
        status=Status.INFEASIBLE,
        policy=chosen.name,
        memory=choice.memory,
    )
