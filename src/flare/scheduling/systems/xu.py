"""OCEAN: as many devices as energy budgets over the whole run allow, more of them late in the run.

Xu, Wang, "Client Selection and Bandwidth Allocation in Wireless Federated Learning Networks: A Long-Term Perspective",
IEEE TWC 2021 (arXiv 2004.04314): maximise sum_t eta_t (number of senders) over a run of T rounds in which device i may
spend H_i joule. Every device has a queue of what it has spent beyond its allowance, and every round is one problem:

    maximise    V eta_t |Q| - sum_{i in Q} q_i E_i(b_i)           over sets Q and bands, sum b_i <= B
    then        q_i <- max(q_i + E_i - H_i / T, 0),   q_i = 0 at first,   E_i = 0 where i is not in Q

E_i(b) is the energy of sending until the deadline on the band b with no more power than that takes; b is at least what
its full power needs. For a fixed set, b_i follows by Lambert's W (`lowered_power`). H_i is `energy_budget_j`, V `v_j2`.
T is `horizon`; unless set, a run's `run.rounds`, or fewer where `run.seconds` ends it earlier. eta_t = 2 t / (T + 1) in
round t = 1 ... T, 1 on average: "later is better", which won in the paper; `rising=false` sets it to 1.

Which set: their OCEAN-P sorts devices by q_i / h_i^2 and tries the first 1, 2, 3, ...; that is exact where devices
differ in nothing else. Here they also differ in time left, payload and power, so that the best set is looked for by
prices of the band (`best_group`); where they differ in q_i / h_i^2 alone, the two are the same. The search mostly ends
with a proof that no set is better, and else after some sets with the best of them. Which of the two it was is not told:
the bound of a schedule is one on P2's objective, and this is another. In whole blocks the bands of that set are
rounded, and somebody is left out as long as the others are worth more then: nothing is proven there.

What holds of the budgets. q_i grows by at least E_i - H_i / T, so that after n rounds device i has spent at most
n H_i / T + q_i: always. And q_i is bounded: nobody is taken whose q_i E_i is above V eta_t (without it the set would be
worth more), so that q_i <= V eta / E_min + E_max, with the least and the greatest energy of its uploads. By so much the
budget may be exceeded, however long the run; H_i itself is only approached. With `strict=true` it holds: a device
sends with no more power than what is left of H_i carries until the deadline, and not at all where that is too little.

Left open, and decided here: only sending counts, as in the paper; `count_computing=true` adds what the processor takes.
A queue of 0 counts as 1e-6 H_i / T, so that the band is divided in the first round, too. By default H_i / T is a tenth
of what device i radiates until the deadline at full power, and V is T / 10 times the square of the mean H_i / T. After
T rounds eta and the allowance of a round stay what they were, so that the mean of H_i / T goes on being kept (under
`strict`, a device stops for good). Devices that must send do, whatever their queue or budget.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.hardware import Hardware
from flare.scheduling.orders import by_rows, canonical, remembered
from flare.scheduling.problem import ABSURD, RoundProblem
from flare.scheduling.registry import Choice, Memory, policy
from flare.scheduling.systems.best_group import best_group
from flare.scheduling.systems.lowered_power import LEAST_POWER, Senders, least_energy, whole_blocks
from flare.types import Floats, Indices
from flare.wireless.rate import bandwidth_for

_MOST_WORTH = 1e150
"""More than any energy counts, and still a number where it is multiplied."""
_LEAST_QUEUE = 1e-6  # of the allowance of a round
_DEFAULT_SHARE = 0.1  # of sending at full power all the time
_POSITIVE = Limits(above=0.0)
_LEAST_J = 1e-300  # of an allowance: less is no number of joules to count others in
_MAX_LEFT_OUT = 8  # devices of which it is tried whether the others do better without it
_ROUNDS = Limits(at_least=1.0, finite=False)
WITHOUT_A_RUN = 100
"""The horizon where nobody says how many rounds there are."""


@policy("xu")
@np.errstate(all="ignore")  # at the ends of what a round may be, what overflows is infinite, and nobody's best
def xu(
    problem: RoundProblem,
    *,
    hardware: Hardware,
    memory: Memory,
    horizon: Annotated[
        int | None,
        "T, rounds over which budgets are planned; none: what run.rounds and run.seconds allow, or 100 without a run",
        _ROUNDS,
    ] = None,
    energy_budget_j: Annotated[
        float | None, "H, joule of each device over the horizon; none: a tenth of full power", _POSITIVE
    ] = None,
    v_j2: Annotated[float | None, "V, what a sender is worth, in joule^2; none: T / 10 x (H / T)^2", _POSITIVE] = None,
    rising: Annotated[bool, "whether senders count for more late in the run"] = True,
    count_computing: Annotated[bool, "whether the energy of computing counts, too"] = False,
    strict: Annotated[bool, "whether a device stops where its budget is spent"] = False,
) -> Choice:
    """OCEAN: the most devices that energy budgets over the run allow, by queues, on bands that save energy."""
    index, horizon = int(memory.get("round", 0)) + 1, WITHOUT_A_RUN if horizon is None else horizon
    allowance_j = _allowance_j(problem, hardware, horizon, energy_budget_j)
    queue_j, spent_j = (_remembered(problem, memory, name) for name in ("device_queue_j", "device_spent_j"))
    eta = 2.0 * min(index, horizon) / (horizon + 1.0) if rising else 1.0
    unit_j = math.fsum(allowance_j) / problem.num_devices  # joules are counted in it, so that squares stay in range
    worth = min(eta * (0.1 * horizon if v_j2 is None else v_j2 / unit_j / unit_j), _MOST_WORTH)

    computing_j = hardware.compute_energy_j if count_computing else np.zeros(problem.num_devices)
    senders = _senders(problem, hardware, np.maximum(queue_j, _LEAST_QUEUE * allowance_j) / unit_j, unit_j)
    if strict:
        left_j = np.maximum(allowance_j * horizon - spent_j - computing_j, 0.0)
        senders = _within(problem, senders, left_j / unit_j)
    able = canonical(problem, by_rows(queue_j, spent_j, hardware.power_w, computing_j))
    able = able[senders.least_hz[able] <= problem.capacity_hz]
    worths = worth - (senders.cost * computing_j / unit_j)[able]
    best = best_group(
        senders.of(able),
        worths,
        problem.usable_hz,
        forced=np.isin(able, problem.must),
        max_devices=problem.device_limit,
    )
    members, bandwidth_hz = best.members, best.bandwidth_hz
    if members.size and problem.block_hz is not None:
        members, bandwidth_hz = _in_blocks(problem, senders.of(able), worths, members, np.isin(able, problem.must))
    selected = able[members]
    group = senders.of(selected)
    used_j = np.zeros(problem.num_devices)
    used_j[selected] = group.energy_j(bandwidth_hz) * unit_j + computing_j[selected]
    told = {
        "round": np.asarray(index),
        "device_queue_j": np.maximum(queue_j + used_j - allowance_j, 0.0),
        "device_spent_j": spent_j + used_j,
    }
    if selected.size == 0:
        return Choice(memory=told)
    power_w = hardware.power_w[selected] * np.maximum(group.power_share(bandwidth_hz), LEAST_POWER)
    return Choice(selected, memory=told, bandwidth_hz=bandwidth_hz, power_w=power_w)


def _in_blocks(
    problem: RoundProblem, senders: Senders, worths: Floats, members: Indices, forced: NDArray[np.bool_]
) -> tuple[Indices, Floats]:
    """Of a group in whole blocks those who send, and their bands: one of those who are worth least is left out as long
    as that is better."""
    assert problem.block_hz is not None
    assert problem.num_blocks is not None
    block_hz, num_blocks = problem.block_hz, problem.num_blocks

    def divided(members: Indices) -> tuple[Indices, Floats, Floats]:
        group, bandwidth_hz = senders.of(members), np.zeros(0)
        if members.size:
            bandwidth_hz = whole_blocks(group, least_energy(group, problem.usable_hz), block_hz, num_blocks)
        return members, bandwidth_hz, worths[members] - group.cost * group.energy_j(bandwidth_hz)

    best = divided(members)
    while True:
        members, bandwidth_hz, value = best
        may_go = np.flatnonzero(~forced[members])
        least = may_go[np.argsort(value[may_go], kind="stable")][:_MAX_LEFT_OUT]
        tried = max(
            (divided(np.delete(members, at)) for at in least), key=lambda each: math.fsum(each[2]), default=best
        )
        if math.fsum(tried[2]) <= math.fsum(value):
            return members, bandwidth_hz
        best = tried


def _senders(problem: RoundProblem, hardware: Hardware, cost: Floats, unit_j: float) -> Senders:
    """All devices as senders until the deadline, energies in a unit."""
    slack_s = problem.latest_s - problem.compute_s
    sends_s = np.maximum(slack_s, 1.0 / ABSURD)  # who has no time needs an infinite band
    return Senders(problem.payload_bits, sends_s, problem.snr_hz, hardware.power_w / unit_j, cost, problem.needed_hz)


def _within(problem: RoundProblem, senders: Senders, left: Floats) -> Senders:
    """The senders with as much power at most as what is left of their budgets carries until the deadline; those who
    must send keep theirs."""
    share = np.minimum(left / (senders.power_w * senders.send_s), 1.0)
    share[problem.must] = 1.0
    least_hz = bandwidth_for(problem.payload_bits, senders.send_s, np.maximum(senders.snr_hz * share, 1.0 / ABSURD))
    least_hz = problem.permitted(np.where(share < 1.0, least_hz, senders.least_hz))
    return replace(senders, least_hz=least_hz)


def _allowance_j(problem: RoundProblem, hardware: Hardware, horizon: int, budget_j: float | None) -> Floats:
    """H_i / T of each device."""
    if budget_j is None:
        return _DEFAULT_SHARE * hardware.power_w * problem.deadline_s
    return np.full(problem.num_devices, max(budget_j / horizon, _LEAST_J))


def _remembered(problem: RoundProblem, memory: Memory, name: str) -> Floats:
    before = remembered(memory, name)
    return np.zeros(problem.num_devices) if before is None else before
