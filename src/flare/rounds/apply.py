"""What becomes of a round: arrivals, one at a time, then the new state and the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from torch import Tensor

from flare.learning.aggregate import Mean, RunningMean
from flare.learning.job import LocalRule, Score, Update, all_finite, norm_of
from flare.learning.methods.base import MethodState, Reducer
from flare.rounds.air import AirMean
from flare.rounds.asynchrony import Underway, over_all
from flare.rounds.base_station import BaseStation
from flare.rounds.history import Told, after_round, informed, known_of, with_energy
from flare.rounds.method_answers import Asked, as_told, checked_end, checked_reducer, enrolled
from flare.rounds.observation import Observation
from flare.rounds.plan import Plan
from flare.rounds.probing import probing_record
from flare.rounds.record import RoundRecord
from flare.rounds.residuals import Part, Residuals
from flare.rounds.robust import Clipping, Heard
from flare.rounds.state import RunState, RunStatus, ended, scored
from flare.rounds.why_nobody import nobody_reported, why_nobody_sends
from flare.scheduling.history import History
from flare.scheduling.schedule import Status
from flare.text import json_number
from flare.types import Floats
from flare.uplink.air import air_key


@final
class Arrivals:
    """Takes in the updates of a round. Each can be forgotten when it was added: memory does not grow with their number,
    but for what a robust reducer holds, and clipping of what looks too long (`flare.rounds.robust`).

    `rules` says how each selected device steps (`local_rules`); only those devices may send, each once. `new_mean`
    makes what takes the plain mean of updates, where that is what they are to be taken in by. With that of
    `flare.learning.together`, as simulated runs on a GPU have it for FLARE's own methods, updates are held until the
    round is reduced, and are not to be changed before.
    """

    def __init__(
        self,
        station: BaseStation,
        state: RunState,
        plan: Plan | None,
        rules: Mapping[int, LocalRule],
        *,
        new_mean: Callable[[], Mean] = RunningMean,
    ) -> None:
        self._station, self._state, self._plan, self._rules = station, state, plan, rules
        self._air: AirMean | None = None
        self._new_mean = new_mean
        self._open = True  # whether updates may still come
        self._reduced: tuple[Tensor, MethodState] | None = None  # None: nobody has sent, or updates may still come
        self._reducer = self._new_reducer(plan) if plan is not None and rules else None
        self._clipping = Clipping(
            station.clip, state.history, station.max_held, None if plan is None else plan.seen.voters
        )
        self._sent: dict[int, Told] = {}
        self._decoded_norm: dict[int, float] = {}  # of each update as it was heard, before it was clipped
        self._own_norm: dict[int, float] = {}  # of each update before it was sent, for the record
        self._times: dict[int, tuple[float | None, float | None]] = {}  # measured

    def _new_reducer(self, plan: Plan) -> Reducer:
        """What takes in the updates; over the air the channel adds them up."""
        method, now = self._station.method, plan.now
        if plan.air is not None:
            key = air_key(self._station.config.seed, self._state.rounds_done, part=Part.UPDATE)
            self._air = heard = AirMean(plan.air, plan.selected, key)
            now = replace(now, new_mean=lambda: heard)
        elif now.new_mean is RunningMean and self._new_mean is not RunningMean:
            now = replace(now, new_mean=self._new_mean)
        name = self._station.config.learning.method
        self._asked = Asked(name, method, now)
        return checked_reducer(name, method.reducer(plan.method, self._asked.now))

    @property
    def losses(self) -> dict[int, float]:
        """The training loss of each device that has sent."""
        return {device: update.loss for device, update in self._sent.items()}

    def add(
        self,
        device: int,
        update: Update,
        *,
        compute_s: float | None = None,
        upload_s: float | None = None,
        heard_norm: float | None = None,
    ) -> None:
        """Take in the update of a device; ValueError where it is not to send, or has sent.

        `compute_s` and `upload_s` are the times that it took, where they were measured; the plan's count otherwise.
        `heard_norm` is the length of a coded update as it was decoded, where that is known already.
        """
        if device not in self._rules or device in self._own_norm:
            raise ValueError(f"device {device} sent twice, or was not asked")
        self._own_norm[device] = float(norm_of(update.delta)) if math.isnan(update.norm) else update.norm
        self._times[device] = (compute_s, upload_s)
        heard = Heard(device, update, self._heard_norm(device, update, heard_norm))
        self._decoded_norm[device] = heard.norm
        for each in self._clipping.take(heard, self._rules[device]):
            self._take(each)

    def _take(self, heard: Heard) -> None:
        """Take in an update as it is believed."""
        assert self._reducer is not None
        device, update, _ = heard
        sketch = self._sketched(device, update)  # before a reducer of a user's own may change it
        self._reducer.add(device, self._rules[device], update)
        self._sent[device] = Told(update.loss, update.squared_loss, self._decoded_norm[device], sketch)

    def _heard_norm(self, device: int, update: Update, known: float | None) -> float:
        """The length of an update as the base station knows it: of what it decoded; nan over the air, where it hears
        the sum alone."""
        if self._air is not None:
            return math.nan
        if not self._station.codes:
            return self._own_norm[device]
        return float(norm_of(update.delta)) if known is None else known

    def _sketched(self, device: int, update: Update) -> Floats | None:
        """A sketch of the mean gradient over the steps of a device, where the policy goes by it and the base station
        hears each update by itself."""
        if self._station.sketches is None or self._air is not None:
            return None
        rule = self._rules[device]
        return self._station.sketches(update.delta) / (rule.lr * rule.steps)

    def reduce(self) -> Tensor | None:
        """The new global weights when no more updates will come, on which a GPU may still be at work; None: nobody has
        sent. ValueError where the method answered something else."""
        if self._open:
            self._open = False
            for each in self._clipping.rest():
                self._take(each)
            if self._reducer is not None and self._sent:
                method = self._station.config.learning.method
                self._reduced = checked_end(method, self._reducer.end(), self._station.num_weights)
                self._asked.refuse_written("reducer")
        return None if self._reduced is None else self._reduced[0]

    def end(
        self,
        *,
        finite: bool | None = None,
        faults: Sequence[Mapping[str, Any]] = (),
        residuals: Residuals | None = None,
        lasted_s: float | None = None,
    ) -> tuple[RunState, RoundRecord]:
        """The state after the round, and its record without the test scores and the time that it took.

        `finite` says whether the new weights are (`reduce`), where that is known. `residuals` is what the devices hold
        back now, where the base station is told. `lasted_s` is how long the round took in real time, where that counts;
        otherwise its modelled time does.
        """
        state, plan = self._state, self._plan
        if plan is None:
            return _nobody_there(self._station, state, faults, lasted_s)
        self.reduce()
        complete = 0 < len(plan.selected) == len(self._sent) + len(plan.lost)
        before_s = plan.before_s if lasted_s is None else 0.0  # in real time all counts that happened
        if lasted_s is None:
            lasted_s = plan.latency_s if complete else plan.deadline_s
        clock_s = state.clock_s + before_s + lasted_s
        weights, method, status = state.weights, plan.method, RunStatus.RUNNING
        if self._reduced is not None:
            weights, method = self._reduced
            if not (all_finite(weights) if finite is None else finite):
                status = RunStatus.DIVERGED
        noise_std = None
        if self._air is not None and self._air.received is not None:
            plan, noise_std = replace(plan, radiated_j=self._air.radiated_j()), self._air.received.noise_std
        sent = {device: self._sent[device] for device in sorted(self._sent)}
        underway = _underway(plan, sent, lasted_s, plan.start)
        after = RunState(
            rounds_done=state.rounds_done + 1,
            clock_s=clock_s,
            weights=weights,
            method=method,
            memory=state.memory.after(plan.seen, plan.schedule.memory),
            history=_history(plan, known_of(self._station.config.data, sent), self._times, underway),
            status=status,
            residuals=state.residuals if residuals is None else residuals,
            underway=underway,
        )
        record = _record(
            self._station,
            state.rounds_done,
            plan,
            clock_s,
            **self._arrived(plan, sent),
            noise_std=None if noise_std is None else json_number(noise_std),
            faults=[dict(each) for each in faults],
        )
        return ended(self._station.config.run, after), record

    def _arrived(self, plan: Plan, sent: Mapping[int, Told]) -> dict[str, Any]:
        """What the record says of the updates that have arrived, by its names."""
        measured_compute_s, measured_upload_s = self._measured(sent)
        bits = dict(zip(plan.selected.tolist(), plan.payload_bits.tolist(), strict=True))
        method = self._station.method
        tau_bar = method.reference_steps(plan.method, as_told(method, plan.now)) if self._rules else math.nan
        return {
            "tau_bar": json_number(tau_bar),
            "lr": [self._rules[device].lr if device in self._rules else None for device in plan.selected.tolist()],
            "sent": list(sent),
            "loss": [json_number(each.loss) for each in sent.values()],
            "update_norm": [json_number(self._own_norm[device]) for device in sent],
            "payload_bits": [bits[device] for device in sent],
            "age": [] if plan.underway is None else plan.underway.age[list(sent)].tolist(),
            "train_loss": json_number(_mean(self.losses.values())),
            "measured_compute_s": measured_compute_s,
            "measured_upload_s": measured_upload_s,
            "clipped": sorted(self._clipping.clipped),
            "norm_limit": json_number(self._clipping.limit),
        }

    def _measured(self, sent: Iterable[int]) -> tuple[list[float | None], list[float | None]]:
        """How long the devices that sent were measured to compute and to send; nothing where none was measured."""
        times = [self._times[device] for device in sent]
        if all(each is None for pair in times for each in pair):
            return [], []
        return [compute_s for compute_s, _ in times], [upload_s for _, upload_s in times]


def untrained(station: BaseStation, state: RunState, plan: Plan | None) -> tuple[RunState, RoundRecord]:
    """The state after a round of which only the schedule and the clock count, and its record."""
    if plan is None:
        return _nobody_there(station, state, (), None)
    lasted_s = plan.latency_s if len(plan.selected) else plan.deadline_s
    unseen = {device: Told() for device in plan.heard.tolist()}  # as if they had sent
    underway = _underway(plan, unseen, lasted_s, None)
    after = replace(
        state,
        rounds_done=state.rounds_done + 1,
        clock_s=state.clock_s + plan.before_s + lasted_s,
        memory=state.memory.after(plan.seen, plan.schedule.memory),
        history=_history(plan, unseen, dict.fromkeys(unseen, (None, None)), underway),
        underway=underway,
    )
    record = _record(station, state.rounds_done, plan, after.clock_s)
    return ended(station.config.run, after), record


def with_score(
    station: BaseStation, state: RunState, record: RoundRecord, score: Score
) -> tuple[RunState, RoundRecord]:
    """The state, ended where the score is the target, and the record with the score."""
    record = replace(record, test_accuracy=json_number(score.accuracy), test_loss=json_number(score.loss))
    return scored(station.config.run, state, score), record


def with_newcomers(station: BaseStation, state: RunState, seen: Observation) -> RunState:
    """The state with room for devices that are known since this round, where none is there that could be planned for:
    a plan makes that room itself."""
    if seen.num_devices == state.history.num_devices:
        return state
    return replace(
        state,
        method=enrolled(station.config.learning.method, station.method, state.method, np.zeros(seen.num_devices)),
        history=informed(state.history, seen),
        underway=over_all(state.underway, seen.num_devices) if station.asynchronous else None,
    )


def _nobody_there(
    station: BaseStation, state: RunState, faults: Sequence[Mapping[str, Any]], lasted_s: float | None
) -> tuple[RunState, RoundRecord]:
    """Where no device is there, the deadline passes, or the real time that the round took."""
    deadline_s = station.config.wireless.deadline_s
    passed_s = deadline_s if lasted_s is None else lasted_s
    none: Floats = np.zeros(0)
    after = replace(
        state,
        rounds_done=state.rounds_done + 1,
        clock_s=state.clock_s + passed_s,
        history=after_round(state.history, {}, compute_s=none, upload_s=none, energy_j=none),
        underway=None if state.underway is None else state.underway.after_time(passed_s),
    )
    record = replace(_idle_record(state.rounds_done, deadline_s, after.clock_s), why_nobody=nobody_reported(faults))
    return ended(station.config.run, after), replace(record, faults=[dict(each) for each in faults])


def _underway(plan: Plan, sent: Mapping[int, Told], lasted_s: float, model: Tensor | None) -> Underway | None:
    """What devices compute across rounds when these have sent; None in synchronous rounds."""
    if plan.underway is None:
        return None
    selected = plan.selected.tolist()
    return plan.underway.after_round(plan.index, selected=selected, heard=sent, lasted_s=lasted_s, model=model)


def _history(
    plan: Plan,
    sent: Mapping[int, Told],
    times: Mapping[int, tuple[float | None, float | None]],
    underway: Underway | None,
) -> History:
    """The history with what the devices that sent have shown; their times as measured, or else as planned."""
    among: slice | list[int] = slice(None)  # their places among the selected
    if len(sent) < len(plan.selected):
        place = {device: k for k, device in enumerate(plan.selected.tolist())}
        among = [place[device] for device in sent]
    history = plan.history if underway is None else plan.history.with_rows(age=underway.age.astype(np.float64))
    energy_j = plan.compute_energy_j[plan.schedule.selected] + plan.upload_energy_j
    if plan.lost.size:
        history = with_energy(history, plan.lost, energy_j[np.isin(plan.selected, plan.lost)])
    return after_round(
        history,
        sent,
        compute_s=_known([times[device][0] for device in sent], plan.whole_compute_s[among]),
        upload_s=_known([times[device][1] for device in sent], plan.upload_s[among]),
        energy_j=energy_j[among],
    )


def _record(station: BaseStation, index: int, plan: Plan, clock_s: float, **arrived: Any) -> RoundRecord:
    """The record of a scheduled round; without `arrived`, by its names, of one of which nothing has arrived yet."""
    problem, schedule, at = plan.problem, plan.schedule, plan.schedule.selected
    speeds = plan.seen.speeds
    planned: dict[str, Any] = dict(
        round=index,
        status=schedule.status.value,
        available=plan.seen.num_present,
        selected=plan.selected.tolist(),
        tau=problem.tau[at].tolist(),
        tau_bar=None,
        lr=[None] * len(at),
        bandwidth_hz=plan.bandwidth_hz.tolist(),
        compute_s=schedule.compute_s[at].tolist(),
        upload_s=plan.upload_s.tolist(),
        latency_s=json_number(plan.latency_s),
        deadline_s=plan.deadline_s,
        gamma=problem.gamma,
        smoothness=station.smoothness,
        clock_s=clock_s,
        compute_energy_j=plan.compute_energy_j[at].tolist(),
        upload_energy_j=plan.upload_energy_j.tolist(),
        objective=json_number(schedule.objective),
        lower_bound=json_number(plan.lower_bound),
        broadcast_s=schedule.broadcast_s,
        downlink_bits=schedule.downlink_bits,
        weights=[] if plan.weights is None else plan.weights.tolist(),
        error_rate=[] if schedule.error_rate is None else schedule.error_rate.tolist(),
        lost=plan.lost.tolist(),
        pilot_s=schedule.pilot_s,
        pilot_energy_j=schedule.pilot_j,
        control_bits=schedule.pilot_bits + (0.0 if plan.question is None else plan.question.answer_bits),
        cpu_hz=[] if schedule.cpu_hz is None else schedule.cpu_hz[at].tolist(),
        power_w=[] if schedule.power_w is None else schedule.power_w[at].tolist(),
        why_nobody="" if len(at) else why_nobody_sends(station, plan),
        samples_per_s=[] if speeds is None else [json_number(each) for each in speeds.samples_per_s[at].tolist()],
        speed_spread=[] if speeds is None else [json_number(each) for each in speeds.spread[at].tolist()],
        **probing_record(plan.question),
    )
    return RoundRecord(**{**planned, **arrived})


def _idle_record(index: int, deadline_s: float, clock_s: float) -> RoundRecord:
    """The record of a round in which there was no device to schedule."""
    return RoundRecord(
        round=index,
        status=Status.INFEASIBLE.value,
        available=0,
        selected=[],
        tau=[],
        tau_bar=None,
        lr=[],
        bandwidth_hz=[],
        compute_s=[],
        upload_s=[],
        latency_s=None,
        deadline_s=deadline_s,
        gamma=None,
        smoothness=None,
        clock_s=clock_s,
        compute_energy_j=[],
        upload_energy_j=[],
        objective=None,
        lower_bound=None,
    )


def _known(measured: Sequence[float | None], planned: Floats) -> Floats:
    if all(own is None for own in measured):
        return planned
    return np.array([each if own is None else own for own, each in zip(measured, planned.tolist(), strict=True)])


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values) if values else math.nan
