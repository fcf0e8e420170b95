"""Errata 5 to 13 of docs/errata.md, each by the algebra or the smallest example that shows it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flare.theory import Constants, Form, Rates, broken_conditions, lemma_1, theorem_2
from flare.theory.quadratic import Moments, Quadratic, flare_round

rates = st.fractions(min_value=Fraction(1, 1000), max_value=10, max_denominator=1000)


@given(smoothness=rates, tau_bar=rates, global_lr=rates, local_lr=rates, h=rates, rho=rates)
def test_erratum_5_collecting_the_gradient_terms_of_a1_and_a2_puts_l_into_the_condition(
    smoothness: Fraction, tau_bar: Fraction, global_lr: Fraction, local_lr: Fraction, h: Fraction, rho: Fraction
) -> None:
    a1 = -tau_bar * global_lr * local_lr / 2
    b1 = Fraction(12, 10) * smoothness**2 * tau_bar**3 * global_lr * local_lr**3 * h**2
    a2 = smoothness * tau_bar**2 * global_lr**2 * local_lr**2 / (2 * rho**2)
    drift = Fraction(24, 10) * h**2 * smoothness**2 * tau_bar**2 * local_lr**2
    corrected = 1 - smoothness * tau_bar * global_lr * local_lr / rho**2 - drift
    printed = 1 - tau_bar * global_lr * local_lr / rho**2 - drift
    assert a1 + b1 + a2 == a1 * corrected
    assert (a1 + b1 + a2 == a1 * printed) == (smoothness == 1)


@given(scale=rates)
def test_erratum_5_the_printed_condition_depends_on_the_unit_of_the_loss(scale: Fraction) -> None:
    def margin(smoothness: Fraction, local_lr: Fraction, *, with_l: bool) -> Fraction:
        first = (smoothness if with_l else 1) * local_lr
        return 1 - first - Fraction(24, 10) * smoothness**2 * local_lr**2

    before, after = (Fraction(2), Fraction(1, 10)), (2 * scale, Fraction(1, 10) / scale)
    assert margin(*before, with_l=True) == margin(*after, with_l=True)
    assert (margin(*before, with_l=False) == margin(*after, with_l=False)) == (scale == 1)


def test_erratum_6_the_printed_phi_2_is_smaller_than_what_it_bounds() -> None:
    # Two devices of one step each under a tau_bar of 12: sum 1/tau = 2 = kappa M / tau_bar with kappa = 12.
    taus, tau_bar, smoothness, local_lr, global_lr = [1, 1], 12, Fraction(1), Fraction(1, 24), Fraction(1)
    m, kappa = len(taus), max(Fraction(tau_bar, tau) for tau in taus)
    total = sum(Fraction(1, tau) for tau in taus)
    exact = smoothness * tau_bar * local_lr * (smoothness * tau_bar * local_lr / m + global_lr / m**2) * total
    printed = smoothness * local_lr * (smoothness * tau_bar * local_lr + kappa * global_lr / m)
    corrected = smoothness * local_lr * (kappa * smoothness * tau_bar * local_lr + kappa * global_lr / m)
    assert printed < exact
    assert corrected == exact  # all taus equal: the substitution loses nothing


def test_erratum_7_the_printed_index_range_does_not_reach_the_uploaded_weights() -> None:
    tau = 4
    defined = {0}  # w^0 is given: the global model
    for j in range(tau):  # Eq. (8) as printed: w^j from w^(j-1), j = 0 .. tau - 1
        if j - 1 in defined:
            defined.add(j)
    assert tau not in defined
    shifted = {0}
    for j in range(1, tau + 1):
        assert j - 1 in shifted
        shifted.add(j)
    assert tau in shifted


def test_erratum_8_fedavg_weighted_by_data_is_another_model_unless_all_hold_equally_much() -> None:
    updates = np.array([[1.0, 0.0], [0.0, 1.0]])  # (devices, weights), equal taus
    flare = updates.mean(axis=0)
    for sizes, same in (((30, 10), False), ((20, 20), True)):
        weights = np.array(sizes) / sum(sizes)
        assert np.allclose(weights @ updates, flare) is same


def test_erratum_9_always_selecting_one_of_two_devices_ends_far_above_the_bound_of_theorem_2() -> None:
    # f_1 = (w - 1)^2 / 2, f_2 = (w + 1)^2 / 2, F = w^2 / 2 + 1/2; only device 1 is selected, from w = 2 it goes to 1.
    # (w -+ 1)^2 <= 2 + 2 w^2: G^2 = H^2 = 2. On the way 1 < w <= 2, |w - 1| <= |w| / 2: rho = 2, Eq. (28).
    pair = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0)
    constants = Constants(smoothness=1.0, sigma_sq=0.0, g_const=2**0.5, h_const=2**0.5, rho=2.0)
    step, rounds = Rates(local_lr=0.01, global_lr=1.0, tau_bar=1.0), 2000
    at, gradients_sq = Moments.at(np.array([2.0])), []
    for _ in range(rounds):
        gradients_sq.append(pair.gradient_sq(at))
        done = flare_round(pair, step, np.ones(2), np.array([0]), at)
        assert done.local_gradient_sq <= gradients_sq[-1] / constants.rho**2 * (1 + 1e-12)
        at = done.after
    assert broken_conditions(step, constants, form=Form.PRINTED) == []
    told = {"gap": 2.0, "rounds": rounds, "num_selected": 1, "kappa": 1.0}
    printed = theorem_2(step, constants, form=Form.PRINTED, **told).total  # type: ignore[arg-type]
    measured = float(np.mean(gradients_sq))
    assert printed < 0.21
    assert measured > 1.0  # ||grad F(1)||^2 = 1 for ever
    # grad F - grad f_1 = 1 everywhere: with it the bound is above what is measured.
    aware = Constants(1.0, 0.0, 2**0.5, 2**0.5, selection_error=1.0)
    assert theorem_2(step, aware, form=Form.PROVEN, **told).total > measured  # type: ignore[arg-type]


def test_erratum_10_the_rho_of_eq_28_lets_lemma_1_promise_descent_where_the_loss_rises() -> None:
    # One device, f = F = w^2 / 2 at w = 1, three steps: Eq. (28) has (1/3) |w| <= |w| / rho, so rho = 3 will do.
    alone = Quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)), 0.0)
    step = Rates(local_lr=0.001, global_lr=700.0, tau_bar=3.0)  # L c = 2.1: beyond the minimum and up again
    before = Moments.at(np.ones(1))
    after = flare_round(alone, step, np.array([3.0]), np.array([0]), before).after
    assert alone.gap(after) > alone.gap(before)
    constants = Constants(smoothness=1.0, sigma_sq=0.0, g_const=0.0, h_const=1.0, rho=3.0)
    assert lemma_1(step, [3], constants, 1.0, form=Form.PRINTED).total < -0.8
    # With the sum over the steps the mean gradient is that of F, rho is next to 1, and there is no q.
    done = flare_round(alone, step, np.array([3.0]), np.array([0]), before)
    assert 1.0 <= done.local_gradient_sq**-0.5 < 1.01
    assert broken_conditions(step, Constants(1.0, 0.0, 0.0, rho=done.local_gradient_sq**-0.5))


def test_erratum_10_no_constant_rho_is_left_near_a_stationary_point() -> None:
    # The paper's own rho^2 <= 1 / (H^2 + G^2 / ||grad F||^2): 1 - L c / rho^2 falls below any bound as grad F -> 0.
    limits = [1.0 - 0.01 * (1.0 + 1.0 / gradient_sq) for gradient_sq in (1.0, 0.1, 0.001)]
    assert limits[0] > 0.9
    assert limits[-1] < 0.0


def test_erratum_11_noise_and_later_gradients_are_correlated() -> None:
    # f = -w^2 / 2 from w = 0, two steps of 1/4, noise n_0, n_1 of variance 1: w_1 = -n_0 / 4, grad f(w_1) = n_0 / 4.
    # The sum of the gradients is n_0 + n_1 + n_0 / 4; its square is (5/4)^2 + 1, not 2 + (1/4)^2.
    eta = Fraction(1, 4)
    exact, claimed = (1 + eta) ** 2 + 1, 2 + eta**2
    assert exact > claimed
    assert exact <= 2 * claimed
    saddle = Quadratic(-np.ones((1, 1, 1)), np.zeros((1, 1)), 1.0)
    done = flare_round(saddle, Rates(0.25, 1.0, 2.0), np.array([2.0]), np.array([0]), Moments.at(np.zeros(1)))
    assert np.isclose(done.after.covariance[0, 0], float(eta**2 * exact), rtol=1e-14)


@given(smoothness=rates, tau_bar=rates, global_lr=rates, local_lr=rates, scale=rates)
def test_erratum_12_phi_2_weighs_participation_by_eta_g_over_l_tau_bar_eta_l(
    smoothness: Fraction, tau_bar: Fraction, global_lr: Fraction, local_lr: Fraction, scale: Fraction
) -> None:
    def ratio(gamma: Fraction, m: int) -> Fraction:
        phi_2 = smoothness * tau_bar * local_lr / m + global_lr / m**2
        return phi_2 / (Fraction(1, m) + gamma / m**2)

    right, printed = global_lr / (smoothness * tau_bar * local_lr), global_lr / smoothness
    assert ratio(right, 1) == ratio(right, 2) == ratio(right, 7)
    assert (ratio(printed, 1) == ratio(printed, 2)) == (tau_bar * local_lr == 1)
    # Another unit of the loss, F -> s F, eta_l -> eta_l / s, leaves the right one as it is.
    assert global_lr / (scale * smoothness * tau_bar * (local_lr / scale)) == right
    assert (global_lr / (scale * smoothness) == printed) == (scale == 1)


@given(tau_bar_m=st.integers(2, 10_000), rounds=st.integers(1, 100_000))
def test_erratum_13_the_first_term_of_corollary_1_leads_when_r_exceeds_tau_bar_m(tau_bar_m: int, rounds: int) -> None:
    leads = Fraction(1, tau_bar_m * rounds) > Fraction(1, rounds**2)  # both squared
    assert leads == (rounds > tau_bar_m)
