"""Ren: devices by lot, likelier the greater their gradient and the quicker their upload; weights that make up for it.

Ren, He, Wen, Yu, Huang, Guo, "Scheduling for Cellular Federated Edge Learning with Importance and Channel Awareness",
IEEE Trans. Wireless Commun. 2020 (arXiv 2004.00490). The probabilities pi_i with which one device is drawn minimise the
variance of the estimate and the expected upload time,

    min  rho sum_i p_i^2 ||g_i||^2 / pi_i  +  (1 - rho) sum_i pi_i T_i,        sum_i pi_i = 1
    pi_i  =  p_i ||g_i|| sqrt(rho / ((1 - rho) T_i + lambda)),                 lambda by bisection

and the update of the device drawn counts p_i / pi_i: on average that is sum_i p_i g_i. Of several drawn one after
another without replacement, m in all, with pi^(k) renormalised over those left, each draw gives such an estimate,

    e_k  =  sum_{j < k} p_j g_j + p_k g_k / pi_k^(k)        (j: drawn before)

and their mean is taken (Des Raj, 1956): the device drawn as the k-th counts ((m - k) p_k + p_k / pi_k^(k)) / m.

p_i = n_i / n is `history.num_samples` as a share, T_i the upload on the whole band with this round's channel, m
`num_selected`, rho `rho`, lambda + (1 - rho) min T `root` below.

Decided here. In the paper all devices compute their gradient and tell its norm before one is drawn. So they do with
`norms` "all" or "batch", on all their samples or on a batch, and it is paid (`flare.rounds.probing`). With "last",
||g_i|| is the norm of the last update that arrived, the largest of them for a device that has not sent, and never 0:
the estimate is unbiased all the same, only its variance is greater. rho weighs a squared norm against seconds; with
`relative` (the default) the variance is divided by the least that it can be, (sum p ||g||)^2, and the time by its mean,
sum p T, so that rho = 0.5 means the same in every cell and does not drift as gradients
shrink; `relative` off is the paper's formula in its units. The paper has no deadline, and no devices that must
send: see `flare.scheduling.systems.unbiased`.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import canonical, drawn
from flare.scheduling.probe import GRADIENT, Probe, Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.systems.known import LAST, NORMS, Asked
from flare.scheduling.systems.unbiased import (
    Wait,
    can_be_drawn,
    certain_weights,
    falling_root,
    norm_heard_last,
    norm_or_largest,
    num_draws,
    shares,
    together,
)
from flare.types import Floats
from flare.wireless.rate import upload_s

Rho = Annotated[
    float, "how much the variance of the estimate counts against upload time", Limits(above=0.0, at_most=1.0)
]
Relative = Annotated[
    bool, "whether the variance is divided by its least value, and the time by its mean over all samples"
]


def ask_drawable(problem: RoundProblem, *, norms: str, wait: bool) -> Probe:
    """Whoever may be drawn is asked for the norm of its gradient."""
    return Probe(np.flatnonzero(can_be_drawn(problem, wait=wait)), GRADIENT, norms)


@policy(
    "ren",
    own_deadline=True,
    needs=NORMS.needs,
    probe=ask_drawable,
    asks=NORMS.asks,
    by_updates=NORMS.goes_by_last,
    weighs=True,
)
def ren(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    rho: Rho = 0.5,
    relative: Relative = True,
    norms: Asked = LAST,
    wait: Wait = True,
) -> Choice:
    """Ren: devices by lot, likelier with great gradients and quick uploads, weighed so that the mean is unbiased."""
    share = shares(history)
    norm = norm_heard_last(history.update_norm) if norms == LAST else norm_or_largest(probed.norm)
    whole_s = upload_s(problem.payload_bits, np.full(problem.num_devices, problem.usable_hz), problem.snr_hz)
    importance = np.where(can_be_drawn(problem, wait=wait), share * norm, 0.0)
    probability = probabilities(importance, whole_s, rho, relative=relative, share=share)
    order = canonical(problem, importance)
    order = order[probability[order] > 0.0]
    taken = drawn(order, probability[order], rng)[: num_draws(problem, num_selected)]
    weight = np.zeros(problem.num_devices)
    weight[problem.must] = certain_weights(problem, share, len(taken))
    weight[taken] = des_raj_weights(share[taken], probability[taken], float(probability.sum()))
    senders, end_s = together(problem, np.concatenate((problem.must, taken)), wait=wait)
    return Choice(senders, weights=weight[senders], deadline_s=end_s)


def probabilities(
    importance: Floats, upload_s: Floats, rho: float, *, relative: bool = False, share: Floats | None = None
) -> Floats:
    """pi_i, shape (devices,), of p_i ||g_i|| (`importance`) and T_i (`upload_s`); all 0 where all importances are.

    With `relative` both terms of the objective are divided as above, T by its mean with weights `share` (None: equal).
    """
    able = importance > 0.0
    if not able.any():
        return np.zeros(len(importance))
    size, time_s = importance[able], upload_s[able]
    if relative:
        of_all = None if share is None else share[able]
        size, time_s = size / size.sum(), time_s / np.average(time_s, weights=of_all)
    largest = float(size.max())  # sizes are counted in it, so that squares stay in range
    size = size / largest
    with np.errstate(over="ignore"):
        later_s = (1.0 - rho) * (time_s - time_s.min()) / largest / largest

    def likely(root: float) -> Floats:
        return np.asarray(size * np.sqrt(rho / (later_s + root)))

    # One device alone gives the lower end, all of them as if none were later the upper one.
    low, high = max(rho * float(size[time_s.argmin()]) ** 2, 1e-300), rho * float(size.sum()) ** 2
    root = falling_root(lambda each: float(likely(each).sum()) - 1.0, low, high)
    answer = np.zeros(len(importance))
    answer[able] = likely(root) / likely(root).sum()
    return answer


def des_raj_weights(share: Floats, probability: Floats, total: float = 1.0) -> Floats:
    """How much each of m devices counts that were drawn in this order without replacement, with these probabilities of
    the first draw, out of `total`; shape (m,)."""
    number = len(share)
    before = np.concatenate(([0.0], np.cumsum(probability)))[:number]
    at_their_turn = probability / np.maximum(total - before, probability)  # no likelier than certain, by rounding
    later = np.arange(number - 1, -1, -1.0)
    return (later * share + share / at_their_turn) / max(number, 1)
