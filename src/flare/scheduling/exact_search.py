"""The search of policy `exact` (there: what it rests on), in many rounds at once.

Rounds are rows. A step that is the same for all (a sort, running sums, bounds for every M) is taken for all rows that
are still open; the last one, a complete search of few devices, for each row alone. No row knows of the others: what
is computed of it is the same, to the last bit, in whatever company.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.fixed_size_knapsack import better_set
from flare.scheduling.problem import ADDITION_ERROR, SAME
from flare.types import Floats, Indices

_FOR_PROOF = 0.7  # share of the time after which, without a proof, the rest goes into a better schedule
_MAX_FOR_HIGHS = 2_000  # devices; with more it takes longer than it is given, and the bounds leave little to gain
_FEW = 8  # rows; up to so many are asked one by one what to try next, which is quicker


@dataclass(frozen=True)
class Found:
    """The best devices of a row (their places in it), whether they are proven, and if not, the bound that is."""

    best: Indices
    proven: bool
    bound: float


@dataclass
class Limited:
    """What rounds ask of a selection beside the band: `must` says which devices have to be in it, shape (rows,
    devices); `least` and `most`, shape (rows,), how many devices there are at least and at most."""

    must: NDArray[np.bool_]
    least: Indices
    most: Indices

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        self.must, self.least, self.most = self.must[rows], self.least[rows], self.most[rows]


class Search:
    """Best-first search over M. Prices and bounds that are none come out as nan: call it under `numpy.errstate`.

    Arrays of devices have shape (rows, devices), sorted by nu, then by c (`needed`), and infinite behind the `counts`
    devices that a row has. Arrays over M have shape (rows, max_m), entry m - 1 for M = m; bounds are infinite where no
    M devices fit. `low` is, for each M, the greatest price known at which the M least keys ask for more than the band,
    `high` the least known at which they do not: the best price lies between them. A row that is done leaves.
    """

    def __init__(
        self,
        nu: Floats,
        needed: Floats,
        counts: Indices,
        gamma: Floats,
        band: Floats,
        limited: Limited | None = None,
    ) -> None:
        started = time.perf_counter()
        rows, devices = nu.shape
        self.nu, self.needed, self.counts, self.band = nu, needed, counts, band
        self.row = np.arange(rows)
        self.limited = limited
        cheapest_first = self.order_by(needed)
        limit = band[:, None] * (1.0 + ADDITION_ERROR * np.arange(100, 100 + devices))  # what sums may round to
        least_hz = self._taken(needed, cheapest_first).cumsum(axis=1)
        max_m = (least_hz <= limit).sum(axis=1)
        if limited is not None:
            max_m = np.minimum(max_m, limited.most)
        width = max(int(max_m.max()), 1)
        m = np.arange(1, width + 1)
        self.limit = limit[:, :width]  # what a rounded sum of bandwidths may reach; `fits` decides by the exact sum
        self.weight = (m + gamma[:, None]) / m**2
        self.bound = np.where(m <= max_m[:, None], 0.0, np.inf)
        if limited is not None:
            self.bound[m < limited.least[:, None]] = np.inf
        self.price = np.full((rows, width), np.nan)  # the best price, once it is known
        self.best: list[Indices] = [np.zeros(0, dtype=np.intp)] * rows
        self.best_objective = np.full(rows, np.inf)
        self._try_first_prices(cheapest_first[:, :width], least_hz[:, :width])
        self.spent_s = np.full(rows, (time.perf_counter() - started) / rows)

    def _try_first_prices(self, cheapest_first: Indices, least_hz: Floats) -> None:
        """Try the prices 0, at which the devices are in the order that they have, and infinity, as `try_price` does."""
        given = np.arange(self.nu.shape[1])[None] if self.limited is None else self.order_by(self.nu)
        given = given[:, : self.bound.shape[1]]
        nu, hz = self._taken(self.nu, given).cumsum(axis=1), self._taken(self.needed, given).cumsum(axis=1)
        least_nu = self._taken(self.nu, cheapest_first).cumsum(axis=1)
        free, fits = hz <= self.limit, least_hz <= self.limit
        bound = self.weight * nu
        self.take_best(given, np.where(free, bound, np.inf))
        self.take_best(cheapest_first, np.where(fits, self.weight * least_nu, np.inf))
        np.fmax(self.bound, bound, out=self.bound)
        known = ~free & fits
        self.low = _Side(np.where(free, -1.0, 0.0), np.where(free, np.nan, nu), np.where(free, np.nan, hz))
        self.high = _Side(np.where(free, 0.0, np.inf), np.where(known, least_nu, nu), np.where(known, least_hz, hz))

    def run(self, time_limit_s: float) -> list[Found]:
        """Search until the best schedule of each row is proven, or its time is over."""
        found: dict[int, Found] = {}
        number = np.arange(len(self.row))  # which row of the question each one is that is still open
        while True:
            started = time.perf_counter()
            at, price = self.next_prices(_FOR_PROOF * time_limit_s)
            done = np.isnan(price)
            if done.any():
                for row in done.nonzero()[0].tolist():
                    found[int(number[row])] = self.outcome(row, time_limit_s)
                if done.all():
                    return [found[row] for row in range(len(found))]
                number, at, price = number[~done], at[~done], price[~done]
                self.keep(~done)
            self.sharpen(at, price)
            self.spent_s += (time.perf_counter() - started) / len(number)

    def next_prices(self, time_limit_s: float) -> tuple[Indices, Floats]:
        """For each row the M whose bound is to be sharpened, less one, and the price to try; nan where the row is
        done."""
        if len(self.row) <= _FEW:
            tries = [self.advance(row, time_limit_s) for row in range(len(self.row))]
            return np.array([at for at, _ in tries]), np.array([price for _, price in tries])
        at = self.bound.argmin(axis=1)  # most rows go on with a price: those at once
        price, between = self.price_of(self.row, at)
        between &= np.isnan(self.price[self.row, at]) & (self.spent_s <= time_limit_s)
        between &= self.bound[self.row, at] < self.best_objective * (1.0 - SAME)
        for row in (~between).nonzero()[0].tolist():
            at[row], price[row] = self.advance(row, time_limit_s)
        return at, price

    def advance(self, row: int, time_limit_s: float) -> tuple[int, float]:
        """Close every M of a row that can be, until one is to be sharpened; then as in `next_prices`."""
        while True:
            at = int(self.bound[row].argmin())
            proven = self.bound[row, at] >= self.best_objective[row] * (1.0 - SAME)
            if proven or self.spent_s[row] > time_limit_s:
                return at, math.nan
            if math.isnan(self.price[row, at]):
                price, between = self.price_of(row, at)
                if between:
                    return at, float(price)
                self.price[row, at] = price if price > 0.0 else 0.0
            else:
                self.close(row, at, time_limit_s)

    def outcome(self, row: int, time_limit_s: float) -> Found:
        """What was found in a row; without a proof, after a last search for a better schedule."""
        bound = float(self.bound[row].min())
        proven = bool(bound >= self.best_objective[row] * (1.0 - SAME))
        if not proven:
            self.improve(row, time.perf_counter() + time_limit_s - float(self.spent_s[row]))
        return Found(self.best[row], proven, bound)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        self.nu, self.needed, self.counts, self.band = (
            self.nu[rows],
            self.needed[rows],
            self.counts[rows],
            self.band[rows],
        )
        self.limit, self.weight, self.bound, self.price = (
            self.limit[rows],
            self.weight[rows],
            self.bound[rows],
            self.price[rows],
        )
        self.low.keep(rows)
        self.high.keep(rows)
        if self.limited is not None:
            self.limited.keep(rows)
        self.best = [self.best[row] for row in rows.nonzero()[0].tolist()]
        self.best_objective, self.spent_s = self.best_objective[rows], self.spent_s[rows]
        self.row = np.arange(len(self.nu))

    def order_by(self, key: Floats) -> Indices:
        """The devices of every row by ascending key, those that must be chosen before all others."""
        if self.limited is not None:
            key = np.where(self.limited.must, -np.inf, key)
        return key.argsort(axis=1, kind="stable")

    def try_price(self, price: Floats, order: Indices) -> tuple[Floats, Floats]:
        """Take the devices of every row in `order` of their keys at its price (of one row where it is the same for
        all): a bound and a candidate for each M."""
        order = order[:, : self.bound.shape[1]]
        nu, hz = self._taken(self.nu, order).cumsum(axis=1), self._taken(self.needed, order).cumsum(axis=1)
        fits = hz <= self.limit
        self.take_best(order, np.where(fits, self.weight * nu, np.inf))
        column = price[:, None]
        if price[0] < math.inf:
            np.fmax(self.bound, self.weight * (nu + column * (hz - self.limit)), out=self.bound)
        self.low.update(~fits & (column > self.low.price), column, nu, hz)
        self.high.update(fits & (column <= self.high.price), column, nu, hz)
        return nu, hz

    def _taken(self, values: Floats, order: Indices) -> Floats:
        """The values of every row in its order."""
        return values.take(order if len(values) == 1 else order + self.row[:, None] * values.shape[1])

    def take_best(self, order: Indices, objective: Floats) -> None:
        """Keep the best of the candidates order[:1], order[:2], ... of every row, if it beats the best known."""
        if self.limited is not None:
            objective[self.bound == np.inf] = np.inf  # too few devices, or too many
        least = objective.min(axis=1)
        for row in (least < self.best_objective * (1.0 - SAME)).nonzero()[0].tolist():
            own_order = order[row if len(order) > 1 else 0]
            while least[row] < self.best_objective[row] * (1.0 - SAME):
                at = int((objective[row] <= least[row] * (1.0 + SAME)).nonzero()[0][-1])  # equal: rather more devices
                if self.fits(row, own_order[: at + 1]):
                    self.best[row], self.best_objective[row] = own_order[: at + 1], objective[row, at]
                    break
                objective[row, at] = np.inf
                least[row] = objective[row].min()

    def fits(self, row: int, devices: Indices) -> bool:
        """Whether devices fit, by the exact sum of their bandwidths."""
        return math.fsum(self.needed[row].take(devices).tolist()) <= float(self.band[row])

    def price_of(self, row: Indices | int, at: Indices | int) -> tuple[Any, Any]:
        """The price at which the two known sets of an M are equally good, and whether it lies between theirs."""
        low, high, here = self.low, self.high, (row, at)
        price = (high.nu[here] - low.nu[here]) / (low.hz[here] - high.hz[here])
        return price, (low.price[here] < price) & (price < high.price[here])

    def sharpen(self, at: Indices, price: Floats) -> None:
        """Try in every row a price for one M. If no other set is better there than the two known ones, it is the best
        price of this M."""
        here = self.row * self.bound.shape[1] + at
        limit = self.limit.take(here)
        known = self.low.nu.take(here) + price * (self.low.hz.take(here) - limit)
        order = self.order_by(self.nu + price[:, None] * self.needed)
        nu, hz = self.try_price(price, order)
        best = nu.take(here) + price * (hz.take(here) - limit) >= known - 1e-14 * np.abs(known)
        self.price.put(here[best], price[best])

    def close(self, row: int, at: int, time_limit_s: float) -> None:
        """Find the best set of this M, or prove that it is no better than the best one known."""
        started, weight = time.perf_counter(), float(self.weight[row, at])
        count, target = self.counts[row], float(self.best_objective[row]) / weight * (1.0 - SAME)
        try:
            found = better_set(
                self.nu[row, :count],
                self.needed[row, :count],
                float(self.price[row, at]),
                at + 1,
                float(self.limit[row, at]),
                target,
                lambda devices: self.fits(row, devices),
                started + time_limit_s - float(self.spent_s[row]),
                None if self.limited is None else self.limited.must[row, :count],
            )
        except TimeoutError:
            self.spent_s[row] = math.nextafter(time_limit_s, math.inf)
            return
        if found is not None:
            self.best[row] = found
            self.best_objective[row] = weight * math.fsum(self.nu[row, found])
        self.bound[row, at] = self.best_objective[row]
        self.spent_s[row] += time.perf_counter() - started

    def improve(self, row: int, stop_at: float) -> None:
        """Look for a better schedule with HiGHS, at the M of the least bounds first. What it finds is checked; what it
        claims to prove is not used, since its tolerances are wider than ours."""
        count = self.counts[row]
        if count > _MAX_FOR_HIGHS:
            return
        from scipy.optimize import Bounds, LinearConstraint, milp  # here, because it takes its time to import

        nu, needed = self.nu[row, :count], self.needed[row, :count]
        for at in np.argsort(self.bound[row], kind="stable").tolist():
            left_s = stop_at - time.perf_counter()
            if left_s <= 0.0 or self.bound[row, at] >= self.best_objective[row] * (1.0 - SAME):
                return
            answer = milp(
                c=nu,
                integrality=np.ones(count),
                bounds=Bounds(0.0 if self.limited is None else self.limited.must[row, :count].astype(float), 1.0),
                constraints=[
                    LinearConstraint(np.ones(count), at + 1, at + 1),
                    LinearConstraint(needed / self.band[row], -np.inf, 1.0 - 2e-6),  # it may overstep by 1e-6
                ],
                options={"time_limit": left_s},
            )
            if answer.x is None:
                continue
            found = np.flatnonzero(answer.x > 0.5)
            objective = float(self.weight[row, at]) * math.fsum(nu[found])
            if len(found) == at + 1 and self.fits(row, found) and objective < self.best_objective[row]:
                self.best[row], self.best_objective[row] = found, objective


class _Side:
    """For each row and M, a price and the sums of nu and c over the M least keys at it, shape (rows, max_m)."""

    def __init__(self, price: Floats, nu: Floats, hz: Floats) -> None:
        self.price, self.nu, self.hz = price, nu, hz

    def update(self, where: NDArray[np.bool_], price: Floats, nu: Floats, hz: Floats) -> None:
        """Replace what is known where `where` says so."""
        np.copyto(self.price, price, where=where)
        np.copyto(self.nu, nu, where=where)
        np.copyto(self.hz, hz, where=where)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        self.price, self.nu, self.hz = self.price[rows], self.nu[rows], self.hz[rows]
