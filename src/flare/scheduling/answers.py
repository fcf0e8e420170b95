"""What a policy may answer, and one clear error where it answered something else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling.problem import ABSURD, RoundProblem
from flare.scheduling.registry import OF_DEVICES, Choice, Memory, Policy
from flare.text import cut
from flare.types import Floats, Indices

MAX_MEMORY_ARRAYS = 64
MAX_MEMORY_NUMBERS = 100_000_000


def as_choice(policy: Policy, answer: ArrayLike | Choice) -> Choice:
    """The answer as a `Choice`: whole numbers name devices, an array of floats is one utility for each device."""
    if isinstance(answer, Choice):
        bound, proven = answer.lower_bound, answer.proven
        if not isinstance(bound, int | float | np.number) or not isinstance(proven, bool | np.bool_):
            raise ValueError(
                f"policy '{policy.name}' gave lower_bound = {bound!r:.40} and proven = {proven!r:.40}; the first must "
                "be a number (nan: none), the second True or False"
            )
        if answer.utility is not None and np.size(answer.selected):
            raise ValueError(f"policy '{policy.name}' gave devices and utilities; a Choice has one of the two")
        if answer.utility is not None and (answer.proven or not math.isnan(answer.lower_bound)):
            raise ValueError(
                f"policy '{policy.name}' gave utilities with `proven` or `lower_bound`, which are about P2's objective "
                "and its own devices; leave them out: whether utilities are the greatest is proven for it"
            )
        _refuse_numbers_of_nobody(policy, answer)
        return answer
    array = _array(policy, answer)
    if array.size and np.issubdtype(array.dtype, np.floating):
        return Choice(utility=array)
    return Choice(array)


def checked_selection(policy: Policy, problem: RoundProblem, selected: ArrayLike, *, divided: bool = False) -> Indices:
    """The devices that a policy named, ascending; ValueError where they are none, or do not fit. Where it has `divided`
    the band among them itself, its division is what has to fit, and is checked as such."""
    answer = _array(policy, selected)
    if answer.ndim != 1 or not (answer.size == 0 or np.issubdtype(answer.dtype, np.integer)):
        raise ValueError(
            f"policy '{policy.name}' answered {selected!r:.80}; it must answer a list of device indices "
            "(for a mask, np.flatnonzero) or one utility for each device (an array of floats)"
        )
    devices = np.sort(answer.astype(np.intp))
    if (devices[1:] == devices[:-1]).any():
        raise ValueError(f"policy '{policy.name}' named a device twice{_hint(problem, answer)}")
    if devices.size and not (devices[0] >= 0 and devices[-1] < problem.num_devices):
        raise ValueError(
            f"policy '{policy.name}' named a device outside 0 to {problem.num_devices - 1}{_hint(problem, answer)}"
        )
    if devices.size:
        _refuse_what_the_round_forbids(policy, problem, devices)
    if not divided and not problem.fits(devices):
        raise ValueError(
            f"policy '{policy.name}' chose {devices.size} devices that need "
            f"{math.fsum(problem.needed_hz[devices]):.6g} Hz to meet the deadline, of {problem.total_bandwidth_hz:.6g} "
            f"Hz there are: build the choice with flare.scheduling.admit, or check it with problem.fits"
            f"{_hint(problem, answer)}"
        )
    return devices


def _refuse_numbers_of_nobody(policy: Policy, answer: Choice) -> None:
    """ValueError where weights or error rates come with utilities, which do not say of whom they are."""
    for name in ("weights", "error_rate"):
        if getattr(answer, name) is not None and answer.utility is not None:
            raise ValueError(
                f"policy '{policy.name}' gave utilities with `{name}`, which has one number for each device of "
                "`selected`; choose the devices (flare.scheduling.admit) and give `selected`"
            )
    if not isinstance(answer.keep_total, bool | np.bool_) or (answer.keep_total and answer.weights is None):
        raise ValueError(
            f"policy '{policy.name}' gave keep_total = {answer.keep_total!r:.40}; it is True or False, and says "
            "something of `weights` alone"
        )


def of_selected(policy: Policy, choice: Choice, name: str, *, at_most: float = ABSURD) -> Floats | None:
    """What a policy says of each device that it selected, `choice.weights` say, in ascending order of the devices; None
    where it does not. ValueError where it is not one number from 0 to `at_most` for each of them."""
    given = getattr(choice, name)
    if given is None:
        return None
    selected = np.asarray(choice.selected).astype(np.intp)
    answer = _array(policy, given, f"the {name} of policy '{policy.name}'")
    if answer.dtype.kind not in "iuf" or answer.shape != selected.shape:
        raise ValueError(
            f"policy '{policy.name}' gave {name} of shape {answer.shape} and type {answer.dtype}; it must give one "
            f"number for each of the {selected.size} devices that it selected, in their order"
        )
    numbers = answer.astype(np.float64)
    bad = np.flatnonzero(~((numbers >= 0.0) & (numbers <= at_most)))
    if bad.size:
        raise ValueError(
            f"policy '{policy.name}' gave device {selected[bad[0]]} {name} = {numbers[bad[0]]:g}; it must be a number "
            f"from 0 to {at_most:g}"
        )
    return numbers[np.argsort(selected)]


def paid_before(policy: Policy, choice: Choice, name: str) -> float:
    """What the policy's own trials took, `choice.pilot_s` say; ValueError where that is no number >= 0."""
    given = getattr(choice, name)
    if not isinstance(given, int | float | np.number) or not 0.0 <= given <= ABSURD:
        raise ValueError(
            f"policy '{policy.name}' gave {name} = {given!r:.40}; it must be a number from 0 to {ABSURD:g}"
        )
    return float(given)


def _refuse_what_the_round_forbids(policy: Policy, problem: RoundProblem, devices: Indices) -> None:
    remedy = "build the choice with flare.scheduling.admit"
    if problem.never.size:
        forbidden = np.intersect1d(devices, problem.never)
        if forbidden.size:
            raise ValueError(f"policy '{policy.name}' named device {forbidden[0]}, which must not send: {remedy}")
    if problem.must.size:
        left_out = np.setdiff1d(problem.must, devices)
        if left_out.size:
            raise ValueError(f"policy '{policy.name}' left out device {left_out[0]}, which must send: {remedy}")
    if devices.size > problem.device_limit:
        raise ValueError(
            f"policy '{policy.name}' named {devices.size} devices, and at most {problem.device_limit} may send "
            f"(max_devices): {remedy}"
        )


def _hint(problem: RoundProblem, answer: np.ndarray[Any, np.dtype[Any]]) -> str:
    """What else an answer of whole numbers may have meant."""
    if answer.size != problem.num_devices:
        return ""
    return "; if these are utilities, one for each device, make them floats: np.asarray(..., dtype=float)"


def checked_utility(policy: Policy, problem: RoundProblem, utility: ArrayLike) -> Floats:
    """The utilities that a policy gave; ValueError where they are not one number for each device."""
    answer = _array(policy, utility)
    if answer.dtype.kind not in "iuf" or answer.shape != (problem.num_devices,):
        raise ValueError(
            f"policy '{policy.name}' gave utilities of shape {answer.shape} and type {answer.dtype}; it must give one "
            f"number for each of the {problem.num_devices} devices"
        )
    numbers = answer.astype(np.float64)
    bad = np.flatnonzero(~(np.abs(numbers) <= ABSURD))
    if bad.size:
        raise ValueError(
            f"policy '{policy.name}' gave device {bad[0]} the utility {numbers[bad[0]]:g}; it must be finite "
            f"(and at most {ABSURD:g})"
        )
    return numbers


def checked_memory(policy: Policy, memory: Mapping[str, Any] | None, num_devices: int) -> Memory:
    """A copy of what a policy remembers; ValueError where it is not a dict of arrays of numbers, or where an array of
    the devices (its name begins with "device_") does not have one entry for each device of the round."""
    if memory is None:
        return {}
    if not isinstance(memory, Mapping):
        raise ValueError(
            f"the memory of policy '{policy.name}' is a {type(memory).__name__}; it must be a dict of arrays by name"
        )
    if len(memory) > MAX_MEMORY_ARRAYS:
        raise ValueError(
            f"the memory of policy '{policy.name}' has {len(memory)} arrays; {MAX_MEMORY_ARRAYS} are the limit"
        )
    arrays: Memory = {}
    for name, value in memory.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"the memory of policy '{policy.name}' has an array under {name!r:.80}; a name is a word of letters, "
                "digits and underscores"
            )
        array = _array(policy, value, f"the memory '{name:.80}' of policy '{policy.name}'")
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ValueError(
                f"the memory '{name:.80}' of policy '{policy.name}' is of type {array.dtype}; it must be an array of "
                "numbers"
            )
        if name.startswith(OF_DEVICES) and (array.ndim == 0 or len(array) != num_devices):
            raise ValueError(
                f"the memory '{name:.80}' of policy '{policy.name}' has shape {array.shape}, the round has "
                f"{num_devices} devices: an array whose name begins with '{OF_DEVICES}' has one entry for each"
            )
        arrays[name] = array.astype(array.dtype.newbyteorder("="))
    if sum(array.size for array in arrays.values()) > MAX_MEMORY_NUMBERS:
        raise ValueError(
            f"the memory of policy '{policy.name}' holds over {MAX_MEMORY_NUMBERS:,} numbers; that is the limit"
        )
    return arrays


def _array(policy: Policy, value: Any, what: str | None = None) -> np.ndarray[Any, np.dtype[Any]]:
    what = what or f"the answer of policy '{policy.name}'"
    if np.ma.isMaskedArray(value):
        raise ValueError(f"{what} is a masked array, whose mask would be lost; fill it or take what is not masked")
    try:
        return np.asarray(value)
    except Exception as error:  # whatever somebody's object raises when it is to become an array
        raise ValueError(f"{what} cannot be read as an array: {cut(str(error), 200)}") from None
