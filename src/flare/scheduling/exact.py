"""Policy `exact`: the proven optimum of P2.

With c_i the least bandwidth of device i at the deadline and nu_i = 1/tau_i, P2 is (erratum 2)

    min over M of  w(M) V(M),   w(M) = 1/M + gamma/M^2,
    V(M) = min { sum_Q nu_i :  |Q| = M,  sum_Q c_i <= B },        a knapsack with fixed cardinality.

Three facts make it quick to solve and to prove:

1. For any price >= 0 of bandwidth, the M devices with the least keys nu_i + price c_i bound V(M) from below:
   V(M) >= sum of their keys - price B. One sort gives that bound, and a candidate schedule, for every M at once. The
   best price makes it the bound of the linear relaxation, which has at most two fractional devices.
2. Among devices of equal tau the cheaper one is never the worse.
3. A set better than the best one known can differ from the M least keys only by devices whose keys lie within the
   remaining gap of the M-th. They are few, and `fixed_size_knapsack` goes through all of them.

The search (`exact_search`) takes the M with the smallest bound first, finds its best price, then closes it by that
search, until no M has a bound under the best schedule known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.exact_search import Search
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.types import Floats


@policy("exact", by_objective=True)
def exact(
    problem: RoundProblem,
    *,
    time_limit_s: Annotated[
        float, "seconds after which the search for a proof ends", Limits(above=0.0, finite=False)
    ] = 10.0,
) -> Choice:
    """Proven optimum of P2: over all numbers of devices; past `time_limit_s` the best found, with its bound."""
    return exact_many([problem], time_limit_s=time_limit_s)[0]


def exact_many(problems: Sequence[RoundProblem], *, time_limit_s: float = 10.0) -> list[Choice]:
    """The same for many rounds at once; `time_limit_s` is for each of them."""
    orders = [problem.reachable_in_order for problem in problems]
    choices = [Choice(order) for order in orders]
    possible = [at for at, order in enumerate(orders) if order.size]
    if not possible:
        return choices
    counts = np.array([orders[at].size for at in possible])
    nu = _rows([1.0 / problems[at].tau[orders[at]] for at in possible])
    needed = _rows([problems[at].needed_hz[orders[at]] for at in possible])
    gamma = np.array([problems[at].gamma for at in possible])
    band = np.array([problems[at].capacity_hz for at in possible])
    with np.errstate(invalid="ignore", divide="ignore"):
        outcomes = Search(nu, needed, counts, gamma, band).run(time_limit_s)
    for at, found in zip(possible, outcomes, strict=True):
        selected = orders[at][found.best]
        if found.proven:
            choices[at] = Choice(selected, proven=True)
        else:
            choices[at] = Choice(selected, lower_bound=min(found.bound, problems[at].objective(selected)))
    return choices


def _rows(values: Sequence[Floats]) -> Floats:
    """Arrays as the rows of one, infinite behind the end of the shorter ones."""
    if len(values) == 1:
        return values[0][None]
    rows = np.full((len(values), max(map(len, values))), np.inf)
    for row, own in zip(rows, values, strict=True):
        row[: len(own)] = own
    return rows
