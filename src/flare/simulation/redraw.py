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
from flare.rounds import BaseStation, RoundRecord
from flare.rounds.air import BEST
from flare.rounds.bits import facts_of_bits, schedule_with_bits
from flare.rounds.plan import problem_of
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status
from flare.scheduling.explain import Explanation, LeftOut, explain
from flare.simulation.run import Simulation, observation_of
from flare.types import Floats
from flare.wireless.cell import Cell, CellRound

_MAX_LISTED = 100_000  # devices whose numbers of samples a manifest has room for
_SAME = 1e-9  # relative


def facts_of(simulation: Simulation) -> dict[str, Any]:
    """What a run folder is told so that its rounds can be drawn again: the size of the model, whether the policy
    divides the band evenly and, where the time that a device computes depends on it, how many samples each holds."""
    policy = POLICIES.find(simulation.config.scheduling.policy)
    facts: dict[str, Any] = {"num_weights": simulation.model.num_weights, "split_evenly": policy.split_evenly}
    if simulation.station.method.needs_gradients and len(simulation.held) <= _MAX_LISTED:
        facts["num_samples"] = [len(samples) for samples in simulation.held]
    return facts | facts_of_bits(simulation.station)


@final
@dataclass(frozen=True, eq=False)
class Redrawn:
    """A round drawn again: the cell, the question, and what the answer means for each device."""

    cell: CellRound
    problem: RoundProblem
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
            raise ValueError(f"there is no method '{config.learning.method}' here: give the plugin that it is in")
        self._method = make_method(config.learning)
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
        at = np.array(record.selected, dtype=np.intp)
        same = at.max(initial=-1) < problem.num_devices and all(
            np.allclose(known[at], told, rtol=_SAME, atol=0.0)
            for known, told in ((problem.tau, record.tau), (problem.compute_s, record.compute_s))
        )
        if not same:
            raise ValueError(f"round {record.round} comes out otherwise than it was recorded")
        policy, split_evenly = self._config.scheduling.policy, self._split_evenly
        if station.air is None:
            return Redrawn(drawn, problem, explain(schedule_of(record, problem, policy, split_evenly)))
        policy = BEST if self._config.uplink.air_senders == BEST else policy
        detail = explain(schedule_of(record, problem, policy, split_evenly=False))
        return Redrawn(drawn, problem, _over_the_air(detail, record))


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


def schedule_of(record: RoundRecord, problem: RoundProblem, policy: str, split_evenly: bool) -> Schedule:
    """The schedule that a record tells of, as far as it does."""
    at = np.array(record.selected, dtype=np.intp)
    bandwidth_hz: Floats = np.zeros(problem.num_devices)
    bandwidth_hz[at] = record.bandwidth_hz
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
    )


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _count(told: Any) -> int:
    if type(told) is not int or told < 1:
        raise ValueError("its folder does not tell the size of its model")
    return told


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
