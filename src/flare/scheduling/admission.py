"""Taking devices one after another while they fit: what many policies end with."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from flare.scheduling.problem import RoundProblem
from flare.types import Indices


def admit(
    problem: RoundProblem, order: Iterable[int], *, max_devices: int | None = None, stop_at_first: bool = False
) -> Indices:
    """Go through the devices in `order` and take each one that still fits before the deadline, up to `max_devices`.

    With `stop_at_first` the walk ends at the first device that does not fit; devices that could not meet the
    deadline even alone are passed over in either case.
    """
    taken: list[int] = []
    used_hz = 0.0
    needed, capacity = problem.needed_hz.tolist(), problem.capacity_hz
    limit = problem.num_devices if max_devices is None else max_devices
    for device in order:
        if len(taken) >= limit:
            break
        if needed[device] > capacity:
            continue
        if used_hz + needed[device] <= capacity:
            taken.append(int(device))
            used_hz += needed[device]
        elif stop_at_first:
            break
    while taken and not problem.fits(np.array(taken)):  # a running sum may round the other way than the exact one
        taken.pop()
    return np.array(taken, dtype=np.intp)
