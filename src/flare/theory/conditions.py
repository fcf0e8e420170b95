"""What the paper's analysis assumes of a problem and of the rates, and whether it holds.

Paper -> code: see `flare.theory.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum

STEP_LIMIT = 0.58
"""What L tau_bar eta_l may be at most, Appendix B."""


class Form(StrEnum):
    """Which version of a bound; `flare.theory.bounds` says how they differ."""

    PRINTED = "printed"
    CORRECTED = "corrected"
    PROVEN = "proven"


@dataclass(frozen=True)
class Constants:
    """What the assumptions say of the problem.

    smoothness        L: ||grad f_i(v) - grad f_i(w)|| <= L ||v - w|| for every device (Assumption 2)
    sigma_sq          variance of a mini-batch's gradient, at most this (Assumption 1)
    g_const, h_const  ||grad f_i||^2 <= G^2 + H^2 ||grad F||^2 (Assumption 3)
    rho               ||grad F(w_r)|| over the norm of the mean local gradient of the round, at least this (PRINTED and
                      CORRECTED ask for it; docs/errata.md, 10)
    selection_error   delta: ||grad F(w_r) - mean of grad f_i(w_r) over the selected||, at most this in root mean
                      square; 0 where all take part and F is the plain mean of the f_i
    """

    smoothness: float
    sigma_sq: float
    g_const: float
    h_const: float = 1.0
    rho: float = 1.0
    selection_error: float = 0.0

    def __post_init__(self) -> None:
        _check(self, lowest={"h_const": 1.0})
        if self.rho == 0.0:
            raise ValueError("rho is 0; it must be greater than 0")


@dataclass(frozen=True)
class Rates:
    """What the base station sets: eta_l, eta_g and tau_bar."""

    local_lr: float
    global_lr: float
    tau_bar: float

    def __post_init__(self) -> None:
        _check(self)
        for each in fields(self):
            if getattr(self, each.name) == 0.0:
                raise ValueError(f"{each.name} is 0; it must be greater than 0")

    @property
    def global_step(self) -> float:
        """c = tau_bar eta_g eta_l: what the mean gradient of a round is multiplied by to move the global model."""
        return self.tau_bar * self.global_lr * self.local_lr


def safe_tau_bar(smoothness: float, local_lr: float) -> float:
    """The greatest tau_bar that the condition on the step size allows, 0.58 / (L eta_l); below 1 for large rates."""
    check_numbers(smoothness=smoothness, local_lr=local_lr)
    return STEP_LIMIT / (smoothness * local_lr) if smoothness * local_lr > 0.0 else math.inf


def rho_limit(constants: Constants, gradient_sq: float) -> float:
    """What the paper allows rho to be at most where ||grad F||^2 is `gradient_sq`: 1 / sqrt(H^2 + G^2 / ||grad F||^2).

    Appendix B ends with it, below Eq. (33), which introduces rho. Where G > 0 and the gradient is 0, none is left: 0.
    """
    check_numbers(gradient_sq=gradient_sq)
    if constants.g_const == 0.0:
        return 1.0 / constants.h_const
    return math.sqrt(gradient_sq / (constants.h_const**2 * gradient_sq + constants.g_const**2))


def q_limit(rates: Rates, constants: Constants, form: Form = Form.CORRECTED) -> float:
    """What q may be at most; the bounds hold up to and at it. Not positive: the bound says nothing at these rates."""
    drift = 2.4 * constants.h_const**2 * reach(rates, constants) ** 2
    if form is Form.PROVEN:
        return 1.0 - drift_factor(constants) * drift
    units = constants.smoothness if form is Form.CORRECTED else 1.0  # docs/errata.md, 5
    return 1.0 - units * rates.global_step / constants.rho**2 - drift


def broken_conditions(
    rates: Rates, constants: Constants, q: float | None = None, form: Form = Form.CORRECTED
) -> list[str]:
    """What Lemma 1, Theorem 2 and Corollary 1 ask for and do not get, each in words; empty where all is well."""
    broken = _too_far(rates, constants, form)
    limit = q_limit(rates, constants, form)
    if limit <= 0.0:
        broken.append(f"there is no q greater than 0: it may be at most {limit:.3g}; take smaller rates")
    elif q is not None and not 0.0 < q <= limit:
        broken.append(f"q is {q:.3g}; it must be greater than 0 and at most {limit:.3g}")
    if form is Form.CORRECTED and constants.selection_error > 0.0:
        broken.append(
            f"the mean gradient of the selected differs from that of all by up to {constants.selection_error:.3g}, "
            "which the paper's proof takes to be 0: use the form proven"
        )
    return broken


def _too_far(rates: Rates, constants: Constants, form: Form) -> list[str]:
    """The conditions on the steps themselves: of a device, and, for PROVEN, of the global model."""
    broken = []
    p = reach(rates, constants)
    if p > STEP_LIMIT * (1.0 + 1e-12):
        broken.append(
            f"L tau_bar eta_l is {p:.3g}, more than {STEP_LIMIT}: take a local rate of at most "
            f"{STEP_LIMIT / (constants.smoothness * rates.tau_bar):.3g}, or a tau_bar of at most "
            f"{safe_tau_bar(constants.smoothness, rates.local_lr):.3g} (strategy safe)"
        )
    far = p * rates.global_lr
    if form is Form.PROVEN and far >= 1.0:
        broken.append(
            f"L tau_bar eta_g eta_l is {far:.3g}, not less than 1: take a global rate below "
            f"{rates.global_lr / far:.3g}, or smaller local steps"
        )
    return broken


def drift_factor(constants: Constants) -> float:
    """k, the weight of the drift d beside the error e of selecting, in ||e - d||^2 <= k ||d||^2 + 2 ||e||^2.

    Where e = 0, k = 1 will do; otherwise k = 2.
    """
    return 1.0 if constants.selection_error == 0.0 else 2.0


def reach(rates: Rates, constants: Constants) -> float:
    """p = L tau_bar eta_l: how far a device goes in a round."""
    return constants.smoothness * rates.tau_bar * rates.local_lr


def allowed_q(rates: Rates, constants: Constants, q: float | None, form: Form) -> float:
    """The q to use, the greatest allowed unless given; ValueError where a condition is broken."""
    broken = broken_conditions(rates, constants, q, form)
    if broken:
        raise ValueError(f"the {form.value} bound does not hold here: " + "; and ".join(broken))
    return q_limit(rates, constants, form) if q is None else q


def _check(numbers: object, lowest: dict[str, float] | None = None) -> None:
    for each in fields(numbers):  # type: ignore[arg-type]
        check_numbers((lowest or {}).get(each.name, 0.0), **{each.name: getattr(numbers, each.name)})


def check_numbers(lowest: float = 0.0, /, **numbers: float) -> None:
    """ValueError where a number is not finite or below the lowest allowed."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= lowest):
            raise ValueError(f"{name} is {value:g}; it must be a finite number, at least {lowest:g}")
