"""Theorem 1, Lemma 1, Theorem 2 and Corollary 1, each term by itself.

Paper -> code: L -> smoothness, sigma^2 -> sigma_sq, G -> g_const, H -> h_const, ||grad F(w_r)||^2 -> gradient_sq,
g of Theorem 1 -> gradient_sq too, F(w_1) - F(w*) -> gap, M -> num_selected. Two products stand for the rest:

    p = L tau_bar eta_l           how far a device goes in a round, at most 0.58
    c = tau_bar eta_g eta_l       how far the global model goes, so that L c = p eta_g

Every bound comes in three forms:

    PRINTED     as the paper has it
    CORRECTED   with the two slips of algebra put right (docs/errata.md, 5 and 6); still the paper's steps and its rho
    PROVEN      by steps that all hold, for every selection and every smooth loss, without rho; docs/theory.md has the
                proof and what it assumes: fresh and independent mini-batches at every step of every device; selection,
                tau and tau_bar settled before they are drawn; in Theorem 2 one tau_bar for all rounds

A bound whose conditions are broken raises ValueError that says which, by how much, and what would do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from flare.theory.conditions import Constants, Form, Rates, allowed_q, check_numbers, drift_factor, reach


@dataclass(frozen=True)
class Bound:
    """A bound as its terms, which add up to `total`.

    descent     Lemma 1: -(c q / 2) ||grad F||^2; Theorem 2: 2 (F(w_1) - F*) / (c q R); Theorem 1: the gradients, g
    phi_1       what the devices' differing data cost (G^2)
    phi_2_drift, phi_2_noise    what the noise of mini-batches costs: by the devices' drift, and in their mean
    selection   what it costs that the selected are not all; only in PROVEN
    q           the q that was used; nan where there is none
    coding      what the noise of codecs costs (`flare.theory.coding`)
    """

    descent: float
    phi_1: float = 0.0
    phi_2_drift: float = 0.0
    phi_2_noise: float = 0.0
    selection: float = 0.0
    q: float = math.nan
    coding: float = 0.0

    @property
    def phi_2(self) -> float:
        """The paper's phi_2 or Phi_2."""
        return self.phi_2_drift + self.phi_2_noise

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.descent + self.phi_1 + self.phi_2 + self.selection + self.coding


def theorem_1(
    local_lr: float, tau_bar: float, gradient_sq: float, sigma_sq: float, form: Form = Form.CORRECTED
) -> Bound:
    """Most of E||w~ - w||^2, where w~ does tau steps at eta_l tau_bar / tau and w does tau_bar steps at eta_l.

    `gradient_sq` bounds E||grad f||^2 at every step of both. The printed 8 holds; PROVEN has 4 and asks for fresh
    mini-batches: the second moment of an unbiased gradient is g + sigma^2 at once, and step (b) of Appendix A need not
    double it.
    """
    rates = Rates(local_lr, 1.0, tau_bar)
    check_numbers(gradient_sq=gradient_sq, sigma_sq=sigma_sq)
    if rates.tau_bar != int(rates.tau_bar):
        raise ValueError(
            f"tau_bar is {tau_bar:g}; Theorem 1 compares with tau_bar steps, so that it must be a whole number: MaS, "
            "not MeS"
        )
    factor = (4.0 if form is Form.PROVEN else 8.0) * (rates.local_lr * rates.tau_bar) ** 2
    return Bound(descent=factor * gradient_sq, phi_2_noise=factor * sigma_sq)


def lemma_1(
    rates: Rates,
    tau: ArrayLike,
    constants: Constants,
    gradient_sq: float,
    *,
    q: float | None = None,
    form: Form = Form.CORRECTED,
) -> Bound:
    """Most of E[F(w_{r+1}) - F(w_r)] in a round of devices that do `tau` steps, shape (selected,).

    `gradient_sq` is ||grad F(w_r)||^2; q is the greatest allowed unless given. ValueError where a condition is broken.
    """
    steps = np.asarray(tau, dtype=np.float64)
    if steps.ndim != 1 or steps.size == 0 or not (np.isfinite(steps) & (steps >= 1.0)).all():
        raise ValueError(f"tau is {tau!r}; it must be a list of step counts, each at least 1, of one device at least")
    check_numbers(gradient_sq=gradient_sq)
    q = allowed_q(rates, constants, q, form)
    scale = rates.global_step / 2.0  # c / 2
    terms = _terms(rates, constants, float(np.sum(1.0 / steps)), steps.size, form)
    phi_1, drift, noise, selection = (scale * term for term in terms)
    return Bound(-scale * q * gradient_sq, phi_1, drift, noise, selection, q)


def theorem_2(
    rates: Rates,
    constants: Constants,
    *,
    gap: float,
    rounds: int,
    num_selected: int,
    kappa: float,
    q: float | None = None,
    form: Form = Form.CORRECTED,
) -> Bound:
    """Most of the mean of E||grad F(w_r)||^2 over the rounds.

    `num_selected` is the least M_r, `kappa` the greatest tau_bar / tau_i of any round; tau_bar is the same in all.
    ValueError where a condition is broken.
    """
    check_numbers(gap=gap, rounds=rounds, num_selected=num_selected, kappa=kappa)
    if min(rounds, num_selected) < 1 or kappa == 0.0:
        raise ValueError(
            f"rounds {rounds}, num_selected {num_selected}, kappa {kappa:g}: each must be at least 1, 1, >0"
        )
    q = allowed_q(rates, constants, q, form)
    sum_inverse_tau = kappa * num_selected / rates.tau_bar  # what Appendix C puts for the sum of 1 / tau_i
    phi_1, drift, noise, selection = _terms(rates, constants, sum_inverse_tau, num_selected, form)
    if form is Form.PRINTED:
        drift /= kappa  # docs/errata.md, 6
    start = 2.0 * gap / (rates.global_step * rounds)
    return Bound(start / q, phi_1 / q, drift / q, noise / q, selection / q, q)


@dataclass(frozen=True)
class Corollary1:
    """Theorem 2 at the rates of Corollary 1.

    leading     what falls as 1 / sqrt(tau_bar M R)
    low_order   what falls as 1 / R
    selection   what does not fall: the cost of selecting
    """

    rates: Rates
    bound: Bound

    @property
    def leading(self) -> float:
        """The start and the noise in the mean."""
        return self.bound.descent + self.bound.phi_2_noise

    @property
    def low_order(self) -> float:
        """Drift, by data and by noise."""
        return self.bound.phi_1 + self.bound.phi_2_drift


def corollary_rates(tau_bar: float, num_selected: int, rounds: int) -> Rates:
    """eta_l = 1 / (tau_bar sqrt(R)), eta_g = sqrt(tau_bar M)."""
    check_numbers(1, num_selected=num_selected, rounds=rounds)
    check_numbers(tau_bar=tau_bar)
    if tau_bar == 0.0:
        raise ValueError("tau_bar is 0; it must be greater than 0")
    return Rates(1.0 / (tau_bar * math.sqrt(rounds)), math.sqrt(tau_bar * num_selected), tau_bar)


def corollary_1(
    constants: Constants,
    *,
    tau_bar: float,
    num_selected: int,
    rounds: int,
    gap: float,
    kappa: float,
    q: float | None = None,
    form: Form = Form.CORRECTED,
) -> Corollary1:
    """Theorem 2 with eta_l = 1 / (tau_bar sqrt(R)) and eta_g = sqrt(tau_bar M)."""
    rates = corollary_rates(tau_bar, num_selected, rounds)
    bound = theorem_2(rates, constants, gap=gap, rounds=rounds, num_selected=num_selected, kappa=kappa, q=q, form=form)
    return Corollary1(rates, bound)


def _terms(
    rates: Rates, constants: Constants, sum_inverse_tau: float, num_selected: int, form: Form
) -> tuple[float, float, float, float]:
    """phi_1, the two terms of phi_2 and the cost of selecting, each over c / 2."""
    p = reach(rates, constants)
    far, inverse = p * rates.global_lr, sum_inverse_tau * constants.sigma_sq
    k, noise_share, selection = 1.0, far, 0.0
    if form is Form.PROVEN:
        k, noise_share, selection = drift_factor(constants), far / (1.0 - far), 2.0 * constants.selection_error**2
    phi_1 = 2.4 * k * p**2 * constants.g_const**2
    return phi_1, k * p**2 * inverse / num_selected, noise_share * inverse / num_selected**2, selection
