"""Policy `exact`: the proven optimum of P2.

With c_i the least bandwidth of device i at the deadline and nu_i = 1/tau_i, P2 is (erratum 2)

    min over M of  w(M) V(M),   w(M) = 1/M + gamma/M^2,
    V(M) = min { sum_Q nu_i :  |Q| = M,  sum_Q c_i <= B },        a knapsack with fixed cardinality.

Three facts make it quick to solve and to prove:

1. For any price >= 0 of bandwidth, the M devices with the least keys nu_i + price c_i bound V(M) from below:
   V(M) >= sum of their keys - price B. One sort gives that bound, and a candidate schedule, for every M at once. The
   best price makes it the bound of the linear relaxation, which has at most two fractional devices.
2. Among devices of equal tau the cheaper one is never the worse.
   (Devices that must send come first in every order, and the bounds hold with the same words.)
3. A set better than the best one known can differ from the M least keys only by devices whose keys lie within the
   remaining gap of the M-th. They are few, and `fixed_size_knapsack` goes through all of them.

nu_i is the device's cost, 1/tau_i in the paper. Coding noise n_i adds gamma/M^2 sum n_i to the objective, as if the
costs were nu_i + gamma / (M + gamma) n_i: they depend on M, and `bits_choice` is asked, with one choice a device.

The search (`exact_search`) takes the M with the smallest bound first, finds its best price, then closes it by that
search, until no M has a bound under the best schedule known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.bits_choice import BitsProblem, best_bits
from flare.scheduling.checks import NO_DEVICES
from flare.scheduling.exact_search import Limited, Search
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.schedule import Status
from flare.types import Floats, Indices


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
    choices = [Choice(NO_DEVICES)] * len(problems)
    asked = [at for at, problem in enumerate(problems) if problem.possible]
    for at in asked:
        if problems[at].coding_noise is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                choices[at] = _with_coding_noise(problems[at], time_limit_s)
    asked = [at for at in asked if problems[at].coding_noise is None]
    if not asked:
        return choices
    orders = [problems[at].reachable_in_order for at in asked]
    nu = _rows([problems[at].cost[order] for at, order in zip(asked, orders, strict=True)])
    needed = _rows([problems[at].needed_hz[order] for at, order in zip(asked, orders, strict=True)])
    counts = np.array([order.size for order in orders])
    gamma = np.array([problems[at].gamma for at in asked])
    band = np.array([problems[at].capacity_hz for at in asked])
    limits = _limits([problems[at] for at in asked], orders)
    with np.errstate(invalid="ignore", divide="ignore"):
        outcomes = Search(nu, needed, counts, gamma, band, limits).run(time_limit_s)
    for at, order, found in zip(asked, orders, outcomes, strict=True):
        selected = order[found.best]
        if found.proven:
            choices[at] = Choice(selected, proven=True)
        else:
            choices[at] = Choice(selected, lower_bound=min(found.bound, problems[at].objective(selected)))
    return choices


def proven_bounds(problems: Sequence[RoundProblem]) -> list[float]:
    """For each round `lower_bound` of the schedule that `exact` makes, without making it: no schedule has a smaller
    objective. Infinite where nobody can send."""
    bounds = [math.inf] * len(problems)
    asked = [at for at, problem in enumerate(problems) if problem.possible]
    for at, choice in zip(asked, exact_many([problems[at] for at in asked]), strict=True):
        selected = np.asarray(choice.selected)
        bounds[at] = problems[at].objective(selected) if choice.proven else choice.lower_bound
    return bounds


def _limits(problems: Sequence[RoundProblem], orders: Sequence[Indices]) -> Limited | None:
    """Who must send and how many may, of rounds whose devices are listed in `orders`; None where nothing is asked."""
    if not any(problem.must.size or problem.max_devices is not None for problem in problems):
        return None
    must = np.zeros((len(problems), max(map(len, orders))), dtype=bool)
    for row, problem, order in zip(must, problems, orders, strict=True):
        row[: len(order)] = np.isin(order, problem.must)
    least = np.array([max(len(problem.must), 1) for problem in problems])
    return Limited(must, least, np.array([problem.device_limit for problem in problems]))


def _with_coding_noise(problem: RoundProblem, time_limit_s: float) -> Choice:
    """The same for a round with coding noise: one of a single choice for every device."""
    assert problem.coding_noise is not None
    answer = best_bits(
        BitsProblem(
            problem.cost,
            problem.coding_noise[None],
            problem.needed_hz[None],
            band_hz=problem.capacity_hz,
            gamma=problem.gamma,
            must=problem.must,
            max_devices=problem.max_devices,
            order=problem.canonical_order,
        ),
        time_limit_s=time_limit_s,
    )
    if answer.status is Status.OPTIMAL:
        return Choice(answer.selected, proven=True)
    return Choice(answer.selected, lower_bound=answer.lower_bound)


def _rows(values: Sequence[Floats]) -> Floats:
    """Arrays as the rows of one, infinite behind the end of the shorter ones."""
    if len(values) == 1:
        return values[0][None]
    rows = np.full((len(values), max(map(len, values))), np.inf)
    for row, own in zip(rows, values, strict=True):
        row[: len(own)] = own
    return rows
