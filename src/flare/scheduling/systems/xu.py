"""OCEAN: as many devices as energy budgets over the whole run allow, more of them late in the run.

Xu, Wang, "Client Selection and Bandwidth Allocation in Wireless Federated Learning Networks: A Long-Term Perspective",
IEEE TWC 2021 (arXiv 2004.04314): maximise sum_t eta_t (number of senders) over a run of T rounds in which device i may
spend H_i joule. Every device has a queue of what it has spent beyond its allowance, and every round is one problem:

    maximise    V eta_t |Q| - sum_{i in Q} q_i E_i(b_i)           over sets Q and bands, sum b_i <= B
    then        q_i <- max(q_i + E_i - H_i / T, 0),   q_i = 0 at first,   E_i = 0 where i is not in Q

E_i(b) is the energy of sending until the deadline on the band b with no more power than that takes, and b is at least
what all of its power needs (`lowered_power`, where b_i by Lambert's W is). T is `horizon`, H_i `energy_budget_j`, V
`v_j2`. eta_t = 2 t / (T + 1) in round t = 1 ... T, 1 on average: "later is better", which won in the paper; `rising=false`
sets it to 1.

Which set: their OCEAN-P sorts devices by q_i / h_i^2 and tries the first 1, 2, 3, ...; that is exact where devices differ
in nothing else. Here they also differ in time left, payload and power. So a price of the band is found, at which each
device is worth v_i = V eta - min_b (q_i E_i(b) + price b) on its own; sum max(v_i, 0) + price B bounds every set (weak
duality), and a set that leaves the devices of the best v_i loses at least |v_i| of the bound for each change. Sets are
tried in the order of this bound until none that is left can be better, which proves the best one (`best_group`); after
`MAX_TRIED` sets the best so far is taken. Where devices differ in q_i / h_i^2 alone, v_i has the order of OCEAN-P at
every price, so that the sets are the same.

What holds of the budgets. q_i grows by at least E_i - H_i / T, so that after n rounds device i has spent at most
n H_i / T + q_i: exactly, whatever happens. And q_i stays bounded: nobody is taken whose q_i E_i is above V eta_t (to leave
it out would be better), so that q_i <= V eta / E_min + E_max with the least and the greatest energy of an upload of its.
So the budget is exceeded by no more than that, which does not grow with T, and H_i itself is only approached. With
`strict=true` it holds: a device sends with no more power than what is left of H_i carries until the deadline, and
not at all where that is too little.

Left open, and decided here: only sending counts, as in the paper; `count_computing=true` adds what the processor takes, a
constant of the device in the round. A queue of 0 counts as 1e-6 H_i / T, so that the band is divided in the first round,
too. By default H_i / T is a tenth of what device i radiates until the deadline at full power, and V is T / 10 times
the square of the mean H_i / T. After T rounds eta and allowance stay as they were last: the mean of H_i / T goes on being
kept (under `strict`, devices stop where H_i is spent). Devices that must send do, whatever their queue.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.hardware import Hardware
from flare.scheduling.orders import canonical, remembered
from flare.scheduling.problem import ABSURD, RoundProblem
from flare.scheduling.registry import Choice, Memory, policy
from flare.scheduling.systems.lowered_power import Senders, least_energy, whole_blocks
from flare.types import Floats, Indices
from flare.wireless.rate import bandwidth_for

MAX_TRIED = 24
"""Sets whose band is divided to find the best one."""
_MAX_LISTED = 3_000  # sets that are looked at, those that do not fit among them
_PRICE_STEP = 1e-4  # of the logarithm of a price: any price gives a bound, and this one is within 1e-8 of the least
_LEAST_QUEUE = 1e-6  # of the allowance of a round
_DEFAULT_SHARE = 0.1  # of sending at full power all the time
_POSITIVE = Limits(above=0.0)


@policy("xu")
def xu(
    problem: RoundProblem,
    *,
    hardware: Hardware,
    memory: Memory,
    horizon: Annotated[int, "T, rounds of the run", Limits(at_least=1.0)] = 100,
    energy_budget_j: Annotated[
        float | None, "H, joule of each device over the horizon; none: a tenth of full power", _POSITIVE
    ] = None,
    v_j2: Annotated[float | None, "V, what a sender is worth, in joule^2; none: T / 10 x (H / T)^2", _POSITIVE] = None,
    rising: Annotated[bool, "whether senders count for more late in the run"] = True,
    count_computing: Annotated[bool, "whether the energy of computing counts, too"] = False,
    strict: Annotated[bool, "whether a device stops where its budget is spent"] = False,
) -> Choice:
    """OCEAN: the most devices that energy budgets over the run allow, by queues, on bands that save energy."""
    index = int(memory.get("round", 0)) + 1
    allowance_j = _allowance_j(problem, hardware, horizon, energy_budget_j)
    queue_j, spent_j = (_remembered(problem, memory, name) for name in ("device_queue_j", "device_spent_j"))
    eta = 2.0 * min(index, horizon) / (horizon + 1.0) if rising else 1.0
    unit_j = math.fsum(allowance_j) / problem.num_devices  # joules are counted in it, so that squares stay in range
    worth = eta * (0.1 * horizon if v_j2 is None else v_j2 / unit_j / unit_j)

    computing_j = hardware.compute_energy_j if count_computing else np.zeros(problem.num_devices)
    senders = _senders(problem, hardware, np.maximum(queue_j, _LEAST_QUEUE * allowance_j) / unit_j, unit_j)
    if strict:
        left_j = np.maximum(allowance_j * horizon - spent_j - computing_j, 0.0)
        senders = _within(problem, senders, left_j / unit_j)
    able = canonical(problem, queue_j)
    able = able[senders.least_hz[able] <= problem.capacity_hz]
    worths = worth - (senders.cost * computing_j / unit_j)[able]
    best = best_group(
        senders.of(able),
        worths,
        problem.usable_hz,
        forced=np.isin(able, problem.must),
        max_devices=problem.device_limit,
    )
    selected, bandwidth_hz = able[best.members], best.bandwidth_hz
    group = senders.of(selected)
    if selected.size and problem.block_hz is not None and problem.num_blocks is not None:
        bandwidth_hz = whole_blocks(group, bandwidth_hz, problem.block_hz, problem.num_blocks)
    used_j = np.zeros(problem.num_devices)
    used_j[selected] = group.energy_j(bandwidth_hz) * unit_j + computing_j[selected]
    told = {
        "round": np.asarray(index),
        "device_queue_j": np.maximum(queue_j + used_j - allowance_j, 0.0),
        "device_spent_j": spent_j + used_j,
    }
    if selected.size == 0:
        return Choice(memory=told)
    power_w = hardware.power_w[selected] * group.power_share(bandwidth_hz)
    return Choice(selected, memory=told, bandwidth_hz=bandwidth_hz, power_w=power_w)


@dataclass(frozen=True, eq=False)
class Group:
    """Devices that send, their bands in the same order, what they are worth in all, and a bound on that of any."""

    members: Indices
    bandwidth_hz: Floats
    value: float
    bound: float


def best_group(
    senders: Senders, worth: Floats, total_hz: float, *, forced: NDArray[np.bool_], max_devices: int
) -> Group:
    """The set that maximises  sum worth_i - cost_i E_i(b_i)  on a band; those `forced` are in it. All fit alone.

    Numbers of senders are gone through from the one that the price of the whole problem suggests, up and down, until
    the bound of a number is no better than the best set; that of the next number is worse still, since these bounds are
    concave in the number. `Group.bound` is `value` where that proves it, and a bound by duality otherwise.
    """
    best = Group(np.zeros(0, dtype=np.intp), np.zeros(0), -math.inf if forced.any() else 0.0, 0.0)
    if senders.num_devices == 0:
        return best
    suggested, near = _suggested(senders, worth, total_hz, forced)
    least, most = max(int(forced.sum()), 1), min(max_devices, senders.num_devices)
    suggested = min(max(suggested, least), most)
    open_bound, effort = -math.inf, _Effort()
    for numbers in (range(suggested, most + 1), range(suggested - 1, least - 1, -1)):
        for number in numbers:
            priced = _priced(senders, worth, total_hz, forced, number, near)
            if priced.bound <= _surely_above(best.value):
                break
            best, left = _best_of_size(senders, worth, total_hz, forced, number, priced, best, effort)
            open_bound = max(open_bound, left)
    return Group(best.members, best.bandwidth_hz, best.value, max(best.value, open_bound))


def _surely_above(value: float) -> float:
    """A little more than a value: what is no greater is not better, rounding aside."""
    return value + 1e-12 * abs(value)


@dataclass
class _Effort:
    """How many sets were listed, and how many of them divided."""

    listed: int = 0
    tried: int = 0

    @property
    def spent(self) -> bool:
        """Whether it is time to end with what was found."""
        return self.listed >= _MAX_LISTED or self.tried >= MAX_TRIED


def _best_of_size(
    senders: Senders,
    worth: Floats,
    total_hz: float,
    forced: NDArray[np.bool_],
    number: int,
    priced: _Priced,
    best: Group,
    effort: _Effort,
) -> tuple[Group, float]:
    """The best of the sets of so many devices and of `best`, and what no set is worth more than that was not tried:
    minus infinity where none is left."""
    first = True
    for members, at_most in _by_bound(priced.beyond, priced.bound, forced):
        if at_most <= _surely_above(best.value):
            break
        if effort.spent and not first:
            return best, at_most
        effort.listed += 1
        if members.size != number or math.fsum(senders.least_hz[members]) > total_hz * (1.0 + 1e-12):
            continue
        effort.tried += 1
        first = False
        found = _valued(senders, worth, members, total_hz, forced, priced.log_price)
        if found.value > best.value:
            best = found
    return best, -math.inf


def _valued(
    senders: Senders, worth: Floats, members: Indices, total_hz: float, forced: NDArray[np.bool_], log_price: float
) -> Group:
    """A set on its best bands, without members that cost more than they are worth."""
    while True:
        group = senders.of(members)
        bandwidth_hz = least_energy(group, total_hz, log_price)
        worths = worth[members] - group.cost * group.energy_j(bandwidth_hz)
        losing = (worths < 0.0) & ~forced[members]
        if members.size == 1 or not losing.any():
            return Group(members, bandwidth_hz, math.fsum(worths), math.inf)
        members = np.delete(members, int(np.argmin(np.where(losing, worths, np.inf))))


def _suggested(senders: Senders, worth: Floats, total_hz: float, forced: NDArray[np.bool_]) -> tuple[int, float]:
    """How many devices are worth something at the price at which they ask for no more than the band, and this price."""
    low, high = _price_range(senders, worth, total_hz)
    number, nats = int(forced.sum()), None
    while high - low > _PRICE_STEP:
        price = 0.5 * (low + high)
        own, bandwidth_hz, nats = _own_worth(senders, worth, total_hz, price, nats)
        wanted = forced | (own > 0.0)
        if math.fsum(bandwidth_hz[wanted]) > total_hz:
            low = price
        else:
            high, number = price, int(wanted.sum())
    return number, high


@dataclass(frozen=True, eq=False)
class _Priced:
    """A price of a hertz (its logarithm), the bound that it gives for sets of one size, and what each device is worth at
    it beyond a place in the set, shape (devices,): those above 0, and the forced ones, are the set of the bound."""

    log_price: float
    bound: float
    beyond: Floats


def _priced(
    senders: Senders, worth: Floats, total_hz: float, forced: NDArray[np.bool_], number: int, near: float
) -> _Priced:
    """The price with the least bound on the sets of so many devices, perhaps `near` another; the bound is minus infinity
    where so many never fit."""
    places = number - int(forced.sum())
    free = np.flatnonzero(~forced)
    least_hz = math.fsum(senders.least_hz[forced]) + math.fsum(np.sort(senders.least_hz[free])[:places])
    if least_hz > total_hz * (1.0 + 1e-12):
        return _Priced(0.0, -math.inf, worth)
    low, high = _price_range(senders, worth, total_hz)
    nats, step, price = None, 0.25, near
    while high - low > _PRICE_STEP:
        own, bandwidth_hz, nats = _own_worth(senders, worth, total_hz, price, nats)
        best_first = free[np.argsort(-own[free], kind="stable")]
        asked_hz = math.fsum(bandwidth_hz[forced]) + math.fsum(bandwidth_hz[best_first[:places]])
        if asked_hz > total_hz:
            low, price = price, price + step
        else:
            high, price = price, price - step
        step *= 2.0
        price = price if low < price < high else 0.5 * (low + high)
    own, _, _ = _own_worth(senders, worth, total_hz, high, nats)
    best_first = free[np.argsort(-own[free], kind="stable")]
    inside, outside = own[best_first[:places]], own[best_first[places:]]
    edge = [float(part) for part in (*inside[-1:], *outside[:1])]
    place = math.fsum(edge) / len(edge) if edge else 0.0  # between the last one inside and the first one outside
    bound = math.fsum(own[forced]) + math.fsum(inside) + math.exp(high) * total_hz
    return _Priced(high, bound, own - place)


def _own_worth(
    senders: Senders, worth: Floats, total_hz: float, log_price: float, nats: Floats | None
) -> tuple[Floats, Floats, Floats]:
    """What each device is worth less its energy and its band at a price, this band, and u."""
    bandwidth_hz, _, nats = senders.band_at(log_price, total_hz, nats)
    own = worth - senders.cost * senders.energy_j(bandwidth_hz) - math.exp(log_price) * bandwidth_hz
    return own, bandwidth_hz, nats


def _price_range(senders: Senders, worth: Floats, total_hz: float) -> tuple[float, float]:
    """Prices (logarithms) at which everybody would take all of the band, and nobody more than the least."""
    low = float(senders.log_slope(np.full(senders.num_devices, total_hz)).min())
    with np.errstate(divide="ignore"):
        worthless = np.log(np.maximum(worth, 0.0)) - np.log(senders.least_hz)
    high = max(float(senders.log_slope(senders.least_hz).max()), float(worthless.max()), low)
    return max(low - 1.0, -650.0), min(high + 1.0, 650.0)


def _by_bound(beyond: Floats, bound: float, forced: NDArray[np.bool_]) -> Iterator[tuple[Indices, float]]:
    """Sets with a bound of each, best first: each change of one device to or from the set of the bound takes what the
    device is worth beyond its place from the bound. Sums of the smallest changes, smallest first."""
    start = forced | (beyond > 0.0)
    free = np.flatnonzero(~forced)
    free = free[np.argsort(np.abs(beyond[free]), kind="stable")]
    loss = np.abs(beyond[free]).tolist()

    def members(changes: tuple[int, ...]) -> Indices:
        inside = start.copy()
        inside[free[list(changes)]] ^= True
        return np.flatnonzero(inside)

    yield members(()), bound
    heap: list[tuple[float, tuple[int, ...]]] = [(loss[0], (0,))] if loss else []
    while heap:
        lost, changes = heapq.heappop(heap)
        yield members(changes), bound - lost
        last = changes[-1] + 1
        if last < len(loss):  # one change more, or the last one replaced by the next
            heapq.heappush(heap, (lost + loss[last], (*changes, last)))
            heapq.heappush(heap, (lost - loss[last - 1] + loss[last], (*changes[:-1], last)))


def _senders(problem: RoundProblem, hardware: Hardware, cost: Floats, unit_j: float) -> Senders:
    """All devices as senders until the deadline, energies in a unit."""
    slack_s = np.broadcast_to(problem.finish_by(problem.deadline_s), problem.num_devices) - problem.compute_s
    sends_s = np.maximum(slack_s, 1.0 / ABSURD)  # who has no time needs an infinite band
    return Senders(problem.payload_bits, sends_s, problem.snr_hz, hardware.power_w / unit_j, cost, problem.needed_hz)


def _within(problem: RoundProblem, senders: Senders, left: Floats) -> Senders:
    """The senders with as much power at most as what is left of their budgets carries until the deadline; those who
    must send keep theirs."""
    share = np.minimum(left / (senders.power_w * senders.send_s), 1.0)
    share[problem.must] = 1.0
    least_hz = bandwidth_for(problem.payload_bits, senders.send_s, np.maximum(senders.snr_hz * share, 1.0 / ABSURD))
    least_hz = problem.permitted(np.where(share < 1.0, least_hz, senders.least_hz))
    return Senders(*(getattr(senders, name) for name in list(senders.__dataclass_fields__)[:-1]), least_hz)


def _allowance_j(problem: RoundProblem, hardware: Hardware, horizon: int, budget_j: float | None) -> Floats:
    """H_i / T of each device."""
    if budget_j is None:
        return _DEFAULT_SHARE * hardware.power_w * problem.deadline_s
    return np.full(problem.num_devices, budget_j / horizon)


def _remembered(problem: RoundProblem, memory: Memory, name: str) -> Floats:
    before = remembered(memory, name)
    return np.zeros(problem.num_devices) if before is None else before
