"""The best choice of devices and bits in plain ways: what `best_bits` must equal."""

from __future__ import annotations

import numpy as np

from flare.scheduling.bits_choice import BitsProblem
from flare.types import Floats


def brute_force_bits(problem: BitsProblem) -> float:
    """The least objective over all sets of devices and all their choices; infinite where none fits.

    A row for every way to give each device a choice, or none (0): 390,625 for 8 devices and 4 choices.
    """
    choices, devices = problem.noise.shape
    ways = np.array(np.unravel_index(np.arange((choices + 1) ** devices), (choices + 1,) * devices)).T
    sends = ways > 0
    number = sends.sum(axis=1)
    good = (number > 0) & sends[:, problem.must].all(axis=1) & ~sends[:, problem.never].any(axis=1)
    good &= number <= (devices if problem.max_devices is None else problem.max_devices)
    hz = _total(ways, problem.needed_hz)
    for at in np.flatnonzero(good & (np.abs(hz - problem.band_hz) <= 1e-9 * problem.band_hz)):  # rounding decides
        selected = np.flatnonzero(sends[at])
        hz[at] = 0.0 if problem.fits(selected, ways[at, selected] - 1) else np.inf
    good &= hz <= problem.band_hz
    ways, number = ways[good], number[good]
    cost = _total(ways, np.broadcast_to(problem.cost, (choices, devices)))
    objective = (1.0 / number + problem.gamma / number**2) * cost + problem.gamma / number**2 * _total(
        ways, problem.noise
    )
    return float(objective.min(initial=np.inf))


def _total(ways: np.ndarray, values: Floats) -> Floats:
    """Sums of `values`, shape (choices, devices), over the devices of each row that send."""
    devices = values.shape[1]
    with_none = np.concatenate([np.zeros((1, devices)), values])
    total: Floats = with_none[ways, np.arange(devices)].sum(axis=1)
    return total


def table_bits(problem: BitsProblem) -> float:
    """The same where bandwidths are whole numbers, without constraints, for many devices: the textbook's table of the
    least cost by the number of devices and their bandwidth, filled anew for every M."""
    choices, devices = problem.noise.shape
    band, best = int(problem.band_hz), np.inf
    for number in range(1, devices + 1):
        costs = problem.cost + problem.gamma / (number + problem.gamma) * problem.noise
        table = np.full((number + 1, band + 1), np.inf)  # of so many devices on exactly so many Hz
        table[0, 0] = 0.0
        for device in range(devices):
            before = table.copy()
            for choice in range(choices):
                hz = problem.needed_hz[choice, device]
                if hz <= band:
                    moved = before[:-1, : band + 1 - int(hz)] + costs[choice, device]
                    np.minimum(table[1:, int(hz) :], moved, out=table[1:, int(hz) :])
        best = min(best, (1.0 / number + problem.gamma / number**2) * float(table[number].min()))
    return best
