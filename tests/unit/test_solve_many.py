"""Many rounds at once: what `solve` answers to each, to the last bit, in whatever company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flare import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, Schedule, optimal_split, policy, solve, solve_many
from flare.scheduling.bandwidth import optimal_splits
from flare.scheduling.batches import batches, prepare
from tests.cells import bank, extreme_rounds, knapsack_cell, paper_cell
from tests.conformance.rounds import made_up_hardware, made_up_history

NUMBERS = ("latency_s", "objective", "lower_bound", "band_residual", "finish_spread", "utility", "utility_bound")


def bits(schedule: Schedule) -> tuple[object, ...]:
    """All of a schedule, so that equal means equal to the last bit."""
    numbers = [float(getattr(schedule, name)).hex() for name in NUMBERS]
    memory = {name: array.tobytes() for name, array in schedule.memory.items()}
    arrays = (schedule.selected.tobytes(), schedule.bandwidth_hz.tobytes())
    return (schedule.policy, schedule.status, schedule.selected.dtype, *arrays, *numbers, memory)


def drawn_rounds() -> list[RoundProblem]:
    """Cells of the paper's kind, from one device to 200, from nobody who can send to everybody."""
    return [
        paper_cell(seed, num_devices=number, deadline_s=deadline_s, gamma=gamma)
        for number in (1, 2, 7, 40, 41, 200)
        for deadline_s in (0.05, 0.4, 1.0)
        for gamma in (0.0, 10.0, 300.0)
        for seed in range(2)
    ]


@pytest.fixture(scope="module")
def rounds() -> list[RoundProblem]:
    hard = [knapsack_cell(seed, num_devices=14, gamma=100.0) for seed in range(8)]
    return [*drawn_rounds(), *extreme_rounds(11, 60), *bank().values(), *hard]


def fresh(problems: list[RoundProblem]) -> list[RoundProblem]:
    """The same rounds, of which nothing has been computed yet."""
    return [replace(problem) for problem in problems]


def test_exact_answers_each_round_as_if_it_were_alone(rounds: list[RoundProblem]) -> None:
    together = solve_many(fresh(rounds))
    assert [bits(one) for one in together] == [bits(solve(problem)) for problem in fresh(rounds)]
    backwards = solve_many(fresh(rounds)[::-1])[::-1]
    assert [bits(one) for one in backwards] == [bits(one) for one in together]


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "exact"])
def test_every_policy_answers_each_round_as_if_it_were_alone(name: str) -> None:
    rounds = [paper_cell(seed, num_devices=number) for number in (5, 40) for seed in range(6)]
    rngs = [stream(seed, "many") for seed in range(len(rounds))]
    history = [made_up_history(problem, 1) for problem in rounds]
    hardware = [made_up_hardware(problem) for problem in rounds]
    before = [
        solve(one, name, rng=stream(1, "before"), history=had, hardware=has).memory
        for one, had, has in zip(rounds, history, hardware, strict=True)
    ]
    together = solve_many(fresh(rounds), name, rng=rngs, history=history, memory=before, hardware=hardware)
    for at, problem in enumerate(fresh(rounds)):
        told = {"history": history[at], "memory": before[at], "hardware": hardware[at]}
        alone = solve(problem, name, rng=stream(at, "many"), **told)  # type: ignore[arg-type]
        assert bits(together[at]) == bits(alone)


def test_utilities_and_options_reach_every_round() -> None:
    @policy("by-steps-in-a-batch")
    def by_steps(problem: RoundProblem, *, power: float = 1.0) -> np.ndarray:
        """Most local steps: in total."""
        return np.asarray(problem.tau**power)

    try:
        rounds = [paper_cell(seed) for seed in range(5)]
        together = solve_many(fresh(rounds), "by-steps-in-a-batch", max_devices=3, power=0.5)
        for schedule, problem in zip(together, rounds, strict=True):
            assert bits(schedule) == bits(solve(problem, "by-steps-in-a-batch", max_devices=3, power=0.5))
            assert schedule.num_selected == 3
    finally:
        del POLICIES["by-steps-in-a-batch"]


def test_an_empty_batch_has_no_schedules_and_one_round_is_a_batch() -> None:
    assert solve_many([]) == []
    assert bits(solve_many([paper_cell(3)])[0]) == bits(solve(paper_cell(3)))


def test_what_is_wrong_with_one_round_names_it() -> None:
    @policy("greedy-for-all")
    def greedy_for_all(problem: RoundProblem) -> Choice:
        """Everybody."""
        return Choice(np.arange(problem.num_devices))

    try:
        with pytest.raises(ValueError, match=r"problem 1: policy 'greedy-for-all' chose 40 devices that need"):
            solve_many([paper_cell(0, num_devices=1, deadline_s=9.0), paper_cell(0)], "greedy-for-all")
    finally:
        del POLICIES["greedy-for-all"]
    with pytest.raises(ValueError, match="problem 0: policy 'ps' draws at random"):
        solve_many([paper_cell(0)], "ps")
    with pytest.raises(ValueError, match="rng must be a list with one entry for each of the 2 problems"):
        solve_many([paper_cell(0)] * 2, "ps", rng=[stream(0, "x")])
    with pytest.raises(ValueError, match="rng must be a list"):
        solve_many([paper_cell(0)], "ps", rng=stream(0, "x"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_limit_s"):
        solve_many([paper_cell(0)], time_limit_s=-1.0)


def test_a_round_that_cannot_be_proven_in_time_holds_up_no_other() -> None:
    hard = knapsack_cell(1, num_devices=40, gamma=100.0)  # as in tests/golden: a subset-sum problem
    easy = [paper_cell(seed) for seed in range(10)]
    *others, late = solve_many([*fresh(easy), hard], time_limit_s=0.2)
    assert [bits(one) for one in others] == [bits(solve(one)) for one in easy]
    assert late.lower_bound < late.objective


@pytest.mark.parametrize("devices", [1, 2, 7, 8, 9, 40, 129, 300])
def test_bands_divided_together_are_those_divided_alone(devices: int) -> None:
    draw = stream(devices, "splits")
    shape = (25, devices)
    compute_s = draw.uniform(0.0, 0.3, shape) * 10.0 ** draw.uniform(-3.0, 5.0, (25, 1))
    snr_hz = 10.0 ** draw.uniform(3.0, 12.0, shape)
    payload, band = 10.0 ** draw.uniform(2.0, 8.0, compute_s.shape), 10.0 ** draw.uniform(4.0, 9.0, 25)
    for at, together in enumerate(optimal_splits(compute_s, snr_hz, payload, band)):
        alone = optimal_split(compute_s[at], snr_hz[at], payload[at], float(band[at]))
        assert together.bandwidth_hz.tobytes() == alone.bandwidth_hz.tobytes()
        for name in ("latency_s", "band_residual", "finish_spread"):
            assert getattr(together, name) == getattr(alone, name)


def test_what_is_prepared_is_what_each_round_computes(rounds: list[RoundProblem]) -> None:
    prepared = fresh(rounds)
    prepare(prepared)
    for one, problem in zip(prepared, fresh(rounds), strict=True):
        assert one.needed_hz.tobytes() == problem.needed_hz.tobytes()
        assert one.needed_hz.base is None  # holds on to no other round
        assert one.canonical_order.tolist() == problem.canonical_order.tolist()
        assert not one.needed_hz.flags.writeable


def test_blocks_hold_every_problem_once_and_are_bounded() -> None:
    sizes = [3, 4, 30, 1, 1, 1, 8, 1]
    problems = [paper_cell(0, num_devices=size) for size in sizes]
    cut = batches(problems, max_numbers=10)
    assert [sizes[one] for one in cut] == [[3, 4], [30], [1, 1, 1], [8], [1]]
    assert batches([]) == []


def test_what_are_no_rounds_is_refused_in_words() -> None:
    one = paper_cell(seed=1)
    with pytest.raises(ValueError, match="problems is a RoundProblem; give a list of rounds"):
        solve_many(one)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="problems is a NoneType; give a list of rounds"):
        solve_many(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="problem 1 is a int; each must be a RoundProblem"):
        solve_many([one, 2])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="rng must be a list with one entry for each of the 2 problems"):
        solve_many([one, one], "random", rng="ab")  # type: ignore[arg-type]
    assert [each.selected.tolist() for each in solve_many(each for each in [one])] == [solve(one).selected.tolist()]
