"""FedCGD: the group whose labels, taken together, are those of everybody.

Chen, Yan, Sun, Zhou, Niu, "FedCGD: Collective Gradient Divergence Optimized Scheduling for Wireless Federated
Learning", 2025. What the mean update of a group misses is bounded by how far the labels of the *group* are from those
of all devices, and by how few samples it goes by:

    minimise  f(A) = sum_c |P_A(c) - P(c)|  +  kappa / sqrt(n_A)     over groups A that fit the band

P_A(c) is the share of label c among the n_A samples of A, P(c) that among the samples of all devices of the round; both
come from `history.label_counts`, which devices tell only where `data.share_labels` is on. Two devices of one label each
can so be a better group than two of many labels.

How it is searched. With e_i(c) = n_i(c) - n_i P(c), which add up over a group,

    f(A) = sum_c |e_A(c)| / n_A  +  kappa / sqrt(n_A),

so that one more device, one fewer, or one exchanged for another is a sum of two rows away, and all such groups are
looked at at once. Groups grow by one device at a time, several of each number side by side (a beam search): those of
the least f, and those of little f for little band. From the best of them on, and from those of the devices that need
least band, the best of all additions, removals and exchanges is made while it betters f. It ends after a number of
looks, so that the answer does not depend on the computer. Nothing is proven of it; tests compare it with the best of
all groups of small cells.

Left open, and decided here: the formula was derived from the paper's idea, not read in it. All labels weigh the same
(the paper weighs them by gradients that are estimated on the way). `kappa` is how much the gradients of samples of a
label scatter, in units of that label's mean gradient; 1 unless set.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.admission import admit
from flare.scheduling.history import History
from flare.scheduling.orders import canonical
from flare.scheduling.problem import SAME, RoundProblem
from flare.scheduling.registry import policy
from flare.types import Floats, Indices

MAX_ENTRIES = 3_000_000
"""How many numbers, groups times labels, are looked at in a round."""
BLOCK = 100_000
"""How many of them at once, where there are exchanges without end."""
MAX_STARTS = 8
"""From how many groups of the beam it goes on."""
MAX_WIDTH = 256
"""How many groups of one number of devices grow side by side at most."""


@policy("fedcgd", needs=("labels",))
def fedcgd(
    problem: RoundProblem,
    *,
    history: History,
    kappa: Annotated[float, "scatter of gradients within a label, against its mean", Limits(at_least=0.0)] = 1.0,
) -> Indices:
    """FedCGD: the group whose labels together are nearest to everybody's, with many samples."""
    assert history.label_counts is not None  # `needs` sees to it
    return admit(problem, best_group(problem, history.label_counts, kappa))


def best_group(problem: RoundProblem, counts: Floats, kappa: float) -> Indices:
    """The best group that is found; `counts` has shape (devices, labels)."""
    order = canonical(problem, _told_apart(counts))
    order = problem.able(order)
    holds = (counts[order].sum(axis=1) > 0.0) | np.isin(order, problem.must)
    if not holds.any():  # nobody has samples: whoever needs least band
        return order[np.argsort(problem.needed_hz[order], kind="stable")][:1]
    order = order[holds]
    search = _Search(problem, order, counts, kappa)
    best, chosen = math.inf, search.must
    starts = search.starts()
    for at, start in enumerate(starts):
        value, group = search.bettered(start, share=1.0 / (len(starts) - at))
        if value < best * (1.0 - SAME) or not chosen:
            best, chosen = value, group
    found: Indices = order[chosen]
    return found


def _told_apart(counts: Floats) -> Floats:
    """A number for each device that tells apart those of other counts."""
    _, rank = np.unique(counts, axis=0, return_inverse=True)
    return rank.reshape(-1).astype(np.float64)


def _kept(after: Floats, used: Floats, free: NDArray[np.bool_], width: int) -> tuple[Indices, Indices]:
    """Of all groups with one device more, shape (groups, devices), the best, half of them by f alone, half by f and the
    share of the band that they use; groups of the same f count as one. The first is that of the least f."""
    kept: list[int] = []
    for score in (after, after * used):
        top = _least(score.ravel(), 4 * width)
        top = top[free.ravel()[top]]
        values = after.ravel()[top]
        new = np.ones(top.size, dtype=bool)
        with np.errstate(invalid="ignore"):  # groups without samples: infinite, and the same
            new[1:] = np.abs(values[1:] - values[:-1]) > SAME * values[:-1]
        kept += top[new][: max(1, width // 2)].tolist()
    at, device = np.divmod(np.array(list(dict.fromkeys(kept)), dtype=np.intp), after.shape[1])
    return at, device


def _least(score: Floats, number: int) -> Indices:
    """Where the least numbers are, so many of them, ascending; of equal ones the first."""
    if number >= score.size:
        return np.argsort(score, kind="stable")
    among = np.flatnonzero(score <= np.partition(score, number - 1)[number - 1])
    return among[np.argsort(score[among], kind="stable")][:number]


class _Search:
    """Looks for groups, as lists of places in the order of the devices; counts what it looks at."""

    def __init__(self, problem: RoundProblem, order: Indices, counts: Floats, kappa: float) -> None:
        total = counts.sum(axis=0)
        self._number = counts[order].sum(axis=1)  # n_i, (devices,)
        share = total / max(total.sum(), 1.0)
        self._excess = np.ascontiguousarray((counts[order] - self._number[:, None] * share).T)  # e_i, (labels, devices)
        self._needed_hz, self._capacity_hz = problem.needed_hz[order], problem.capacity_hz
        self._kappa, self._limit = kappa, min(problem.device_limit, order.size)
        self.must: list[int] = np.flatnonzero(np.isin(order, problem.must)).tolist()
        self.entries_left = MAX_ENTRIES

    def starts(self) -> list[list[int]]:
        """Groups to begin with: those that begin an order by band, or by band for samples, and the best of the beam, of
        different numbers of devices."""
        beam = sorted(self._beam(), key=lambda each: (each[0], len(each[1])))
        return [group for _, group in [*self._prefixes(), *beam[:MAX_STARTS]]]

    def _prefixes(self) -> list[tuple[float, list[int]]]:
        """The best group that begins each of some orders of the devices, with its f."""
        found = []
        for cost in (self._needed_hz, self._needed_hz / np.maximum(self._number, 1.0)):
            cost = cost.copy()
            cost[self.must] = -1.0
            order = np.argsort(cost, kind="stable")[: self._limit]
            order = order[np.cumsum(self._needed_hz[order]) <= self._capacity_hz]
            values = self._values(np.cumsum(self._excess[:, order], axis=1), np.cumsum(self._number[order]))
            values[: max(0, len(self.must) - 1)] = np.inf  # without all who must send it is no group
            length = int(values.argmin()) + 1
            found.append((float(values[length - 1]), order[:length].tolist()))
        return found

    def _beam(self) -> list[tuple[float, list[int]]]:
        """Groups that grow by one device at a time, a few of each number side by side: those of the least f, and those
        of little f for little band. The best of each number, with its f."""
        groups, found = [self.must], []
        excess = self._excess[:, self.must].sum(axis=1, keepdims=True)  # (labels, groups)
        number, needed_hz = np.array([[self._number[self.must].sum()], [self._needed_hz[self.must].sum()]])
        free = np.ones((1, self._number.size), dtype=bool)  # (groups, devices), those that are not in it
        free[:, self.must] = False
        width, end = self._width(), self.entries_left - MAX_ENTRIES // 4
        for _ in range(len(self.must), self._limit):
            used_hz = needed_hz[:, None] + self._needed_hz
            free &= used_hz <= self._capacity_hz
            if self.entries_left <= end or not free.any():
                break
            after = self._values(excess[:, :, None] + self._excess[:, None], number[:, None] + self._number)
            after[~free] = np.inf
            at, device = _kept(after, used_hz / self._capacity_hz, free, width)
            groups = [[*groups[one], other] for one, other in zip(at.tolist(), device.tolist(), strict=True)]
            found.append((float(after[at[0], device[0]]), groups[0]))
            excess, free = excess[:, at] + self._excess[:, device], free[at]
            number, needed_hz = number[at] + self._number[device], used_hz[at, device]
            free[np.arange(len(groups)), device] = False
        return found

    def _width(self) -> int:
        """How many groups of a number of devices there is time for."""
        most = min(self._limit, int((np.cumsum(np.sort(self._needed_hz)) <= self._capacity_hz).sum()))
        return min(MAX_WIDTH, max(2, MAX_ENTRIES // (4 * self._excess.size * max(1, most))))

    def bettered(self, group: list[int], share: float) -> tuple[float, list[int]]:
        """The group with devices added, removed and exchanged while that lowers f, and its f; it looks at no more than
        a share of what it may still look at."""
        value, end = self._value(group), (1.0 - share) * self.entries_left
        while self.entries_left > max(end, 0.0):
            after, other = self._best_change(group, value)
            if not after < value * (1.0 - SAME):
                break
            value, group = after, other
        return value, group

    def _best_change(self, group: list[int], value: float) -> tuple[float, list[int]]:
        """The group after the best change that was found, and its f; of many exchanges, a block that betters f is
        enough."""
        excess, number = self._excess[:, group].sum(axis=1, keepdims=True), self._number[group].sum()
        room_hz = self._room_hz(group)
        best, changed = math.inf, group
        if len(group) < self._limit:
            after = np.where(self._free(group), self._values(self._excess + excess, self._number + number), np.inf)
            best, changed = float(after.min()), [*group, int(after.argmin())]
        leaving = [each for each in group if each not in self.must]
        if not leaving:
            return best, changed
        rest, rest_number = excess - self._excess[:, leaving], number - self._number[leaving]  # without each of them
        without = self._values(rest.copy(), rest_number)
        if len(group) > 1 and without.min() < best:
            best = float(without.min())
            changed = [each for each in group if each != leaving[int(without.argmin())]]
        taken = np.zeros(self._number.size, dtype=bool)
        taken[group] = True
        for some in self._blocks(np.argsort(without, kind="stable")):
            if self.entries_left <= 0 or (best < value * (1.0 - SAME) and some.size < len(leaving)):
                break
            after = self._values(rest[:, some, None] + self._excess[:, None], rest_number[some, None] + self._number)
            fits = self._needed_hz <= room_hz + self._needed_hz[leaving][some, None]
            after = np.where(fits & ~taken, after, np.inf)  # (some, devices)
            if after.min() < best:
                out, into = np.unravel_index(int(after.argmin()), after.shape)
                best = float(after[out, into])
                changed = [each for each in group if each != leaving[int(some[out])]] + [int(into)]
        return best, changed

    def _blocks(self, leaving: Indices) -> list[Indices]:
        """Those that may leave, in parts whose exchanges are looked at at once."""
        at_once = max(1, BLOCK // max(1, self._excess.size))
        return [leaving[start : start + at_once] for start in range(0, leaving.size, at_once)]

    def _free(self, group: list[int]) -> NDArray[np.bool_]:
        """Who can be added to a group, shape (devices,)."""
        free = self._needed_hz <= self._room_hz(group)
        free[group] = False
        return free

    def _room_hz(self, group: list[int]) -> float:
        return self._capacity_hz - math.fsum(self._needed_hz[group])

    def _value(self, group: list[int]) -> float:
        excess, number = self._excess[:, group].sum(axis=1, keepdims=True), self._number[group].sum(keepdims=True)
        return float(self._values(excess, number)[0])

    def _values(self, excess: Floats, number: Floats) -> Floats:
        """f of groups, of shape (labels, ...), which is overwritten, and (...); infinite where they hold no samples."""
        self.entries_left -= excess.size
        apart: Floats = np.abs(excess, out=excess).sum(axis=0)
        some = np.maximum(number, 0.5)  # samples are whole
        value = apart / some + self._kappa / np.sqrt(some)
        value[number < 0.5] = np.inf
        return value
