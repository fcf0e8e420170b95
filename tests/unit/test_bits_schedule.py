"""A round with bits to choose, answered by a schedule."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flare.scheduling import RoundProblem, Status, coding_noise, solve, solve_with_bits
from flare.wireless.rate import upload_s
from tests.bits_rounds import BITS, VARIANCE, WEIGHTS
from tests.cells import SAME, paper_cell

PAYLOADS = np.array(BITS[:4], dtype=float) * WEIGHTS


def noise_of(problem: RoundProblem, number: int = 4) -> np.ndarray:
    return coding_noise(VARIANCE[:number], problem.tau, reach=0.3)


def small(**changes: Any) -> RoundProblem:
    return replace(paper_cell(3, num_devices=6, deadline_s=0.12, gamma=100.0), **changes)


def every_choice(problem: RoundProblem, payloads: np.ndarray, noise: np.ndarray) -> float:
    """The least objective of P2 over all ways to give every device one of the choices; each is a `RoundProblem`."""
    least = math.inf
    for ways in itertools.product(range(len(payloads)), repeat=problem.num_devices):
        fixed = replace(
            problem, payload_bits=payloads[list(ways)], coding_noise=noise[list(ways), np.arange(len(ways))]
        )
        least = min(least, solve(fixed, "exact").objective)
    return least


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_hz": 360e3},
        {"must": [2], "never": [0]},
        {"max_devices": 2},
        {"weight": [1.0, 4.0, 1.0, 0.5, 2.0, 1.0], "due_s": [1.0, 1.0, 0.1, 1.0, 1.0, 0.11]},
    ],
)
def test_no_fixed_payloads_have_a_better_optimum(changes: dict[str, Any]) -> None:
    problem = small(**changes)
    noise = noise_of(problem, 2)
    answer = solve_with_bits(problem, PAYLOADS[:2], noise)
    assert answer.schedule.status is Status.OPTIMAL
    assert answer.schedule.lower_bound == answer.schedule.objective
    assert math.isclose(answer.schedule.objective, every_choice(problem, PAYLOADS[:2], noise), rel_tol=SAME)


@pytest.mark.parametrize("block_hz", [None, 180e3])
def test_the_schedule_is_of_the_round_with_what_was_chosen(block_hz: float | None) -> None:
    problem = replace(paper_cell(1, deadline_s=0.12, gamma=100.0), block_hz=block_hz)
    noise = noise_of(problem)
    answer = solve_with_bits(problem, PAYLOADS, noise)
    schedule, sent = answer.schedule, answer.schedule.selected
    assert np.array_equal(sent, np.flatnonzero(answer.choice >= 0))
    assert len(set(answer.choice[sent].tolist())) > 1
    assert np.array_equal(schedule.problem.payload_bits[sent], PAYLOADS[answer.choice[sent]])
    assert schedule.problem.coding_noise is not None
    assert np.array_equal(schedule.problem.coding_noise[sent], noise[answer.choice[sent], sent])
    silent = np.setdiff1d(np.arange(40), sent)
    assert (schedule.problem.payload_bits[silent] == PAYLOADS.min()).all()
    assert schedule.objective == schedule.problem.objective(sent)
    finish = problem.compute_s[sent] + upload_s(
        schedule.problem.payload_bits[sent], schedule.bandwidth_hz[sent], problem.snr_hz[sent]
    )
    assert finish.max() <= problem.deadline_s * (1.0 + 1e-9)
    assert schedule.bandwidth_hz.sum() <= problem.total_bandwidth_hz * (1.0 + 1e-9)
    assert np.allclose(schedule.problem.needed_hz, replace(schedule.problem).needed_hz, rtol=1e-12)
    assert "optimal" in repr(schedule)
    assert len(schedule.to_dict()["devices"]) == 40


def test_payloads_may_differ_from_device_to_device() -> None:
    problem = small()
    noise = noise_of(problem)
    each = PAYLOADS[:, None] * np.ones(6)
    assert solve_with_bits(problem, each, noise).schedule.objective == (
        solve_with_bits(problem, PAYLOADS, noise).schedule.objective
    )


def test_nobody_can() -> None:
    problem = small(deadline_s=1e-3)
    answer = solve_with_bits(problem, PAYLOADS, noise_of(problem))
    assert (answer.schedule.status, answer.schedule.lower_bound) == (Status.INFEASIBLE, math.inf)
    assert (answer.choice == -1).all()


def test_past_its_time_it_is_feasible_with_a_bound() -> None:
    problem = replace(paper_cell(1, num_devices=300, deadline_s=0.2, gamma=100.0), total_bandwidth_hz=75e6)
    schedule = solve_with_bits(problem, PAYLOADS, noise_of(problem), time_limit_s=1e-9).schedule
    assert schedule.status is Status.FEASIBLE
    assert schedule.lower_bound < schedule.objective


@pytest.mark.parametrize(
    ("payloads", "noise", "says"),
    [
        ([1e6, -1.0], np.ones((2, 6)), r"payload_bits \[1\] is -1"),
        ([[1e6, 1e6]], np.ones((1, 6)), r"payload_bits has the shape \(1, 2\)"),
        ([], np.ones((1, 6)), r"payload_bits has the shape \(0,\)"),
        (["many"], np.ones((1, 6)), "payload_bits must be numbers"),
        ([1e6], np.ones((2, 6)), "one row for each choice"),
        ([1e6], -np.ones((1, 6)), r"noise \[0, 0\] is -1"),
    ],
)
def test_bad_input_is_named(payloads: Any, noise: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        solve_with_bits(small(), payloads, noise)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_limit_s": float("nan")}, "time_limit_s is nan"),
        ({"time_limit_s": -1.0}, "time_limit_s is -1"),
        ({"time_limit_s": "x"}, "time_limit_s must be a number"),
        ({"coding_noise": {}}, "coding_noise must be numbers"),
        ({"coding_noise": [[10**400] * 2] * 2}, "coding_noise must be numbers"),
        ({"coding_noise": [[0.1, 0.1]]}, r"coding_noise has the shape \(1, 2\); it must be \(2, 2\)"),
        ({"problem": 3}, "problem is a int; it must be a RoundProblem"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    problem = RoundProblem([5, 3], [0.1, 0.1], [1e8, 1e8], 1e4, 1e6, 1.0)
    asked: dict[str, Any] = {"problem": problem, "payload_bits": [1e4, 2e4], "coding_noise": [[0.1, 0.1], [0.0, 0.0]]}
    with pytest.raises(ValueError, match=words):
        solve_with_bits(**asked | changes)
