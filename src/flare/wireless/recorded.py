"""The quantities of a recorded cell: what each may be, and channel coefficients as power gains.

gain_db   power gain of the channel in dB
cpu_hz    speed of the processor
tau       local steps
h         channel coefficient, complex or real; its power gain is |h|^2. With several antennas at the base station the
          gain is the sum of theirs, which is what maximum-ratio combining receives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flare.types import Floats
from flare.units import linear_to_db

Complexes = NDArray[np.complex128]
"""Channel coefficients."""
Allowed = Callable[[Floats], NDArray[np.bool_]]

COEFFICIENTS = "h"
QUANTITIES: dict[str, tuple[Allowed, str]] = {
    "gain_db": (
        lambda db: (db >= -1000.0) & (db <= 0.0),
        "a power gain in dB, between -1000 and 0: a channel loses power (is the minus sign missing?)",
    ),
    "cpu_hz": (lambda hz: (hz >= 1.0) & (hz <= 1e15), "a speed in Hz, between 1 and 1e15"),
    "tau": (
        lambda tau: (tau >= 1.0) & (tau <= 1e9) & (tau == np.rint(tau)),
        "a whole number of local steps, between 1 and 1e9",
    ),
    COEFFICIENTS: (
        lambda power: (power >= 1e-100) & (power <= 1.0),
        "a power gain between 1e-100 and 1: a channel loses power (does h lack the path loss?); where a device is "
        "out of reach, give a small coefficient such as 1e-20",
    ),
}
"""What is recorded, by name: which values are allowed (of `h`: which power gains), and the same in words. Tables of
devices have the same rule for `gain_db`."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a file holds, before it is checked.

    values   by name, each of shape (rounds, devices); coefficients may have a third axis, the antennas
    place    where the value of a name, a round and a device stands in the file, in words
    kind     what the values of a name are called there
    """

    values: Mapping[str, Floats | Complexes]
    place: Callable[[str, int, int], str]
    kind: str = "array"


def known_name(name: str) -> str | None:
    """The quantity that a name in a file stands for: `H` is written for `h`; None where it stands for none."""
    name = COEFFICIENTS if name == COEFFICIENTS.upper() else name
    return name if name in QUANTITIES else None


def checked(path: Path, recorded: Recorded) -> dict[str, Floats]:
    """Some of gain_db, cpu_hz and tau, each of shape (rounds, devices); ValueError that names file and place."""
    if not recorded.values:
        raise ValueError(f"{path}: holds no {recorded.kind}; give at least one of {', '.join(QUANTITIES)}")
    if {"gain_db", COEFFICIENTS} <= set(recorded.values):
        raise ValueError(f"{path}: holds both gain_db and {COEFFICIENTS}, which say the same thing; give one of them")
    _check_shapes(path, recorded)
    found = {}
    for name in (name for name in QUANTITIES if name in recorded.values):
        numbers = recorded.values[name]
        values = _power(numbers) if name == COEFFICIENTS else np.ascontiguousarray(numbers, dtype=np.float64)
        _check_values(path, recorded, name, values)
        if name == COEFFICIENTS:
            found["gain_db"] = linear_to_db(values)
        else:
            found[name] = values
    return found


def _check_shapes(path: Path, recorded: Recorded) -> None:
    (first, one), *others = recorded.values.items()
    for name, other in others:
        if other.shape[:2] != one.shape[:2]:
            raise ValueError(
                f"{path}, {recorded.kind} {name}: has shape {other.shape}, {recorded.kind} {first} {one.shape}; "
                "all must have the same rounds and devices: shape (rounds, devices)"
            )


def _power(coefficients: Floats | Complexes) -> Floats:
    """The power gains |h|^2, shape (rounds, devices), summed over the antennas where there are several."""
    each = coefficients if coefficients.ndim == 3 else coefficients[:, :, np.newaxis]  # (rounds, devices, antennas)
    power = np.zeros(each.shape[:2])
    with np.errstate(all="ignore"):  # what is too large or not a number is refused afterwards
        for antenna in range(each.shape[2]):
            one = each[:, :, antenna]
            power += one.real.astype(np.float64) ** 2 + one.imag.astype(np.float64) ** 2
    return power


def _check_values(path: Path, recorded: Recorded, name: str, values: Floats) -> None:
    allowed, words = QUANTITIES[name]
    with np.errstate(invalid="ignore"):
        right = allowed(values)
    if right.all():
        return
    index, device = (int(at) for at in np.argwhere(~right)[0])
    given = f"{values[index, device]:g}"
    if name == COEFFICIENTS:
        coefficient = recorded.values[name][index, device]
        of = f" of {coefficient:g}" if np.ndim(coefficient) == 0 else ""
        given = f"|h|^2{of} is {given}, which"
    raise ValueError(f"{path}, {recorded.place(name, index, device)}: {given} is not {words}")
