"""When a round of a fleet ends in real time, and how that follows from the times that devices took.

Under `fleet.deadline = "wall"` a round ends in real time when its deadline is over, that by which it was scheduled.
Under "auto" it ends at 1.1 times the time within which the wanted share of the devices has answered so far:

1.  The time of a device is the median of its last five: real seconds from when the work of the round went out (with
    FedLin, from when its gradient was asked for) to when its update was here. One that missed the deadline counts as
    twice the deadline until its update comes, and then as what it took. Where devices compute across rounds, its update
    may have lain with the SuperLink until the device was selected again: then what it took until it was fetched counts
    if that is less than twice the deadline.
2.  With the times t_1 <= ... <= t_n of the n devices that are connected and of which one is known, and the wanted share
    q, the next round ends after 1.1 t_k, where k = ceil(q n) is the least number of devices that is the share; never
    after more than the timeout of the run. Devices that have left do not count, or rounds would wait ever longer for
    nobody. The first round, and one of newcomers only, ends after `wireless.deadline_s`.
3.  Schedules are made for `wireless.deadline_s` or that time, whichever is longer. Where nobody could be selected, the
    former is doubled for all rounds to come.

Nodes choose their local steps by `wireless.deadline_s`, not by this: otherwise a longer deadline would bring more
steps, and those a longer deadline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from flare.config import AUTO, MODELLED, Config

LAST = 5
"""Times of a device that count."""
ROOM = 1.1
"""The deadline over the time that the wanted share of the devices took."""

MAX_S = 1e9
"""No deadline of a checkpoint is longer, but for that of the settings."""


@final
@dataclass
class Deadline:
    """By what rounds are scheduled, and when they end in real time."""

    kind: str
    share: float
    least_s: float  # what rounds are scheduled for, at least
    max_s: float = math.inf  # when they end in real time, at the latest
    times_s: dict[int, list[float]] = field(default_factory=dict)  # that devices took, oldest first
    connected: Collection[int] | None = None  # the devices whose nodes are; None: that is not known yet

    @classmethod
    def of(cls, config: Config) -> Deadline:
        """Before the first round."""
        return cls(config.fleet.deadline, config.fleet.deadline_share, config.wireless.deadline_s)

    @property
    def real(self) -> bool:
        """Whether it ends rounds in real time."""
        return self.kind != MODELLED

    @property
    def planned_s(self) -> float:
        """The deadline by which the next round is to be scheduled."""
        return max(self.least_s, self._share_s() or 0.0) if self.kind == AUTO else self.least_s

    def real_s(self, scheduled_s: float) -> float:
        """After how long a round ends in real time that was scheduled for a deadline."""
        own_s = self._share_s() if self.kind == AUTO else None
        return min(scheduled_s if own_s is None else own_s, self.max_s)

    def _share_s(self) -> float | None:
        here = self.times_s if self.connected is None else self.times_s.keys() & set(self.connected)
        share_s = share_deadline_s({device: self.times_s[device] for device in here}, self.share)
        return None if share_s is None else min(share_s, self.max_s)

    def came(self, device: int, after_s: float) -> None:
        """An update was here after so long, in its round; nan: that is not known."""
        if self.kind == AUTO and math.isfinite(after_s):
            self.times_s[device] = [*self.times_s.get(device, []), after_s][-LAST:]

    def came_late(self, device: int, after_s: float, *, or_sooner: bool = False) -> None:
        """An update was here after its round: what its device took is known at last, or, where it may have been here
        sooner, that it was no more."""
        if device in self.times_s:
            last_s = self.times_s[device][-1]
            self.times_s[device][-1] = min(last_s, after_s) if or_sooner else after_s

    def after_round(self, *, missed: Collection[int], real_s: float | None, nobody: bool) -> None:
        """What follows from a round that ended after `real_s`, when some devices had not answered that got their work
        in it; `nobody` could be selected in it, of those that were there."""
        if self.kind != AUTO:
            return
        for device in missed:
            self.came(device, math.nan if real_s is None else 2.0 * real_s)
        if nobody:
            self.least_s = min(2.0 * self.least_s, max(self.least_s, self.max_s))

    def to_numbers(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"least_s": self.least_s, "times_s": {str(device): times for device, times in self.times_s.items()}}

    def restore(self, numbers: Any) -> None:
        """From a checkpoint; ValueError where it has no deadline."""
        try:
            least_s = float(numbers["least_s"])
            times_s = {int(device): [float(each) for each in times] for device, times in numbers["times_s"].items()}
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"what it says of the deadline cannot be read ({error})") from None
        told = [least_s, *(each for times in times_s.values() for each in times)]
        most_s = max(MAX_S, self.least_s)
        if not all(0.0 < each <= most_s for each in told) or not all(times_s.values()):
            raise ValueError(f"its deadline goes by times that are not numbers greater than 0, up to {most_s:g} s")
        self.least_s, self.times_s = least_s, times_s


def share_deadline_s(times_s: Mapping[int, list[float]], share: float) -> float | None:
    """The deadline that the share of the devices makes, by the times of each; None where there are none."""
    known = sorted(statistics.median(times) for times in times_s.values())
    if not known:
        return None
    return ROOM * known[math.ceil(share * len(known)) - 1]
