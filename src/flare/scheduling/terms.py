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
from flare.scheduling.division import divide
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

    compute_s     how long each device computes at the speed that it is given, shape (devices,)
    snr_hz        p h^2 / N_0 of each device with the power that it is given, likewise
    division      of the band among the selected devices, ascending; None: P3 divides it
    cpu_hz        the speed of every device, as reported where it is not selected, shape (devices,); None: as reported
    power_w       likewise its power
    """

    compute_s: Floats
    snr_hz: Floats
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
    named = np.asarray(choice.selected)
    if choice.snr_hz is None or named.dtype.kind not in "iu" or named.ndim != 1 or named.size == 0:
        return problem  # what are no devices is refused with its own words
    if named.min() < 0 or named.max() >= problem.num_devices:
        return problem
    at = np.sort(named.astype(np.intp))
    told = in_device_order(policy, choice.selected, "snr_hz", choice.snr_hz)
    everybody = _at_most(policy, "snr_hz", at, told, problem.snr_hz)
    return replace(problem, snr_hz=everybody)


def agreed_terms(
    policy: Policy, problem: RoundProblem, choice: Choice, selected: Indices, hardware: Hardware | None
) -> Terms:
    """The terms of devices that a policy chose, `selected` ascending; ValueError where they cannot be."""
    if not sets_terms(choice):
        return Terms(problem.compute_s, problem.snr_hz)
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
    compute_s, snr_hz, cpu_hz, power_w = problem.compute_s, problem.snr_hz, None, None
    if hardware is not None and given["cpu_hz"] is not None:
        cpu_hz = _at_most(policy, "cpu_hz", selected, given["cpu_hz"], hardware.cpu_hz)
        compute_s = compute_s / (cpu_hz / hardware.cpu_hz)
    if hardware is not None and given["power_w"] is not None:
        power_w = _at_most(policy, "power_w", selected, given["power_w"], hardware.power_w)
        snr_hz = snr_hz * (power_w / hardware.power_w)
    if given["bandwidth_hz"] is not None:
        _refuse_division(policy, problem, given["bandwidth_hz"])
    return Terms(compute_s, snr_hz, given["bandwidth_hz"], cpu_hz, power_w)


def divided(policy: Policy, problem: RoundProblem, terms: Terms, selected: Indices) -> Allocation:
    """The division of the band on these terms."""
    if terms.division is not None:
        return _measured(problem, terms, selected, terms.division)
    if terms.cpu_hz is not None or terms.power_w is not None:
        problem = replace(problem, compute_s=terms.compute_s, snr_hz=terms.snr_hz)
    return divide(problem, selected, evenly=policy.split_evenly)


def _measured(problem: RoundProblem, terms: Terms, selected: Indices, bandwidth_hz: Floats) -> Allocation:
    """A division that a policy made itself, with when it ends and what it leaves of the band."""
    finish_s = _finish_s(problem, terms, selected, bandwidth_hz)
    last_s = float(finish_s.max())
    return Allocation(
        bandwidth_hz=bandwidth_hz,
        latency_s=last_s,
        band_residual=abs(math.fsum(bandwidth_hz) / problem.usable_hz - 1.0),
        finish_spread=(last_s - float(finish_s.min())) / last_s,
    )


def _finish_s(problem: RoundProblem, terms: Terms, selected: Indices, bandwidth_hz: Floats) -> Floats:
    sending_s = upload_s(problem.payload_bits[selected], bandwidth_hz, terms.snr_hz[selected])
    return terms.compute_s[selected] + sending_s


def refuse_late(policy: Policy, problem: RoundProblem, terms: Terms, selected: Indices, allocation: Allocation) -> None:
    """ValueError where a device is late on the terms that the policy set."""
    finish_s = _finish_s(problem, terms, selected, allocation.bandwidth_hz)
    due_s = problem.latest_s[selected]
    late = np.flatnonzero(~(finish_s <= due_s * (1.0 + CERTIFIED)))
    if late.size:
        first = int(late[0])
        raise ValueError(
            f"policy '{policy.name}': device {selected[first]} would finish after {finish_s[first]:.6g} s on the "
            f"bandwidth, speed and power that it set, and is due after {due_s[first]:.6g} s; give it more of them, or "
            "set Choice.deadline_s later"
        )


def in_device_order(policy: Policy, selected: ArrayLike, name: str, values: Any) -> Floats:
    """What a `Choice` says of each device of `selected`, in ascending order of the devices; ValueError where it is not
    one number greater than 0 for each."""
    array = checks.numbers(f"{name} of policy '{policy.name}'", values, (1,))
    if len(array) != np.size(selected):
        raise ValueError(
            f"policy '{policy.name}' set {name} of {len(array)} devices and selected {np.size(selected)}; give one for "
            "each, in their order"
        )
    if not (array >= 1.0 / checks.ABSURD).all():
        device = int(np.asarray(selected)[int(np.argmin(array))])
        raise ValueError(
            f"policy '{policy.name}' set {name} of device {device} to {array.min():.6g}; it must be more than 0 (at "
            f"least {1.0 / checks.ABSURD:g})"
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
