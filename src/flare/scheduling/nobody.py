"""Why nobody can send in a round, and what would have to be otherwise so that somebody could."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flare.config import WirelessConfig
from flare.config.guard import NO_GUARD, Guard
from flare.scheduling.problem import WIDEST_HZ, RoundProblem
from flare.types import Flags, Floats, Indices
from flare.units import human
from flare.wireless.rate import rate_bps, upload_s

MAX_NAMED = 8
"""Devices named in a sentence."""
_OF_ITS_DEADLINE = "; a node computes for {:.3g} % of it, unless its tau or compute-share are set otherwise"
_ROOM = 1e-9  # relative; so that what is said to be enough is enough after rounding, too


@dataclass(frozen=True)
class Obstacle:
    """Why nobody can send, told of the device that alone on the whole band would come nearest to it.

    device                  which one it is
    compute_s, upload_s     how long it computes and sends
    deadline_s              from this deadline on, somebody could send; infinite where devices have their own
    total_bandwidth_hz      from this band on; infinite where none is wide enough
    payload_bits            up to this size of an update; 0 where everybody computes until the deadline
    rate_bps                from this rate on; infinite where rates are what channel and band make them
    compute_share           of such a deadline, in which who could send then computes; nan: its steps are fixed
    """

    device: int
    compute_s: float
    upload_s: float
    deadline_s: float
    total_bandwidth_hz: float
    payload_bits: float
    rate_bps: float = math.inf
    compute_share: float = math.nan


@dataclass(frozen=True, eq=False)
class Advice:
    """What advice depends on beside the problem; arrays of shape (devices,).

    guard                 what schedules leave free of the deadline
    compute_share         of the deadline, by which a device chooses its local steps: with a later one it computes for
                          longer, too. nan, or None for all: its steps are fixed
    rate_is_told          whether a device's rate is given, and the same on every band
    """

    guard: Guard = NO_GUARD
    compute_share: Floats | None = None
    rate_is_told: Flags | None = None

    def deadlines_s(self, asked: Indices, compute_s: Floats, alone_s: Floats) -> Floats:
        """The deadline from which on each of the devices that are `asked` is done alone, whatever steps it chooses.

        It must leave, after the guard, time to send and to compute: as now and, where steps go by the deadline, for
        the share of it. A device that chooses then computes no longer than the longer of the two.
        """
        as_now_s = self.guard.deadline_s(compute_s + alone_s)
        if self.compute_share is None:
            return as_now_s
        left = 1.0 - self.guard.share - self.compute_share[asked]
        with np.errstate(divide="ignore"):
            chosen_s = np.where(left > 0.0, (alone_s + self.guard.time_s) / np.maximum(left, 0.0), math.inf)
        return np.where(np.isnan(left), as_now_s, np.maximum(as_now_s, chosen_s))


NO_ADVICE = Advice()
"""Where advice depends on the problem alone."""


def obstacle(problem: RoundProblem, advice: Advice = NO_ADVICE) -> Obstacle | None:
    """What keeps every device from sending that may; None where one of them could, or none may."""
    if problem.reachable.size or problem.never.size == problem.num_devices:
        return None
    asked = np.setdiff1d(np.arange(problem.num_devices), problem.never)
    return _obstacle_of(problem, asked, advice)


def _obstacle_of(problem: RoundProblem, asked: Indices, advice: Advice) -> Obstacle:
    """The same of some devices, none of which can send alone."""
    compute_s, snr_hz = problem.compute_s[asked], problem.snr_hz[asked]
    band = np.full(len(asked), problem.usable_hz)
    alone_s = upload_s(problem.payload_bits[asked], band, snr_hz)
    due_s = problem.latest_s[asked]
    first = int(np.argmin(compute_s + alone_s - due_s))
    done_s = float(compute_s[first] + alone_s[first])
    own = problem.due_s is not None and float(problem.due_s[asked[first]]) < done_s
    slack_s = np.maximum(0.0, due_s - compute_s)
    told = np.zeros(len(asked), dtype=np.bool_) if advice.rate_is_told is None else advice.rate_is_told[asked]
    needed_hz = float(problem.needed_hz[asked].min(where=~told, initial=math.inf))
    with np.errstate(divide="ignore"):
        needed_bps = float((problem.payload_bits[asked] / slack_s).min(where=told, initial=math.inf))
    deadlines_s = advice.deadlines_s(asked, compute_s, alone_s)
    soonest = int(np.argmin(deadlines_s))
    return Obstacle(
        device=int(asked[first]),
        compute_s=float(compute_s[first]),
        upload_s=float(alone_s[first]),
        deadline_s=math.inf if own else float(deadlines_s[soonest]),
        total_bandwidth_hz=needed_hz if needed_hz <= WIDEST_HZ else math.inf,
        payload_bits=float((slack_s * rate_bps(band, snr_hz)).max()),
        rate_bps=needed_bps,
        compute_share=math.nan if advice.compute_share is None else float(advice.compute_share[asked[soonest]]),
    )


@dataclass(frozen=True)
class Names:
    """How a user is told where to change what would help: by default, the settings of a run. `due` is what the
    deadline of a schedule is."""

    deadline: str = "wireless.deadline_s"
    band: str = "wireless.total_bandwidth_hz"
    payload: str = "wireless.payload_bits"
    due: str = "the deadline"


SETTINGS = Names()
GUARDED = Names(deadline="wireless.deadline_s less wireless.guard", due="the deadline less the guard")


def setting_names(wireless: WirelessConfig) -> Names:
    """The settings of a run; where they have a guard, schedules go by what is left of the deadline."""
    return GUARDED if wireless.usable_s < wireless.deadline_s else SETTINGS


def why_nobody(
    problem: RoundProblem,
    policy: str,
    names: Names = SETTINGS,
    called: Sequence[str] | None = None,
    advice: Advice = NO_ADVICE,
) -> str:
    """Why nobody sends in a round under a policy that chose nobody, in one sentence, and what would help. `called` are
    the names of the devices; without, they are counted from 0."""
    if problem.must.size and not problem.possible:
        return _why_those_who_must_cannot(problem, names, called, advice)
    if problem.never.size == problem.num_devices:
        return "no device may send: all of them are among those that must not"
    found = obstacle(problem, advice)
    if found is None:
        able = problem.reachable.size
        if problem.must.size:
            return (
                f"policy '{policy}' found no way for the devices that must send to meet the deadline, though there is "
                "one; take another policy, such as exact"
            )
        return (
            f"{able} of {problem.num_devices} devices could send alone on the whole band, but policy '{policy}' chose "
            "none of them; take another policy, such as exact"
        )
    return _told(problem, found, "the quickest device", names, advice)


def _why_those_who_must_cannot(
    problem: RoundProblem, names: Names, called: Sequence[str] | None, advice: Advice
) -> str:
    """Which of the devices that must send cannot, or that they cannot all of them at once."""

    def name(device: int) -> str:
        return str(device) if called is None else called[device]

    alone = problem.needed_hz[problem.must] <= problem.capacity_hz
    if not alone.all():
        device = int(problem.must[~alone][0])
        found = _obstacle_of(problem, np.array([device]), advice)
        return f"device {name(device)} must send and cannot: " + _told(problem, found, "it", names, advice)
    listed = ", ".join(name(device) for device in problem.must[:MAX_NAMED].tolist())
    more = len(problem.must) - MAX_NAMED
    listed += f" and {more} more" if more > 0 else ""
    needed, there_is = human(math.fsum(problem.needed_hz[problem.must]), "Hz"), human(problem.usable_hz, "Hz")
    return (
        f"the devices that must send ({listed}) together need {needed} of {there_is} "
        f"to meet {names.due} of {human(problem.deadline_s, 's')}; it would take fewer of them, a later deadline "
        f"({names.deadline}) or a wider band ({names.band})"
    )


def _told(problem: RoundProblem, found: Obstacle, who: str, names: Names, advice: Advice) -> str:
    """What an obstacle is, and what would help."""
    size, band = human(float(problem.payload_bits[found.device]), "bit"), human(problem.usable_hz, "Hz")
    deadline = f"{names.due} is {human(problem.deadline_s, 's')}"
    helps = []
    if math.isfinite(found.deadline_s):
        share = "" if math.isnan(found.compute_share) else _OF_ITS_DEADLINE.format(100.0 * found.compute_share)
        helps.append(f"a deadline of at least {_rounded(found.deadline_s, 's', up=True)} ({names.deadline}{share})")
    elif problem.due_s is not None:
        less = " less the guard" if advice.guard else ""
        deadline = f"its own deadline{less} is {human(float(problem.due_s[found.device]), 's')}"
        done_s = advice.guard.deadline_s(found.compute_s + found.upload_s)
        helps.append(f"a deadline of its own of at least {_rounded(done_s, 's', up=True)}")
    if math.isfinite(found.total_bandwidth_hz):
        helps.append(f"a band of at least {_rounded(found.total_bandwidth_hz, 'Hz', up=True)} ({names.band})")
    if math.isfinite(found.rate_bps):
        helps.append(f"an uplink of at least {_rounded(found.rate_bps, 'bit/s', up=True)} (uplink-bps of such a node)")
    if found.payload_bits > 0.0:
        helps.append(f"updates of at most {_rounded(found.payload_bits, 'bit', up=False)} ({names.payload})")
    return (
        f"an update of {size} takes {who} {human(found.upload_s, 's')} to send on the whole band of "
        f"{band}, after {human(found.compute_s, 's')} of computing, and {deadline}; it would take "
        + ", or ".join(helps)
    )


def nobody_in_short(problem: RoundProblem) -> str:
    """The same in fewer words, as they fit into a picture."""
    deadline, able = human(problem.deadline_s, "s"), problem.reachable.size
    if problem.must.size and not problem.possible:
        return f"The devices that must send cannot meet the deadline of {deadline}, so nobody does"
    if problem.never.size == problem.num_devices:
        return "All devices are among those that must not send, so nobody does"
    if able == 0:
        return f"No device can meet the deadline of {deadline}, not even with the whole band for itself"
    return f"The policy found no device for the deadline of {deadline}, though {able} could meet it alone"


def _rounded(value: float, unit: str, *, up: bool) -> str:
    """Three digits of a number with its unit, rounded to the side where the promise holds."""
    value *= 1.0 + _ROOM if up else 1.0 - _ROOM
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    digits = math.ceil(value / step) if up else math.floor(value / step)
    return human(digits * step, unit, 3)
