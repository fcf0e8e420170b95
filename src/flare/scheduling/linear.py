"""Policy `lp`: problem P5, the paper's linear program for gamma -> 0, with the constraint that it lacks.

    min nu^T alpha   s.t.  sum alpha_i = 1,  sum c_i alpha_i <= theta B,  0 <= alpha_i <= theta,  0 < theta <= 1

alpha = theta a. P5 keeps beta_i between alpha_i c_i and alpha_i B: so alpha_i = 0 for every device with c_i > B, which
is why only those that can meet the deadline alone are asked; for them beta_i is taken at its least. `alpha_i <= theta`
says a_i <= 1 and is missing in print.

The program is degenerate (erratum 4): once gamma = 0 nothing rewards participation, theta = 1 is always among the best,
and the answer is the device with the largest tau of those asked, ties apart. It is here because the paper has it; the
useful linear form is the relaxation at a fixed number of devices that `exact` prices.
"""

from __future__ import annotations

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.types import Floats, Indices


@policy("lp", by_objective=True)
def lp(problem: RoundProblem) -> Indices:
    """Linear program P5: for gamma near 0; selects the single largest tau, ties apart (erratum 4)."""
    order = problem.reachable_in_order
    if order.size == 0:
        return order
    alpha, theta = _relaxation(problem.cost[order], problem.needed_hz[order] / problem.usable_hz)
    share = alpha / theta
    rounded = np.flatnonzero(np.round(share) >= 1.0)
    if rounded.size == 0:  # rounding left nobody: the largest share stands in
        rounded = np.array([int(share.argmax())])
    # Rounding up may ask for more than the band: the largest shares go first, the rest while they fit.
    return admit(problem, order[rounded[np.argsort(-share[rounded], kind="stable")]])


def _relaxation(nu: Floats, band_share: Floats) -> tuple[Floats, float]:
    """Solve P5 for (alpha, theta); variables are alpha_1 .. alpha_n, theta. `nu` ascends."""
    from scipy.optimize import linprog  # here, because it takes longer to import than all other policies together
    from scipy.sparse import coo_array

    n = len(nu)
    device = np.arange(n)
    # Rows 0 .. n-1: alpha_i - theta <= 0. Row n: sum c_i / B alpha_i - theta <= 0.
    rows = np.concatenate((device, device, np.full(n + 1, n)))
    columns = np.concatenate((device, np.full(n, n), device, [n]))
    values = np.concatenate((np.ones(n), -np.ones(n), band_share, [-1.0]))
    answer = linprog(
        c=np.append(nu, 0.0),
        A_ub=coo_array((values, (rows, columns)), shape=(n + 1, n + 1)).tocsr(),
        b_ub=np.zeros(n + 1),
        A_eq=np.append(np.ones(n), 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * (n + 1),
        method="highs",
    )
    if answer.x is None:  # numbers too far apart for the solver; the largest tau alone is an optimum (erratum 4)
        return np.append(1.0, np.zeros(n - 1)), 1.0
    return np.asarray(answer.x[:n]), float(answer.x[n])
