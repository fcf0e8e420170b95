"""Hu: every T seconds, of the ready devices with good channels, those whose labels together are as everybody's.

Hu, Chen, Larsson, "Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless Networks",
IEEE JSAC 2023. Devices compute across rounds (`flare.rounds.asynchrony`). A round is a period of T s, whoever sends:

    1.  ready       devices that finish computing early enough to send before the period is over, on an even share B/m
    2.  candidates  of them the d with the best channels
    3.  group       m of these, one after another: each time the device that brings the labels of the group nearest to
                    those of all devices, least sum_c |P_group(c) - P_all(c)|, P the shares of the classes c
    4.  weights     of their updates: n_i gamma^age_i / sum_j n_j gamma^age_j

m is `num_selected`, d `num_candidates`, gamma `age_discount`, n_i `history.num_samples`, T the deadline of the cell
(`wireless.deadline_s`), age `history.age`, P from `history.label_counts`, which devices share where data.share_labels
is true; a run without is refused.

The rule was written down from memory, without the paper at hand. That devices compute across rounds of a fixed length,
that those who are ready are scheduled by channel and by the labels of the group, and that older updates count for less
is its idea. Not checked against it are: that channels narrow the choice first and labels decide then, the distance of
step 3, the form of the weights of step 4 and whether they add up to 1, and the values of d and gamma.

Decided here: a device whose computing ends within the period is ready, too, and sends from then on; where fewer than m
can send on B/m, m is the largest number for which as many can, and each has more of the band then; devices that bring
the group equally near go by their channels; gamma is 0.8, so that an update of age 3 counts about half of a fresh one;
devices that must send come first. Where devices hold no samples, channels decide.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import by
from flare.scheduling.problem import BAND_TOLERANCE, RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.systems.known import Candidates, samples
from flare.scheduling.systems.known import num_candidates as checked_number
from flare.types import Floats, Indices

_SAME = 1e-12  # distances that differ by less are equal: shares of labels are rounded


@policy("hu", split_evenly=True, asynchronous=True, periodic=True, needs=("labels",), weighs=True)
def hu(
    problem: RoundProblem,
    *,
    history: History,
    num_selected: Number = 10,
    num_candidates: Candidates = None,
    age_discount: Annotated[float, "gamma, what each step of age leaves of a weight", Limits(above=0.0)] = 0.8,
) -> Choice:
    """Hu: every period, of ready devices with good channels, a group whose labels are as everybody's."""
    wanted = checked_number("hu", num_candidates, num_selected)
    order = by(problem, -problem.snr_hz)  # the best channel first
    number = _sharing(problem, num_selected)
    ready = order[problem.needed_hz[order] <= _share_hz(problem, number)] if number else order[:0]
    forced = np.isin(ready, problem.must)
    first = int(forced.sum())
    candidates = np.concatenate((ready[forced], ready[~forced][: max(wanted - first, 0)]))
    group = nearest_group(candidates, _labels(history), number, first=first)
    return Choice(group, weights=_weights(history, group, age_discount))


def nearest_group(candidates: Indices, labels: Floats, number: int, *, first: int = 0) -> Indices:
    """So many of the candidates, the `first` ones in any case, then each time the one that brings the labels of the
    group nearest to those of all; the earlier of equals. `labels` has the counts of all devices, (devices, classes)."""
    if len(candidates) <= number:
        return candidates
    wanted = labels.sum(axis=0) / labels.sum()
    chosen, left = candidates[:first].tolist(), candidates[first:]
    with_each = labels[left] + labels[chosen].sum(axis=0)  # (left, classes), the group's counts with each
    while len(chosen) < number:
        totals = with_each.sum(axis=1, keepdims=True)
        distance = np.abs(with_each / np.where(totals > 0.0, totals, 1.0) - wanted).sum(axis=1)
        best = int(np.flatnonzero(distance <= distance.min() + _SAME)[0])
        chosen.append(int(left[best]))
        with_each = np.delete(with_each, best, axis=0) + labels[left[best]]
        left = np.delete(left, best)
    return np.array(chosen, dtype=np.intp)


def _labels(history: History) -> Floats:
    """The counts of labels, which `solve` sees to; where there are no samples, one of the same class each."""
    known = history.label_counts
    return np.ones((history.num_devices, 1)) if known is None or not known.any() else known


def _weights(history: History, group: Indices, discount: float) -> Floats:
    """n_i gamma^age_i over their sum, shape (group,). Ages count from that of the greatest power, which is then 1."""
    if len(group) == 0:
        return np.zeros(0)
    age = history.age[group]
    powers = discount ** (age - (age.min() if discount <= 1.0 else age.max()))
    raw = np.maximum(samples(history)[group], 1.0) * powers
    shares: Floats = raw / raw.sum()
    return shares


def _sharing(problem: RoundProblem, num_selected: int) -> int:
    """The largest number of devices, up to that, of which each can send on an even share of the band, those who must
    among them; 0: not even one, or not those who must."""
    needed = np.sort(problem.needed_hz)
    for number in range(min(num_selected, problem.device_limit), max(problem.must.size, 1) - 1, -1):
        share_hz = _share_hz(problem, number)
        if needed[number - 1] <= share_hz and (problem.needed_hz[problem.must] <= share_hz).all():
            return number
    return 0


def _share_hz(problem: RoundProblem, number: int) -> float:
    return problem.even_share_hz(number) * (1.0 + BAND_TOLERANCE)
