"""Lemma 1 where updates are coded: what the noise of codecs adds to the bound, and what that makes of P2.

docs/theory.md has the proof. A codec is unbiased, E Q(x) = x, with E||Q(x) - x||^2 <= w ||x||^2, and draws
independently for each device. Paper -> code: see `flare.theory.bounds`; w_i -> variance, ||grad f_i(w_r)||^2 ->
gradients_sq.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling.bits_choice import update_growth
from flare.theory.bounds import Bound, lemma_1
from flare.theory.conditions import STEP_LIMIT, Constants, Form, Rates, check_numbers, drift_factor, reach
from flare.types import Floats


def update_sq(rates: Rates, constants: Constants, tau: ArrayLike, gradients_sq: ArrayLike) -> Floats:
    """Most of D_i = E||Delta_i||^2 / (eta_l tau_bar)^2, the size of the update of each device, shape (devices,).

    `gradients_sq` are the ||grad f_i(w_r)||^2. ValueError where L tau_bar eta_l is above 0.58.
    """
    p = reach(rates, constants)
    if p > STEP_LIMIT * (1.0 + 1e-12):
        raise ValueError(f"L tau_bar eta_l is {p:.3g}, more than {STEP_LIMIT}: the size of updates is not bounded so")
    bound: Floats = update_growth(p) * (_each(gradients_sq) + constants.sigma_sq / _each(tau))
    return bound


def coded_lemma_1(
    rates: Rates,
    tau: ArrayLike,
    constants: Constants,
    gradient_sq: float,
    variance: ArrayLike,
    *,
    gradients_sq: ArrayLike | None = None,
    q: float | None = None,
    form: Form = Form.PROVEN,
) -> Bound:
    """Lemma 1 where the selected send coded updates; `variance` and `gradients_sq` have the shape (selected,) of `tau`.

    Without `gradients_sq` it is what Assumption 3 says, G^2 + H^2 ||grad F||^2. ValueError where a condition is broken.
    """
    plain = lemma_1(rates, tau, constants, gradient_sq, q=q, form=form)
    steps = _each(tau)
    if gradients_sq is None:
        gradients_sq = np.full(len(steps), constants.g_const**2 + constants.h_const**2 * gradient_sq)
    w, sizes = _each(variance), _each(gradients_sq)
    for name, values in (("variance", w), ("gradients_sq", sizes)):
        if values.shape != steps.shape or not (np.isfinite(values) & (values >= 0.0)).all():
            raise ValueError(f"{name} must be {len(steps)} finite numbers of at least 0, one for each device of tau")
    far = reach(rates, constants) * rates.global_lr  # L c
    noise = float(np.sum(w * update_sq(rates, constants, steps, sizes))) / len(steps) ** 2
    return replace(plain, coding=rates.global_step / 2.0 * far * noise)


@dataclass(frozen=True)
class P2Weights:
    """What P2's objective has to be for Lemma 1: phi_2 with the coding term is

        scale [ (1/M + gamma/M^2) sum 1/tau_i + (gamma/M^2) sum coding n_i ],

    with n_i = w_i (1 + sqrt(2.4) p)^2 (g_i + 1/tau_i) and g_i = ||grad f_i(w_r)||^2 / sigma^2
    (`flare.scheduling.bits_choice.coding_noise` gives the n_i).
    """

    gamma: float
    coding: float
    scale: float


def p2_weights(rates: Rates, constants: Constants, form: Form = Form.PROVEN) -> P2Weights:
    """The weights for a form of the bound.

    PROVEN: gamma = eta_g / (k p (1 - L c)) and coding = 1 - L c, as the noise of codecs lacks the factor 1 / (1 - L c)
    of that of mini-batches. Otherwise gamma = eta_g / p (erratum 12) and coding = 1.
    """
    p = reach(rates, constants)
    check_numbers(reach=p)
    if p == 0.0:
        raise ValueError("L tau_bar eta_l is 0: gamma would be infinite")
    k, left = 1.0, 1.0
    if form is Form.PROVEN:
        k, left = drift_factor(constants), 1.0 - p * rates.global_lr
        if left <= 0.0:
            raise ValueError(f"L tau_bar eta_g eta_l is {1.0 - left:.3g}, not less than 1: take smaller rates")
    scale = rates.global_step / 2.0 * k * p**2 * constants.sigma_sq
    return P2Weights(gamma=rates.global_lr / (k * p * left), coding=left, scale=scale)


def _each(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
