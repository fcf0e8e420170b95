"""Who sends in a round, on how much bandwidth, and what each of them is to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from flare.learning.aggregate import Mean, RunningMean
from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, Round
from flare.rounds import air
from flare.rounds.asynchrony import Underway, as_left, over_all, refuse_vectors
from flare.rounds.base_station import BaseStation
from flare.rounds.broadcast import heard_control, heard_gradient
from flare.rounds.history import informed, with_energy
from flare.rounds.method_answers import Asked, checked_reference, checked_rules, enrolled
from flare.rounds.observation import Observation
from flare.rounds.probing import Answered, Question, asked, asks, unanswered
from flare.rounds.robust import ClippedMean, as_believed
from flare.rounds.scheduled import Ahead, Before, Known, answer_of, link_of, problem_of
from flare.rounds.state import RunState
from flare.rounds.weighing import lost_updates, mean_of
from flare.scheduling import Probed, RoundProblem, Schedule
from flare.scheduling.history import History
from flare.scheduling.schedule import time_of_broadcast
from flare.types import Floats, Indices
from flare.uplink import Qsgd
from flare.uplink.air import AirPlan
from flare.wireless.rate import upload_energy_j


@dataclass(frozen=True, eq=False)
class Plan:
    """A scheduled round. Problem and schedule count the devices that are there from 0; `now` counts all devices.

    Over the air, `air` is how the selected devices send, None where nobody does; bandwidths and latency of the schedule
    mean nothing then, those of the plan count. In asynchronous rounds `problem` has what is left of the devices'
    computing, and `underway` all of it.
    """

    seen: Observation
    problem: RoundProblem
    schedule: Schedule
    lower_bound: float  # of P2's objective; nan: none was proven
    now: Round
    method: MethodState  # with those who are new
    history: History  # with those who are new
    compute_energy_j: Floats  # (present,), at the speeds that the schedule gives
    index: int  # of the round
    deadline_s: float  # when the round is over, at the latest: as set, or as the policy sets it
    start: Tensor  # (weights,), the global weights as they reach the devices
    lost: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.intp))  # of the selected: nothing arrives
    codecs: tuple[Qsgd, ...] = ()  # of the selected devices, in their order, where each has its own
    air: AirPlan | None = None
    radiated_j: Floats | None = None  # (selected,), what was radiated over the air, when it is known
    underway: Underway | None = None  # what devices compute across rounds, those that receive this model among them
    periodic: bool = False  # whether the round lasts until its deadline, whoever sends
    question: Question | None = None  # what devices were asked before the selection

    @property
    def selected(self) -> Indices:
        """The devices that are to send, ascending."""
        return self.now.selected

    @property
    def heard(self) -> Indices:
        """Those of them whose packets arrive, ascending."""
        return np.setdiff1d(self.selected, self.lost) if self.lost.size else self.selected

    @property
    def weights(self) -> Floats | None:
        """How much the update of each selected device counts, in their order; None: their mean is taken."""
        return self.schedule.weights

    @property
    def before_s(self) -> float:
        """How long the round takes before its deadline begins: trials of the policy, its question to devices, then the
        broadcast."""
        asked_s = 0.0 if self.question is None else self.question.lasts_s
        return self.schedule.pilot_s + asked_s + self.schedule.broadcast_s

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
        """When the last selected device has finished, or the period is over; nan where nobody sends."""
        if self.periodic and len(self.selected):
            return self.deadline_s
        return self.schedule.latency_s if self.air is None else self.air.latency_s

    @property
    def receivers(self) -> Indices:
        """The devices that are sent the global weights: the selected, or those that begin to compute across rounds."""
        if self.underway is None:
            return self.selected
        return np.flatnonzero(self.underway.began == self.index)

    def began(self, device: int) -> int:
        """The round in which a device received the model that it computes from."""
        return self.index if self.underway is None else int(self.underway.began[device])

    def start_of(self, device: int) -> Tensor:
        """The weights that a device computes from."""
        began = self.began(device)
        if self.underway is None or began == self.index:
            return self.start
        return self.underway.models[began]

    @property
    def whole_compute_s(self) -> Floats:
        """How long each selected device computes in all, in their order."""
        if self.underway is None:
            return self.schedule.compute_s[self.schedule.selected]
        return self.underway.compute_s[self.selected]

    @cached_property
    def upload_s(self) -> Floats:
        """How long each selected device sends, in their order."""
        if self.air is not None:
            return np.full(len(self.selected), self.air.air_s)
        return self.schedule.upload_s[self.schedule.selected]

    @cached_property
    def upload_energy_j(self) -> Floats:
        """What each selected device radiates, in their order; over the air, what it would if all updates were of one
        size, until it is known."""
        if self.air is not None:
            return air.expected_energy_j(self.air) if self.radiated_j is None else self.radiated_j
        at = self.schedule.selected
        return upload_energy_j(self.schedule.sending_power_w(self.seen.power_w)[at], self.upload_s)


def plan_round(
    station: BaseStation,
    state: RunState,
    seen: Observation,
    answered: Answered | None = None,
    ahead: Ahead | None = None,
) -> Plan | None:
    """Schedule the devices that are there; None where there are none.

    `answered` is what they answered to the question of the policy (`question_of`); ValueError where it has one and
    nobody was asked. `ahead` is the round as it was scheduled before its time.
    """
    if seen.num_present == 0:
        return None
    problem, energy_j = _known(station, state, seen, answered, ahead)
    method = enrolled(station.config.learning.method, station.method, state.method, seen.over_all(problem.tau))
    underway, told_s = None, 0.0
    if station.asynchronous:
        underway, told_s = _underway(station, state, seen, method, problem, energy_j)
        problem = as_left(problem, underway, seen.devices, station.gamma(underway.tau[seen.devices]))
        energy_j = underway.energy_j[seen.devices]
    history = informed(state.history, seen)
    if answered is not None:
        history = history.with_rows(energy_j=history.energy_j + answered.question.energy_over_all())
    if ahead is not None:
        schedule, bound, codecs = ahead.answer
    else:
        probed = Probed.nothing(seen.num_present) if answered is None else answered.probed  # there was nobody to ask
        before = Before(history, state.memory, probed)
        schedule, bound, codecs = answer_of(station, state.rounds_done, seen, problem, before)
    moved = schedule.problem.deadline_s != problem.deadline_s
    if schedule.pilot_j:
        each_j = np.full(seen.num_present, schedule.pilot_j / seen.num_present)
        history = with_energy(history, seen.devices, each_j)
    if underway is not None:
        schedule = replace(schedule, broadcast_s=told_s, downlink_bits=station.downlink_bits if told_s else 0.0)
    elif station.broadcasts:
        schedule = _with_broadcast(station, seen, schedule, answered)
    problem = schedule.problem
    selected = seen.devices[schedule.selected]
    age = None if underway is None else underway.age.astype(np.float64)
    now = _round(station, state, seen, selected, problem.tau, age=age, new_mean=mean_of(station, schedule, selected))
    return Plan(
        seen,
        problem,
        schedule,
        bound,
        now,
        method,
        history,
        schedule.compute_energy_j(energy_j),
        index=state.rounds_done,
        start=state.weights,
        deadline_s=problem.deadline_s if moved else station.config.wireless.deadline_s,
        lost=lost_updates(station, schedule, selected, state.rounds_done),
        codecs=codecs,
        air=_air_plan(station, seen, schedule),
        underway=underway,
        periodic=station.periodic,
        question=None if answered is None else answered.question,
    )


def _known(
    station: BaseStation, state: RunState, seen: Observation, answered: Answered | None, ahead: Ahead | None
) -> Known:
    """The problem of the round, where it is known already, or else now."""
    if ahead is not None:
        assert ahead.seen is seen, "it was scheduled with other devices"
        assert answered is None, "nobody is asked in such a round"
        return ahead.known
    if answered is not None:
        return answered.question.known
    known = problem_of(station, seen)
    if question_of(station, state, seen, known) is not None:
        raise unanswered(station)
    return known


def _round(
    station: BaseStation,
    state: RunState,
    seen: Observation,
    selected: Indices,
    tau: Floats,
    *,
    age: Floats | None = None,
    new_mean: Callable[[], Mean] = RunningMean,
) -> Round:
    """What a method is told of a round with these devices; `tau` of those that are there."""
    learning = station.config.learning
    return Round(
        weights=state.weights,
        selected=selected,
        tau=seen.over_all(tau),
        local_lr=learning.local_lr,
        global_lr=learning.global_lr,
        tau_bar_limit=station.tau_bar_limit,
        cpu_hz=seen.over_all(seen.cpu_hz),
        age=age,
        new_mean=new_mean,
    )


def _underway(
    station: BaseStation,
    state: RunState,
    seen: Observation,
    method: MethodState,
    problem: RoundProblem,
    energy_j: Floats,
) -> tuple[Underway, float]:
    """What devices compute once the free ones have received the model, and how long it took to broadcast it to them.
    `problem` and `energy_j` are of devices that begin now."""
    before = over_all(state.underway, seen.num_devices)
    free = before.free(seen.devices)
    at = np.searchsorted(seen.devices, free)  # their places among those that are there
    told_s = 0.0
    if station.broadcasts:
        snr_hz = seen.downlink_snr_hz(station.config.wireless)
        told_s = time_of_broadcast(station.downlink_bits, problem.total_bandwidth_hz, snr_hz, at)
    rules = []
    if free.size:
        rules = _rules(station, method, _round(station, state, seen, free, problem.tau), None)
        refuse_vectors(station.config, station.method, rules)
    begun = before.after_time(told_s).begin(
        state.rounds_done,
        free,
        rules,
        tau=problem.tau[at],
        compute_s=problem.compute_s[at],
        energy_j=energy_j[at],
    )
    return begun, told_s


def _with_broadcast(station: BaseStation, seen: Observation, schedule: Schedule, answered: Answered | None) -> Schedule:
    """The schedule with the broadcast to the selected, less what they have heard with a question."""
    spared = 0.0 if answered is None else answered.question.heard_bits(station, schedule.selected)
    heard_hz = seen.downlink_snr_hz(station.config.wireless)
    return schedule.with_broadcast(station.downlink_bits - spared, heard_hz)


def question_of(
    station: BaseStation, state: RunState, seen: Observation, known: Known | None = None
) -> Question | None:
    """What the policy of the settings wants to ask devices before it selects, and what that costs; None: nothing.

    `known` is what `problem_of` says of these devices, where that is known already.
    """
    if not asks(station) or seen.num_present == 0:
        return None
    history = as_believed(informed(state.history, seen), station.clip, seen.voters).of(seen.devices)
    return asked(station, state.rounds_done, seen, known or problem_of(station, seen), history)


def _air_plan(station: BaseStation, seen: Observation, schedule: Schedule) -> AirPlan | None:
    if station.air is None or (link := link_of(station, seen)) is None:
        return None
    return air.air_plan(station.air, link, schedule.problem, schedule.selected, station.num_weights)


def local_rules(station: BaseStation, plan: Plan, gradients: Iterable[tuple[int, Tensor]] = ()) -> dict[int, LocalRule]:
    """How each selected device steps, by device, in their order; none where nobody is selected.

    Where the method needs them, `gradients` are those of the selected devices at the global weights, each with its
    device, one at a time; a device that did not send its gradient is out of the round, and so is one whose packets
    are lost. Gradients count as the updates will. In asynchronous rounds each steps as it was told when it received its
    model.
    """
    heard = plan.heard
    if len(heard) == 0:
        return {}
    if plan.underway is not None:
        return {device: plan.underway.rule(device) for device in heard.tolist()}
    common, taking_part = None, set(heard.tolist())
    if station.method.needs_gradients:
        mean = plan.now.new_mean()
        mean = ClippedMean(mean, station.clip, station.max_held) if station.clip else mean
        taking_part = set()
        for device, gradient in gradients:
            if device in plan.lost:
                continue
            mean.add(gradient, device)
            taking_part.add(device)
        if not taking_part:
            return {}
        common = heard_gradient(station, plan.index, mean.end())
    rules = _rules(station, plan.method, plan.now, common)
    asked = zip(plan.selected.tolist(), heard_control(station, plan.index, rules), strict=True)
    return {device: rule for device, rule in asked if device in taking_part}


def _rules(station: BaseStation, method: MethodState, now: Round, common: Tensor | None) -> list[LocalRule]:
    """What the method says, checked; ValueError also where it wrote into what it was told."""
    name = station.config.learning.method
    told = Asked(name, station.method, now)
    checked_reference(name, station.method.reference_steps(method, told.now))
    rules = station.method.rules(method, told.now, common)
    by = "rules() or reference_steps()"
    if changed := told.now.changed_from(now):
        raise ValueError(
            f"method '{name}': its {by} wrote into now.{changed[0]}, which others read; write into a copy, "
            f"now.{changed[0]}.copy()"
        )
    told.refuse_written(by)
    return checked_rules(name, rules, len(now.selected))
