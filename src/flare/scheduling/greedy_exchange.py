"""Algorithm 1 where devices are not alike: who delays the round least, with unequal payloads, own deadlines or blocks.

Wanted is the candidate y with the least t_y, the earliest finish of the devices chosen with y added. Let b_y(t) be the
least bandwidth of y for finishing by t (and by its own deadline, in whole blocks where there are any), and G(t) the
sum over the devices chosen; all of them fall in t, and nothing else is known of them. Start with any candidate y, and
find t_y. A candidate z is sooner exactly if

    G(t) + b_z(t) <= B      at a time t just before t_y:

take the one of least b_z there, and go on with t_z. Each exchange ends the round earlier, so no candidate comes twice,
and when none is sooner, y is the wanted device. Two or three exchanges are the rule.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.division import divide
from flare.scheduling.problem import RoundProblem
from flare.types import Floats, Indices

SOONER = 1e-11
"""A round ends sooner if it does by more than this share: closer times are equal, and the first device in canonical
order is taken."""


class Exchange:
    """Devices in canonical order (`order`), of which some are chosen; `next_device` says who follows."""

    def __init__(self, problem: RoundProblem, order: Indices) -> None:
        self.problem, self.order = problem, order
        self.free_hz = problem.needed_hz[order]  # at the deadline, infinite once chosen
        self.chosen: list[int] = []
        self.chosen_hz = 0.0

    def choose(self, device: int) -> None:
        """Add a device to those chosen."""
        self.chosen.append(device)
        self.chosen_hz += float(self.free_hz[device])
        self.free_hz[device] = math.inf

    def next_device(self, improving: int | NDArray[np.bool_]) -> int | None:
        """Alg. 1, lines 5-13: the device among the first `improving` (or among those that it marks) that delays the
        round least, None if none fits."""
        capacity_hz = self.problem.capacity_hz
        needed = self.free_hz[:improving] if isinstance(improving, int) else np.where(improving, self.free_hz, np.inf)
        able = np.flatnonzero(self.chosen_hz + needed <= capacity_hz)
        if len(able) < 2:
            return int(able[0]) if len(able) else None
        best = int(able[needed[able].argmin()])
        ends_s = self.ends_with(best)
        while True:
            sooner_s = ends_s * (1.0 - SOONER)
            then_hz = self.at(sooner_s, able)
            rival = int(able[then_hz.argmin()])
            if not then_hz.min() <= self.left_hz(sooner_s):
                break
            rival_s = self.ends_with(rival)
            if not rival_s < sooner_s:
                break  # sooner by rounding alone
            best, ends_s = rival, rival_s
        equal_s = ends_s * (1.0 + SOONER)
        equal = able[self.at(equal_s, able) <= self.left_hz(equal_s)]
        return min(best, int(equal[0])) if len(equal) else best

    def ends_with(self, device: int) -> float:
        """t_y: when the round ends with the device beside those chosen, all of whom fit."""
        return divide(self.problem, self.order[[*self.chosen, device]]).latency_s

    def left_hz(self, time_s: float) -> float:
        """What those chosen leave of the band if they finish by a time; where blocks are whole, with half a block for
        the rounding of sums."""
        room_hz = 0.0 if self.problem.block_hz is None else 0.5 * self.problem.block_hz
        return self.problem.usable_hz + room_hz - float(self.at(time_s, np.array(self.chosen)).sum())

    def at(self, time_s: float, devices: Indices) -> Floats:
        """What devices need at least for finishing by a time."""
        return self.problem.min_bandwidth_hz(time_s, self.order[devices])
