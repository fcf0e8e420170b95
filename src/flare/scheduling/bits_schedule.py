"""A round's question with choices of bits, and its answer as a schedule like any other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling import checks
from flare.scheduling.bits_choice import NOBODY, BitsProblem, best_bits
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice
from flare.scheduling.schedule import Schedule, Status
from flare.scheduling.scheduler import schedule_of
from flare.types import Floats, Indices


@dataclass(frozen=True, eq=False)
class BitsSchedule:
    """A schedule, and which choice each device has.

    `schedule.problem` is the round with the payload and the coding noise of those choices, so that upload times,
    objective and pictures need to know nothing of choices. Its status and bound are about all choices: where it is
    OPTIMAL, no devices with no choices are better. Of a device that does not send, the problem has the smallest
    payload.

    schedule        who sends, on what bandwidth; its policy is "exact"
    choice          the choice of each device, `NOBODY` (-1) where it does not send, shape (devices,)
    """

    schedule: Schedule
    choice: Indices


def solve_with_bits(
    problem: RoundProblem, payload_bits: ArrayLike, coding_noise: ArrayLike, *, time_limit_s: float = 10.0
) -> BitsSchedule:
    """Choose who sends and with which of several payloads, proven best for the objective with coding noise.

    Parameters
    ----------
    problem : the round: its devices, band, deadlines, constraints and gamma. Its own payloads and coding noise play no
        part.
    payload_bits : what each choice takes on the air, > 0, shape (choices,), or (choices, devices).
    coding_noise : what each choice adds to the objective, >= 0, shape (choices, devices)
        (`flare.scheduling.bits_choice.coding_noise`).
    time_limit_s : seconds after which the search for a proof ends; the schedule is then FEASIBLE, with its bound.

    Raises ValueError that says what is wrong.
    """
    if not isinstance(problem, RoundProblem):
        raise ValueError(f"problem is a {type(problem).__name__}; it must be a RoundProblem")
    limit_s = checks.scalar("time_limit_s", time_limit_s)
    payloads = _payloads(payload_bits, problem.num_devices)
    noise = checks.numbers("coding_noise", coding_noise, (2,), at_least=0.0)
    if noise.shape != payloads.shape:
        raise ValueError(
            f"coding_noise has the shape {noise.shape}; it must be {payloads.shape}, one row for each choice "
            "of payload_bits, and in it a number for each device"
        )
    needed_hz = problem.min_bandwidth_hz(payload_bits=payloads)
    asked = BitsProblem(
        problem.cost,
        noise,
        needed_hz,
        band_hz=max(problem.capacity_hz, 1.0 / checks.ABSURD),
        gamma=problem.gamma,
        must=problem.must,
        max_devices=problem.max_devices,
        order=problem.canonical_order,
    )
    answer = best_bits(asked, time_limit_s=limit_s)
    every = np.arange(problem.num_devices)
    of_each = np.where(answer.choice == NOBODY, payloads.argmin(axis=0), answer.choice)
    chosen = replace(problem, payload_bits=payloads[of_each, every], coding_noise=noise[of_each, every])
    chosen.prepare(needed_hz=needed_hz[of_each, every])
    proven = answer.status is Status.OPTIMAL
    bound = math.nan if proven else answer.lower_bound
    choice = Choice(answer.selected, lower_bound=bound, proven=proven)
    return BitsSchedule(schedule_of(chosen, "exact", choice), answer.choice)


def _payloads(given: ArrayLike, num_devices: int) -> Floats:
    """Payloads of shape (choices, devices)."""
    payloads = checks.numbers("payload_bits", given, (1, 2), positive=True)
    if payloads.ndim == 1:
        payloads = np.repeat(payloads[:, None], num_devices, axis=1)
    if payloads.shape[1] != num_devices:
        raise ValueError(
            f"payload_bits has the shape {np.shape(given)}; give one number for each choice, or a row of "
            f"{num_devices}, one for each device"
        )
    return payloads
