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
costs were nu_i + gamma / (M + gamma) n_i: they depend on M, so that each M is then a search of its own.

The search (`exact_search`) takes the M with the smallest bound first, finds its best price, then closes it by that
search, until no M has a bound under the best schedule known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.checks import NO_DEVICES
from flare.scheduling.exact_search import Found, Limited, Search
from flare.scheduling.problem import SAME, RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.types import Floats, Indices

_MAX_NUMBERS = 1 << 14  # entries of an array with a row for each M: as many as are quick to handle at once


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


def _limits(problems: Sequence[RoundProblem], orders: Sequence[Indices]) -> Limited | None:
    """Who must send and how many may, of rounds whose devices are listed in `orders`; None where nothing is asked."""
    if not any(problem.must.size or problem.max_devices is not None for problem in problems):
        return None
    must = np.zeros((len(problems), max(map(len, orders))), dtype=bool)
    for row, problem, order in zip(must, problems, orders, strict=True):
        row[: len(order)] = np.isin(order, problem.must)
    least = np.array([max(len(problem.must), 1) for problem in problems])
    return Limited(must, least, np.array([problem.most_devices for problem in problems]))


def _with_coding_noise(problem: RoundProblem, time_limit_s: float) -> Choice:
    """The same for a round whose coding noise makes the costs depend on M: a row of the search for each M.

    No M devices have less cost than the M of least cost, or less noise than the M of least noise. The M of the least
    such bounds go first, some at a time, until the bounds of the others are above the best objective found.
    """
    assert problem.coding_noise is not None
    stop_at = time.perf_counter() + time_limit_s
    able = problem.reachable_in_order
    least, most = max(len(problem.must), 1), min(problem.most_devices, len(able))
    m = np.arange(1, most + 1)
    least_noise = np.sort(problem.coding_noise[able]).cumsum()[:most]
    bounds = (m + problem.gamma) / m**2 * problem.cost[able].cumsum()[:most] + problem.gamma / m**2 * least_noise
    bounds *= 1.0 - SAME  # sums round
    selected, objective, unproven = able[:0], math.inf, math.inf
    left = least + np.argsort(bounds[least - 1 :], kind="stable")  # numbers of devices
    rows = max(1, _MAX_NUMBERS // len(able))
    while len(left) and bounds[left[0] - 1] <= objective * (1.0 + SAME):
        left_s = stop_at - time.perf_counter()
        if left_s <= 0.0:
            unproven = min(unproven, float(bounds[left[0] - 1]))
            break
        for found, devices in _of_sizes(problem, able, left[:rows], objective, left_s):
            own = problem.objective(devices)
            as_good = own <= objective * (1.0 + SAME) and len(devices) > len(selected)  # equal: rather more devices
            if own < objective * (1.0 - SAME) or as_good:
                selected, objective = devices, own
            if not found.proven:
                unproven = min(unproven, found.bound)
        left = left[rows:]
    if unproven >= objective * (1.0 - SAME):
        return Choice(selected, proven=True)
    return Choice(selected, lower_bound=min(unproven, objective))


def _of_sizes(
    problem: RoundProblem, able: Indices, m: Indices, best: float, time_limit_s: float
) -> Iterator[tuple[Found, Indices]]:
    """What is found for some numbers of devices, and the devices: none where they are no better than `best`."""
    assert problem.coding_noise is not None
    share = problem.gamma / (m + problem.gamma)
    costs = problem.cost[able] + share[:, None] * problem.coding_noise[able]  # (numbers of devices, devices)
    by_cost = np.lexsort((np.broadcast_to(problem.needed_hz[able], costs.shape), costs))  # of each row
    orders = able[by_cost]
    rows = np.ones(len(m))
    search = Search(
        np.take_along_axis(costs, by_cost, axis=1),
        problem.needed_hz[orders],
        np.full(len(m), len(able)),
        problem.gamma * rows,
        problem.capacity_hz * rows,
        Limited(np.isin(orders, problem.must), m, m),
    )
    search.share_best(best)
    outcomes = search.run(time_limit_s / len(m))
    return zip(outcomes, (order[one.best] for order, one in zip(orders, outcomes, strict=True)), strict=True)


def _rows(values: Sequence[Floats]) -> Floats:
    """Arrays as the rows of one, infinite behind the end of the shorter ones."""
    if len(values) == 1:
        return values[0][None]
    rows = np.full((len(values), max(map(len, values))), np.inf)
    for row, own in zip(rows, values, strict=True):
        row[: len(own)] = own
    return rows
