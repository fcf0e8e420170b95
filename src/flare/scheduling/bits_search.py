"""The search of `bits_choice` (there: what it rests on): prices of bandwidth for the numbers of devices that matter.

For M devices let theta = gamma/(M + gamma) be the weight of noise beside cost. At a price of bandwidth every device
takes the choice that is cheapest for it, and the M least keys

    key_i  =  cost_i + min over choices b of (theta n_ib + price c_ib)

bound what M devices can reach:  V(M) >= L(M, theta, price) = sum of the M least keys - price B.

One sort gives, for a theta and a price, the M least keys for every M at once, and with each a selection. Three uses:

1. A selection that fits is a candidate, whatever theta and price it comes from.
2. Any selection of M devices is a line above L(M, theta_M, .) as a function of the price. Of the lines that are known,
   one that asks for more than the band and one that does not meet at the price to try next; where L reaches the point
   at which they meet, the price is the best one.
3. L is concave in theta, as a minimum of linear functions: between two values of theta, at one price, it lies above
   the straight line. So two sorts bound a whole span of numbers of devices, and only spans with a bound below the best
   schedule known are cut in two.

An M that no price rules out is closed by `choice_knapsack`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.choice_knapsack import Options, Selection, better_choices, options_at
from flare.scheduling.problem import ADDITION_ERROR, SAME
from flare.types import Floats, Indices

_SINGLES = 64  # up to so many numbers of devices are each looked at; more in spans
_SPANS = 12
_NUMBERS = 1 << 15  # entries of an array over rows and devices, unless two rows have more
_MAX_TRIES = 60  # prices for one M; after that the best of them will do
_FIRST_OPTIONS = 48  # with how many options the closing search begins; three times as many whenever nothing is found
_WIDER = 3


@dataclass(frozen=True, eq=False)
class Devices:
    """What the search is about; devices sorted by what they are, choices of each by bandwidth, ascending.

    cost    (devices,), noise and needed (choices, devices). Of a choice that is no use (another of the device has no
            more noise and no more bandwidth, or it exceeds the band) all is that of the last one before that is, and
            `usable` is False.
    band    what exact sums of `needed` may reach.
    must    (devices,), who has to send.
    """

    cost: Floats
    noise: Floats
    needed: Floats
    usable: NDArray[np.bool_]
    must: NDArray[np.bool_]
    gamma: float
    band: float
    max_devices: int

    def fits(self, selection: Selection) -> bool:
        """Whether a selection fits, by the exact sum of its bandwidths."""
        return math.fsum(self.needed[selection.choice, selection.devices].tolist()) <= self.band


@dataclass(frozen=True)
class Found:
    """The best selection, None where there is none, and a proven bound; they are equal where `proven`."""

    best: Selection | None
    objective: float
    bound: float
    proven: bool


@dataclass(frozen=True, eq=False)
class _Rows:
    """The least keys at some pairs of theta and price, shape (rows,): the devices in order of their keys with their
    choices, shape (rows, max_m), and running sums."""

    theta: Floats
    price: Floats
    order: Indices
    choice: Indices
    cost: Floats
    noise: Floats
    hz: Floats

    def lagrangian(self, theta: Floats, price: Floats, limit: float) -> Floats:
        """sum of cost + theta noise + price (hz - limit) of every selection."""
        value: Floats = self.cost + theta * self.noise + price * (self.hz - limit)
        return value


class _Lines:
    """For each M the cost, noise and bandwidth of a selection, nan where none is known; shape (max_m,)."""

    def __init__(self, width: int) -> None:
        self.cost, self.noise, self.hz = np.full((3, width), np.nan)

    def update(self, rows: _Rows, allowed: NDArray[np.bool_], level: Floats, known: Floats) -> None:
        """Take over the selections among `allowed` whose `level`, (rows, max_m), is below that of the known ones."""
        own = np.where(allowed, level, np.inf)
        row = own.argmin(axis=0)
        least = own[row, np.arange(own.shape[1])]
        (new,) = ((least < np.inf) & ~(known <= least)).nonzero()
        row = row[new]
        self.cost[new], self.noise[new], self.hz[new] = rows.cost[row, new], rows.noise[row, new], rows.hz[row, new]

    def level(self, theta: Floats, price: Floats, limit: float) -> Floats:
        """cost + theta noise + price (hz - limit)."""
        value: Floats = self.cost + theta * self.noise + price * (self.hz - limit)
        return value


class Search:
    """Best-first search over M. Arrays over M have entry m - 1 for M = m. Call it under `numpy.errstate`."""

    def __init__(self, devices: Devices) -> None:
        self.of, gamma = devices, devices.gamma
        self.choices, number = devices.noise.shape
        self.limit = devices.band * (1.0 + ADDITION_ERROR * (100 + number))  # what a rounded sum may reach
        self.has_must = bool(devices.must.any())
        cheapest = devices.needed[0][np.lexsort((devices.needed[0], ~devices.must))]
        width = min(int((cheapest.cumsum() <= self.limit).sum()), devices.max_devices)
        self.min_m, self.width = max(1, int(devices.must.sum())), width
        m = np.arange(1.0, width + 1.0)
        self.theta = gamma / (m + gamma)
        self.weight, self.noise_weight = (m + gamma) / m**2, gamma / m / m
        self.bound = np.where(m >= self.min_m, 0.0, np.inf)
        self.low, self.high = _Lines(width), _Lines(width)  # selections that do not fit, and that do
        self.price, self.meet = np.zeros(width), np.full(width, np.inf)  # where they meet, and how high
        self.best_price = np.full(width, np.nan)  # that of `bound`
        self.tries = np.zeros(width, dtype=np.intp)
        self.single = np.zeros(width, dtype=bool)  # whether the M is looked at by itself
        self.priced = np.zeros(width, dtype=bool)
        self.spans: list[tuple[int, int]] = []
        self.closing: dict[int, tuple[Options, int]] = {}
        self.best: Selection | None = None
        self.best_objective = math.inf

    def run(self, stop_at: float) -> Found:
        """Search until the best selection is proven, or `time.perf_counter()` passes `stop_at`."""
        if self.width < self.min_m:
            return Found(None, math.inf, math.inf, proven=True)
        self.begin()
        while not self.proven() and time.perf_counter() < stop_at:
            if not self.sharpen():
                try:
                    self.close(int(self.bound.argmin()), stop_at)
                except TimeoutError:
                    break
        bound = min(float(self.bound.min()), self.best_objective)
        return Found(self.best, self.best_objective, bound, self.proven())

    @property
    def target(self) -> float:
        """What an objective must be below to be better than the best known."""
        return self.best_objective * (1.0 - SAME)

    def proven(self) -> bool:
        """Whether nothing is left below the best known."""
        return bool(self.bound.min() >= self.target)

    def begin(self) -> None:
        """The first rows: bandwidth without a price, at its highest, and some prices between; the first spans."""
        self.absorb(self.evaluate(np.zeros(1), np.full(1, np.inf)))
        first, last = self.min_m - 1, self.width - 1
        prices = self.first_prices()
        theta = np.full(len(prices) + 2, self.theta[(first + last) // 2])
        theta[:2] = self.theta[[first, last]]
        self.absorb(self.evaluate(theta, np.concatenate([np.zeros(2), prices])))
        if last - first < _SINGLES:
            self.single[first:] = True
        else:
            edges = np.unique(np.geomspace(self.min_m, self.width + 1, _SPANS + 1).round().astype(int)) - 1
            self.add_spans([(a, b - 1) for a, b in pairwise(edges.tolist())])

    def first_prices(self) -> Floats:
        """Prices at which devices change their minds: quantiles of what less noise, or a device, costs in bandwidth."""
        of = self.of
        theta = self.theta[(self.min_m + self.width) // 2 - 1]
        more_hz, less_noise = np.diff(of.needed, axis=0), -np.diff(of.noise, axis=0)
        slopes = np.sort((theta * less_noise / more_hz)[of.usable[1:]])
        whole = np.sort(of.cost / of.needed[0])
        picked = [values[(len(values) * np.arange(1, 12, 2)) // 12] for values in (slopes, whole) if len(values)]
        prices: Floats = np.concatenate(picked)
        return prices[np.isfinite(prices) & (prices > 0.0)]

    def evaluate(self, theta: Floats, price: Floats) -> _Rows:
        """The least keys at pairs of theta and price; a single infinite price goes by bandwidth alone."""
        of = self.of
        if price[0] == math.inf:
            key, choice = of.needed[:1].copy(), np.zeros((1, len(of.cost)), dtype=np.intp)
        else:
            noise_price, hz_price = theta[:, None], price[:, None]
            key = noise_price * of.noise[0] + hz_price * of.needed[0]
            choice = np.zeros(key.shape, dtype=np.intp)
            for at in range(1, self.choices):
                other = noise_price * of.noise[at] + hz_price * of.needed[at]
                better = other < key
                choice[better] = at
                np.minimum(key, other, out=key)
            key += of.cost
        if self.has_must:
            key[:, of.must] = -np.inf
        order = key.argsort(axis=1, kind="stable")[:, : self.width]
        choice = np.take_along_axis(choice, order, axis=1)
        place = choice * len(of.cost) + order
        sums = (of.cost.take(order), of.noise.take(place), of.needed.take(place))
        return _Rows(theta, price, order, choice, *(values.cumsum(axis=1) for values in sums))

    def absorb(self, rows: _Rows) -> None:
        """Use the selections of rows as candidates and as lines, for every M."""
        fits = rows.hz <= self.limit
        objective = np.where(fits, self.weight * rows.cost + self.noise_weight * rows.noise, np.inf)
        objective[:, : self.min_m - 1] = np.inf
        self.take_best(rows, objective)
        level = rows.lagrangian(self.theta, self.price, self.limit)
        for lines, allowed in ((self.low, ~fits), (self.high, fits)):
            lines.update(rows, allowed, level, lines.level(self.theta, self.price, self.limit))
        low, high = self.low, self.high
        price = (high.cost - low.cost + self.theta * (high.noise - low.noise)) / (low.hz - high.hz)
        self.price = np.where((price > 0.0) & (price < np.inf), price, 0.0)
        self.meet = high.level(self.theta, self.price, self.limit)
        self.meet[np.isnan(low.cost)] = np.inf

    def take_best(self, rows: _Rows, objective: Floats) -> None:
        """Keep the best of the candidates, if it beats the best known; of equal ones rather that of more devices."""
        while True:
            least = min(float(objective.min()), self.best_objective)
            equal = objective <= least * (1.0 + SAME)
            numbers = np.flatnonzero(np.any(equal, axis=0))
            if len(numbers) == 0 or least == math.inf:
                return
            at = int(numbers[-1])
            row = int(equal[:, at].argmax())
            if objective[row, at] >= self.target and self.best is not None and at < len(self.best.devices):
                return
            candidate = Selection(rows.order[row, : at + 1], rows.choice[row, : at + 1])
            if self.of.fits(candidate):
                self.keep(candidate, min(float(objective[row, at]), self.best_objective))
                return
            objective[row, at] = np.inf

    def keep(self, selection: Selection, objective: float) -> None:
        """Remember the best selection."""
        self.best, self.best_objective = selection, objective

    def sharpen(self) -> bool:
        """Try a price for the M and the spans whose bounds are lowest; False where none is left that needs one."""
        open_ = self.bound < self.target
        self.spans = [(start, end) for start, end in self.spans if open_[start : end + 1].any()]
        (singles,) = (open_ & self.single & ~self.priced).nonzero()
        if len(singles) == 0 and not self.spans:
            return False
        rows = max(2, _NUMBERS // len(self.of.cost))
        if len(singles) > rows:
            singles = singles[self.bound[singles].argsort(kind="stable")[:rows]]
        self.spans.sort(key=lambda span: float(self.bound[span[0] : span[1] + 1].min()))
        number = max(rows - len(singles), 0 if len(singles) else 2) // 2
        spans, self.spans = self.spans[:number], self.spans[number:]
        self.try_prices(singles, spans)
        self.add_spans([half for span in spans for half in self.halves(span)])
        return True

    def try_prices(self, singles: Indices, spans: list[tuple[int, int]]) -> None:
        """A row for each single M, and two for each span, all at the price where lines meet."""
        ends = np.array(spans, dtype=np.intp).reshape(-1, 2)
        middle = (ends[:, 0] + ends[:, 1]) // 2
        tried, meet = self.price[singles], self.meet[singles]
        rows = self.evaluate(
            np.concatenate([self.theta[singles], self.theta[ends.ravel()]]),
            np.concatenate([tried, np.repeat(self.price[middle], 2)]),
        )
        at = np.arange(len(singles))
        level = rows.lagrangian(rows.theta[:, None], rows.price[:, None], self.limit)
        lagrangian = level[at, singles]
        own = self.weight[singles] * lagrangian
        better = own > self.bound[singles]
        self.bound[singles[better]], self.best_price[singles[better]] = own[better], tried[better]
        unknown = np.isnan(self.best_price[singles])
        self.best_price[singles[unknown]] = tried[unknown]
        for number, (start, end) in enumerate(spans):
            first = len(singles) + 2 * number
            self.bound_between(level[first : first + 2, start : end + 1], start, end)
        self.absorb(rows)
        self.tries[singles] += 1
        done = lagrangian >= meet - 1e-14 * np.abs(meet)
        done |= (self.price[singles] == tried) & (self.meet[singles] < np.inf)
        self.priced[singles] |= done | (self.tries[singles] >= _MAX_TRIES)

    def bound_between(self, level: Floats, start: int, end: int) -> None:
        """Bounds for a span from its two rows of L, at the theta of its ends."""
        here = slice(start, end + 1)
        theta = self.theta[here]
        share = (theta - theta[-1]) / (theta[0] - theta[-1]) if theta[0] > theta[-1] else np.zeros(len(theta))
        self.bound[here] = np.fmax(self.bound[here], self.weight[here] * (share * level[0] + (1.0 - share) * level[1]))

    def halves(self, span: tuple[int, int]) -> list[tuple[int, int]]:
        """What is still open of a span, in two parts."""
        (open_,) = (self.bound[span[0] : span[1] + 1] < self.target).nonzero()
        if len(open_) == 0:
            return []
        start, end = span[0] + int(open_[0]), span[0] + int(open_[-1])
        middle = (start + end) // 2
        return [(start, middle), (middle + 1, end)] if start < end else [(start, end)]

    def add_spans(self, spans: list[tuple[int, int]]) -> None:
        """Note spans to be looked at; those of one M, or two, as single ones."""
        for start, end in spans:
            if end - start < 2:
                self.single[start : end + 1] = True
            else:
                self.spans.append((start, end))

    def close(self, at: int, stop_at: float) -> None:
        """Search the options of least regret for a better selection of this M; where there is none, its bound rises."""
        of, weight = self.of, float(self.weight[at])
        if at not in self.closing:
            costs = of.cost + self.theta[at] * of.noise
            price = float(self.best_price[at])
            options = options_at(costs, of.needed, of.usable, of.must, price, at + 1, self.limit)
            self.closing[at] = options, _FIRST_OPTIONS
        options, number = self.closing[at]
        target = self.target / weight
        reach = options.reach(number, target - options.base_bound)
        found = better_choices(options, self.limit, reach, of.fits, stop_at)
        if found is not None:
            noise = math.fsum(of.noise[found.choice, found.devices].tolist())
            objective = weight * math.fsum(of.cost[found.devices].tolist()) + float(self.noise_weight[at]) * noise
            if objective < self.best_objective:
                self.keep(found, objective)
            self.bound[at] = objective
        elif options.base_bound + reach >= target:
            self.bound[at] = max(float(self.bound[at]), self.best_objective)
        else:
            self.bound[at] = max(float(self.bound[at]), weight * (options.base_bound + reach))
            self.closing[at] = options, _WIDER * number
