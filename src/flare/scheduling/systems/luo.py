"""Luo: K devices drawn with replacement, so that the time to a given loss is as short as can be expected.

Luo, Xiao, Wang, Huang, Tassiulas, "Tackling System and Statistical Heterogeneity for Federated Learning with Adaptive
Client Sampling", INFOCOM 2022 (arXiv 2112.11256). K devices are drawn with replacement from q, and

    w  <-  w + sum_j p_j c_j / (K q_j) Delta_j,        c_j times drawn

which on average is sum_i p_i Delta_i. Their bound says that the rounds to a loss are alpha sum_i p_i^2 G_i^2 / q_i +
beta, up to a factor, and a round takes about sum_i q_i t_i. So

    min  sum_i q_i t_i (alpha sum_i p_i^2 G_i^2 / q_i + beta),     sum_i q_i = 1

Setting its derivatives to zero gives q_i in proportion to a_i / sqrt(t_i - c), where a_i = p_i G_i and

    c Z(c)^2 = beta / alpha,     Z(c) = sum_i a_i / sqrt(t_i - c),     0 <= c < min t

The left side rises from 0 without end, so that there is one such c: this is the minimum (derived here; the authors
search over a grid of round times). With beta / alpha = 0, q_i is in proportion to p_i G_i / sqrt(t_i).

K is `num_selected`, p_i `history.num_samples` as a share, G_i the norm of the last update that arrived (for a device
that has not sent the largest of them, and never 0: for one whose update was nothing the least), and t_i computing and
sending on an even share B/K of the band.

beta / alpha is `beta_over_alpha`. The authors estimate it with two pilot runs from the same start, one with q_i = 1/N
and one with q_i = p_i (`sampling`), which `flare.research.luo_pilots` does. A run that uses its result pays for them:
with `pilot_s`, `pilot_j` and `pilot_bits` its first round begins that much later, and the devices have spent and sent
that much.

The paper has no deadline, and no devices that must send: see `flare.scheduling.systems.unbiased`. Where no more than
`max_devices` may send, no more are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from flare.config.option import Limits
from flare.scheduling.baselines import Number
from flare.scheduling.checks import ABSURD
from flare.scheduling.history import History
from flare.scheduling.orders import canonical
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, Memory, policy
from flare.scheduling.systems.unbiased import (
    Wait,
    can_be_drawn,
    certain_weights,
    falling_root,
    norm_heard_last,
    num_draws,
    shares,
    time_on_s,
    together,
)
from flare.types import Floats, Indices

OPTIMAL, UNIFORM, BY_SAMPLES = "optimal", "uniform", "samples"
Ratio = Annotated[
    float, "beta / alpha of the bound on the rounds; flare.research.luo_pilots estimates it", Limits(at_least=0.0)
]
Sampling = Annotated[
    str,
    "how likely each device is drawn: optimal, all alike, or by its samples",
    Limits((OPTIMAL, UNIFORM, BY_SAMPLES)),
]
_PAID = Limits(at_least=0.0, at_most=ABSURD)
PilotTime = Annotated[float, "simulated seconds that pilot runs took, paid before the first round", _PAID]
PilotEnergy = Annotated[float, "joules that all devices spent in them together", _PAID]
PilotBits = Annotated[float, "bits that all devices sent in them together", _PAID]


def _goes_by_norms(options: Mapping[str, Any]) -> bool:
    return bool(options["sampling"] == OPTIMAL)


@policy("luo", own_deadline=True, by_updates=_goes_by_norms, weighs=True)
def luo(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    memory: Memory,
    num_selected: Number = 10,
    beta_over_alpha: Ratio = 0.0,
    sampling: Sampling = OPTIMAL,
    wait: Wait = True,
    pilot_s: PilotTime = 0.0,
    pilot_j: PilotEnergy = 0.0,
    pilot_bits: PilotBits = 0.0,
) -> Choice:
    """Luo: devices drawn with replacement for the shortest time to a loss, weighed so that the mean is unbiased."""
    share, draws = shares(history), num_draws(problem, num_selected)
    if draws > _MAX_DRAWS:
        raise ValueError(f"num_selected is {num_selected}; policy 'luo' draws at most {_MAX_DRAWS:,} times a round")
    base = {
        OPTIMAL: share * norm_heard_last(history.update_norm),
        UNIFORM: np.ones(problem.num_devices),
        BY_SAMPLES: share,
    }[sampling]
    base = np.where(can_be_drawn(problem, wait=wait), base, 0.0)
    if sampling == OPTIMAL:
        time_s = time_on_s(problem, problem.usable_hz / min(num_selected, problem.num_devices))
        likely = probabilities(base, time_s, beta_over_alpha)
    else:
        likely = base / max(float(base.sum()), np.finfo(float).tiny)
    picks = picked(canonical(problem, likely), likely, draws, rng)
    weight = np.zeros(problem.num_devices)
    np.add.at(weight, picks, share[picks] / (max(draws, 1) * likely[picks]))
    weight[problem.must] = certain_weights(problem, share, len(picks))
    distinct = picks[np.sort(np.unique(picks, return_index=True)[1])]
    senders, end_s = together(problem, np.concatenate((problem.must, distinct)), wait=wait)
    return Choice(
        senders,
        weights=weight[senders],
        deadline_s=end_s,
        memory={"begun": np.ones(1)},  # the pilots are paid for once, in the round that remembers nothing
        pilot_s=0.0 if memory else pilot_s,
        pilot_j=0.0 if memory else pilot_j,
        pilot_bits=0.0 if memory else pilot_bits,
    )


def picked(order: Indices, likely: Floats, draws: int, rng: np.random.Generator) -> Indices:
    """Devices drawn with replacement, each as likely as it says, in the order of the draws; none where all are 0."""
    order = order[likely[order] > 0.0]
    if order.size == 0:
        return order
    ladder = np.cumsum(likely[order])
    steps = np.searchsorted(ladder, rng.random(draws) * ladder[-1], side="right")
    drawn: Indices = order[np.minimum(steps, order.size - 1)]
    return drawn


_MAX_DRAWS = 1_000_000
_MOST = 1e200
"""Of beta / alpha, against squares of sizes that are 1 at most."""


def probabilities(size: Floats, time_s: Floats, beta_over_alpha: float) -> Floats:
    """q_i, shape (devices,), of p_i G_i (`size`), t_i > 0 and beta / alpha >= 0; all 0 where all sizes are."""
    able = size > 0.0
    if not able.any():
        return np.zeros(len(size))
    largest = float(size[able].max())  # sizes are counted in it, so that squares stay in range
    own, own_s = size[able] / largest, time_s[able]
    beta_over_alpha = min(beta_over_alpha / largest / largest, _MOST)
    least_s = float(own_s.min())
    later_root = np.sqrt(own_s - least_s)

    def unscaled(root: float) -> Floats:
        """a_i / sqrt(t_i - c), where `root` is sqrt(min t - c), whose square may be too small for a double."""
        return np.asarray(own / np.hypot(later_root, root))

    root = math.sqrt(least_s)
    if beta_over_alpha > 0.0:
        quickest = float(own[own_s.argmin()])  # alone, it gives the lower end
        low = root * quickest / math.hypot(quickest, math.sqrt(beta_over_alpha))
        root = falling_root(
            lambda root: (least_s - root * root) * float(unscaled(root).sum()) ** 2 - beta_over_alpha, low, root
        )
    answer = np.zeros(len(size))
    answer[able] = unscaled(root) / unscaled(root).sum()
    return answer
