"""A schedule device by device: when each one finishes, and why a device was left out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flare.scheduling.objective import p2_objective
from flare.scheduling.problem import BAND_TOLERANCE, SAME, RoundProblem
from flare.scheduling.registry import POLICIES
from flare.scheduling.schedule import Schedule
from flare.types import Floats, Indices


class LeftOut(StrEnum):
    """Why a device does not send, in the words of every table and picture.

    NEVER       it must not send
    NOT_CHOSEN  the policy chose others, and let the round end when they have sent (luo, ren, tran)
    TOO_SLOW    computing alone takes until the deadline, or its own
    TOO_WEAK    not even the whole band carries its update in the time left
    HELD_UP     it could send alone, but devices that must send cannot, so that nobody does
    NO_ROOM     it could send alone; beside those who send, not all would finish by the deadline on this band
    FULL        it fits beside them, but as many send as may
    WORSE       it fits beside them, and P2's objective would rise
    EQUAL       it fits beside them, and the objective would stay the same
    BETTER      it fits beside them, and the objective would fall: the policy has not seen it, or goes by something else
    ALONE       nobody sends, and it could: the policy has not chosen it
    """

    NEVER = "must not send"
    TOO_SLOW = "too slow to compute"
    TOO_WEAK = "channel too weak"
    HELD_UP = "held up by those who must send"
    NO_ROOM = "does not fit"
    NOT_CHOSEN = "was not chosen"
    FULL = "would be one too many"
    WORSE = "would worsen the objective"
    EQUAL = "would not change the objective"
    BETTER = "would better the objective"
    ALONE = "could send alone"

    def counted(self, number: int) -> str:
        """The words for so many devices."""
        words = str(self)
        if number != 1:
            words = (
                words.replace("does not fit", "do not fit")
                .replace("channel too", "channels too")
                .replace("was not", "were not")
            )
        return f"{number} {words}"


@dataclass(frozen=True, eq=False)
class Explanation:
    """What a schedule means for each device, shape (devices,).

    upload_s, finish_s   how long the device sends, and when it is done; nan where it does not send
    why                  why it does not send; None where it does
    objective_change     what P2's objective would change by if the device sent, too: > 0 is worse; nan where it sends,
                         does not fit, or nobody sends
    by_objective         whether the policy is known to leave devices out that would worsen the objective
    """

    policy: str
    upload_s: Floats
    finish_s: Floats
    why: list[LeftOut | None]
    objective_change: Floats
    by_objective: bool = False

    @property
    def left_out(self) -> str:
        """How many devices do not send, for each reason, the most frequent first; empty where all send."""
        counts = Counter(why for why in self.why if why is not None)
        return ", ".join(why.counted(number) for why, number in counts.most_common())

    @cached_property
    def reason(self) -> list[str]:
        """Why each device does not send, in words with the number; empty where it sends."""
        changes, place = np.unique(self.objective_change, return_inverse=True)
        by_how_much = [f" by {abs(change):.3g}" for change in changes.tolist()]  # few: it depends on tau alone
        passed_over = f"; {self.policy} passed it over"
        ends = {
            why: passed_over if why in (LeftOut.BETTER, LeftOut.ALONE) or not self.by_objective else ""
            for why in (LeftOut.WORSE, LeftOut.EQUAL, LeftOut.BETTER, LeftOut.ALONE)
        }
        return [
            "" if why is None else why + (by_how_much[at] if why in _BY else "") + ends.get(why, "")
            for why, at in zip(self.why, place.tolist(), strict=True)
        ]


_SAME_TIME = 1e-6  # two times that are one but for rounding
_BY = (LeftOut.WORSE, LeftOut.BETTER)
_CODES = (None, *LeftOut)


def explain(schedule: Schedule) -> Explanation:
    """Upload and finishing times of a schedule, and for each device that does not send, why (`LeftOut`).

    A device is asked about alone: what if it sent beside those who do? Where the policy divides the band evenly, it
    fits if all of them finish by the deadline on even shares; otherwise, if they can at the speed and power they have.
    """
    problem = schedule.problem
    sends = np.zeros(problem.num_devices, dtype=bool)
    sends[schedule.selected] = True
    upload = np.where(sends, schedule.upload_s, np.nan)
    never = np.zeros(problem.num_devices, dtype=bool)
    never[problem.never] = True
    alone = problem.needed_hz <= problem.capacity_hz
    held_up = np.full(problem.num_devices, bool(problem.must.size) and not problem.possible)
    full = np.full(problem.num_devices, schedule.num_selected >= problem.device_limit)
    fits = alone & ~sends
    fits[fits] = _fits_beside(schedule, np.flatnonzero(fits))
    change = np.full(problem.num_devices, np.nan)
    if schedule.num_selected:
        change[fits & ~full] = _objective_change(problem, schedule.selected, np.flatnonzero(fits & ~full))
    same = SAME * schedule.objective if schedule.num_selected else 0.0
    code = np.select(
        [
            sends,
            never,
            ~fits & _ends_with_chosen(schedule),
            problem.compute_s >= problem.finish_by(problem.deadline_s),
            ~alone,
            held_up,
            ~fits,
            full,
            change > same,
            change < -same,
            np.isnan(change),
        ],
        [_CODES.index(one) for one in (None, *_IN_TURN)],
        _CODES.index(LeftOut.EQUAL),
    )
    why = [_CODES[one] for one in code.tolist()]
    policy = POLICIES.get(schedule.policy)
    by_objective = policy is not None and policy.by_objective
    return Explanation(schedule.policy, upload, schedule.compute_s + upload, why, change, by_objective)


_IN_TURN = (
    *(LeftOut.NEVER, LeftOut.NOT_CHOSEN, LeftOut.TOO_SLOW, LeftOut.TOO_WEAK, LeftOut.HELD_UP),
    *(LeftOut.NO_ROOM, LeftOut.FULL),
    *(LeftOut.WORSE, LeftOut.BETTER, LeftOut.ALONE),
)


def _ends_with_chosen(schedule: Schedule) -> bool:
    """Whether the policy has let the round end when the last of those that it chose has sent."""
    policy = POLICIES.get(schedule.policy)
    if policy is None or not policy.own_deadline or schedule.num_selected == 0:
        return False
    return math.isclose(schedule.latency_s, schedule.problem.deadline_s, rel_tol=_SAME_TIME)


def _fits_beside(schedule: Schedule, devices: Indices) -> NDArray[np.bool_]:
    """Whether each of the devices, alone added to those who send, leaves all of them in time."""
    problem = schedule.problem
    needed = problem.needed_hz[devices]
    if schedule.split_evenly:
        dearest = float(problem.needed_hz[schedule.selected].max(initial=0.0))
        share_hz = problem.even_share_hz(schedule.num_selected + 1) * (1.0 + BAND_TOLERANCE)
        return np.maximum(needed, dearest) <= share_hz
    total = math.fsum(problem.needed_hz[schedule.selected]) + needed
    fits: NDArray[np.bool_] = total <= problem.capacity_hz
    for at in np.flatnonzero(np.abs(total - problem.capacity_hz) <= 1e-15 * problem.capacity_hz):  # rounding decides
        fits[at] = problem.fits(np.append(schedule.selected, devices[at]))
    return fits


def _objective_change(problem: RoundProblem, selected: Indices, devices: Indices) -> Floats:
    """What each of the devices, alone added to those who send, changes in P2's objective."""
    number, cost, noise = len(selected), problem.cost, problem.coding_noise
    with_each = p2_objective(
        number + 1,
        math.fsum(cost[selected]) + cost[devices],
        0.0 if noise is None else math.fsum(noise[selected]) + noise[devices],
        problem.gamma,
    )
    return with_each - problem.objective(selected)
