"""What a round may be made of: every argument of `RoundProblem` is checked here, each with one clear error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from flare.types import Floats, Indices

ABSURD = 1e100
"""No quantity of a round is larger, or smaller than its inverse: beyond, products leave the range of a double."""
WIDEST_HZ = 1e15
"""No band is wider: that is the frequency of light, and a slip of the unit."""
MAX_BLOCKS = 10**9
"""No band has more resource blocks: sums of them are then exact."""
NO_DEVICES: Indices = np.zeros(0, dtype=np.intp)
NO_DEVICES.setflags(write=False)


def vector(name: str, values: ArrayLike, *, at_least: float | None = None, positive: bool = False) -> Floats:
    """One finite number for each device, as an array that cannot be written to."""
    return numbers(name, values, (1,), at_least=at_least, positive=positive)


def numbers(
    name: str,
    values: ArrayLike,
    dimensions: tuple[int, ...],
    *,
    at_least: float | None = None,
    positive: bool = False,
    infinite: bool = False,
) -> Floats:
    """Numbers as an array that cannot be written to, of one of some numbers of dimensions; (1,) is one number for each
    device. Finite, unless they may be `infinite`."""
    of_devices = dimensions == (1,)
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be numbers{', one for each device' if of_devices else ''}: {error}") from None
    if array.ndim not in dimensions or array.size == 0:
        if of_devices:
            raise ValueError(f"{name} must hold one number for each of at least one device, got shape {array.shape}")
        allowed = " or ".join(map(str, dimensions))
        raise ValueError(f"{name} has the shape {array.shape}; it must have {allowed} dimensions, and not be empty")
    most = np.inf if infinite else ABSURD
    least = max(-most if at_least is None else at_least, 1.0 / ABSURD if positive else -most)
    if not (array.min() >= least and array.max() <= most):  # so that nan is bad, too
        _refuse(name, array, of_devices, most, at_least, positive)
    array.setflags(write=False)
    return array


def _refuse(
    name: str, array: Floats, of_devices: bool, most: float, at_least: float | None, positive: bool
) -> NoReturn:
    """ValueError that names the first bad number of the first rule that is broken."""
    rules = [
        (~(np.abs(array) <= most), "must be a number" if most == np.inf else f"must be finite (and at most {ABSURD:g})")
    ]
    if at_least is not None:
        rules.append((array < at_least, f"must be at least {at_least:g}"))
    if positive:
        rules.append((array <= 0.0, "must be greater than 0"))
        rules.append((array < 1.0 / ABSURD, f"must be at least {1.0 / ABSURD:g}"))
    bad, why = next((bad, why) for bad, why in rules if bad.any())
    at = np.argwhere(bad)[0].tolist()
    where = f" of device {at[0]}" if of_devices else f" {at}" if at else ""
    raise ValueError(f"{name}{where} is {array[tuple(at)]:g}; it {why}")


def scalar(name: str, value: Any, *, zero_allowed: bool = False, at_most: float = ABSURD) -> float:
    """A finite number greater than 0, or at least 0."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r:.80}") from None
    if not (number == 0.0 and zero_allowed) and not 1.0 / ABSURD <= number <= at_most:
        least = "at least 0" if zero_allowed else f"greater than 0 (at least {1.0 / ABSURD:g})"
        raise ValueError(f"{name} is {number:g}; it must be {least} and finite (at most {at_most:g})")
    return number


def payloads(given: Any, num_devices: int) -> Floats:
    """Bits for each device; one number is for all of them. It is kept once, as an array that repeats it: `repeated`
    tells at once, also of the same array handed on."""
    number = num_devices
    if isinstance(given, np.ndarray) and given.ndim == 1 and repeated(given):
        given, number = given[0], len(given)
    if isinstance(given, list | tuple) or np.ndim(given) > 0:
        return vector("payload_bits", given, positive=True)
    return np.broadcast_to(np.float64(scalar("payload_bits", given)), number)


def repeated(array: Floats) -> bool:
    """Whether an array is made of one number by repeating it; an array of equal numbers need not be."""
    return len(array) > 1 and array.strides[0] == 0


def devices(name: str, given: Iterable[int], num_devices: int) -> Indices:
    """Devices of the round, each named once, ascending."""
    if isinstance(given, np.ndarray | tuple | list) and len(given) == 0:
        return NO_DEVICES
    try:
        listed = np.array(given if isinstance(given, np.ndarray) else list(given))
    except (TypeError, ValueError):
        listed = np.zeros((0, 0))
    if listed.ndim != 1 or listed.dtype.kind not in "iu":
        raise ValueError(f"{name} is {given!r:.80}; it must be a list of devices, whole numbers from 0")
    ordered = np.sort(listed.astype(np.intp))
    if not 0 <= ordered[0] <= ordered[-1] < num_devices:
        odd = ordered[-1] if ordered[0] >= 0 else ordered[0]
        raise ValueError(f"{name} names device {odd}; the devices of the round are 0 to {num_devices - 1}")
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if twice.size:
        raise ValueError(f"{name} names device {ordered[twice[0]]} twice; name it once")
    ordered.setflags(write=False)
    return ordered


def limit(max_devices: Any) -> int | None:
    """How many devices may send at most; None: as many as fit."""
    if max_devices is None:
        return None
    if isinstance(max_devices, bool) or not isinstance(max_devices, int | np.integer) or max_devices < 1:
        raise ValueError(f"max_devices is {max_devices!r:.80}; it must be a whole number of at least 1, or none")
    return int(max_devices)


def block(block_hz: Any, total_bandwidth_hz: float) -> float | None:
    """The width of a resource block; None: bandwidths are any numbers."""
    if block_hz is None:
        return None
    width = scalar("block_hz", block_hz, at_most=WIDEST_HZ)
    if width > total_bandwidth_hz:
        raise ValueError(
            f"block_hz is {width:g}, more than the whole band of {total_bandwidth_hz:g} Hz; make it smaller"
        )
    if total_bandwidth_hz / width > MAX_BLOCKS:
        raise ValueError(
            f"block_hz is {width:g}: the band of {total_bandwidth_hz:g} Hz would have more than {MAX_BLOCKS:,} blocks; "
            "make it larger, or leave it out"
        )
    return width


def agreeing(must: Indices, never: Indices, max_devices: int | None) -> None:
    """ValueError where what is asked for contradicts itself."""
    both = np.intersect1d(must, never)
    if both.size:
        raise ValueError(f"device {both[0]} is in must and in never; leave it in one of them")
    if max_devices is not None and len(must) > max_devices:
        raise ValueError(
            f"{len(must)} devices must send, and max_devices is {max_devices}; raise it, or take devices out of must"
        )
