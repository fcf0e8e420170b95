from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from flare.scheduling import RoundProblem, Status, solve
from flare.scheduling.greedy import _threshold
from tests.cells import changed, crossing_cell, hand_cell, paper_cell
from tests.oracles import greedy_literal


@pytest.fixture(params=["all devices at once", "in windows"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a small cell, and as in a large one."""
    monkeypatch.setattr("flare.scheduling.greedy._LARGE", 1 if request.param == "in windows" else math.inf)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("deadline_s", [0.15, 0.3, 0.6])
def test_greedy_is_algorithm_1_on_the_papers_cell(gamma: float, deadline_s: float) -> None:
    problem = paper_cell(8, num_devices=20, gamma=gamma, deadline_s=deadline_s)
    assert solve(problem, "greedy").selected.tolist() == greedy_literal(problem).tolist()


@pytest.mark.usefixtures("_both_ways")
def test_greedy_is_algorithm_1_with_float_taus() -> None:
    problem = paper_cell(12, num_devices=20, gamma=100.0, deadline_s=0.8, whole_taus=False)
    assert solve(problem, "greedy").selected.tolist() == greedy_literal(problem).tolist()


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("seed", range(6))
def test_greedy_is_algorithm_1_where_curves_cross(seed: int) -> None:
    problem = crossing_cell(seed)
    literal = greedy_literal(problem)
    assert solve(problem, "greedy").selected.tolist() == literal.tolist()


def test_taking_the_cheapest_at_the_deadline_is_not_algorithm_1_where_curves_cross() -> None:
    # What would do without a search for the wanted time: after the first device, the least bandwidth at the deadline.
    problem = crossing_cell(0)
    chosen = greedy_literal(problem)
    rest = [int(i) for i in np.argsort(problem.needed_hz) if i != problem.canonical_order[0]]
    assert set(chosen) != {int(problem.canonical_order[0]), *rest[: len(chosen) - 1]}


def test_greedy_starts_with_the_largest_tau() -> None:
    # gamma = 0: the largest tau alone is the optimum, nobody lowers the mean of 1/tau.
    assert solve(hand_cell([3.0, 7.0, 5.0], [0.1, 0.2, 0.3], gamma=0.0), "greedy").selected.tolist() == [1]


def test_greedy_adds_the_improving_device_that_delays_least() -> None:
    # tau = 8 takes half of the band. gamma = 100: it improves with 1/tau < 302/102/8 = 0.370, so all three others may
    # follow, and the cheapest does (tau 2.9, 1/tau = 0.345, share 0.2). Then 0.3 still fits and 0.4 does not.
    assert _threshold(1, 1 / 8, 100.0) == pytest.approx(302 / 102 / 8, rel=1e-15)
    problem = hand_cell([8.0, 2.9, 7.0, 6.0], [0.5, 0.2, 0.3, 0.4], gamma=100.0)
    assert solve(problem, "greedy").selected.tolist() == [0, 1, 2]


def test_greedy_passes_over_a_cheap_device_that_does_not_improve() -> None:
    # As above, but 1/2 > 0.370. After {8, 7} the threshold is 506/412 x (1/8 + 1/7) = 0.329: still out.
    problem = hand_cell([8.0, 2.0, 7.0, 6.0], [0.5, 0.2, 0.3, 0.4], gamma=100.0)
    assert solve(problem, "greedy").selected.tolist() == [0, 2]


def test_greedy_stops_when_nobody_lowers_the_objective() -> None:
    # Room for all, gamma = 1: after tau = 8 the threshold is (1 + 3 + 1) / 3 / 8 = 0.208 < 1/4: tau = 4 stays out.
    assert solve(hand_cell([8.0, 4.0], [0.1, 0.1], gamma=1.0), "greedy").selected.tolist() == [0]


def test_greedy_claims_no_bound() -> None:
    schedule = solve(paper_cell(0), "greedy")
    assert schedule.status is Status.FEASIBLE
    assert np.isnan(schedule.lower_bound)
    assert np.isnan(schedule.gap)


def test_greedy_is_never_above_its_first_device_alone() -> None:
    for deadline_s in np.linspace(0.2, 1.0, 15):
        problem = paper_cell(3, gamma=100.0, deadline_s=deadline_s)
        alone = (1.0 + problem.gamma) / problem.tau[problem.reachable].max()
        assert solve(problem, "greedy").objective <= alone * (1.0 + 1e-15)


def large_cell(seed: int, kind: str) -> RoundProblem:
    """Fifteen hundred devices, of which hundreds are chosen."""
    band_hz = 10e6 * 1500 / 40
    if kind == "crossing":
        return changed(crossing_cell(seed, num_devices=1500, stretch=2.5), total_bandwidth_hz=1e9, gamma=1e5)
    if kind == "few kinds":  # a hundred like each other
        cell = large_cell(seed, "float taus")
        which = np.arange(1500) % 15
        return changed(cell, tau=cell.tau[which], compute_s=cell.compute_s[which], snr_hz=cell.snr_hz[which])
    gamma, deadline_s = (1000.0, 0.4) if seed % 2 else (20.0, 1.0)
    whole = kind == "whole taus"
    return paper_cell(
        seed, num_devices=1500, gamma=gamma, deadline_s=deadline_s, whole_taus=whole, total_bandwidth_hz=band_hz
    )


@pytest.mark.parametrize("kind", ["whole taus", "float taus", "crossing", "few kinds"])
@pytest.mark.parametrize("seed", [0, 1])
def test_windows_choose_what_looking_at_all_devices_chooses(
    seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = large_cell(seed, kind)
    chosen = []
    for large in (1, math.inf):
        monkeypatch.setattr("flare.scheduling.greedy._LARGE", large)
        chosen.append(solve(changed(problem), "greedy").selected.tolist())
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) > 50


def test_least_bandwidth_has_a_second_derivative_above_and_a_third_below_zero() -> None:
    # What the windows rest on. In units of the channel, with s = ln(1 + SNR): slack = (e^s - 1) / s and
    # b = 1 / (e^s - 1); all devices have this one curve, scaled. d/dslack = (1 / slack'(s)) d/ds.
    with mpmath.workdps(120):
        for exponent in np.linspace(-6.0, 2.5, 200):
            s = mpmath.mpf(10) ** exponent
            e, m = mpmath.exp(s), mpmath.expm1(s)
            b1, b2, b3 = -e / m**2, e * (e + 1) / m**3, -e * (e**2 + 4 * e + 1) / m**4  # of b, by s
            u1 = e / s - m / s**2  # of the slack, by s
            u2 = e / s - 2 * e / s**2 + 2 * m / s**3
            u3 = e / s - 3 * e / s**2 + 6 * e / s**3 - 6 * m / s**4
            first = b1 / u1
            second = (b2 - first * u2) / u1**2
            third = (b3 - first * u3 - 3 * second * u1 * u2) / u1**3
            assert first < 0 < second
            assert third < 0
