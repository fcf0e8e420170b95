"""What would bring a device in that a schedule leaves out: more band, more time, or more local steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from flare.scheduling.division import divide_many
from flare.scheduling.explain import Explanation, LeftOut
from flare.scheduling.problem import WIDEST_HZ, RoundProblem
from flare.scheduling.schedule import Schedule
from flare.types import Floats
from flare.units import human
from flare.wireless.rate import bandwidth_for, upload_s

MAX_TIMED = 64
"""Devices that are told how much more time would do, which takes a division of the band each."""
_UP = 1.0 + 5e-3  # what is said with three digits is enough, too


def remedies(schedule: Schedule, detail: Explanation, focus: Iterable[int] = ()) -> list[str | None]:
    """For each device that is left out, what would bring it in beside those who send; None where it sends.

    Where more than `MAX_TIMED` devices lack room, only those of `focus` are told how much more time would do.
    """
    problem = schedule.problem
    lack_hz, room = _lacking_hz(schedule).tolist(), _room_for_cost(schedule)
    no_room = [device for device, why in enumerate(detail.why) if why is LeftOut.NO_ROOM]
    timed = no_room if len(no_room) <= MAX_TIMED else [device for device in focus if device in no_room]
    later_s = dict(zip(timed, _later_s(schedule, timed), strict=True))
    found: list[str | None] = []
    for device, why in enumerate(detail.why):
        if why is None:
            found.append(None)
        elif why is LeftOut.NO_ROOM:
            found.append(_with_room(lack_hz[device], later_s.get(device, math.nan)))
        elif why is LeftOut.TOO_SLOW:
            found.append(_with_time(problem, device))
        elif why is LeftOut.TOO_WEAK:
            found.append(_with_signal(problem, device))
        elif why in (LeftOut.WORSE, LeftOut.EQUAL):
            found.append(_with_steps(problem, device, room))
        else:
            found.append(_WORDS[why])
    return found


_WORDS = {
    LeftOut.NEVER: "let it send: take it off the list of those that must not",
    LeftOut.HELD_UP: "let those who must send be fewer, or give them more band or time",
    LeftOut.FULL: "let more devices send",
    LeftOut.BETTER: "choose policy exact, which looks for the best set",
    LeftOut.ALONE: "choose policy exact, which looks for the best set",
}


def _lacking_hz(schedule: Schedule) -> Floats:
    """How much wider the band would have to be for each device to fit beside those who send, shape (devices,)."""
    problem = schedule.problem
    if schedule.split_evenly:
        dearest = float(problem.needed_hz[schedule.selected].max(initial=0.0))
        wanted = (schedule.num_selected + 1) * np.maximum(problem.needed_hz, dearest)
    else:
        wanted = math.fsum(problem.needed_hz[schedule.selected]) + problem.needed_hz
    return np.asarray(wanted - problem.usable_hz)


def _later_s(schedule: Schedule, devices: Sequence[int]) -> list[float]:
    """How much later the round would have to end for each of the devices to fit beside those who send; nan where the
    policy divides the band evenly, and no such time is known."""
    problem = schedule.problem
    if schedule.split_evenly:
        return [math.nan] * len(devices)
    beside = [np.append(schedule.selected, device) for device in devices]
    if problem.due_s is None and problem.block_hz is None:  # all at once, which is quicker
        divided = divide_many([problem] * len(beside), beside)
        ends_s = [each.latency_s for each in divided if each is not None]
    else:
        ends_s = [problem.min_latency(each) for each in beside]
    return [end_s - problem.deadline_s for end_s in ends_s]


def _with_room(lack_hz: float, later_s: float) -> str:
    words = []
    if 0.0 < lack_hz < WIDEST_HZ:
        words.append(f"{human(_UP * lack_hz, 'Hz', 3)} more band")
    if 0.0 < later_s < math.inf:
        words.append(f"{human(_UP * later_s, 's', 3)} more time")
    return f"needs {', or '.join(words)}" if words else "needs fewer others beside it"


def _with_time(problem: RoundProblem, device: int) -> str:
    """For a device that computes until the deadline: when it would be done alone, or how many steps it has time for."""
    computes_s = float(problem.compute_s[device])
    due_s = float(problem.latest_s[device])
    steps = math.ceil(float(problem.tau[device]) * due_s / computes_s) - 1 if computes_s > 0.0 else 0
    fewer = f", or at most {steps} of its {problem.tau[device]:g} steps" if steps >= 1 else ""
    return f"computes for {human(computes_s, 's', 3)} of {human(due_s, 's', 3)}: needs a later deadline{fewer}"


def _with_signal(problem: RoundProblem, device: int) -> str:
    """For a device that could not send in time on the whole band: how much more band or time it needs alone."""
    bits, snr_hz = problem.payload_bits[[device]], problem.snr_hz[[device]]
    computes_s = float(problem.compute_s[device])
    slack_s = np.array([float(problem.latest_s[device]) - computes_s])
    band_hz = float(bandwidth_for(bits, slack_s, snr_hz)[0])
    alone_s = float(upload_s(bits, np.array([problem.usable_hz]), snr_hz)[0])
    later_s = computes_s + alone_s - float(problem.latest_s[device])
    words = []
    if band_hz < WIDEST_HZ:
        words.append(f"{human(_UP * (band_hz - problem.usable_hz), 'Hz', 3)} more band")
    if math.isfinite(later_s):
        words.append(f"{human(_UP * later_s, 's', 3)} more time")
    return "even alone it needs " + ", or ".join([*words, "a stronger channel"])


def _room_for_cost(schedule: Schedule) -> float:
    """What one more device may add to the sum of costs for the objective to stay the same:

        (1/(M+1) + gamma/(M+1)^2) (C + room) = objective.

    nan where nobody sends, or updates are coded: the noise of coding counts then, too.
    """
    problem = schedule.problem
    if schedule.num_selected == 0 or problem.coding_noise is not None:
        return math.nan
    costs = math.fsum(problem.cost[schedule.selected])
    return schedule.objective / problem.participation(schedule.num_selected + 1) - costs


def _with_steps(problem: RoundProblem, device: int, room: float) -> str:
    """For a device that fits and would not better the objective: from how many steps on it would."""
    if math.isnan(room):
        return "would help with more local steps"
    if room <= 0.0:
        return "no number of local steps would help; a greater gamma might"
    weight = 1.0 if problem.weight is None else float(problem.weight[device])
    steps = math.floor(weight / room) + 1
    return f"would help from {steps:,} local steps on in the same time; it does {problem.tau[device]:g}"
