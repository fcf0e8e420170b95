"""Taking devices one after another while they fit: what many policies end with."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from flare.scheduling.problem import RoundProblem
from flare.types import Indices


def admit(
    problem: RoundProblem, order: Iterable[int], *, max_devices: int | None = None, stop_at_first: bool = False
) -> Indices:
    """Go through the devices in `order` and take each one that still fits before the deadline, up to `max_devices`.

    The devices that must send are taken first, whatever the order; those that must not are passed over, and no more
    are taken than the round allows. With `stop_at_first` the walk ends at the first device that does not fit; devices
    that could not meet the deadline even alone are passed over in either case.
    """
    taken: list[int] = problem.must.tolist()
    needed, capacity = problem.needed_hz.tolist(), problem.capacity_hz
    used_hz = math.fsum(needed[device] for device in taken)
    limit = problem.device_limit if max_devices is None else min(max_devices, problem.device_limit)
    must = frozenset(taken)
    for device in order:
        if len(taken) >= limit:
            break
        if needed[device] > capacity or device in must:
            continue
        if used_hz + needed[device] <= capacity:
            taken.append(int(device))
            used_hz += needed[device]
        elif stop_at_first:
            break
    # A running sum may round the other way than the exact one.
    while len(taken) > len(must) and not problem.fits(np.array(taken)):
        taken.pop()
    return np.array(taken, dtype=np.intp)
