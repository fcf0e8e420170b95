"""The two devices of erratum 9: f_1 = (w - 1)^2 / 2 and f_2 = (w + 1)^2 / 2, of which only the first is ever selected.

From w = 2 the model goes to 1, where the gradient of F is 1 for ever, while every printed condition holds: for the rho
that the paper derives from G = H = sqrt(2) and ||grad F|| >= 1, which is 1/2; that of the path is 2 and more.
"""

from __future__ import annotations

import math

import numpy as np

from flare.theory.conditions import Constants, Rates
from flare.theory.measure import Study, as_run, compare
from flare.theory.quadratic import Moments, Quadratic, approximation_error, flare_round


def pair_study(rounds: int = 400, *, local_lr: float = 0.1) -> Study:
    """The run against every bound; nothing in it is random."""
    problem = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0)
    rates = Rates(local_lr, global_lr=1.0, tau_bar=1.0)
    at, rows = Moments.at(np.array([2.0])), []
    for _ in range(rounds):
        done = flare_round(problem, rates, np.ones(2), np.array([0]), at)
        error = approximation_error(problem, 0, rates, 1, at.mean)
        row = (problem.gap(at), problem.gap(done.after), problem.gradient_sq(at), done.local_gradient_sq)
        rows.append((*row, done.selection_sq, *error))
        at = done.after
    alike = math.sqrt(2.0)  # (w -+ 1)^2 <= 2 + 2 w^2
    return compare(as_run(rows, [np.ones(1)] * rounds), rates, Constants(1.0, 0.0, alike, alike))
