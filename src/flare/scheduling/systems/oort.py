"""Oort: devices whose samples are learned worst, slow ones held back, and some that are new every round.

Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021:
Eqs. (1) and (2), Algorithm 1; numbers as in the authors' code. In round R, of the devices that can meet the deadline,

    U_i      =  n_i sqrt(mean squared loss)                       utility of a device that has sent before
    score_i  =  (min(U_i, U_98) - U_min) / (U_max - U_min)  +  sqrt(0.1 ln R / L_i),   L_i the round it last sent in
                x (T / t_i)^alpha  where t_i > T                  T the percentile of the t_i that the pacer sets

    exploit  m - floor(epsilon m) places: drawn without replacement in proportion to the score, among the devices whose
             score is at least 0.7 of that of the last place
    explore  the other places, epsilon = max(0.9 x 0.95^R, 0.2): new devices, drawn in proportion to n_i (slow ones held
             back as above) among five times as many of the most samples
    pacer    every 20 rounds: where the mean utility of those exploited, summed over the rounds, differs from that of
             the 20 rounds before by at most a tenth of it, T's percentile (10 at first) rises by 5; where by five times
             or more, it falls by 5

m is `num_selected`, alpha `slow_penalty`, n_i `history.num_samples`, the squared loss `history.mean_squared_loss` (the
mean over the steps of the batch's squared loss; the square of `last_loss` where that alone is known).

Left open, and decided here: t_i is what the device would take on an even share B/m of the band with this round's
channel (times that were measured say nothing here: the band is divided so that all finish at once). Oort calls 1.3 m
devices and keeps the first m; here the channel is known, and a device that does not fit beside those drawn before it is
passed over for the next: new ones, then the others at random. Places that no new device takes are exploited; the
authors' code leaves them empty. Its optional blacklist, off by default, is left out, and so are two details of the code
that the paper does not have: U_min is 0.999 of the least there, and at least ten times as many are drawn among.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import canonical, drawn
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, Memory, policy
from flare.scheduling.systems.known import samples
from flare.types import Floats, Indices
from flare.wireless.rate import upload_s

CLIPPED_ABOVE = 0.98
CUT = 0.7
WINDOW = 5
STALENESS = 0.1
FIRST_PERCENTILE, PERCENTILE_STEP = 10.0, 5.0
FLAT, SHARP = 0.1, 5.0
_SHARE = Limits(at_least=0.0, at_most=1.0)


@policy("oort", needs=("losses",))
def oort(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    memory: Memory,
    num_selected: Number = 10,
    exploration: Annotated[float, "share of new devices, before it decays", _SHARE] = 0.9,
    exploration_decay: Annotated[float, "what that share is multiplied by each round", _SHARE] = 0.95,
    min_exploration: Annotated[float, "the least share of new devices", _SHARE] = 0.2,
    slow_penalty: Annotated[float, "alpha, how hard slow devices are held back; 0: not", Limits(at_least=0.0)] = 2.0,
    pacer_rounds: Annotated[int, "rounds between two steps of the pacer", Limits(at_least=1.0)] = 20,
) -> Choice:
    """Oort: the greatest loss on the most samples, slow devices held back, new ones explored."""
    utility = utilities(history)
    index = int(memory.get("round", 0)) + 1
    pacer = Pacer.of(memory).after(index, _exploited_utility(memory, utility), pacer_rounds)
    order = canonical(problem, np.nan_to_num(utility, nan=-1.0))
    order = problem.able(order)
    slowness = np.ones(problem.num_devices)
    slowness[order] = held_back(_durations_s(problem, order, num_selected), pacer.percentile, slow_penalty)
    seen, new = order[~np.isnan(utility[order])], order[np.isnan(utility[order])]
    score = scores(utility[seen], index, index - history.rounds_since_sent[seen]) * slowness[seen]

    epsilon = max(exploration * exploration_decay**index, min_exploration) if new.size else 0.0
    num_exploited = min(num_selected - math.floor(num_selected * epsilon), seen.size)
    num_new = min(num_selected - num_exploited, new.size)
    exploited = _drawn_near_the_top(seen, score, min(num_selected - num_new, seen.size), rng)
    explored = _drawn_in_window(new, samples(history)[new] * slowness[new], num_new, rng)
    others = order[rng.permutation(order.size)]
    others = others[~np.isin(others, np.concatenate((exploited, explored)))]
    selected = admit(problem, np.concatenate((exploited, explored, others)), max_devices=num_selected)
    was_exploited = np.zeros(problem.num_devices)
    was_exploited[np.intersect1d(selected, exploited)] = 1.0
    return Choice(selected, memory={"round": index, "device_exploited": was_exploited, **pacer.memory()})


def utilities(history: History) -> Floats:
    """U_i, shape (devices,); nan of a device of which no loss is known."""
    squared = np.where(np.isnan(history.mean_squared_loss), history.last_loss**2, history.mean_squared_loss)
    return samples(history) * np.sqrt(squared)


def scores(utility: Floats, index: int, last: Floats) -> Floats:
    """The first line of a score in round `index`, of devices with these utilities that last sent in rounds `last`."""
    if utility.size == 0:
        return utility
    ascending = np.sort(utility)
    clip = ascending[min(int(CLIPPED_ABOVE * utility.size), utility.size - 1)]
    spread = (ascending[-1] - ascending[0]) or 1.0
    staleness = np.sqrt(STALENESS * math.log(index) / np.maximum(last, 1.0))
    gained: Floats = (np.minimum(utility, clip) - ascending[0]) / spread
    return gained + staleness


def held_back(duration_s: Floats, percentile: float, penalty: float) -> Floats:
    """(T / t_i)^alpha of devices that are slower than T, and 1 of the others."""
    factor = np.ones(duration_s.size)
    if percentile >= 100.0 or duration_s.size == 0:
        return factor
    preferred_s = np.sort(duration_s)[min(int(duration_s.size * percentile / 100.0), duration_s.size - 1)]
    slow = duration_s > preferred_s
    factor[slow] = (preferred_s / duration_s[slow]) ** penalty
    return factor


@dataclass(frozen=True)
class Pacer:
    """The percentile of durations that is fast enough, and the exploited utility of this window and the one before."""

    percentile: float = FIRST_PERCENTILE
    this_window: float = 0.0
    window_before: float = 0.0

    @classmethod
    def of(cls, memory: Memory) -> Pacer:
        """The pacer that a policy remembers."""
        return cls(**{name: float(memory[name]) for name in cls.__dataclass_fields__ if name in memory})

    def memory(self) -> dict[str, float]:
        """What is to be remembered of it."""
        return dict(vars(self))

    def after(self, index: int, utility: float, rounds: int) -> Pacer:
        """The pacer at the start of round `index`, where those exploited in the round before have this utility now."""
        total = self.this_window + utility
        if index % rounds:
            return Pacer(self.percentile, total, self.window_before)
        change, percentile = abs(total - self.window_before), self.percentile
        if index >= 2 * rounds and change <= FLAT * self.window_before:
            percentile = min(100.0, percentile + PERCENTILE_STEP)
        elif index >= 2 * rounds and change >= SHARP * self.window_before:
            percentile = max(PERCENTILE_STEP, percentile - PERCENTILE_STEP)
        return Pacer(percentile, 0.0, total)


def _exploited_utility(memory: Memory, utility: Floats) -> float:
    """The mean utility, now, of the devices exploited in the round before; 0 where there are none."""
    was = memory.get("device_exploited", np.zeros(utility.size))
    known = utility[(was > 0.0) & ~np.isnan(utility)]
    return float(np.sort(known).mean()) if known.size else 0.0


def _durations_s(problem: RoundProblem, devices: Indices, sharing: int) -> Floats:
    share_hz = np.asarray(problem.usable_hz / min(sharing, problem.num_devices))
    return problem.compute_s[devices] + upload_s(problem.payload_bits[devices], share_hz, problem.snr_hz[devices])


def _drawn_near_the_top(devices: Indices, score: Floats, number: int, rng: np.random.Generator) -> Indices:
    """So many devices, drawn in proportion to their scores among those near the score of the last place."""
    if number == 0:
        return devices[:0]
    last_place = np.sort(score)[-number]
    near = score >= CUT * last_place
    return drawn(devices[near], score[near], rng)[:number]


def _drawn_in_window(devices: Indices, weight: Floats, number: int, rng: np.random.Generator) -> Indices:
    """So many devices, drawn in proportion to their weights among the heaviest, of which there are a few times more."""
    heaviest = np.argsort(-weight, kind="stable")[: WINDOW * number]
    return drawn(devices[heaviest], weight[heaviest], rng)[:number]
