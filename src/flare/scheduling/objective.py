"""What P2 minimises, from sums over the devices that send."""

from __future__ import annotations

from typing import overload

from flare.types import Floats


@overload
def p2_objective(number: int, cost: float, noise: float, gamma: float) -> float: ...


@overload
def p2_objective(number: int, cost: Floats, noise: float | Floats, gamma: float) -> Floats: ...


def p2_objective(number: int, cost: float | Floats, noise: float | Floats, gamma: float) -> float | Floats:
    """(1/M + gamma/M^2) cost + (gamma/M^2) noise, Eq. (19a) with coding noise: M devices send, at least one, whose
    costs and coding noise sum to `cost` and `noise`; numbers, or arrays with one sum for each of several sets."""
    return participation(number, gamma) * cost + gamma / number**2 * noise


def participation(number: int, gamma: float) -> float:
    """1/M + gamma/M^2."""
    return (number + gamma) / number**2
