"""What local steps cost devices in time and energy: by their processors, or by the speed that they measured."""

from __future__ import annotations

import numpy as np

from flare.learning.methods.base import Sizes
from flare.rounds.base_station import BaseStation
from flare.rounds.observation import Observation
from flare.types import Floats
from flare.wireless.compute import time_and_energy


def computing(
    station: BaseStation, seen: Observation, tau: Floats, sizes: Sizes | None = None
) -> tuple[Floats, Floats]:
    """Seconds and joule that `tau` local steps take the devices that are there, shape (present,) each.

    `sizes` says which devices train a part of the model. A device that measured how fast it trains takes as long as
    that says, and every second of it its processor's full power; another takes the cycles of the settings, Eq. (4).
    """
    wireless, steps = station.config.wireless, tau * station.method.step_cost
    samples: Floats | float = seen.num_samples if station.method.needs_gradients else 0.0  # each once, beside the steps
    if sizes is not None:
        steps = steps * sizes.work
    compute_s, energy_j = time_and_energy(
        steps + samples / wireless.batch_size,
        wireless.cycles_per_sample,
        wireless.batch_size,
        seen.cpu_hz,
        wireless.capacitance,
    )
    if seen.speeds is None:
        return compute_s, energy_j
    measured_s = seen.speeds.compute_s(tau, samples)
    known = np.isfinite(measured_s)
    measured_j = wireless.capacitance * measured_s * seen.cpu_hz**3  # f cycles a second, capacitance x f^2 for each
    return np.where(known, measured_s, compute_s), np.where(known, measured_j, energy_j)
