"""Energy and delay: everybody takes part; speeds, powers and parts of the band minimise E + kappa T.

Tran, Bao, Zomaya, Nguyen, Hong, "Federated Learning over Wireless Networks: Optimization Model Design and Analysis",
INFOCOM 2019, of one round:

    minimise    sum_i [ a c_i f_i^2 + P_i share_i s_i ] + kappa T            energy of computing and sending, and time
    subject to  c_i / f_i + s_i <= T,   f_min <= f_i <= f_max,   share_i <= 1,   sum_i b_i <= B

c_i are the cycles of the round and a the capacitance (`Hardware`; the paper counts a / 2), f_i the speed, at most what
the device has and at least `min_speed` of it, s_i the time that it sends on its band b_i, and share_i the part of its
power P_i that this takes (`lowered_power`).

Decided here. The paper divides time: devices send one after another, when the last one has computed. Here they divide
the band, each sends as soon as it has computed, and the round ends with T, whatever deadline was asked for
(`Choice.deadline_s`). The paper also chooses the local accuracy; here devices report how many steps they do.

In s_i, b_i, 1 / f_i and T all of it is a sum of products of powers (e^u - 1 = u + u^2 / 2 + ...). So the problem is
convex in their logarithms (a geometric program), and what satisfies the KKT conditions is the optimum. With the price l
of a hertz, and mu_i what device i would save with a second more, they are

    (s_i P_i / snr_i) phi(u_i) = l,   u_i = S ln2 / (s_i b_i)      gives b_i, where it needs no more than full power
    mu_i = l b_i / s_i                                             then
    b_i = b(s_i) of Theorem 3,   mu_i = l |db/ds| - P_i            where it would
    f_i = (mu_i / 2 a)^(1/3), not beyond f_min and f_max           the speed in closed form, given mu_i
    s_i = T - c_i / f_i
    sum_i b_i = B                                                  gives l
    sum_i mu_i = kappa                                             gives T

mu_i falls as s_i grows, and s_i grows with f_i: given T and l, there is one f_i. The sum of the bands falls with l, and
the sum of mu_i with T. Newton's method with exact derivatives, kept inside brackets, finds the one inside the other.

A device that has its own deadline ends by it. With those, with whole blocks and with `max_devices` not everybody may
fit: then those send who would be done first on an even share of the band. In whole blocks the bands are those of the
optimum, rounded, or those with which the round could end first, whichever costs less; T and the speeds are the best for
them. That is near the optimum, and not proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.admission import admit
from flare.scheduling.division import divide
from flare.scheduling.hardware import Hardware
from flare.scheduling.orders import by_rows, canonical
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.systems.lowered_power import LEAST_POWER, Senders, log_phi, power_share, whole_blocks
from flare.scheduling.systems.speeds import Response, Workers, at_price, on_bands
from flare.types import Floats, Indices
from flare.wireless.rate import LN2, bandwidth_and_slope, upload_s

_LATEST_S = 1e90  # who would need longer alone is left out: times end at 1e100
_LEAST_S = 1e-100
_MAX_LOG = 690.0  # of a price: beyond, it leaves the range of a double
_CLOSE = 1e-13
_MAX_PRICES = 300  # that are tried in all; 15 to 50 are mostly enough, unless doubles are too coarse for an answer
_AS_SOON = 1e-9  # relative: so near the earliest end, it is the earliest


@policy("tran", own_deadline=True)
@np.errstate(all="ignore")  # at the ends of what a round may be, what overflows is infinite, and outside every bracket
def tran(
    problem: RoundProblem,
    *,
    hardware: Hardware,
    kappa: Annotated[float, "joule that a second is worth", Limits(above=0.0)] = 1.0,
    min_speed: Annotated[float, "slowest speed, as a share of the device's own", Limits(above=0.0, at_most=1.0)] = 0.1,
) -> Choice:
    """Energy and delay: everybody, at the speeds, powers and bands that minimise energy plus kappa times the time."""
    everybody = _taking_part(problem, hardware)
    if everybody.size == 0:
        return Choice()
    workers = Workers(
        cycles=hardware.cycles[everybody],
        min_cpu_hz=min_speed * hardware.cpu_hz[everybody],
        max_cpu_hz=hardware.cpu_hz[everybody],
        payload_bits=problem.payload_bits[everybody],
        snr_hz=problem.snr_hz[everybody],
        power_w=hardware.power_w[everybody],
        capacitance=hardware.capacitance,
    )
    due_s = np.full(everybody.size, np.inf) if problem.due_s is None else problem.due_s[everybody]
    soonest = divide(replace(problem, block_hz=None, total_bandwidth_hz=problem.usable_hz), everybody)
    plan = least_cost(workers, due_s, problem.usable_hz, kappa, soonest.latency_s, soonest.bandwidth_hz)
    if problem.block_hz is not None:
        near_hz = _near_in_blocks(workers, plan, problem.min_bandwidth_hz(_LATEST_S, everybody), problem)
        plans = [_on_bands(workers, due_s, each, kappa) for each in (near_hz, divide(problem, everybody).bandwidth_hz)]
        plan = min(plans, key=lambda one: _cost(workers, one, kappa))
    share = power_share(workers.payload_bits, plan.send_s, plan.bandwidth_hz, workers.snr_hz)
    return Choice(
        everybody,
        bandwidth_hz=plan.bandwidth_hz,
        cpu_hz=plan.cpu_hz,
        power_w=workers.power_w * np.maximum(share, LEAST_POWER),
        deadline_s=plan.end_s,
    )


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """When a round ends, and what each device does in it, shape (devices,)."""

    end_s: float
    cpu_hz: Floats
    send_s: Floats
    bandwidth_hz: Floats


def least_cost(
    workers: Workers, due_s: Floats, total_hz: float, kappa: float, soonest_s: float, soonest_hz: Floats
) -> RoundPlan:
    """The optimum. `soonest_s` is when the round can end at the earliest, all at full speed and power, and `soonest_hz`
    the bands of that."""
    left_s = np.maximum(np.minimum(soonest_s, due_s) - workers.cycles / workers.max_cpu_hz, _LEAST_S)
    soonest = RoundPlan(soonest_s, workers.max_cpu_hz, left_s, soonest_hz)
    held = due_s > soonest_s
    if not held.any() or _hurries(workers, soonest, held, kappa):  # nobody: then all are due by the earliest end
        return soonest
    price, before, before_s = _first_price(workers, np.minimum(2.0 * soonest_s, due_s), total_hz), None, due_s

    left = _MAX_PRICES

    def respond(end_s: Floats, guess: Response | None) -> Response | None:
        nonlocal price, before, before_s, left
        start = price
        if before is not None:  # along the slope, so that the band stays divided
            change = float(before.band_by_time @ (end_s - before_s)) / float(before.band_by_price.sum() or -math.inf)
            start -= min(max(change, -3.0), 3.0)
        found, price, tried = _balanced(workers, end_s, total_hz, start, guess, left)
        left -= tried
        before, before_s = found, end_s
        return found

    end_s, found = _best_end(respond, due_s, kappa, soonest_s)
    if found is None:
        return soonest
    bandwidth_hz = found.bandwidth_hz * (total_hz / math.fsum(found.bandwidth_hz))
    return RoundPlan(end_s, found.cpu_hz, found.send_s, bandwidth_hz)


def _hurries(workers: Workers, soonest: RoundPlan, held: NDArray[np.bool_], kappa: float) -> bool:
    """Whether a second is worth so much that nothing is saved: at full speed and power the conditions hold, too. There
    the sum of mu_i gives the price of a hertz, and each mu_i is to be no less than a slower speed would save, nor than
    less power would on the same band."""
    _, slope = bandwidth_and_slope(workers.payload_bits, soonest.send_s, workers.snr_hz)
    with np.errstate(over="ignore", invalid="ignore"):
        price = (kappa + float(workers.power_w[held].sum())) / -float(slope[held].sum())
        saved_w = price * -slope - workers.power_w
        nats = workers.payload_bits * LN2 / (soonest.send_s * soonest.bandwidth_hz)
        slower_w = 2.0 * workers.capacitance * workers.max_cpu_hz**3
        weaker_w = workers.power_w * soonest.bandwidth_hz / workers.snr_hz * np.exp(log_phi(nats))
        return bool((saved_w >= slower_w).all() and (saved_w >= weaker_w).all())


def _near_in_blocks(workers: Workers, plan: RoundPlan, least_hz: Floats, problem: RoundProblem) -> Floats:
    """The bands of a plan in whole blocks, at least `least_hz` for each device."""
    assert problem.block_hz is not None
    assert problem.num_blocks is not None
    radio = (workers.payload_bits, plan.send_s, workers.snr_hz, workers.power_w)
    senders = Senders(*radio, cost=np.ones(len(least_hz)), least_hz=least_hz)
    return whole_blocks(senders, plan.bandwidth_hz, problem.block_hz, problem.num_blocks)


def _on_bands(workers: Workers, due_s: Floats, bandwidth_hz: Floats, kappa: float) -> RoundPlan:
    """The best end, speeds and powers on bands."""
    shortest_s = upload_s(workers.payload_bits, bandwidth_hz, workers.snr_hz)
    earliest_s = workers.cycles / workers.max_cpu_hz + shortest_s

    def respond(end_s: Floats, guess: Response | None) -> Response:
        return on_bands(workers, end_s, bandwidth_hz, shortest_s, guess)

    end_s, found = _best_end(respond, due_s, kappa, float(earliest_s.max()))
    if found is None:  # as soon as the last one can; the others have time to spare
        found = respond(np.minimum(end_s, due_s), None)
    compute_s = np.maximum(np.minimum(end_s, due_s), earliest_s) - shortest_s
    cpu_hz = np.minimum(np.fmax(found.cpu_hz, workers.cycles / compute_s), workers.max_cpu_hz)
    return RoundPlan(end_s, cpu_hz, np.maximum(found.send_s, shortest_s), bandwidth_hz)


def _cost(workers: Workers, plan: RoundPlan, kappa: float) -> float:
    """E + kappa T."""
    share = power_share(workers.payload_bits, plan.send_s, plan.bandwidth_hz, workers.snr_hz)
    computing_j = workers.capacitance * workers.cycles * plan.cpu_hz**2
    return math.fsum(computing_j + workers.power_w * share * plan.send_s) + kappa * plan.end_s


def _best_end(
    respond: Callable[[Floats, Response | None], Response | None], due_s: Floats, kappa: float, soonest_s: float
) -> tuple[float, Response | None]:
    """When sum mu = kappa, and what the devices do then: by Newton's method in the logarithm of how much later than
    `soonest_s` it is, kept inside a bracket. None, at `soonest_s`, where a second is worth so much that the round ends
    as soon as it can."""
    search, later = _Search(math.log(_AS_SOON), reach=3.0), 0.0  # of the logarithm of end / soonest - 1
    nearest, best_s, best = math.inf, soonest_s, None
    last: Response | None = None
    for _ in range(200):
        end_s = soonest_s * (1.0 + math.exp(later))
        try:
            found = respond(np.minimum(end_s, due_s), last)
        except _NoMorePricesError:
            break
        miss, newton = 1.0, math.nan
        if found is not None:
            last, held = found, due_s > end_s
            saved_w = math.fsum(found.saved_w[held])
            miss = _log(saved_w / kappa)
            newton = later + _newton_step(found, held, miss * saved_w) / (end_s - soonest_s)
            if abs(miss) <= nearest:
                nearest, best_s, best = abs(miss), end_s, found
        following = search.following(later, miss, newton)
        if _is_close(miss, newton - later) or search.is_over or end_s > _LATEST_S:
            break
        later = following
    return (soonest_s, None) if best_s < soonest_s * (1.0 + 2.0 * _AS_SOON) else (best_s, best)


class _NoMorePricesError(Exception):
    """As many prices have been tried as may be."""


@dataclass
class _Search:
    """For the number at which something that falls passes zero: by Newton's method, between what was too low and what
    was too high, and no farther than `reach` at once.

    Newton's steps shrink when they arrive. One that is more than half as long as the last gives way to the middle of
    the bracket, or where that is open, to a step four times as long, then sixteen times.
    """

    low: float = -math.inf
    high: float = math.inf
    reach: float = 6.0
    step: float = math.inf  # Newton's last
    stretch: float = 1.0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left between both ends."""
        return self.high - self.low <= _CLOSE

    def following(self, at: float, miss: float, newton: float) -> float:
        """What to try after `at`, where the function is `miss` and Newton's method would go to `newton`."""
        self.low, self.high = (at, self.high) if miss > 0.0 else (self.low, at)
        least, most = max(self.low, at - self.reach), min(self.high, at + self.reach)
        before, self.step = self.step, abs(newton - at)
        is_inside = least < newton < most
        if is_inside and self.step <= 0.5 * before:
            self.stretch = 1.0
            return newton
        if self.low > -math.inf and self.high < math.inf:
            return 0.5 * (self.low + self.high)
        if not is_inside:
            return most if miss > 0.0 else least
        self.stretch *= 4.0
        return min(max(at + self.stretch * (newton - at), least), most)


def _log(ratio: float) -> float:
    """The logarithm; minus infinity of what is too little for a double."""
    return math.log(ratio) if ratio > 0.0 else -math.inf


def _is_close(miss: float, step: float) -> bool:
    """Whether an iteration has arrived: what it misses is rounding, or moves it no more."""
    return abs(miss) <= _CLOSE or (abs(miss) <= 1e-6 and abs(step) <= _CLOSE)


def _newton_step(found: Response, held: NDArray[np.bool_], miss_w: float) -> float:
    """By how much the round is to end later so that those whom its end holds save `miss_w` less; nan where that is not
    known. The price follows, so that the band stays divided."""
    band_by_price = float(found.band_by_price.sum())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        price_by_end = -float(found.band_by_time[held].sum()) / band_by_price if band_by_price < 0.0 else 0.0
        slope = float(found.saved_by_time[held].sum() + found.saved_by_price[held].sum() * price_by_end)
    return -miss_w / slope if -math.inf < slope < 0.0 else math.nan


def _balanced(
    workers: Workers, end_s: Floats, total_hz: float, price: float, guess: Response | None, most_tried: int
) -> tuple[Response | None, float, int]:
    """What the devices do at the price of a hertz at which they ask for all of the band, and its logarithm, looked for
    from `price` on, and how many were tried; None where they ask for more at any price: so near the earliest end."""
    search, tried = _Search(), 0
    while True:
        if tried == most_tried:
            raise _NoMorePricesError
        found = at_price(workers, end_s, price, guess)
        tried += 1
        guess, asked_hz = found, math.fsum(found.bandwidth_hz)
        miss = _log(asked_hz / total_hz)
        slope = math.fsum(found.band_by_price) / asked_hz
        newton = price - miss / slope if slope < 0.0 else math.nan
        following = search.following(price, miss, newton)
        if _is_close(miss, newton - price) or search.is_over or abs(price) > _MAX_LOG:
            break
        price = following
    return (found if abs(miss) <= _AS_SOON else None), price, tried


def _first_price(workers: Workers, end_s: Floats, total_hz: float) -> float:
    """What a hertz saves the middle device at full speed on an even share, as a logarithm."""
    send_s = np.maximum(end_s - workers.cycles / workers.max_cpu_hz, _LEAST_S)
    nats = workers.payload_bits * LN2 / send_s / (total_hz / len(end_s))
    return float(np.median(np.log(send_s) + np.log(workers.power_w / workers.snr_hz) + log_phi(nats)))


def _taking_part(problem: RoundProblem, hardware: Hardware) -> Indices:
    """Everybody who may send and can at all, in canonical order, equal ones by their processors and powers; where not
    all fit, those who are done first on an even share of the band, after those who must send."""
    in_the_end = replace(problem, deadline_s=_LATEST_S)
    if not in_the_end.fits(problem.must):
        return problem.must[:0]
    share_hz = np.asarray(problem.usable_hz / problem.num_devices)
    done_s = problem.compute_s + upload_s(problem.payload_bits, share_hz, problem.snr_hz)
    order = canonical(problem, by_rows(hardware.cpu_hz, hardware.power_w, hardware.cycles))
    taken = admit(in_the_end, order[np.argsort(done_s[order], kind="stable")])
    return order[np.isin(order, taken)]
