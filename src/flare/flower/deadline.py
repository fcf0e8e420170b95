"""When a round of a fleet ends in real time, and how that follows from the times that devices took.

Under `fleet.deadline = "auto"` the deadline of a round is 1.1 times the time within which the wanted share of the
devices has answered so far. The rule, after every round:

1.  The time of a device is the median of its last five: real seconds from when its work was sent to when its update
    was here. One that missed the deadline counts as twice the deadline until its update comes, and then as what it
    took.
2.  With the times t_1 <= ... <= t_n of the n devices that were ever selected and the wanted share q, the next deadline
    is 1.1 t_k, where k = ceil(q n) is the least number of devices that is the share.
3.  Where nobody could be selected, which tells nothing of any device, the deadline is doubled instead.

It begins with `wireless.deadline_s`, and is never more than the timeout of the run. Nodes choose their local steps by
`wireless.deadline_s`, not by this one: otherwise a longer deadline would bring more steps, and those a longer deadline.
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


@final
@dataclass
class Deadline:
    """The deadline of the round at hand, and what it follows from."""

    kind: str
    share: float
    now_s: float
    max_s: float = math.inf
    times_s: dict[int, list[float]] = field(default_factory=dict)  # by device, oldest first

    @classmethod
    def of(cls, config: Config) -> Deadline:
        """Before the first round."""
        return cls(config.fleet.deadline, config.fleet.deadline_share, config.wireless.deadline_s)

    @property
    def real(self) -> bool:
        """Whether it ends rounds in real time."""
        return self.kind != MODELLED

    def came(self, device: int, after_s: float) -> None:
        """An update was here after so long, in its round; nan: that is not known."""
        if math.isfinite(after_s):
            self.times_s[device] = [*self.times_s.get(device, []), after_s][-LAST:]

    def came_late(self, device: int, after_s: float) -> None:
        """An update was here after its round: what its device took is known at last."""
        if device in self.times_s:
            self.times_s[device][-1] = after_s

    def after_round(self, *, selected: Collection[int], missed: Collection[int], deadline_s: float) -> None:
        """Set the deadline of the next round; `deadline_s` is the one that devices have missed."""
        if self.kind != AUTO:
            return
        for device in missed:
            self.came(device, 2.0 * deadline_s)
        if selected:
            self.now_s = min(share_deadline_s(self.times_s, self.share) or self.now_s, self.max_s)
        else:
            self.now_s = min(2.0 * self.now_s, self.max_s)

    def to_numbers(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"now_s": self.now_s, "times_s": {str(device): times for device, times in self.times_s.items()}}

    def restore(self, numbers: Any) -> None:
        """From a checkpoint; ValueError where it has no deadline."""
        try:
            now_s = float(numbers["now_s"])
            times_s = {int(device): [float(each) for each in times] for device, times in numbers["times_s"].items()}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"what it says of the deadline cannot be read ({error})") from None
        told = [now_s, *(each for times in times_s.values() for each in times)]
        if not all(0.0 < each < math.inf for each in told) or not all(times_s.values()):
            raise ValueError("its deadline goes by times that are not finite numbers greater than 0")
        if self.kind == AUTO:
            self.now_s = now_s
        self.times_s = times_s


def share_deadline_s(times_s: Mapping[int, list[float]], share: float) -> float | None:
    """The deadline that the share of the devices makes, by the times of each; None where there are none."""
    known = sorted(statistics.median(times) for times in times_s.values())
    if not known:
        return None
    return ROOM * known[math.ceil(share * len(known)) - 1]
