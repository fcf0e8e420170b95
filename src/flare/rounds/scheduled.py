"""The problem of a round, and how the policy of the settings answers it.

Some policies go by the cell of the round alone. Their rounds can be scheduled before their time (`ahead_of`),
many at once, which costs less than one between the steps of two rounds: what many have in common is computed at one
go, and training leaves nothing of this code in the caches of the processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flare.rng import stream
from flare.rounds import air
from flare.rounds.base_station import BaseStation
from flare.rounds.bits import schedule_with_bits
from flare.rounds.computing import computing
from flare.rounds.identity import is_own_method
from flare.rounds.memory import PolicyMemory
from flare.rounds.method_answers import checked_steps
from flare.rounds.observation import Observation
from flare.rounds.probing import asks
from flare.rounds.robust import as_believed
from flare.scheduling import POLICIES, Hardware, Probed, RoundProblem, Schedule, solve, solve_many
from flare.scheduling.exact import proven_bounds
from flare.scheduling.hardware import hardware_for
from flare.scheduling.history import History
from flare.types import Floats
from flare.uplink import CODECS, Qsgd
from flare.uplink.air import AIR_SCHEMES, AirLink

Known = tuple[RoundProblem, Floats]
"""Problem P2 of the devices that are there, and the energy that their computing takes, shape (present,)."""


class Answer(NamedTuple):
    """The schedule; a proven bound on P2's objective, nan where there is none; and the codecs of the selected devices,
    in their order, where they are chosen with the schedule."""

    schedule: Schedule
    lower_bound: float
    codecs: tuple[Qsgd, ...]


class Before(NamedTuple):
    """What a policy may go by beside the cell of the round: the history of all devices, what it remembers, and what
    devices answered when it asked them."""

    history: History
    memory: PolicyMemory
    probed: Probed


class Ahead(NamedTuple):
    """A round that was scheduled before its time."""

    seen: Observation
    known: Known
    answer: Answer


def ahead_of(station: BaseStation, indices: Sequence[int], seen: Sequence[Observation]) -> list[Ahead]:
    """Rounds with these devices, of a station whose policy `goes_by_the_cell`."""
    known = [problem_of(station, each) for each in seen]
    answers = _answers(station, indices, seen, [problem for problem, _ in known])
    for answer in answers:
        _ = answer.schedule.upload_s  # which the round will need: computed now, for the same reason
    return list(map(Ahead, seen, known, answers))


def goes_by_the_cell(station: BaseStation) -> bool:
    """Whether a round is scheduled without anything that the rounds before it have shown, and without code of a user's
    own: what goes wrong there, or takes long, does so in its round."""
    if station.asynchronous or asks(station):
        return False
    name, uplink = station.config.scheduling.policy, station.config.uplink
    origins = [POLICIES.origin(name), CODECS.origin(uplink.codec)]
    origins += [] if station.air is None else [AIR_SCHEMES.origin(uplink.air_scheme)]
    if is_own_method(station.method) or not all(origin.built_in for origin in origins):
        return False
    policy = POLICIES.find(name)
    return not (policy.remembers or policy.learns or policy.needed(station.policy_options))


def problem_of(station: BaseStation, seen: Observation) -> Known:
    """The problem of the devices that are there."""
    wireless, link = station.config.wireless, link_of(station, seen)
    tau = checked_steps(station.config.learning.method, station.method.steps(seen.tau.copy()), seen.tau)
    sizes = station.method.sizes(seen.devices.copy(), seen.cpu_hz.copy())
    bits: float | Floats = station.payload_bits
    if sizes is not None:
        counts, which = np.unique(sizes.num_weights, return_inverse=True)
        bits = np.array([station.payload_of(n) for n in counts.tolist()])[which]
    compute_s, energy_j = computing(station, seen, tau, sizes)
    problem = RoundProblem(
        tau=tau,
        compute_s=compute_s,
        snr_hz=seen.snr_hz,
        payload_bits=bits,
        total_bandwidth_hz=wireless.total_bandwidth_hz,
        deadline_s=wireless.usable_s,
        gamma=station.gamma(tau),
        block_hz=wireless.block_hz or None,
        max_devices=station.max_devices,
    )
    if station.air is not None and link is not None:
        problem = air.asked(problem, station.air, link, station.num_weights)
    return problem, energy_j


def answer_of(
    station: BaseStation, index: int, seen: Observation, problem: RoundProblem, before: Before | None
) -> Answer:
    """How the policy of the settings answers the problem of round `index`, for which it draws from the stream of that
    round; without `before` it is one that goes by the cell alone."""
    if station.codecs:
        chosen, which = schedule_with_bits(station, problem)
        return Answer(chosen, chosen.lower_bound, tuple(station.codecs[number] for number in which))
    scheduling, link = station.config.scheduling, link_of(station, seen)
    if link is not None and station.config.uplink.air_senders == air.BEST:
        schedule = air.best_schedule(problem, link, station.config.uplink.air_noise)
    else:
        policy = POLICIES.find(scheduling.policy)
        history = None
        if before is not None and (policy.learns or policy.needed(station.policy_options)):
            history = as_believed(before.history, station.clip, seen.voters).of(seen.devices)
        schedule = solve(
            problem,
            scheduling.policy,
            rng=stream(station.config.seed, "policy", index) if policy.draws else None,
            history=history,
            memory=None if before is None else before.memory.recall(seen),
            hardware=_hardware(station, seen, problem) if policy.needs_hardware else None,
            probed=None if before is None else before.probed,
            **station.policy_options,
        )
    if link is not None and not np.array_equal(schedule.problem.snr_hz, problem.snr_hz):
        does, why = "says what interference leaves of the channels", "the scheme goes by the channels of the cell"
        raise air.not_over_the_air(scheduling.policy, does, why)
    return _with_bounds(station, [schedule])[0]


def _answers(
    station: BaseStation, indices: Sequence[int], seen: Sequence[Observation], problems: list[RoundProblem]
) -> list[Answer]:
    """`answer_of` of rounds whose policy goes by the cell alone, many at once where that takes less time."""
    if len(problems) == 1 or station.codecs or station.air is not None:
        return [answer_of(station, *each, None) for each in zip(indices, seen, problems, strict=True)]
    name, seed = station.config.scheduling.policy, station.config.seed
    policy = POLICIES.find(name)
    rngs = [stream(seed, "policy", index) for index in indices] if policy.draws else None
    hardware = None
    if policy.needs_hardware:
        hardware = [_hardware(station, *each) for each in zip(seen, problems, strict=True)]
    schedules = solve_many(problems, name, rng=rngs, hardware=hardware, **station.policy_options)
    return _with_bounds(station, schedules)


def _with_bounds(station: BaseStation, schedules: Sequence[Schedule]) -> list[Answer]:
    """Schedules with a proven bound on the objective: of the policy, or where it has none and the settings want one, of
    `exact`."""
    bounds = [schedule.lower_bound for schedule in schedules]
    without = [at for at, bound in enumerate(bounds) if math.isnan(bound)] if station.config.scheduling.bound else []
    # Of the rounds that end when the policy says.
    for at, bound in zip(without, proven_bounds([schedules[at].problem for at in without]), strict=True):
        bounds[at] = bound
    return [Answer(schedule, bound, ()) for schedule, bound in zip(schedules, bounds, strict=True)]


def link_of(station: BaseStation, seen: Observation) -> AirLink | None:
    """The channels over which updates are added up in the air, where they are."""
    return None if station.air is None else air.air_link(station.config.wireless, seen)


def _hardware(station: BaseStation, seen: Observation, problem: RoundProblem) -> Hardware:
    """What the devices compute and send with."""
    return hardware_for(problem.compute_s, seen.cpu_hz, seen.power_w, station.config.wireless.capacitance)
