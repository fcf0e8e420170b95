"""Bits chosen with the schedule, over random rounds, against plain versions of the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.scheduling import Status
from flare.scheduling.bits_choice import NOBODY, BitsAnswer, BitsProblem, best_bits, coding_noise
from flare.wireless.rate import bandwidth_for
from tests.bits_oracles import brute_force_bits, table_bits
from tests.bits_rounds import paper_bits, random_bits, whole_hz
from tests.cells import SAME, extreme_rounds


def assert_feasible(problem: BitsProblem, answer: BitsAnswer) -> None:
    choice = answer.choice[answer.selected]
    assert np.array_equal(answer.selected, np.flatnonzero(answer.choice != NOBODY))
    assert problem.fits(answer.selected, choice)
    assert answer.objective == problem.objective(answer.selected, choice)
    assert np.isin(problem.must, answer.selected).all()
    assert not np.isin(problem.never, answer.selected).any()
    assert problem.max_devices is None or len(answer.selected) <= problem.max_devices


def assert_least(problem: BitsProblem, least: float) -> None:
    answer = best_bits(problem)
    if math.isinf(least):
        assert (answer.status, answer.lower_bound) == (Status.INFEASIBLE, math.inf)
        assert (answer.choice == NOBODY).all()
    else:
        assert answer.status is Status.OPTIMAL
        assert answer.lower_bound == answer.objective
        assert math.isclose(answer.objective, least, rel_tol=SAME)
        assert_feasible(problem, answer)


@settings(max_examples=200)
@given(random_bits())
def test_the_answer_is_the_least_over_all_sets_and_choices(problem: BitsProblem) -> None:
    assert_least(problem, brute_force_bits(problem))


@settings(max_examples=100)
@given(random_bits(), st.sampled_from([1, 3]), st.sampled_from([0, 2, 12]), st.sampled_from([1, 4]))
def test_so_it_is_however_the_search_is_cut_up(problem: BitsProblem, first: int, pair: int, spans: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flare.scheduling.bits_search._SINGLES", 0)  # every number of devices is part of a span
        patch.setattr("flare.scheduling.bits_search._SPANS", spans)
        patch.setattr("flare.scheduling.bits_search._FIRST_OPTIONS", first)
        patch.setattr("flare.scheduling.choice_knapsack._MAX_TO_PAIR", pair)
        patch.setattr("flare.scheduling.knapsack_walk._MAX_STATES", 4)
        assert_least(problem, brute_force_bits(problem))


@pytest.mark.parametrize("seed", range(3))
def test_eight_devices_with_four_choices_of_the_paper(seed: int) -> None:
    problem = paper_bits(seed, num_devices=8, num_choices=4, deadline_s=0.15, spread=0.5)
    assert_least(problem, brute_force_bits(problem))


def test_rounds_at_the_ends_of_what_is_accepted() -> None:
    for cell in extreme_rounds(seed=3, number=150):
        payloads = float(np.max(cell.payload_bits)) * np.array([[1.0], [1.5]])
        needed = bandwidth_for(payloads, cell.deadline_s - cell.compute_s, cell.snr_hz)
        noise = coding_noise([2.0, 0.05], cell.tau, reach=0.3)
        problem = BitsProblem(1.0 / cell.tau, noise, needed, band_hz=cell.capacity_hz, gamma=cell.gamma)
        assert_least(problem, brute_force_bits(problem))


@settings(max_examples=40)
@given(
    st.builds(
        whole_hz,
        st.integers(0, 2**31),
        num_devices=st.integers(8, 24),
        num_choices=st.integers(1, 6),
        band_hz=st.integers(5, 80),
        gamma=st.sampled_from([0.1, 1.0, 10.0, 100.0, 1000.0]),
    ),
    st.sampled_from([0, 64]),
)
def test_more_devices_against_the_table_of_the_textbook(problem: BitsProblem, singles: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flare.scheduling.bits_search._SINGLES", singles)
        assert_least(problem, table_bits(problem))


def test_devices_that_change_places_are_found_one_by_one() -> None:
    """Without pairs the walk passes through states of too many and too few devices, which others must make up for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flare.scheduling.choice_knapsack._MAX_TO_PAIR", 0)
        for seed in range(60):
            problem = whole_hz(seed, num_devices=14, num_choices=1 + seed % 2, band_hz=25, gamma=10.0)
            assert_least(problem, table_bits(problem))


@settings(max_examples=40)
@given(random_bits(), st.randoms(use_true_random=False))
def test_the_order_of_devices_and_choices_does_not_matter(problem: BitsProblem, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    choices, devices = problem.noise.shape
    order, rows = rng.permutation(devices), rng.permutation(choices)
    place = np.argsort(order)
    other = BitsProblem(
        problem.cost[order],
        problem.noise[rows][:, order],
        problem.needed_hz[rows][:, order],
        band_hz=problem.band_hz,
        gamma=problem.gamma,
        must=place[problem.must],
        never=place[problem.never],
        max_devices=problem.max_devices,
    )
    one, two = best_bits(problem), best_bits(other)
    assert one.objective == two.objective
    weighs = problem.gamma > 0.0  # otherwise noise counts for nothing, and of equal answers any may be given
    sent = [
        sorted(
            zip(
                of.cost[answer.selected],
                weighs * of.noise[answer.choice[answer.selected], answer.selected],
                strict=True,
            )
        )
        for of, answer in ((problem, one), (other, two))
    ]
    assert sent[0] == sent[1]


@settings(max_examples=40)
@given(random_bits(), st.sampled_from([1e-9, 1e-4, 0.01]))
def test_past_its_time_the_search_says_what_is_proven(problem: BitsProblem, time_limit_s: float) -> None:
    answer, least = best_bits(problem, time_limit_s=time_limit_s), brute_force_bits(problem)
    assert answer.lower_bound <= least * (1.0 + SAME)
    if answer.status is not Status.INFEASIBLE:
        assert_feasible(problem, answer)
        assert answer.lower_bound <= answer.objective
        assert answer.objective >= least * (1.0 - SAME)
