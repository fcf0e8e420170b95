"""A round of a fleet as pure steps: who is there -> who trains, and how -> the state after it and its record.

What the simulator draws, the nodes report; the rest is the simulator's: the same problem, policies, methods, mean,
clock and record. Devices come and go, so arrays over devices are as long as the fleet has ever been, and a problem
holds the devices that answered in this round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flare.config import Config
from flare.flower.resources import Resources, channel_hz
from flare.learning.job import LocalRule, Update
from flare.learning.methods import Method
from flare.learning.methods.base import MethodState, Round
from flare.learning.record import Record, idle_record, round_record
from flare.learning.state import RunState, RunStatus, ended
from flare.scheduling import Memory, RoundProblem, Schedule, get_policy
from flare.scheduling.rounds import schedule_round, work_problem
from flare.types import Floats, Indices

OF_DEVICES = "device."
METHODS = ("flare", "fedavg", "fedavg-fixed")
"""Methods whose devices send one update and whose base station takes the mean."""


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """A scheduled round. `devices` are those that answered; the problem and the schedule count them from 0."""

    devices: Indices  # (answered,)
    problem: RoundProblem
    schedule: Schedule
    lower_bound: float
    now: Round  # over the fleet
    method: MethodState
    tau_bar: float
    rules: list[LocalRule]
    power_w: Floats  # (answered,)
    compute_energy_j: Floats  # (answered,)

    @property
    def bandwidth_hz(self) -> list[float]:
        """Of the selected devices, in their order."""
        return list(self.schedule.bandwidth_hz[self.schedule.selected].tolist())


@dataclass(frozen=True, eq=False)
class Sent:
    """What arrived and was sound: who sent it, their losses, and the mean of their updates (None: nobody's)."""

    devices: list[int]
    losses: list[float]
    mean: Tensor | None  # (weights,), float64


def refuse_settings(config: Config) -> None:
    """ValueError where the settings ask for what a fleet cannot have."""
    learning, gamma = config.learning, config.scheduling.gamma
    if learning.method not in METHODS:
        raise ValueError(
            f"learning.method is '{learning.method}', which cannot be run on Flower yet; take one of "
            + ", ".join(METHODS)
        )
    no_data = "goes by the curvature of the loss on the devices' data, which the server of a fleet does not see"
    if isinstance(gamma, str):
        raise ValueError(f'scheduling.gamma is "{gamma}", which {no_data}; set it to a number')
    if learning.tau_bar == "safe":
        raise ValueError(f'learning.tau_bar is "safe", which {no_data}; take another')
    policy_options(config)


def policy_options(config: Config) -> dict[str, Any]:
    """The number of devices of policies that take one."""
    policy, num_selected = get_policy(config.scheduling.policy), config.scheduling.num_selected
    if policy.name == "ps" and not num_selected:
        raise ValueError(
            "policy 'ps' needs scheduling.num_selected here: the simulator tunes it on its cell, and a fleet has none"
        )
    return {"num_selected": num_selected} if "num_selected" in policy.options and num_selected else {}


def plan_round(
    config: Config, method: Method, state: RunState, said: Mapping[int, Resources], fleet_size: int, payload_bits: float
) -> FleetPlan | None:
    """Schedule those devices that answered, given in ascending order; None where there are none."""
    if not said:
        return None
    devices, resources = np.array(list(said), dtype=np.intp), list(said.values())
    tau = np.array([each.tau for each in resources])
    if config.learning.method == "fedavg-fixed":
        tau = np.full(len(tau), float(config.learning.fixed_steps))
    problem, energy_j = work_problem(
        config.wireless,
        tau=tau,
        cpu_hz=np.array([each.cpu_hz for each in resources]),
        snr_hz=channel_hz(resources, config.wireless),
        payload_bits=payload_bits,
        gamma=float(config.scheduling.gamma),
    )
    schedule, bound = schedule_round(
        problem,
        config.scheduling,
        seed=config.seed,
        index=state.rounds_done,
        memory=_recalled(state.memory, devices),
        options=policy_options(config),
    )
    fleet_tau = np.zeros(fleet_size)
    fleet_tau[devices] = tau
    now = Round(devices[schedule.selected], fleet_tau, config.learning.local_lr, config.learning.global_lr)
    remembered = _with_newcomers(state.method, fleet_tau)
    some = schedule.num_selected > 0
    return FleetPlan(
        devices=devices,
        problem=problem,
        schedule=schedule,
        lower_bound=bound,
        now=now,
        method=remembered,
        tau_bar=method.tau_bar(remembered, now) if some else math.nan,
        rules=method.rules(remembered, now, state.weights, []) if some else [],
        power_w=np.array([each.power_w for each in resources]),
        compute_energy_j=energy_j,
    )


def apply_round(
    config: Config, method: Method, state: RunState, plan: FleetPlan | None, sent: Sent
) -> tuple[RunState, Record]:
    """The state after a round and its record. Where one who was to send did not, the round lasts to its deadline."""
    deadline_s = config.wireless.deadline_s
    if plan is None:
        clock_s = state.clock_s + deadline_s
        after = RunState(state.rounds_done + 1, clock_s, state.weights, state.method, state.memory)
        return ended(config.run, after), idle_record(state.rounds_done, deadline_s, clock_s)
    schedule = plan.schedule
    complete = 0 < schedule.num_selected == len(sent.devices)
    clock_s = state.clock_s + (schedule.latency_s if complete else deadline_s)
    weights, remembered, status = state.weights, plan.method, RunStatus.RUNNING
    if sent.mean is not None:
        # The mean of one vector is that vector: the method sees the mean of all that came, which was taken on arrival.
        weights, remembered = method.aggregate(remembered, plan.now, weights, plan.rules, [Update(sent.mean, math.nan)])
        if not bool(torch.isfinite(weights).all()):
            status = RunStatus.DIVERGED
    memory = _memorised(state.memory, plan, len(plan.now.tau))
    after = RunState(state.rounds_done + 1, clock_s, weights, remembered, memory, status)
    record = round_record(
        state.rounds_done,
        plan.problem,
        schedule,
        lower_bound=plan.lower_bound,
        smoothness=None,
        power_w=plan.power_w,
        compute_energy_j=plan.compute_energy_j,
        tau_bar=plan.tau_bar,
        lrs=[rule.lr for rule in plan.rules],
        losses=sent.losses,
        clock_s=clock_s,
    )
    return ended(config.run, after), record | {"selected": plan.now.selected.tolist()}


def _with_newcomers(state: MethodState, tau: Floats) -> MethodState:
    """FLARE's first steps for the whole fleet: of a device that was not there at first, the first that it reports."""
    if "first_tau" not in state:
        return state
    first = np.zeros(len(tau))
    first[: len(state["first_tau"])] = state["first_tau"].numpy()
    if first.any():  # before the first training there are none, and then FLARE takes all at once
        first = np.where(first > 0.0, first, tau)
    return {"first_tau": torch.from_numpy(first)}


def _recalled(memory: Memory, devices: Indices) -> Memory:
    """What the policy remembers, as the devices that are there know it: the inverse of `_memorised`."""
    recalled = {}
    for name, array in memory.items():
        if not name.startswith(OF_DEVICES):
            recalled[name] = array
        elif (own := _rows_of(array, devices)) is not None:
            recalled[name.removeprefix(OF_DEVICES)] = own
    return recalled


def _rows_of(array: NDArray[Any], devices: Indices) -> NDArray[Any] | None:
    """The entries of these devices; a newcomer takes the middle of what is known, None where nothing is."""
    own = np.full((len(devices), *array.shape[1:]), math.nan)
    seen = devices < len(array)
    own[seen] = array[devices[seen]]
    unknown = np.isnan(own).reshape(len(own), -1).any(axis=1)
    known = np.sort(own[~unknown], axis=0)
    if len(known) == 0:
        return None
    own[unknown] = known[len(known) // 2]
    return own


def _memorised(before: Memory, plan: FleetPlan, fleet_size: int) -> Memory:
    """The memory of the policy over the fleet; arrays of the devices are kept under a name that says so, as long as
    the fleet, nan of devices that the policy has never seen."""
    if not plan.schedule.memory:
        return before
    memory: Memory = {}
    for name, array in plan.schedule.memory.items():
        if array.shape[:1] != (len(plan.devices),):
            memory[name] = array
            continue
        of_fleet = np.full((fleet_size, *array.shape[1:]), math.nan)
        old = before.get(OF_DEVICES + name, of_fleet[:0])
        of_fleet[: len(old)] = old
        of_fleet[plan.devices] = array
        memory[OF_DEVICES + name] = of_fleet
    return memory
