"""Who sends in a round, on how much bandwidth, and what each of them is to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from flare.learning.aggregate import RunningMean
from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, Round
from flare.rng import stream
from flare.rounds import air
from flare.rounds.base_station import BaseStation
from flare.rounds.bits import schedule_with_bits
from flare.rounds.broadcast import heard_control, heard_gradient
from flare.rounds.history import informed
from flare.rounds.observation import Observation
from flare.rounds.state import RunState
from flare.scheduling import RoundProblem, Schedule, solve
from flare.scheduling.history import History
from flare.types import Floats, Indices
from flare.units import dbm_to_watt
from flare.uplink import Qsgd
from flare.uplink.air import AirLink, AirPlan
from flare.wireless.compute import time_and_energy
from flare.wireless.rate import downlink_snr_hz, upload_energy_j, upload_s


@dataclass(frozen=True, eq=False)
class Plan:
    """A scheduled round. Problem and schedule count the devices that are there from 0; `now` counts all devices.

    Over the air, `air` is how the selected devices send, None where nobody does; bandwidths and latency of the schedule
    mean nothing then, those of the plan count.
    """

    seen: Observation
    problem: RoundProblem
    schedule: Schedule
    lower_bound: float  # of P2's objective; nan: none was proven
    now: Round
    method: MethodState  # with those who are new
    history: History  # with those who are new
    compute_energy_j: Floats  # (present,)
    index: int  # of the round
    start: Tensor  # (weights,), the global weights as they reach the devices
    codecs: tuple[Qsgd, ...] = ()  # of the selected devices, in their order, where each has its own
    air: AirPlan | None = None
    radiated_j: Floats | None = None  # (selected,), what was radiated over the air, when it is known

    @property
    def selected(self) -> Indices:
        """The devices that are to send, ascending."""
        return self.now.selected

    @property
    def own_codecs(self) -> dict[int, Qsgd]:
        """The codecs of the selected devices by device, where each has its own."""
        return dict(zip(self.selected.tolist(), self.codecs, strict=True)) if self.codecs else {}

    @property
    def payload_bits(self) -> Floats:
        """What each selected device sends, in their order."""
        if self.air is not None:  # analog symbols are no bits
            return np.zeros(len(self.selected))
        return self.problem.payload_bits[self.schedule.selected]

    @property
    def bandwidth_hz(self) -> Floats:
        """The bandwidth on which each selected device sends, in their order; over the air each has all of it."""
        if self.air is not None:
            return np.full(len(self.selected), self.air.link.bandwidth_hz)
        return self.schedule.bandwidth_hz[self.schedule.selected]

    @property
    def latency_s(self) -> float:
        """When the last selected device has finished; nan where nobody sends."""
        return self.schedule.latency_s if self.air is None else self.air.latency_s

    @cached_property
    def upload_s(self) -> Floats:
        """How long each selected device sends, in their order."""
        if self.air is not None:
            return np.full(len(self.selected), self.air.air_s)
        at = self.schedule.selected
        return upload_s(self.problem.payload_bits[at], self.schedule.bandwidth_hz[at], self.problem.snr_hz[at])

    @cached_property
    def upload_energy_j(self) -> Floats:
        """What each selected device radiates, in their order; over the air, what it would if all updates were of one
        size, until it is known."""
        if self.air is not None:
            return air.expected_energy_j(self.air) if self.radiated_j is None else self.radiated_j
        return upload_energy_j(self.seen.power_w[self.schedule.selected], self.upload_s)


def plan_round(station: BaseStation, state: RunState, seen: Observation) -> Plan | None:
    """Schedule the devices that are there; None where there are none."""
    if seen.num_present == 0:
        return None
    link = _air_link(station, seen)
    problem, energy_j = _problem(station, seen, link)
    history = informed(state.history, seen)
    schedule, bound, codecs = _schedule(station, state, seen, problem, history, link)
    problem = schedule.problem
    if station.broadcasts:
        station_w = dbm_to_watt(station.config.wireless.downlink_power_dbm)
        heard_hz = downlink_snr_hz(seen.snr_hz, seen.power_w, station_w)
        schedule = schedule.with_broadcast(station.downlink_bits, heard_hz)
    tau = seen.over_all(problem.tau)
    learning = station.config.learning
    now = Round(
        weights=state.weights,
        selected=seen.devices[schedule.selected],
        tau=tau,
        local_lr=learning.local_lr,
        global_lr=learning.global_lr,
        tau_bar_limit=station.tau_bar_limit,
    )
    method = station.method.enrol(state.method, tau)
    return Plan(
        seen,
        problem,
        schedule,
        bound,
        now,
        method,
        history,
        energy_j,
        index=state.rounds_done,
        start=state.weights,
        codecs=codecs,
        air=_air_plan(station, link, schedule),
    )


def problem_of(station: BaseStation, seen: Observation) -> tuple[RoundProblem, Floats]:
    """Problem P2 of the devices that are there, and the energy that their computing takes, shape (present,)."""
    return _problem(station, seen, _air_link(station, seen))


def _problem(station: BaseStation, seen: Observation, link: AirLink | None) -> tuple[RoundProblem, Floats]:
    """`problem_of`; `link` is that of the devices, where they send over the air."""
    wireless = station.config.wireless
    tau = checked_steps(station.config.learning.method, station.method.steps(seen.tau), seen.tau)
    steps = tau * station.method.step_cost
    if station.method.needs_gradients:  # over all its samples: as much work as that many samples in steps
        steps = steps + seen.num_samples / wireless.batch_size
    compute_s, energy_j = time_and_energy(
        steps, wireless.cycles_per_sample, wireless.batch_size, seen.cpu_hz, wireless.capacitance
    )
    problem = RoundProblem(
        tau=tau,
        compute_s=compute_s,
        snr_hz=seen.snr_hz,
        payload_bits=station.payload_bits,
        total_bandwidth_hz=wireless.total_bandwidth_hz,
        deadline_s=wireless.deadline_s,
        gamma=station.gamma(tau),
        block_hz=wireless.block_hz or None,
        max_devices=station.max_devices,
    )
    if station.air is not None and link is not None:
        problem = air.asked(problem, station.air, link, station.num_weights)
    return problem, energy_j


def _schedule(
    station: BaseStation,
    state: RunState,
    seen: Observation,
    problem: RoundProblem,
    history: History,
    link: AirLink | None,
) -> tuple[Schedule, float, tuple[Qsgd, ...]]:
    """The schedule by the policy of the settings, which draws from the stream of the round, a proven bound on the
    objective (nan where the policy proves none and the settings ask for none), and the codecs of the selected where
    they are chosen with the schedule."""
    if station.codecs:
        chosen, which = schedule_with_bits(station, problem)
        return chosen, chosen.lower_bound, tuple(station.codecs[number] for number in which)
    scheduling, seed = station.config.scheduling, station.config.seed
    if link is not None and station.config.uplink.air_senders == air.BEST:
        schedule = air.best_schedule(problem, link, station.config.uplink.air_noise)
    else:
        schedule = solve(
            problem,
            scheduling.policy,
            rng=stream(seed, "policy", state.rounds_done),
            history=history.of(seen.devices),
            memory=state.memory.recall(seen),
            **station.policy_options,
        )
    bound = schedule.lower_bound
    if math.isnan(bound) and scheduling.bound:
        bound = solve(problem, "exact").lower_bound
    return schedule, bound, ()


def _air_link(station: BaseStation, seen: Observation) -> AirLink | None:
    return None if station.air is None else air.air_link(station.config.wireless, seen)


def _air_plan(station: BaseStation, link: AirLink | None, schedule: Schedule) -> AirPlan | None:
    if station.air is None or link is None:
        return None
    return air.air_plan(station.air, link, schedule.problem, schedule.selected, station.num_weights)


def local_rules(station: BaseStation, plan: Plan, gradients: Iterable[tuple[int, Tensor]] = ()) -> dict[int, LocalRule]:
    """How each selected device steps, by device, in their order; none where nobody is selected.

    Where the method needs them, `gradients` are those of the selected devices at the global weights, each with its
    device, one at a time; a device that did not send its gradient is out of the round.
    """
    if len(plan.selected) == 0:
        return {}
    mean, common, taking_part = RunningMean(), None, set(plan.selected.tolist())
    if station.method.needs_gradients:
        taking_part = set()
        for device, gradient in gradients:
            mean.add(gradient)
            taking_part.add(device)
        if not taking_part:
            return {}
        common = heard_gradient(station, plan.index, mean.end())
    checked_reference(station.config.learning.method, station.method.reference_steps(plan.method, plan.now))
    rules = checked_rules(station.config.learning.method, station.method.rules(plan.method, plan.now, common), plan)
    asked = zip(plan.selected.tolist(), heard_control(station, plan.index, rules), strict=True)
    return {device: rule for device, rule in asked if device in taking_part}


def checked_steps(method: str, answer: Any, tau: Floats) -> Floats:
    """The steps that a method asks for; ValueError where it answered no number greater than 0 for each device."""
    steps = answer if isinstance(answer, np.ndarray) else None
    if (
        steps is None
        or steps.shape != tau.shape
        or steps.dtype.kind not in "uif"
        or not (np.isfinite(steps) & (steps > 0.0)).all()
    ):
        told = f"an array of shape {steps.shape}" if steps is not None else f"{answer!r:.80}"
        raise ValueError(
            f"method '{method}': its steps() answered {told}; it must answer an array with a number greater than 0 for "
            f"each of the {len(tau)} devices"
        )
    return steps.astype(np.float64, copy=False)


def checked_reference(method: str, answer: Any) -> None:
    """ValueError where the reference number of steps of a method is no number greater than 0."""
    number = isinstance(answer, int | float | np.integer | np.floating) and not isinstance(answer, bool)
    if not number or not 0.0 < answer < math.inf:
        raise ValueError(
            f"method '{method}': its reference_steps() answered {answer!r:.80}; it must answer a finite number greater "
            "than 0, such as the mean of now.tau[now.selected]"
        )


def checked_rules(method: str, answer: Any, plan: Plan) -> list[LocalRule]:
    """The rules that a method gives; ValueError where there is not one for each selected device."""
    if not isinstance(answer, list) or len(answer) != len(plan.selected):
        told = f"{len(answer)} rules" if isinstance(answer, list) else f"{answer!r:.80}"
        raise ValueError(
            f"method '{method}': its rules() answered {told}; it must answer a list with a LocalRule for each of the "
            f"{len(plan.selected)} selected devices, in their order"
        )
    return answer
