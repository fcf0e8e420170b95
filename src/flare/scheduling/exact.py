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

The search takes the M with the smallest bound first, finds its best price, then closes it by that search, until no M
has a bound under the best schedule known.
"""

from __future__ import annotations

import math
import time
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.fixed_size_knapsack import better_set
from flare.scheduling.problem import ADDITION_ERROR, SAME, RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.types import Floats, Indices

_FOR_PROOF = 0.7  # share of the time after which, without a proof, the rest goes into a better schedule
_MAX_FOR_HIGHS = 2_000  # devices; with more it takes longer than it is given, and the bounds leave little to gain


@policy("exact")
def exact(
    problem: RoundProblem,
    *,
    time_limit_s: Annotated[float, "seconds after which the search for a proof ends, greater than 0"] = 10.0,
) -> Choice:
    """Proven optimum of P2: over all numbers of devices; past `time_limit_s` the best found, with its bound."""
    if not time_limit_s > 0.0:
        raise ValueError(f"time_limit_s is {time_limit_s!r}; it must be a number of seconds greater than 0")
    order = problem.reachable_in_order
    if order.size == 0:
        return Choice(order)
    search = _Search(1.0 / problem.tau[order], problem.needed_hz[order], problem.gamma, problem.capacity_hz)
    start = time.perf_counter()
    proven = search.run(start + _FOR_PROOF * time_limit_s)
    if not proven:
        search.improve(start + time_limit_s)
    selected = order[search.best]
    if proven:
        return Choice(selected, proven=True)
    return Choice(selected, lower_bound=min(float(search.bound.min()), problem.objective(selected)))


class _Search:
    """Best-first search over M. Devices are sorted by nu, then by c (`needed`).

    Arrays over M have shape (max_m,), entry m - 1 for M = m. `low` is, for each M, the greatest price known at which
    the M least keys ask for more than the band, `high` the least known at which they do not: the best price lies
    between them.
    """

    def __init__(self, nu: Floats, needed: Floats, gamma: float, band: float) -> None:
        self.nu, self.needed, self.band = nu, needed, band
        cheapest_first = np.argsort(needed, kind="stable")
        limit = band * (1.0 + ADDITION_ERROR * np.arange(100, 100 + len(nu)))
        max_m = int(np.count_nonzero(np.cumsum(needed[cheapest_first]) <= limit))
        m = np.arange(1, max_m + 1)
        self.limit = limit[:max_m]  # what a rounded sum of bandwidths may reach; `fits` decides by the exact sum
        self.weight = (m + gamma) / m**2
        self.bound = np.zeros(max_m)
        self.price = np.full(max_m, np.nan)  # the best price, once it is known
        self.low = _Side(max_m, -1.0)
        self.high = _Side(max_m, np.inf)
        self.best: Indices = np.zeros(0, dtype=np.intp)
        self.best_objective = math.inf
        self.try_price(0.0, np.arange(len(nu)))
        self.try_price(math.inf, cheapest_first)

    def run(self, stop_at: float) -> bool:
        """Search until the best schedule is proven (True) or the time is over (False)."""
        while True:
            at = int(self.bound.argmin())
            if self.bound[at] >= self.best_objective * (1.0 - SAME):
                return True
            if time.perf_counter() > stop_at:
                return False
            if math.isnan(self.price[at]):
                self.sharpen(at)
                continue
            try:
                self.close(at, stop_at)
            except TimeoutError:
                return False

    def try_price(self, price: float, order: Indices) -> tuple[Floats, Floats]:
        """Take the devices in `order` of their keys at `price`: a bound and a candidate for each M."""
        order = order[: len(self.bound)]
        nu, hz = np.cumsum(self.nu[order]), np.cumsum(self.needed[order])
        fits = hz <= self.limit
        self.take_best(order, np.where(fits, self.weight * nu, np.inf))
        if price < math.inf:
            np.maximum(self.bound, self.weight * (nu + price * (hz - self.limit)), out=self.bound)
        self.low.update(~fits & (price > self.low.price), price, nu, hz)
        self.high.update(fits & (price <= self.high.price), price, nu, hz)
        return nu, hz

    def take_best(self, order: Indices, objective: Floats) -> None:
        """Keep the best of the candidates order[:1], order[:2], ..., if it beats the best known."""
        while True:
            least = objective.min()
            if not least < self.best_objective * (1.0 - SAME):
                return
            at = int(np.flatnonzero(objective <= least * (1.0 + SAME))[-1])  # equal ones: rather more devices
            if self.fits(order[: at + 1]):
                self.best, self.best_objective = order[: at + 1], float(objective[at])
                return
            objective[at] = np.inf

    def fits(self, devices: Indices) -> bool:
        """Whether devices fit, by the exact sum of their bandwidths."""
        return math.fsum(self.needed[devices]) <= self.band

    def sharpen(self, at: int) -> None:
        """Try the price at which the two known sets of this M are equally good. If no other set is better there, it
        is the best price of this M."""
        low, high = self.low, self.high
        price = float((high.nu[at] - low.nu[at]) / (low.hz[at] - high.hz[at]))
        if not low.price[at] < price < high.price[at]:
            self.price[at] = price if price > 0.0 else 0.0
            return
        known = low.nu[at] + price * (low.hz[at] - self.limit[at])
        nu, hz = self.try_price(price, np.argsort(self.nu + price * self.needed, kind="stable"))
        if nu[at] + price * (hz[at] - self.limit[at]) >= known - 1e-14 * abs(known):
            self.price[at] = price

    def close(self, at: int, stop_at: float) -> None:
        """Find the best set of this M, or prove that it is no better than the best one known."""
        target = self.best_objective / float(self.weight[at]) * (1.0 - SAME)
        found = better_set(
            self.nu, self.needed, float(self.price[at]), at + 1, float(self.limit[at]), target, self.fits, stop_at
        )
        if found is not None:
            self.best = found
            self.best_objective = float(self.weight[at]) * math.fsum(self.nu[found])
        self.bound[at] = self.best_objective

    def improve(self, stop_at: float) -> None:
        """Look for a better schedule with HiGHS, at the M of the least bounds first. What it finds is checked; what it
        claims to prove is not used, since its tolerances are wider than ours."""
        if len(self.nu) > _MAX_FOR_HIGHS:
            return
        from scipy.optimize import Bounds, LinearConstraint, milp  # here, because it takes its time to import

        for at in np.argsort(self.bound, kind="stable").tolist():
            left_s = stop_at - time.perf_counter()
            if left_s <= 0.0 or self.bound[at] >= self.best_objective * (1.0 - SAME):
                return
            answer = milp(
                c=self.nu,
                integrality=np.ones(len(self.nu)),
                bounds=Bounds(0.0, 1.0),
                constraints=[
                    LinearConstraint(np.ones(len(self.nu)), at + 1, at + 1),
                    LinearConstraint(self.needed / self.band, -np.inf, 1.0 - 2e-6),  # it may overstep by 1e-6
                ],
                options={"time_limit": left_s},
            )
            if answer.x is None:
                continue
            found = np.flatnonzero(answer.x > 0.5)
            objective = float(self.weight[at]) * math.fsum(self.nu[found])
            if len(found) == at + 1 and self.fits(found) and objective < self.best_objective:
                self.best, self.best_objective = found, objective


class _Side:
    """For each M, a price and the sums of nu and c over the M least keys at that price, shape (max_m,)."""

    def __init__(self, max_m: int, price: float) -> None:
        self.price = np.full(max_m, price)
        self.nu = np.full(max_m, np.nan)
        self.hz = np.full(max_m, np.nan)

    def update(self, where: NDArray[np.bool_], price: float, nu: Floats, hz: Floats) -> None:
        np.copyto(self.price, price, where=where)
        np.copyto(self.nu, nu, where=where)
        np.copyto(self.hz, hz, where=where)
