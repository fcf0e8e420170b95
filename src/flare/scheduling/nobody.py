"""Why nobody can send in a round, and what would have to be otherwise so that somebody could."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flare.scheduling.problem import WIDEST_HZ, RoundProblem
from flare.units import human
from flare.wireless.rate import rate_bps, upload_s

_ROOM = 1e-9  # relative; so that what is said to be enough is enough after rounding, too


@dataclass(frozen=True)
class Obstacle:
    """Why nobody can send, told of the device that alone on the whole band would be done first.

    compute_s, upload_s     how long it computes and sends
    deadline_s              from this deadline on, somebody could send
    total_bandwidth_hz      from this band on; infinite where none is wide enough
    payload_bits            up to this size of an update; 0 where everybody computes until the deadline
    """

    compute_s: float
    upload_s: float
    deadline_s: float
    total_bandwidth_hz: float
    payload_bits: float


def obstacle(problem: RoundProblem) -> Obstacle | None:
    """What keeps every device from sending; None where one of them could."""
    if problem.reachable.size:
        return None
    band = np.full(problem.num_devices, problem.total_bandwidth_hz)
    alone_s = upload_s(problem.payload_bits, band, problem.snr_hz)
    first = int(np.argmin(problem.compute_s + alone_s))
    slack_s = np.maximum(0.0, problem.deadline_s - problem.compute_s)
    needed_hz = float(problem.needed_hz.min())
    return Obstacle(
        compute_s=float(problem.compute_s[first]),
        upload_s=float(alone_s[first]),
        deadline_s=float(problem.compute_s[first] + alone_s[first]),
        total_bandwidth_hz=needed_hz if needed_hz <= WIDEST_HZ else math.inf,
        payload_bits=float((slack_s * rate_bps(band, problem.snr_hz)).max()),
    )


@dataclass(frozen=True)
class Names:
    """How a user is told where to change what would help: by default, the settings of a run."""

    deadline: str = "wireless.deadline_s"
    band: str = "wireless.total_bandwidth_hz"
    payload: str = "a smaller model, or wireless.payload_bits"


SETTINGS = Names()


def why_nobody(problem: RoundProblem, policy: str, names: Names = SETTINGS) -> str:
    """Why nobody sends in a round under a policy that chose nobody, in one sentence, and what would help."""
    found = obstacle(problem)
    if found is None:
        able = problem.reachable.size
        return (
            f"{able} of {problem.num_devices} devices could send alone on the whole band, but policy '{policy}' chose "
            "none of them; take another policy, such as exact"
        )
    deadline, size = human(problem.deadline_s, "s"), human(problem.payload_bits, "bit")
    band = human(problem.total_bandwidth_hz, "Hz")
    helps = [f"a deadline of at least {_rounded(found.deadline_s, up=True)} s ({names.deadline})"]
    if math.isfinite(found.total_bandwidth_hz):
        helps.append(f"a band of at least {_rounded(found.total_bandwidth_hz, up=True)} Hz ({names.band})")
    if found.payload_bits > 0.0:
        helps.append(f"updates of at most {_rounded(found.payload_bits, up=False)} bit ({names.payload})")
    return (
        f"an update of {size} takes the quickest device {human(found.upload_s, 's')} to send on the whole band of "
        f"{band}, after {human(found.compute_s, 's')} of computing, and the deadline is {deadline}; it would take "
        + ", or ".join(helps)
    )


def nobody_in_short(problem: RoundProblem) -> str:
    """The same in fewer words, as they fit into a picture."""
    deadline, able = human(problem.deadline_s, "s"), problem.reachable.size
    if able == 0:
        return f"No device can meet the deadline of {deadline}, not even with the whole band for itself"
    return f"The policy found no device for the deadline of {deadline}, though {able} could meet it alone"


def _rounded(value: float, *, up: bool) -> str:
    """Three digits of a number, rounded to the side where the promise holds."""
    value *= 1.0 + _ROOM if up else 1.0 - _ROOM
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    digits = math.ceil(value / step) if up else math.floor(value / step)
    return f"{digits * step:.3g}"
