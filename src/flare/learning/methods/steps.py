"""The two ways in which methods set the rates of devices that do different numbers of steps."""

from __future__ import annotations

from flare.learning.job import LocalRule
from flare.learning.methods.base import Round


def equal_rates(now: Round, *, mu: float = 0.0, ascent: float = 0.0) -> list[LocalRule]:
    """Every selected device steps at eta_l: who does more steps goes further."""
    return [LocalRule(lr=now.local_lr, steps=int(tau), mu=mu, ascent=ascent) for tau in now.tau[now.selected].tolist()]


def scaled_rates(now: Round, tau_bar: float) -> list[LocalRule]:
    """Every selected device steps at eta_l tau_bar / tau_i: all go equally far (Alg. 2, line 8)."""
    # The quotient first: it is exactly 1 for equal steps, so that the rate is then exactly eta_l.
    tau_selected = now.tau[now.selected].tolist()
    return [LocalRule(lr=now.local_lr * float(tau_bar / tau), steps=int(tau)) for tau in tau_selected]
