"""The rounds of a run drawn again: what the base station asked in each, from the run's settings and a few facts.

A cell draws the same round from the same settings, whenever it is asked, so that nothing but what cannot be drawn is
written down (`facts_of`). What is drawn again is compared with the record: where they differ, nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from flare.config import Config
from flare.learning.methods import METHODS, make_method
from flare.learning.widths import Widths
from flare.rounds import BaseStation, RoundRecord
from flare.rounds.air import BEST
from flare.rounds.asynchrony import is_asynchronous
from flare.rounds.bits import facts_of_bits, schedule_with_bits
from flare.rounds.scheduled import problem_of
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status
from flare.scheduling.explain import Explanation, LeftOut, explain
from flare.scheduling.hardware import hardware_for
from flare.simulation.attackers import ABSENT
from flare.simulation.run import Simulation, observation_of
from flare.types import Floats, Indices
from flare.wireless.cell import Cell, CellRound

_MAX_LISTED = 100_000  # devices whose numbers of samples a manifest has room for
_SAME = 1e-9  # relative


def facts_of(simulation: Simulation) -> dict[str, Any]:
    """What a run folder is told so that its rounds can be drawn again: the size of the model, whether the policy
    divides the band evenly and, where the time that a device computes depends on it, how many samples each holds and
    how wide the model is."""
    policy = POLICIES.find(simulation.config.scheduling.policy)
    facts: dict[str, Any] = {"num_weights": simulation.model.num_weights, "split_evenly": policy.split_evenly}
    if simulation.station.method.needs_gradients and len(simulation.held) <= _MAX_LISTED:
        facts["num_samples"] = [len(samples) for samples in simulation.held]
    if simulation.widths is not None:
        facts["widths"] = simulation.widths.to_json()
    return facts | facts_of_bits(simulation.station)


@final
@dataclass(frozen=True, eq=False)
class Redrawn:
    """A round drawn again: the cell, the question, the answer, and what that means for each device."""

    cell: CellRound
    problem: RoundProblem
    schedule: Schedule
    detail: Explanation


@final
class Redraw:
    """Draws the rounds of a run again. ValueError or OSError where its settings and facts do not suffice."""

    def __init__(self, config: Config, manifest: Mapping[str, Any]) -> None:
        self._config = config
        if manifest.get("driver", "simulation") != "simulation":
            raise ValueError("its rounds were not drawn, but told by the nodes of a fleet")
        self._num_weights = _count(manifest.get("num_weights"))
        if config.learning.method not in METHODS:
            raise ValueError(
                f"there is no method '{config.learning.method}' here: give the plugin that it is in, or import it"
            )
        self._method = make_method(config.learning)
        if is_asynchronous(config, self._method):
            raise ValueError("its devices computed across rounds, and what each had left to compute is not recorded")
        if config.learning.attack == ABSENT and config.learning.attackers:
            raise ValueError("some of its devices stayed away (learning.attack), and a cell is drawn with all of them")
        if self._method.needs_widths:
            self._method = self._method.fitted(_widths(manifest.get("widths"), self._num_weights))
        self._num_samples = np.full(config.wireless.num_devices, np.nan)
        if self._method.needs_gradients:
            self._num_samples = _counts(manifest.get("num_samples"), config.wireless.num_devices)
        self._split_evenly = _split_evenly(manifest.get("split_evenly"), config.scheduling.policy)
        self._cell = Cell(config.wireless, config.seed)

    def round(self, record: RoundRecord) -> Redrawn:
        """The round of a record; ValueError where the record is of another."""
        station = BaseStation(self._config, self._method, self._num_weights, smoothness=record.smoothness)
        drawn = self._cell.draw(record.round)
        problem, _ = problem_of(station, observation_of(drawn, self._num_samples))
        if station.codecs:  # with the payloads that were chosen
            problem = schedule_with_bits(station, problem)[0].problem
        over_the_air = station.air is not None
        if not over_the_air and record.selected and record.deadline_s != self._config.wireless.deadline_s:
            problem = replace(problem, deadline_s=record.deadline_s)  # as the policy set it
        policy = self._config.scheduling.policy
        if over_the_air and self._config.uplink.air_senders == BEST:
            policy = BEST
        known = max(record.selected, default=-1) < problem.num_devices
        if known:
            schedule = schedule_of(record, problem, policy, self._split_evenly and not over_the_air, drawn)
            at = schedule.selected
            pairs = ((problem.tau, record.tau), (schedule.compute_s, record.compute_s))
            known = all(np.allclose(each[at], told, rtol=_SAME, atol=0.0) for each, told in pairs)
        if not known:
            raise ValueError(f"round {record.round} comes out otherwise than it was recorded")
        detail = explain(schedule)
        return Redrawn(drawn, problem, schedule, _over_the_air(detail, record) if over_the_air else detail)


def _over_the_air(detail: Explanation, record: RoundRecord) -> Explanation:
    """What a round over the air means for each device: all send for the same time, after the slowest has computed, and
    who must not is who is not heard."""
    sends = np.array([why is None for why in detail.why])
    upload_s = max(record.upload_s, default=np.nan)
    return replace(
        detail,
        upload_s=np.where(sends, upload_s, np.nan),
        finish_s=np.where(sends, _or(record.latency_s, np.nan), np.nan),
        why=[LeftOut.TOO_WEAK if why is LeftOut.NEVER else why for why in detail.why],
    )


def schedule_of(
    record: RoundRecord, problem: RoundProblem, policy: str, split_evenly: bool, drawn: CellRound
) -> Schedule:
    """The schedule that a record tells of, as far as it does, in the cell that was drawn."""
    at = np.array(record.selected, dtype=np.intp)
    bandwidth_hz: Floats = np.zeros(problem.num_devices)
    bandwidth_hz[at] = record.bandwidth_hz
    hardware = None
    if record.cpu_hz or record.power_w:
        hardware = hardware_for(problem.compute_s, drawn.cpu_hz, drawn.power_w, drawn.config.capacitance)
    return Schedule(
        problem=problem,
        selected=at,
        bandwidth_hz=bandwidth_hz,
        latency_s=_or(record.latency_s, np.nan),
        objective=_or(record.objective, np.inf),
        lower_bound=_or(record.lower_bound, np.nan),
        status=Status(record.status),
        policy=policy,
        split_evenly=split_evenly,
        broadcast_s=record.broadcast_s,
        downlink_bits=record.downlink_bits,
        cpu_hz=_set_for(at, record.cpu_hz, drawn.cpu_hz),
        power_w=_set_for(at, record.power_w, drawn.power_w),
        hardware=hardware,
    )


def _set_for(devices: Indices, values: list[float], reported: Floats) -> Floats | None:
    """What every device had where a policy set it for some; None where it set nothing."""
    if not values:
        return None
    everybody = reported.copy()
    everybody[devices] = values
    return everybody


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _count(told: Any) -> int:
    if type(told) is not int or told < 1:
        raise ValueError("its folder does not tell the size of its model")
    return told


def _widths(told: Any, num_weights: int) -> Widths:
    found = Widths.from_json(told)
    if found.num_weights(found.whole) != num_weights:
        raise ValueError("its folder tells widths that are not those of its model")
    return found


def _split_evenly(told: Any, policy: str) -> bool:
    """As the folder says; of an older folder, as the policy says that is known here by this name."""
    if isinstance(told, bool):
        return told
    if policy not in POLICIES:
        raise ValueError(
            f"its folder does not tell how policy '{policy}' divides the band, and there is no such policy here: give "
            "the plugin that it is in"
        )
    return POLICIES[policy].split_evenly


def _counts(told: Any, num_devices: int) -> Floats:
    if not isinstance(told, list) or len(told) != num_devices or not all(type(each) is int for each in told):
        raise ValueError("its folder does not tell how many samples each device holds")
    return np.array(told, dtype=np.float64)
