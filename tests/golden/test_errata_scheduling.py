"""Errata 1 to 4 and 14 of docs/errata.md, those of the scheduling part, each shown by numbers derived here."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.optimize import OptimizeResult, linprog
from scipy.special import lambertw

from flare.scheduling import RoundProblem, Status, solve
from flare.wireless.rate import bandwidth_for
from tests.cells import hand_cell, paper_cell
from tests.errata_page import says
from tests.oracles import bandwidth_50_digits, greedy_literal

LN2 = math.log(2.0)


# Erratum 1: Theorem 3 prints b = S ln2 / (slack (v + W(-v e^-v))), v = S ln2 / (snr slack), without naming the branch.
#
# On b = 1 Hz with SNR x = 3 the rate is log2(4) = 2 bit/s: S = 2 bit take 1 s. So snr = 3 Hz, v = (2/3) ln2 = 0.4621.
# The deadline reads ln(1 + x) = v x. Put y = -v (1 + x): y e^y = -v e^-v (1 + x) e^(-v x) = -v e^-v, so y is a value
# of W at -v e^-v. y = -v is the trivial root x = 0; y = -v (1 + 3) = -1.848 < -1 is the wanted one, on W_{-1}.
# 1/b = x / snr = x v slack / (S ln2) and x v = -y - v, hence b = -S ln2 / (slack (v + W_{-1})): the sign is wrong too.

V = 2.0 / 3.0 * LN2


def printed_bandwidth(v: float, branch: int) -> float:
    """Theorem 3 as printed, for S = 2 bit and a slack of 1 s."""
    with np.errstate(divide="ignore"):
        return float(2.0 * LN2 / (v + lambertw(-v * np.exp(-v), branch).real))


def test_erratum_1_the_bandwidth_of_theorem_3_is_1_hz() -> None:
    assert float(bandwidth_for(2.0, np.array(1.0), np.array(3.0))) == pytest.approx(1.0, rel=1e-15)


def test_erratum_1_the_printed_formula_on_the_principal_branch_divides_by_zero() -> None:
    assert float(lambertw(-V * math.exp(-V), 0).real) == pytest.approx(-V, rel=1e-15)
    assert abs(printed_bandwidth(V, 0)) > 1e15


def test_erratum_1_the_printed_formula_on_the_other_branch_is_negative() -> None:
    assert printed_bandwidth(V, -1) == pytest.approx(-1.0, rel=1e-14)


def test_erratum_1_the_corrected_formula_agrees_away_from_the_branch_point() -> None:
    for snr_hz in (2.0, 3.0, 50.0, 1e4):
        corrected = -printed_bandwidth(2.0 * LN2 / snr_hz, -1)
        assert float(bandwidth_for(2.0, np.array(1.0), np.array(snr_hz))) == pytest.approx(corrected, rel=1e-13)


def test_erratum_1_no_bandwidth_is_enough_from_v_equal_to_1_on() -> None:
    # Even infinite bandwidth carries snr / ln2 bit/s: 2 bit in 1 s ask for snr > 2 ln2.
    min_snr_hz = 2.0 * LN2
    at = np.array([0.5, 1.0 - 1e-9, 1.0 + 1e-9, 2.0]) * min_snr_hz
    assert np.isinf(bandwidth_for(2.0, np.ones(4), at)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("x", [1e-4, 1e-6, 1e-8])
def test_erratum_1_a_plain_lambert_w_loses_the_digits_near_the_branch_point(x: float) -> None:
    # x small: v = ln(1 + x) / x = 1 - x/2 + ..., and v + W_{-1} = -v x cancels between two numbers near 1, of which
    # W_{-1} is known to about sqrt(eps) only.
    snr_hz = 2.0 * LN2 * x / math.log1p(x)
    exact, v = bandwidth_50_digits(2.0, 1.0, snr_hz)
    plain = -printed_bandwidth(float(v), -1)
    ours = float(bandwidth_for(2.0, np.array(1.0), np.array(snr_hz)))

    def lost(value: float) -> float:
        return float(abs((mpmath.mpf(value) - exact) / exact))

    assert lost(ours) <= 1e-13 / float(1 - v)
    assert lost(plain) > 100.0 * lost(ours)
    assert lost(plain) > 1e-13 / float(1 - v)


# Erratum 2: t*(Q) <= t holds exactly when the sum of b_i(t) over Q is at most B.


def test_erratum_2_a_set_meets_a_deadline_exactly_if_its_least_bandwidths_fit_the_band() -> None:
    cell = paper_cell(4)
    rng = np.random.default_rng(0)
    answers = set()
    for _ in range(300):
        devices = rng.choice(40, size=rng.integers(1, 9), replace=False)
        deadline_s = rng.uniform(0.1, 1.0)
        meets = cell.min_latency(devices) <= deadline_s
        assert meets == (math.fsum(cell.min_bandwidth_hz(deadline_s)[devices]) <= cell.total_bandwidth_hz)
        answers.add(meets)
    assert answers == {True, False}


def test_erratum_2_algorithm_1_ends_above_the_optimum_on_the_papers_cell() -> None:
    rounds = [paper_cell(seed, deadline_s=0.4, gamma=10.0) for seed in range(20)]
    above = [solve(one, "greedy").objective / solve(one, "exact").objective - 1.0 for one in rounds]
    assert min(above) >= -1e-12
    assert np.mean(above) > 0.01


def test_erratum_2_algorithm_1_is_an_eighth_above_the_optimum_of_three_devices() -> None:
    # The device of tau = 4 needs all the band, each of the two of tau = 3 half of it. gamma = 2.
    # Algorithm 1 starts with tau = 4 and is stuck: (1 + 2) / 4 = 3/4. The other two: (2 + 2) / 4 x 2/3 = 2/3.
    problem = hand_cell([4.0, 3.0, 3.0], [1.0, 0.5, 0.5], gamma=2.0)
    assert solve(problem, "greedy").objective == pytest.approx(3.0 / 4.0, rel=1e-15)
    assert solve(problem, "exact").objective == pytest.approx(2.0 / 3.0, rel=1e-15)


def test_erratum_2_a_vertex_of_the_relaxation_has_at_most_two_fractional_devices() -> None:
    most = 0
    for seed in range(20):
        cell = paper_cell(seed, deadline_s=0.4)
        able = cell.needed_hz <= cell.total_bandwidth_hz
        share, nu = cell.needed_hz[able] / cell.total_bandwidth_hz, 1.0 / cell.tau[able]
        for size in range(1, 7):
            found = linprog(nu, share[None], [1.0], np.ones((1, len(nu))), [size], (0.0, 1.0), method="highs-ds")
            if found.status == 0:
                fractional = int(((found.x > 1e-9) & (found.x < 1.0 - 1e-9)).sum())
                assert fractional <= 2
                most = max(most, fractional)
    assert most == 2
    assert says(2, "at most two fractional devices in a vertex optimum")


# Erratum 3: Algorithm 1 admits its first device, the largest tau, without looking at the deadline.


@pytest.mark.parametrize("gamma", [0.0, 0.25, 10.0, 1e4])
def test_erratum_3_algorithm_1_as_printed_returns_a_device_that_misses_the_deadline(gamma: float) -> None:
    problem = hand_cell([9.0, 3.0, 2.0], [1.25, 0.5, 0.5], gamma=gamma)
    assert greedy_literal(problem, as_printed=True).tolist() == [0]
    assert problem.needed_hz[0] == pytest.approx(1.25 * problem.total_bandwidth_hz, rel=1e-12)
    assert problem.fits(np.array([1, 2]))
    assert greedy_literal(problem).tolist() == solve(problem, "greedy").selected.tolist() != [0]


def test_erratum_3_greedy_passes_over_a_first_device_that_misses_the_deadline() -> None:
    # Device 0 has the largest tau and needs 1.25 of the band; 1 and 2 fit together.
    problem = hand_cell([9.0, 3.0, 2.0], [1.25, 0.5, 0.5], gamma=10.0)
    assert problem.min_latency(np.array([0])) > problem.deadline_s
    assert solve(problem, "greedy").selected.tolist() == [1, 2]


def test_erratum_3_greedy_is_infeasible_where_every_first_device_misses() -> None:
    schedule = solve(hand_cell([9.0, 3.0], [1.25, 1.1], gamma=10.0), "greedy")
    assert schedule.status is Status.INFEASIBLE
    assert schedule.lower_bound == math.inf


# Erratum 4: P5 lacks alpha_i <= theta, and with it selects the largest tau of those that can meet the deadline alone.


def p5(problem: RoundProblem, *, bounded: bool) -> tuple[np.ndarray, OptimizeResult]:
    """P5 as printed, in (alpha, beta / B, theta): the rows that must be at most 0, and the solver's answer.

    `bounded` adds alpha_i <= theta.
    """
    n = problem.num_devices
    eye, none, column = np.eye(n), np.zeros((n, n)), np.zeros((n, 1))
    need = np.diag(np.minimum(problem.needed_hz / problem.total_bandwidth_hz, 2.0))  # above 1 all mean the same
    rows = [
        np.hstack((need, -eye, column)),  # alpha_i c_i <= beta_i
        np.hstack((-eye, eye, column)),  # beta_i <= alpha_i B
        np.concatenate((np.zeros(n), np.ones(n), [-1.0]))[None, :],  # sum beta_i <= theta B
    ]
    if bounded:
        rows.append(np.hstack((eye, none, column - 1.0)))
    whole = np.vstack(rows)
    answer = linprog(
        np.concatenate((1.0 / problem.tau, np.zeros(n + 1))),
        A_ub=whole,
        b_ub=np.zeros(len(whole)),
        A_eq=np.concatenate((np.ones(n), np.zeros(n + 1)))[None, :],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * n + [(0.0, None)] * n + [(0.0, 1.0)],
    )
    return whole, answer


def test_erratum_4_p5_as_printed_has_an_optimum_whose_rounded_share_is_above_1() -> None:
    # alpha = (1, 0), beta = (B/4, 0), theta = 1/4 satisfies every printed constraint and reaches the optimum 1/tau_1,
    # but a_1 = round(alpha_1 / theta) = 4 is no selection. The missing row alpha_1 <= theta rules it out.
    problem = hand_cell([8.0, 4.0], [0.25, 0.25], gamma=0.0)
    point = np.array([1.0, 0.0, 0.25, 0.0, 0.25])
    rows, answer = p5(problem, bounded=False)
    assert answer.fun == pytest.approx(1.0 / 8.0, abs=1e-9)
    assert point[:2] @ (1.0 / problem.tau) == pytest.approx(answer.fun, abs=1e-9)
    assert (rows @ point <= 1e-12).all()
    assert round(point[0] / point[-1]) == 4
    whole = np.array([1.0, 0.0, 0.25, 0.0, 1.0])  # the same with theta = 1: as good, and a selection
    assert (rows @ whole <= 1e-12).all()
    assert round(whole[0] / whole[-1]) == 1
    assert says(4, "one of P5's optima, and gives a_1 = 4", "θ = 1", "and gives a_1 = 1")
    rows, _ = p5(problem, bounded=True)
    assert (rows @ point).max() == pytest.approx(0.75, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("deadline_s", [0.3, 0.6, 5.0])
def test_erratum_4_p5_with_its_missing_constraint_selects_the_largest_tau_that_can_meet_the_deadline(
    seed: int, deadline_s: float
) -> None:
    problem = paper_cell(seed, whole_taus=False, deadline_s=deadline_s)
    able = np.flatnonzero(problem.needed_hz <= problem.total_bandwidth_hz)
    assert able.size > 1
    largest = int(able[problem.tau[able].argmax()])
    _, answer = p5(problem, bounded=True)
    assert answer.fun == pytest.approx(1.0 / problem.tau[largest], rel=1e-9)
    assert np.flatnonzero(answer.x[: problem.num_devices] > 1e-9).tolist() == [largest]
    assert solve(problem, "lp").selected.tolist() == [largest]


@pytest.mark.parametrize("bounded", [False, True])
def test_erratum_4_p5_itself_leaves_out_a_device_that_needs_more_than_the_bandwidth(bounded: bool) -> None:
    problem = hand_cell([9.0, 3.0], [1.5, 0.5], gamma=0.0)
    _, answer = p5(problem, bounded=bounded)
    assert answer.x[:2] == pytest.approx([0.0, 1.0], abs=1e-9)
    assert answer.fun == pytest.approx(1.0 / 3.0, rel=1e-9)
    assert solve(problem, "lp").selected.tolist() == [1]


def test_erratum_4_p5_is_infeasible_where_no_device_can_meet_the_deadline_alone() -> None:
    problem = hand_cell([9.0, 3.0], [1.5, 1.1], gamma=0.0)
    assert p5(problem, bounded=True)[1].status == 2  # infeasible
    assert solve(problem, "lp").status is Status.INFEASIBLE


def test_erratum_4_theta_of_1_is_among_the_best_but_not_alone() -> None:
    # Two equal taus: alpha = (1/2, 1/2) with theta = 1/2, both devices, is as good as one of them with theta = 1.
    problem = hand_cell([4.0, 4.0], [0.25, 0.25], gamma=0.0)
    rows, answer = p5(problem, bounded=True)
    both = np.array([0.5, 0.5, 0.125, 0.125, 0.5])
    assert (rows @ both <= 1e-12).all()
    assert both[:2] @ (1.0 / problem.tau) == pytest.approx(answer.fun, abs=1e-9)


# Erratum 14: the candidates of Algorithm 1 can become more.


def test_erratum_14_one_candidate_is_followed_by_three() -> None:
    # gamma = 10. Q = 1, sum 1/20: threshold 32/12 x 1/20 = 0.133, so tau > 7.5; Q = 2, sum 1/20 + 1/8: 56/52 x 0.175 =
    # 0.188, so tau > 5.3.
    gamma, tau = Fraction(10), [Fraction(t) for t in (20, 8, 6, 6, 6)]

    def objective(chosen: list[Fraction]) -> Fraction:
        m = len(chosen)
        return (Fraction(1, m) + gamma / m**2) * sum(1 / t for t in chosen)

    def candidates(chosen: int) -> int:  # of Theorem 4: those whose addition lowers the objective
        return sum(objective([*tau[:chosen], t]) < objective(tau[:chosen]) for t in tau[chosen:])

    def printed(chosen: int) -> int:  # Theorem 4, Eq. (24)
        q, total = chosen, sum(1 / t for t in tau[:chosen])
        limit = (q**2 + (2 * gamma + 1) * q + gamma) / (q**2 * (q + gamma + 1)) * total
        return sum(1 / t < limit for t in tau[chosen:])

    assert [candidates(1), candidates(2)] == [printed(1), printed(2)] == [1, 3]
    roomy = hand_cell([20.0, 8.0, 6.0, 6.0, 6.0], [0.1] * 5, gamma=10.0)
    assert {0, 1} < set(solve(roomy, "greedy").selected.tolist())  # the algorithm does come by
