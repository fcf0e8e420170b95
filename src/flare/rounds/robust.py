"""Updates that are not believed as they are: longer ones are clipped, and a few wrong ones are outvoted.

Clipping (`learning.clip`). The typical length is the median of the last updates of the devices that were heard in the
last 20 rounds: a device has one vote, the length that was decoded, however often it sends, and of an even number the
lower of the two in the middle counts. On real nodes only devices vote whose node is connected: one node that takes one
number after another, or comes back under new names, has one vote.

An update longer than `clip` times the typical length is held until all have come, or 64 such, or as many as there is
room for. Then the median is taken again with the lengths of this round in place of the older ones of the same devices,
the greater of the two medians counts, and what is still too long is shortened, its direction kept. In both a device has
one vote, so that a minority of them moves neither out of the range of the others; and where few were heard before, or
long ago, it is this round that counts. So a vote is one number of the history, which is in every checkpoint, and all
other updates are taken in one at a time. Where nobody has been heard yet, in the first round, all are held.

Where devices also send something else, it is bounded too. Gradients (FedLin) are clipped by the median of their own
round. A control variate (SCAFFOLD) of a device that moved by delta changes by -c - delta / (tau eta_l), so that the
change is no longer than |c| + limit / (tau eta_l).

Reducers (`learning.robust`) take the place of the mean: `flare.learning.robust`. They hold all updates of a round, and
no more devices are selected than fit into `learning.robust_bytes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from flare.config import FDMA, Config, LearningConfig
from flare.learning.aggregate import Mean
from flare.learning.job import LocalRule, Update, norm_of
from flare.learning.methods.base import Method, method_takes_mean
from flare.learning.robust import MEDIAN, TrimmedMean
from flare.scheduling import POLICIES
from flare.scheduling.history import History
from flare.types import Indices

NONE, AUTO = "none", "auto"
FLEET_CLIP = 3.0
"""What "auto" is on real nodes."""
RECENT_ROUNDS = 20
"""How many rounds the length of an update counts."""
MOST_VOTES = 64
"""How many updates of a round are held at most until the limit is known."""
_BYTES_OF_A_WEIGHT = 4
_LEAST_UPDATES = 3  # with fewer there is no majority
_SPARSE = ("topk", "ternary")
"""Codecs whose updates are zero in most weights, so that the median is."""


class Heard(NamedTuple):
    """An update as it is believed, and its length; nan over the air, where it is not known."""

    device: int
    update: Update
    norm: float


def clip_of(config: Config, *, fleet: bool) -> float:
    """The multiple of the typical length from which updates are clipped; 0: none is."""
    clip = config.learning.clip
    if isinstance(clip, str):
        return FLEET_CLIP if fleet else 0.0
    return clip


def most_held(learning: LearningConfig, num_weights: int) -> int:
    """How many updates of so many weights may be held at once."""
    return int(learning.robust_bytes // (_BYTES_OF_A_WEIGHT * max(num_weights, 1)))


def robust_mean(learning: LearningConfig) -> Callable[[], Mean] | None:
    """What takes the place of a mean by the settings; None: nothing."""
    if learning.robust == NONE:
        return None
    trim = 0.5 if learning.robust == MEDIAN else learning.trim
    return lambda: TrimmedMean(trim)


def votes_of(history: History, voters: Indices | None = None) -> dict[int, float]:
    """The lengths of the last updates of the devices that were heard in the last rounds; of the `voters` among them,
    where these are given."""
    heard = np.flatnonzero(history.rounds_since_sent <= RECENT_ROUNDS)
    if voters is not None:
        heard = np.intersect1d(heard, voters)
    return dict(zip(heard.tolist(), history.update_norm[heard].tolist(), strict=True))


def typical_norm(votes: Iterable[float]) -> float:
    """The lower median of lengths of updates; nan where there are none.

    Updates of length zero have no vote: they would let nothing through.
    """
    known = sorted(each for each in votes if 0.0 < each < math.inf)
    return known[(len(known) - 1) // 2] if known else math.nan


def as_believed(history: History, clip: float, voters: Indices | None = None) -> History:
    """The history that policies see: no update in it is longer than one that would not be clipped now."""
    limit = clip * typical_norm(votes_of(history, voters).values()) if clip else math.nan
    if math.isnan(limit):
        return history
    return history.with_rows(update_norm=np.minimum(history.update_norm, limit))


@final
class Clipping:
    """Hands on the updates of a round, one at a time, and shortens those that are too long.

    `limit` is the greatest length: infinite where nothing is clipped, nan until it is known. `clipped` are the devices
    whose update, or change of control, was shortened. `voters` are the devices whose earlier updates count; None: all.
    """

    def __init__(self, clip: float, history: History, max_held: int, voters: Indices | None = None) -> None:
        self._clip, self._max_held = clip, min(max_held, MOST_VOTES)
        self._votes = votes_of(history, voters) if clip else {}
        self.limit = clip * typical_norm(self._votes.values()) if clip else math.inf
        self.clipped: list[int] = []
        self._held: list[tuple[Heard, LocalRule]] = []
        self._settled = False  # whether updates of this round have had their say

    def take(self, heard: Heard, rule: LocalRule) -> list[Heard]:
        """The updates that can be taken in now: this one, or none yet, or all that were held with it."""
        self._votes[heard.device] = heard.norm
        if self._settled or math.isinf(self.limit) or heard.norm <= self.limit:
            return [self._believed(heard, rule)]
        self._held.append((_kept(heard), rule))
        return self.rest() if len(self._held) >= self._max_held else []

    def rest(self) -> list[Heard]:
        """The updates that are still held, when no more will come or there is no room for more."""
        held, self._held = self._held, []
        if held and not self._settled:
            now = self._clip * typical_norm(self._votes.values())
            self.limit = now if math.isnan(self.limit) else max(self.limit, now)
            self._settled = not math.isnan(self.limit)  # not where all are zero, or none is finite
        return [self._believed(heard, rule) for heard, rule in held]

    def _believed(self, heard: Heard, rule: LocalRule) -> Heard:
        """An update no longer than the limit. What is not finite cannot be shortened, and stays."""
        if not math.isfinite(self.limit):
            return heard
        device, update, norm = heard
        delta, change = update.delta, _bounded_change(update, rule, self.limit)
        if self.limit < norm < math.inf:
            delta, norm = delta * (self.limit / norm), self.limit
        if delta is update.delta and change is update.control_change:
            return heard
        self.clipped.append(device)
        return Heard(device, replace(update, delta=delta, control_change=change), norm)


def _kept(heard: Heard) -> Heard:
    """With vectors of its own: those of a node lie where the next ones will be read."""
    change = heard.update.control_change
    update = replace(
        heard.update, delta=heard.update.delta.clone(), control_change=None if change is None else change.clone()
    )
    return heard._replace(update=update)


def _bounded_change(update: Update, rule: LocalRule, limit: float) -> Tensor | None:
    """The change of a control that was sent beside the update, no longer than one that moved by `limit` can be."""
    change = update.control_change
    if change is None or rule.control is None:
        return change
    longest = float(norm_of(rule.control)) + limit / (rule.steps * rule.lr)
    norm = float(norm_of(change))
    return change * (longest / norm) if longest < norm < math.inf else change


@final
class ClippedMean:
    """A mean of vectors that are clipped by the median of their own lengths: of gradients, which no history knows.

    They are held until all have come, or 64 or `max_held` of them, whose median counts then for the others. Nothing
    waits for a GPU: the lengths stay where the vectors are.
    """

    def __init__(self, mean: Mean, clip: float, max_held: int) -> None:
        self._mean, self._clip, self._max_held = mean, clip, min(max_held, MOST_VOTES)
        self._limit: Tensor | None = None
        self._held: list[tuple[Tensor, int]] = []

    def add(self, vector: Tensor, device: int) -> None:
        """Take in the vector of a device, of shape (weights,); a copy is kept where it is held."""
        if self._limit is not None:
            self._mean.add(_shortened(vector, self._limit), device)
            return
        self._held.append((vector.clone(), device))
        if len(self._held) >= self._max_held:
            self._flush()

    def end(self) -> Tensor:
        """The mean of the clipped vectors."""
        self._flush()
        return self._mean.end()

    def _flush(self) -> None:
        if self._held and self._limit is None:
            norms = torch.stack([norm_of(vector) for vector, _ in self._held])
            votes = torch.where((norms > 0.0) & norms.isfinite(), norms, torch.nan)
            self._limit = self._clip * votes.nanmedian()  # the lower one of two; nan: all are zero, or none is finite
        for vector, device in self._held:
            assert self._limit is not None
            self._mean.add(_shortened(vector, self._limit), device)
        self._held.clear()


def _shortened(vector: Tensor, limit: Tensor) -> Tensor:
    share = limit / norm_of(vector)
    return vector * torch.where(share < 1.0, share, 1.0).to(vector.dtype)  # 1 where the share is not a number


def refuse_robust(config: Config, method: Method, *, num_weights: int) -> None:
    """ValueError where the settings ask for clipping or a robust reducer, and something else of them cannot have it."""
    learning = config.learning
    clips, reduces = not isinstance(learning.clip, str) and learning.clip > 0.0, learning.robust != NONE
    asked = f'learning.robust is "{learning.robust}"' if reduces else f"learning.clip is {learning.clip}"
    without = 'set learning.robust to "none"' if reduces else "set learning.clip to 0"
    if (clips or reduces) and config.uplink.air != FDMA:
        raise ValueError(
            f'{asked} and uplink.air is "{config.uplink.air}": over the air the base station hears the sum of the '
            f'updates and never a single one, of which it could doubt; {without}, or uplink.air to "{FDMA}"'
        )
    if (clips or reduces) and method.needs_widths:
        raise ValueError(
            f"{asked}, but the devices of method '{learning.method}' train models of different sizes: their updates "
            "are of different lengths, and some weights are held by few of them, among which nobody is outvoted; "
            f"{without}, or take another method (flare, fedavg, fednova, ...)"
        )
    if reduces:
        _refuse_reducer(config, method, num_weights)


def _refuse_reducer(config: Config, method: Method, num_weights: int) -> None:
    """ValueError where something else of the settings does not go with a robust reducer."""
    learning, asked = config.learning, f'learning.robust is "{config.learning.robust}"'
    if method.sends_control:
        raise ValueError(
            f"{asked}, but method '{learning.method}' adds up how the control variates of devices change from round to "
            "round: the median of the changes is not the change of their mean, and the error would grow; set "
            'learning.robust to "none" (learning.clip bounds updates and controls), or take another method'
        )
    if not method_takes_mean(method):
        raise ValueError(
            f"{asked}, but method '{learning.method}' has a reducer of its own, which takes no mean that a "
            'median could stand for; set learning.robust to "none", or take another method (flare, fedavg, ...)'
        )
    policy = POLICIES.get(config.scheduling.policy)
    if policy is not None and policy.weighs:
        raise weights_refused(config)
    if config.uplink.codec in _SPARSE:
        raise ValueError(
            f'{asked} and uplink.codec is "{config.uplink.codec}": most numbers of such updates are zero, and so '
            "would be the median of most weights; take another codec (none, float16, qsgd, sign), or set "
            'learning.robust to "none" (learning.clip goes with every codec)'
        )
    most = most_held(learning, num_weights)
    if most < _LEAST_UPDATES:
        needed = _LEAST_UPDATES * _BYTES_OF_A_WEIGHT * num_weights
        raise ValueError(
            f"{asked}, which keeps all updates of a round, and learning.robust_bytes is {learning.robust_bytes:g}: "
            f"that is room for {most} updates of {num_weights} weights, and {_LEAST_UPDATES} are the least that can "
            f"outvote one; set it to {needed} or more"
        )


def weights_refused(config: Config) -> ValueError:
    """What is said where a policy weighs the updates of a robust reducer."""
    return ValueError(
        f"learning.robust is \"{config.learning.robust}\", but policy '{config.scheduling.policy}' says how much each "
        "update counts, and in a median or a trimmed mean all count the same; take another policy, or set "
        'learning.robust to "none"'
    )
