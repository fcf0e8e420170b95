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
    """Whose bound."""

    PRINTED = "printed"
    CORRECTED = "corrected"
    PROVEN = "proven"


@dataclass(frozen=True)
class Constants:
    """What the assumptions say of the problem.

    smoothness        L: every f_i has a gradient with this Lipschitz constant (Assumption 2)
    sigma_sq          variance of a mini-batch's gradient (Assumption 1)
    g_const, h_const  ||grad f_i||^2 <= G^2 + H^2 ||grad F||^2 (Assumption 3)
    rho               ||grad F(w_r)|| over the norm of the mean local gradient of the round, at least this (PRINTED and
                      CORRECTED ask for it; docs/errata.md, 10)
    selection_error   ||grad F(w_r) - mean of grad f_i(w_r) over the selected||, at most this; 0 where all take part
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


def safe_tau_bar(smoothness: float, local_lr: float) -> float:
    """The greatest tau_bar that the condition on the step size allows, 0.58 / (L eta_l); below 1 for large rates."""
    check_numbers(smoothness=smoothness, local_lr=local_lr)
    return STEP_LIMIT / (smoothness * local_lr) if smoothness * local_lr > 0.0 else math.inf


def q_limit(rates: Rates, constants: Constants, form: Form = Form.CORRECTED) -> float:
    """What q may be at most; the bounds hold up to and at it. Not positive: the bound says nothing at these rates."""
    p = reach(rates, constants)
    far = p * rates.global_lr  # L c
    if form is Form.PROVEN:
        k = doubled(constants)
        return 1.0 - 2.0 * k * far - 2.4 * constants.h_const**2 * p**2 * (k + 3.0 * far)
    middle = far if form is Form.CORRECTED else rates.tau_bar * rates.global_lr * rates.local_lr  # docs/errata.md, 5
    return 1.0 - middle / constants.rho**2 - 2.4 * constants.h_const**2 * p**2


def broken_conditions(
    rates: Rates, constants: Constants, q: float | None = None, form: Form = Form.CORRECTED
) -> list[str]:
    """What Lemma 1, Theorem 2 and Corollary 1 ask for and do not get, each in words; empty where all is well."""
    broken = []
    p = reach(rates, constants)
    if p > STEP_LIMIT * (1.0 + 1e-12):
        broken.append(
            f"L tau_bar eta_l is {p:.3g}, more than {STEP_LIMIT}: take a local rate of at most "
            f"{STEP_LIMIT / (constants.smoothness * rates.tau_bar):.3g}, or a tau_bar of at most "
            f"{safe_tau_bar(constants.smoothness, rates.local_lr):.3g} (strategy safe)"
        )
    limit = q_limit(rates, constants, form)
    if limit <= 0.0:
        broken.append(
            f"there is no q greater than 0: it may be at most {limit:.3g}, since the round goes too far (L tau_bar "
            f"eta_g eta_l is {p * rates.global_lr:.3g}); take smaller rates"
        )
    elif q is not None and not 0.0 < q <= limit:
        broken.append(f"q is {q:.3g}; it must be greater than 0 and at most {limit:.3g}")
    if form is Form.CORRECTED and constants.selection_error > 0.0:
        broken.append(
            f"the mean gradient of the selected differs from that of all by up to {constants.selection_error:.3g}, "
            "which the paper's proof takes to be 0: use the form proven"
        )
    return broken


def doubled(constants: Constants) -> float:
    """The error of the selection and the drift are two parts of one square: 2 where there are both."""
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
