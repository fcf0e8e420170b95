"""A schedule device by device: when each one finishes, and why a device was left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule
from flare.types import Floats
from flare.wireless.rate import upload_s

TOO_SLOW = "too slow to compute"
TOO_WEAK = "channel too weak"
NOT_WORTH_IT = "not worth its bandwidth"
WEIGHS_BANDWIDTH = frozenset({"exact", "greedy", "lp"})
"""The policies that weigh what a device adds to the objective against its bandwidth; others merely pass it over."""


@dataclass(frozen=True)
class Explanation:
    """What a schedule means for each device, shape (devices,); times are nan where the device does not send."""

    upload_s: Floats
    finish_s: Floats
    reason: list[str]  # empty where the device sends


def explain(problem: RoundProblem, schedule: Schedule) -> Explanation:
    """Upload and finishing times of a schedule, and for each device that does not send, why.

    "too slow to compute": computing alone takes until the deadline. "channel too weak": not even the whole band
    carries its update in the time left. "not worth its bandwidth": it could send, but not to the better of the
    objective ("passed over by ..." under a policy that does not look at the objective).
    """
    sends = np.zeros(problem.num_devices, dtype=bool)
    sends[schedule.selected] = True
    upload = np.where(sends, upload_s(problem.payload_bits, schedule.bandwidth_hz, problem.snr_hz), np.nan)
    weighs = schedule.policy in WEIGHS_BANDWIDTH
    otherwise = NOT_WORTH_IT if weighs else f"passed over by {schedule.policy}"
    reason = np.select(
        [sends, problem.compute_s >= problem.deadline_s, problem.needed_hz > problem.capacity_hz],
        ["", TOO_SLOW, TOO_WEAK],
        otherwise,
    )
    return Explanation(upload_s=upload, finish_s=problem.compute_s + upload, reason=reason.tolist())
