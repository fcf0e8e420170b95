"""Errata 10, 11 and 15 to 17 of docs/errata.md: steps of the paper's proofs, each by an example."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.learning.batches import draw_batches
from flare.rng import stream
from flare.theory import Constants, Form, Rates, broken_conditions, q_limit
from flare.theory.quadratic import Moments, Quadratic, flare_round, random_quadratic
from tests.errata_page import says

SADDLE = Quadratic(-np.ones((1, 1, 1)), np.zeros((1, 1)), 0.0)  # f = -w^2 / 2


def test_erratum_10_step_c_does_not_follow_from_rho_of_1() -> None:
    # From w = 1 to 5/4: the gradients are -1 and -5/4, their mean -9/8. G = 0, H = 1: the paper allows rho up to 1.
    step, ones = Rates(local_lr=0.25, global_lr=0.5, tau_bar=2.0), Moments.at(np.ones(1))
    constants = Constants(smoothness=1.0, sigma_sq=0.0, g_const=0.0, h_const=1.0, rho=1.0)
    assert SADDLE.smoothness == constants.smoothness
    for form in (Form.PRINTED, Form.CORRECTED):
        assert broken_conditions(step, constants, form=form) == []
    assert says(10, f"with q up to {q_limit(step, constants, Form.PRINTED):.2f}", "p = 1/2, c = 1/4")
    assert (step.tau_bar * step.local_lr, step.global_step) == (0.5, 0.25)
    done = flare_round(SADDLE, step, np.array([2.0]), np.array([0]), ones)
    assert done.local_gradient_sq == pytest.approx(float(Fraction(9, 8) ** 2), rel=1e-14)
    assert done.local_gradient_sq > SADDLE.gradient_sq(ones)
    # A smaller rho does: 8/9 exactly, and it is allowed too.
    assert done.local_gradient_sq == pytest.approx(SADDLE.gradient_sq(ones) / (8 / 9) ** 2, rel=1e-14)
    assert broken_conditions(step, replace(constants, rho=8 / 9)) == []
    # Eq. (33), which introduces rho, holds all the same: its left side is (1 / tau) |f'(1)| = 1/2.
    assert SADDLE.gradient_sq(ones) ** 0.5 >= 0.5


@pytest.mark.parametrize("seed", range(20))
def test_erratum_10_without_noise_and_with_g_of_0_a_constant_rho_does(seed: int) -> None:
    # All minima at 0, so that G = 0: ||V||^2 <= 2 ||mean grad f_i||^2 + 2 ||d||^2 <= 2 H^2 (1 + 2.4 p^2) ||grad F||^2.
    rng, reach = stream(seed, "constant rho"), 0.58
    problem = random_quadratic(seed, num_devices=3, num_weights=2, spread=0.0, sigma_sq=0.0, least=-1.0)
    g_const, h_const = problem.dissimilarity(slack=1.0 + 1e-9)
    assert g_const == 0.0
    at, tau = Moments.at(rng.standard_normal(2)), rng.integers(1, 13, 3).astype(np.float64)
    done = flare_round(problem, Rates(reach / 6.0, 1.0, 6.0), tau, np.arange(3), at)
    rho_sq = 1.0 / (2.0 * h_const**2 * (1.0 + 2.4 * reach**2))
    assert done.local_gradient_sq <= problem.gradient_sq(at) / rho_sq


@pytest.mark.parametrize("sigma_sq", [0.0, 1.0])
def test_erratum_10_no_rho_is_left_at_a_stationary_point(sigma_sq: float) -> None:
    # f_1 = (w - 1)^2, f_2 = (w + 2)^2 / 2: the gradients at 0 are -2 and 2. After a step of 1/10 they are -8/5 and 9/5.
    pair = Quadratic(np.array([[[2.0]], [[1.0]]]), np.array([[1.0], [-2.0]]), sigma_sq)
    at = Moments.at(np.zeros(1))
    assert pair.gradient_sq(at) == 0.0
    done = flare_round(pair, Rates(0.1, 1.0, 2.0), np.array([2.0, 2.0]), np.arange(2), at)
    by_hand = np.mean([(-2.0 - 1.6) / 2, (2.0 + 1.8) / 2]) ** 2
    noise = sigma_sq * (0.1**2 * (2.0**2 + 1.0**2)) / 4 / 4  # of the second gradients, A_i n / 10 each
    assert done.local_gradient_sq == pytest.approx(by_hand + noise, rel=1e-12)
    assert done.local_gradient_sq > 0.0


def test_erratum_10_noise_alone_leaves_no_rho_either() -> None:
    at = Moments.at(np.zeros(1))
    noisy = Quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)), 1.0)  # one device: G = 0
    done = flare_round(noisy, Rates(0.1, 1.0, 2.0), np.array([2.0]), np.array([0]), at)
    assert noisy.gradient_sq(at) == 0.0
    assert done.local_gradient_sq > 0.0


def test_erratum_10_the_papers_q_falls_below_zero_near_a_stationary_point_and_ours_does_not() -> None:
    step, limits = Rates(0.01, 1.0, 1.0), []
    for gradient_sq in (1.0, 0.1, 0.001):
        rho = (1.0 + 1.0 / gradient_sq) ** -0.5  # G = H = 1
        constants = Constants(1.0, 0.0, 1.0, 1.0, rho)
        limits.append(q_limit(step, constants))
        assert q_limit(step, constants, Form.PROVEN) > 0.99
    assert limits[0] > 0.9
    assert limits[-1] < 0.0


def test_erratum_11_noise_and_later_gradients_are_correlated() -> None:
    # f = -w^2 / 2 from w = 0, two steps of 1/4, noise n_0, n_1 of variance 1: w_1 = -n_0 / 4, grad f(w_1) = n_0 / 4.
    # V = n_0 / 8, N = (n_0 + n_1) / 2: E(V + N)^2 = ((5/4)^2 + 1) / 4, not E V^2 + E N^2 = (2 + (1/4)^2) / 4.
    eta = Fraction(1, 4)
    exact, claimed = ((1 + eta) ** 2 + 1) / 4, (2 + eta**2) / 4
    assert says(11, f"left is {exact}, the right {claimed}")
    saddle = Quadratic(-np.ones((1, 1, 1)), np.zeros((1, 1)), 1.0)
    done = flare_round(saddle, Rates(0.25, 1.0, 2.0), np.array([2.0]), np.array([0]), Moments.at(np.zeros(1)))
    assert np.isclose(done.after.covariance[0, 0], float((2 * eta) ** 2 * exact), rtol=1e-14)
    assert done.local_gradient_sq + 1.0 / 2.0 == pytest.approx(float(claimed), rel=1e-14)


@given(tau=st.integers(1, 12), reach=st.floats(0.01, 1.0))
def test_erratum_11_on_convex_quadratics_the_correlation_is_not_positive(tau: int, reach: float) -> None:
    # f = a w^2 / 2 from 0 in steps of 1/a x `reach`: w_k = -(reach / a) sum_{j<k} (1 - reach)^(k-1-j) n_j, and the
    # gradient is a w_k, so that E[N D] = -reach sum_{k} sum_{j<k} (1 - reach)^(k-1-j), in units of the variance.
    exact = -reach * sum((1.0 - reach) ** (k - 1 - j) for k in range(tau) for j in range(k))
    assert exact <= 0.0
    # E(N + D)^2 = E N^2 + E D^2 + 2 E[N D], each read off a round of `flare_round`: w_tau = -(reach / a)(N + D).
    bowl = Quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)), 1.0)
    done = flare_round(bowl, Rates(reach, 1.0, tau), np.array([float(tau)]), np.array([0]), Moments.at(np.zeros(1)))
    whole, gradients = done.after.covariance[0, 0] / reach**2, done.local_gradient_sq * tau**2
    assert whole == pytest.approx(tau + gradients + 2.0 * exact, rel=1e-9)


@given(v=st.floats(-9, 9), n=st.floats(-9, 9), far=st.floats(0.01, 0.99))
def test_erratum_11_the_repair_holds_for_any_pair(v: float, n: float, far: float) -> None:
    assert (v + n) ** 2 <= (v**2 / far + n**2 / (1.0 - far)) * (1.0 + 1e-12) + 1e-300


def test_erratum_15_one_batch_for_the_whole_round_does_not_average_out() -> None:
    # A linear f: the noise of a batch is the same wherever it is looked at. Four steps, noise of +-1, exactly.
    tau = 4
    fresh = np.mean([np.mean(noise) ** 2 for noise in itertools.product((-1.0, 1.0), repeat=tau)])
    same = np.mean([np.mean([noise] * tau) ** 2 for noise in (-1.0, 1.0)])
    assert (fresh, same) == (1.0 / tau, 1.0)  # what step (b) says of A_2, and tau times as much


def test_erratum_15_the_inequality_that_step_b_names_gives_more_by_the_number_of_all_steps() -> None:
    taus, m = [2, 5], 2
    terms = [Fraction(1, (m * tau) ** 2) for tau in taus for _ in range(tau)]  # of sigma^2, one for each step
    result = Fraction(1, m**2) * sum(Fraction(1, tau) for tau in taus)
    assert sum(terms) == result  # uncorrelated terms
    assert len(terms) * sum(terms) == sum(taus) * result  # E||x_1 + ... + x_n||^2 <= n E[...]


def test_erratum_15_the_packages_batches_are_new_at_every_step_but_not_independent_within_a_pass() -> None:
    repeated = 0
    for seed in range(50):
        first, second, third = draw_batches(np.arange(6), 3, 3, rng=stream(seed, "batches"))
        assert sorted([*first, *second]) == list(range(6))  # one pass: the second is what the first has left
        repeated += bool(set(third) & set(first))
    assert repeated > 0  # the next pass is drawn anew


@pytest.mark.parametrize("seed", range(5))
def test_erratum_16_the_steps_follow_from_assumption_2_and_not_from_assumption_1(seed: int) -> None:
    # Without noise Assumption 1 holds with sigma = 0, and would make the difference zero; L bounds it, and is reached.
    rng = stream(seed, "smooth")
    problem = random_quadratic(seed, num_devices=1, num_weights=3, sigma_sq=0.0, least=-1.0, convex=False)
    values, vectors = np.linalg.eigh(problem.hessian[0])
    start, away = rng.standard_normal(3), rng.standard_normal(3)
    steepest = vectors[:, np.abs(values).argmax()]
    for apart, tight in ((away, False), (steepest, True)):
        difference = np.linalg.norm(problem.gradients(start + apart) - problem.gradients(start))
        limit = problem.smoothness * np.linalg.norm(apart)
        assert 0.0 < difference <= limit * (1.0 + 1e-12)
        assert bool(difference >= limit * (1.0 - 1e-12)) == tight


def test_erratum_17_a_rise_in_a_round_of_large_q_breaks_the_telescope() -> None:
    losses, qs = [Fraction(1), Fraction(2), Fraction(0)], [Fraction(4, 5), Fraction(2, 5)]
    summed = sum((losses[r] - losses[r + 1]) / qs[r] for r in range(2))
    claimed = (losses[0] - min(losses)) / min(qs)
    assert says(17, f"q = {qs[0]}, {qs[1]} give {summed} on the left and {claimed} on the right", "F* = 0")
    common = sum((losses[r] - losses[r + 1]) / min(qs) for r in range(2))
    assert common <= claimed  # with the least q in all rounds it telescopes


def test_erratum_17_the_papers_limit_on_q_differs_from_round_to_round_and_ours_does_not() -> None:
    # f_1 = (w - 1)^2 / 2, f_2 = (w + 1)^2 / 2 (G^2 = H^2 = 2), all selected, from 1/2 to the optimum at 0.
    pair = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0)
    step, at, limits, ours = Rates(0.01, 1.0, 1.0), Moments.at(np.array([0.5])), [], set()
    for _ in range(200):
        rho = 1.0 / np.sqrt(2.0 + 2.0 / pair.gradient_sq(at))
        constants = Constants(1.0, 0.0, 2.0**0.5, 2.0**0.5, float(rho))
        limits.append(q_limit(step, constants))
        ours.add(q_limit(step, constants, Form.PROVEN))
        at = flare_round(pair, step, np.ones(2), np.arange(2), at).after
    assert limits[0] > 0.85
    assert all(later < earlier for earlier, later in itertools.pairwise(limits))
    assert limits[-1] < 0.0
    assert len(ours) == 1
