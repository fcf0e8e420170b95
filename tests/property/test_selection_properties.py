"""The policies `exact` and `greedy` over random rounds, against plain versions of the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flare.scheduling import RoundProblem, Status, solve
from flare.scheduling.greedy import _threshold
from tests.cells import SAME, changed, crossing_rounds, knapsack_rounds, random_rounds
from tests.oracles import brute_force, brute_force_by_number, greedy_literal, highs_by_number


def assert_least_over_all_subsets(problem: RoundProblem) -> None:
    schedule, least = solve(problem, "exact"), brute_force(problem)
    if math.isinf(least):
        assert schedule.status is Status.INFEASIBLE
        assert schedule.lower_bound == math.inf
    else:
        assert schedule.status is Status.OPTIMAL
        assert math.isclose(schedule.objective, least, rel_tol=SAME)


@settings(max_examples=150)
@given(random_rounds(9))
def test_exact_is_the_least_over_all_subsets(problem: RoundProblem) -> None:
    assert_least_over_all_subsets(problem)


@settings(max_examples=250)
@given(knapsack_rounds(10, min_devices=8))
def test_exact_is_the_least_over_all_subsets_where_prices_do_not_decide(problem: RoundProblem) -> None:
    assert_least_over_all_subsets(problem)


@settings(max_examples=120)
@given(st.one_of(random_rounds(9, min_devices=5), knapsack_rounds(9, min_devices=6)), st.sampled_from([-1e-5, 1e-5]))
def test_exact_decides_between_two_numbers_of_devices_that_are_nearly_equal(
    problem: RoundProblem, distance: float
) -> None:
    # (1/M + g/M^2) V(M) of two numbers is equal at g = (V1/M1 - V2/M2) / (V2/M2^2 - V1/M1^2): the gammas next to it
    # leave a difference of about 1e-5 of the objective, and a bound that is too high by as much goes wrong.
    least = {number: total for number, total in brute_force_by_number(problem).items() if total < math.inf}
    for (one, nu_1), (other, nu_2) in itertools.combinations(least.items(), 2):
        gain, loss = nu_2 / other**2 - nu_1 / one**2, nu_1 / one - nu_2 / other
        if gain != 0.0 and loss / gain > 0.0:
            gamma = loss / gain * (1.0 + distance)
            expected = min((1.0 / number + gamma / number**2) * total for number, total in least.items())
            assert math.isclose(solve(changed(problem, gamma=gamma)).objective, expected, rel_tol=SAME)


@settings(max_examples=25)
@given(st.one_of(random_rounds(25, min_devices=9), knapsack_rounds(25, min_devices=11)))
def test_exact_is_not_beaten_by_a_mixed_integer_program(problem: RoundProblem) -> None:
    schedule = solve(problem, "exact")
    assert (schedule.num_selected > 0) == bool((problem.needed_hz <= problem.capacity_hz).any())
    sets = highs_by_number(problem, under=schedule.objective)
    assert all(schedule.objective <= problem.objective(chosen) * (1.0 + SAME) for chosen in sets)


@settings(max_examples=60)
@given(st.one_of(random_rounds(12, min_devices=2), knapsack_rounds(12), crossing_rounds(10)))
def test_greedy_selects_what_the_literal_algorithm_selects(problem: RoundProblem) -> None:
    literal = devices_of(problem, greedy_literal(problem))
    assert devices_of(problem, solve(problem, "greedy").selected) == literal
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("flare.scheduling.greedy._LARGE", 1)  # as it goes about a large cell
        assert devices_of(problem, solve(problem, "greedy").selected) == literal


def devices_of(problem: RoundProblem, selected: np.ndarray) -> list[tuple[float, float, float]]:
    """Identical devices may stand in for one another."""
    columns = (problem.tau[selected], problem.compute_s[selected], problem.snr_hz[selected])
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=100)
@given(random_rounds(10), st.floats(1e-6, 3.0))
def test_optimum_does_not_rise_with_the_band(problem: RoundProblem, wider: float) -> None:
    wide = changed(problem, total_bandwidth_hz=problem.total_bandwidth_hz * (1.0 + wider))
    assert solve(wide).objective <= solve(problem).objective * (1.0 + SAME)


@settings(max_examples=100)
@given(random_rounds(10), st.floats(1e-6, 3.0))
def test_optimum_does_not_rise_with_the_deadline(problem: RoundProblem, longer: float) -> None:
    late = changed(problem, deadline_s=problem.deadline_s * (1.0 + longer))
    assert solve(late).objective <= solve(problem).objective * (1.0 + SAME)


@settings(max_examples=50)
@given(random_rounds(10))
def test_another_device_does_not_raise_the_optimum(problem: RoundProblem) -> None:
    assume(problem.num_devices > 1)
    rest = {name: getattr(problem, name)[1:] for name in ("tau", "compute_s", "snr_hz", "payload_bits")}
    fewer = changed(problem, **rest)
    assert solve(problem).objective <= solve(fewer).objective * (1.0 + SAME)


@settings(max_examples=300)
@given(
    st.lists(st.floats(1.0, 50.0), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0]),
    st.floats(-1.0, 1.0),
)
def test_threshold_of_theorem_4_is_exactly_where_the_objective_stops_falling(
    taus: list[float], gamma: float, distance: float
) -> None:
    number, chosen_nu = len(taus), sum(1.0 / tau for tau in taus)
    candidate = _threshold(number, chosen_nu, gamma) * (1.0 + distance)
    assume(abs(distance) > 1e-9)

    def objective(size: int, total_nu: float) -> float:  # Eq. (19a)
        return (1.0 / size + gamma / size**2) * total_nu

    falls = objective(number + 1, chosen_nu + candidate) < objective(number, chosen_nu)
    assert falls == (distance < 0.0)
