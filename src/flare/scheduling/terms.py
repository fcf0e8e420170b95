"""On what terms the chosen devices take part: their part of the band, speed and power, and when the round ends.

All of it is the policy's to set where it wants to (`Choice`), and checked here: one clear error where it cannot be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling import checks
from flare.scheduling.bandwidth import CERTIFIED, Allocation
from flare.scheduling.hardware import Hardware
from flare.scheduling.problem import BAND_TOLERANCE, RoundProblem
from flare.scheduling.registry import Choice, Policy
from flare.types import Floats, Indices
from flare.wireless.rate import upload_s

OF_SELECTED = ("bandwidth_hz", "snr_hz", "cpu_hz", "power_w")
"""What a `Choice` may set for each selected device."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What a policy set beside the devices.

    played        the round with the speeds and powers of the selected devices: it is divided and timed by this
    division      of the band among the selected devices, ascending; None: P3 divides it
    cpu_hz        the speed of every device, as reported where it is not selected, shape (devices,); None: as reported
    power_w       likewise its power
    """

    played: RoundProblem
    division: Floats | None = None
    cpu_hz: Floats | None = None
    power_w: Floats | None = None


def sets_terms(choice: Choice) -> bool:
    """Whether a policy set anything beside the devices."""
    return choice.deadline_s is not None or any(getattr(choice, name) is not None for name in OF_SELECTED)


def with_own_deadline(policy: Policy, problem: RoundProblem, choice: Choice) -> RoundProblem:
    """The problem, ending when the policy says."""
    if choice.deadline_s is None:
        return problem
    try:
        deadline_s = checks.scalar("deadline_s", choice.deadline_s)
    except ValueError as error:
        raise ValueError(f"policy '{policy.name}' set the end of the round: {error}") from None
    return problem if deadline_s == problem.deadline_s else replace(problem, deadline_s=deadline_s)


def with_own_channels(policy: Policy, problem: RoundProblem, choice: Choice) -> RoundProblem:
    """The problem with what interference leaves of the selected devices' channels, where the policy says so."""
    if choice.snr_hz is None or np.size(choice.selected) == 0:
        return problem
    at = np.sort(np.asarray(choice.selected).astype(np.intp))
    told = in_device_order(policy, choice.selected, "snr_hz", choice.snr_hz)
    if at[0] < 0 or at[-1] >= problem.num_devices:
        return problem  # which is refused with its own words
    everybody = _at_most(policy, "snr_hz", at, told, problem.snr_hz)
    return replace(problem, snr_hz=everybody)


def agreed_terms(
    policy: Policy, problem: RoundProblem, choice: Choice, selected: Indices, hardware: Hardware | None
) -> Terms:
    """The terms of devices that a policy chose, `selected` ascending; ValueError where they cannot be."""
    if not sets_terms(choice):
        return Terms(problem)
    if choice.utility is not None and any(getattr(choice, name) is not None for name in OF_SELECTED):
        raise ValueError(
            f"policy '{policy.name}' gave utilities and {', '.join(OF_SELECTED)} of selected devices; name the devices "
            "instead: it is not known before who is selected"
        )
    given = {name: _of_selected(policy, choice, name) for name in OF_SELECTED}
    if hardware is None and (given["cpu_hz"] is not None or given["power_w"] is not None):
        raise ValueError(
            f"policy '{policy.name}' set speeds or powers without knowing those of the devices; let it take `hardware`"
        )
    played, everybody = problem, {}
    if hardware is not None:
        for name, of_time, slower in (("cpu_hz", "compute_s", True), ("power_w", "snr_hz", False)):
            told, most = given[name], getattr(hardware, name)
            if told is None:
                continue
            everybody[name] = _at_most(policy, name, selected, told, most)
            share = everybody[name] / most
            before = getattr(problem, of_time)
            played = replace(played, **{of_time: before / share if slower else before * share})
    if given["bandwidth_hz"] is not None:
        _refuse_division(policy, problem, given["bandwidth_hz"])
    return Terms(played, given["bandwidth_hz"], everybody.get("cpu_hz"), everybody.get("power_w"))


def measured(problem: RoundProblem, selected: Indices, bandwidth_hz: Floats) -> Allocation:
    """A division that a policy made itself, with when it ends and what it leaves of the band."""
    finish_s = problem.compute_s[selected] + upload_s(
        problem.payload_bits[selected], bandwidth_hz, problem.snr_hz[selected]
    )
    last_s = float(finish_s.max())
    return Allocation(
        bandwidth_hz=bandwidth_hz,
        latency_s=last_s,
        band_residual=abs(math.fsum(bandwidth_hz) / problem.usable_hz - 1.0),
        finish_spread=(last_s - float(finish_s.min())) / last_s,
    )


def refuse_late(policy: Policy, problem: RoundProblem, selected: Indices, allocation: Allocation) -> None:
    """ValueError where a device is late on the terms that the policy set; `problem` is the round as it is played."""
    at, band = selected, allocation.bandwidth_hz
    finish_s = problem.compute_s[at] + upload_s(problem.payload_bits[at], band, problem.snr_hz[at])
    due_s = np.broadcast_to(problem.finish_by(problem.deadline_s), problem.num_devices)[at]
    late = np.flatnonzero(~(finish_s <= due_s * (1.0 + CERTIFIED)))
    if late.size:
        first = int(late[0])
        raise ValueError(
            f"policy '{policy.name}': device {at[first]} would finish after {finish_s[first]:.6g} s on the bandwidth, "
            f"speed and power that it set, and is due after {due_s[first]:.6g} s; give it more of them, or set "
            "Choice.deadline_s later"
        )


def in_device_order(policy: Policy, selected: ArrayLike, name: str, values: Any) -> Floats:
    """What a `Choice` says of each device of `selected`, in ascending order of the devices; ValueError where it is not
    one number greater than 0 for each."""
    array = checks.numbers(f"{name} of policy '{policy.name}'", values, (1,), positive=True)
    if len(array) != np.size(selected):
        raise ValueError(
            f"policy '{policy.name}' set {name} of {len(array)} devices and selected {np.size(selected)}; give one for "
            "each, in their order"
        )
    return array[np.argsort(np.asarray(selected))]


def _of_selected(policy: Policy, choice: Choice, name: str) -> Floats | None:
    values = getattr(choice, name)
    return None if values is None else in_device_order(policy, choice.selected, name, values)


def _at_most(policy: Policy, name: str, selected: Indices, told: Floats, most: Floats) -> Floats:
    """The speeds or powers of all devices with what was set for the selected ones; ValueError above what they have."""
    over = np.flatnonzero(told > most[selected] * (1.0 + BAND_TOLERANCE))
    if over.size:
        device = int(selected[over[0]])
        raise ValueError(
            f"policy '{policy.name}' set {name} of device {device} to {told[over[0]]:.6g}, and the device has no more "
            f"than {most[device]:.6g}"
        )
    everybody = most.copy()
    everybody[selected] = np.minimum(told, most[selected])
    return everybody


def _refuse_division(policy: Policy, problem: RoundProblem, bandwidth_hz: Floats) -> None:
    total_hz = math.fsum(bandwidth_hz)
    if total_hz > problem.usable_hz * (1.0 + CERTIFIED):
        raise ValueError(
            f"policy '{policy.name}' gave its devices {total_hz:.6g} Hz, of {problem.usable_hz:.6g} Hz there are"
        )
    if problem.block_hz is not None:
        blocks = bandwidth_hz / problem.block_hz
        if (np.abs(blocks - np.rint(blocks)) > CERTIFIED * blocks).any():
            raise ValueError(
                f"policy '{policy.name}' divided the band otherwise than in whole blocks of {problem.block_hz:.6g} Hz; "
                "round its bandwidths, or leave them out of the Choice"
            )
