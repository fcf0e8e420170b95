"""Where the devices are, seen from the base station."""

from __future__ import annotations

import math

import numpy as np

from flare.types import Floats


def place_devices(
    num_devices: int, min_distance_m: float, max_distance_m: float, *, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Distance in metre, uniform between the limits, and angle in radian, uniform over the circle; both (devices,).

    Uniform in distance, not in area: devices stand denser near the base station. Device i draws the same place
    however many devices follow it.
    """
    uniform = rng.random((num_devices, 2))  # (devices, distance and angle)
    distance_m = min_distance_m + (max_distance_m - min_distance_m) * uniform[:, 0]
    return distance_m, 2.0 * math.pi * uniform[:, 1]
