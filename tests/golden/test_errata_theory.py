"""Errata 5 to 8 of docs/errata.md, each by the algebra or the smallest example that shows it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

rates = st.fractions(min_value=Fraction(1, 1000), max_value=10, max_denominator=1000)


@given(lipschitz=rates, tau_bar=rates, global_lr=rates, local_lr=rates, h=rates, rho=rates)
def test_erratum_5_collecting_the_gradient_terms_of_a1_and_a2_puts_l_into_the_condition(
    lipschitz: Fraction, tau_bar: Fraction, global_lr: Fraction, local_lr: Fraction, h: Fraction, rho: Fraction
) -> None:
    a1 = -tau_bar * global_lr * local_lr / 2
    b1 = Fraction(12, 10) * lipschitz**2 * tau_bar**3 * global_lr * local_lr**3 * h**2
    a2 = lipschitz * tau_bar**2 * global_lr**2 * local_lr**2 / (2 * rho**2)
    drift = Fraction(24, 10) * h**2 * lipschitz**2 * tau_bar**2 * local_lr**2
    corrected = 1 - lipschitz * tau_bar * global_lr * local_lr / rho**2 - drift
    printed = 1 - tau_bar * global_lr * local_lr / rho**2 - drift
    assert a1 + b1 + a2 == a1 * corrected
    assert (a1 + b1 + a2 == a1 * printed) == (lipschitz == 1)


@given(scale=rates)
def test_erratum_5_the_printed_condition_depends_on_the_unit_of_the_loss(scale: Fraction) -> None:
    def margin(lipschitz: Fraction, local_lr: Fraction, *, with_l: bool) -> Fraction:
        first = (lipschitz if with_l else 1) * local_lr
        return 1 - first - Fraction(24, 10) * lipschitz**2 * local_lr**2

    before, after = (Fraction(2), Fraction(1, 10)), (2 * scale, Fraction(1, 10) / scale)
    assert margin(*before, with_l=True) == margin(*after, with_l=True)
    assert (margin(*before, with_l=False) == margin(*after, with_l=False)) == (scale == 1)


def test_erratum_6_the_printed_phi_2_is_smaller_than_what_it_bounds() -> None:
    # Two devices of one step each under a tau_bar of 12: sum 1/tau = 2 = kappa M / tau_bar with kappa = 12.
    taus, tau_bar, lipschitz, local_lr, global_lr = [1, 1], 12, Fraction(1), Fraction(1, 24), Fraction(1)
    m, kappa = len(taus), max(Fraction(tau_bar, tau) for tau in taus)
    total = sum(Fraction(1, tau) for tau in taus)
    exact = lipschitz * tau_bar * local_lr * (lipschitz * tau_bar * local_lr / m + global_lr / m**2) * total
    printed = lipschitz * local_lr * (lipschitz * tau_bar * local_lr + kappa * global_lr / m)
    corrected = lipschitz * local_lr * (kappa * lipschitz * tau_bar * local_lr + kappa * global_lr / m)
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
