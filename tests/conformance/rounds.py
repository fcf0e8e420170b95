"""The rounds on which policies are checked, what devices are made up for them, and the answers, computed once."""

from __future__ import annotations

import functools
import math

import numpy as np

from flare.rng import stream
from flare.scheduling import POLICIES, Hardware, History, Memory, RoundProblem, Schedule, solve
from tests.cells import fading_rounds
from tests.oracles import brute_force

NUM_ROUNDS = 4


def run(
    policy: str,
    problem: RoundProblem,
    *,
    turn: int = 0,
    memory: Memory | None = None,
    history: History | None = None,
) -> Schedule:
    """One round; a history that is not given is made up from what the devices are, so that it moves along with them."""
    history = made_up_history(problem, turn) if history is None else history
    hardware = made_up_hardware(problem)
    return solve(problem, policy, rng=stream(7, "policy", turn), memory=memory, history=history, hardware=hardware)


def made_up_hardware(problem: RoundProblem) -> Hardware:
    """Processors and radios that depend on the device alone; the work is what takes `compute_s` at full speed."""
    phase = np.abs(np.sin(5.0 * np.log(problem.snr_hz) + problem.tau))
    cpu_hz = 1e9 * (1.0 + phase)
    return Hardware(cpu_hz, 0.1 * (1.0 + phase), np.minimum(problem.compute_s * cpu_hz, 1e100), capacitance=1e-28)


def made_up_history(problem: RoundProblem, turn: int) -> History:
    """Numbers of every field that depend on the device alone, and on the round; a third has never sent."""
    phase = np.abs(np.sin(3.0 * np.log(problem.snr_hz) + problem.tau + turn))
    never = phase < 1.0 / 3.0
    return History(
        times_sent=np.where(never, 0.0, np.ceil(10.0 * phase)),
        rounds_since_sent=np.where(never, np.inf, np.ceil(5.0 * phase)),
        last_loss=np.where(never, np.nan, 2.0 * phase),
        mean_squared_loss=np.where(never, np.nan, 5.0 * phase**2),
        update_norm=np.where(never, np.nan, 1.0 + phase),
        num_samples=np.ceil(100.0 * problem.tau),
        compute_s=np.where(never, np.nan, problem.compute_s),
        upload_s=np.where(never, np.nan, phase),
        energy_j=np.where(never, 0.0, phase),
        label_counts=np.stack((np.ceil(9.0 * phase), np.ceil(3.0 * problem.tau)), axis=1),
        sketch=np.where(never[:, None], np.nan, np.stack((phase, np.cos(problem.tau), phase**2), axis=1)),
    )


def needed_history(policy: str, problem: RoundProblem) -> History | None:
    """Nothing but the labels where a policy cannot do without them; None: nothing is known."""
    if "labels" not in POLICIES[policy].needed({}):
        return None
    return History.empty(problem.num_devices, label_counts=made_up_history(problem, 0).label_counts)


def run_rounds(policy: str, problems: list[RoundProblem]) -> list[Schedule]:
    """A run of several rounds: the memory of each goes to the next."""
    schedules: list[Schedule] = []
    for turn, problem in enumerate(problems):
        memory = schedules[-1].memory if schedules else None
        schedules.append(run(policy, problem, turn=turn, memory=memory))
    return schedules


def first_round(policy: str, problem: RoundProblem) -> Schedule:
    """What `run` gives without a memory: computed once for all checks that only look at it."""
    return all_rounds(policy, problem)[0][1]


def all_rounds(policy: str, problem: RoundProblem) -> list[tuple[RoundProblem, Schedule]]:
    """A run of several rounds, the first of which is this one, with the channels that come and go; computed once."""
    return _all_rounds(POLICIES[policy].function, policy, problem)


@functools.cache
def _all_rounds(_: object, policy: str, problem: RoundProblem) -> list[tuple[RoundProblem, Schedule]]:
    rounds = fading(problem)
    return list(zip(rounds, run_rounds(policy, rounds), strict=True))


@functools.cache
def fading(problem: RoundProblem) -> list[RoundProblem]:
    return fading_rounds(problem, NUM_ROUNDS)


def finish_s(problem: RoundProblem, schedule: Schedule) -> np.ndarray:
    """When each selected device has computed and sent, Eqs. (5)-(7), shape (num_selected,)."""
    at = schedule.selected
    bandwidth_hz = schedule.bandwidth_hz[at]
    compute_s, snr_hz, has = problem.compute_s[at], schedule.problem.snr_hz[at], schedule.hardware
    assert (snr_hz <= problem.snr_hz[at]).all()  # less where there is interference
    if has is not None and schedule.cpu_hz is not None:
        compute_s = compute_s * (has.cpu_hz / schedule.cpu_hz)[at]
    if has is not None and schedule.power_w is not None:
        snr_hz = snr_hz * (schedule.power_w / has.power_w)[at]
    rate_bps = bandwidth_hz * np.log1p(snr_hz / bandwidth_hz) / math.log(2.0)
    return compute_s + problem.payload_bits[at] / rate_bps


@functools.cache
def proven(problem: RoundProblem) -> Schedule:
    return solve(problem, "exact")


@functools.cache
def min_objective(problem: RoundProblem) -> float:
    return brute_force(problem)
