"""What the radio channel leaves of the power that is sent: power gains h^2, plain ratios of shape (devices,).

A gain is the product of path loss, shadowing (both fixed with the device's place) and fading (new in every round).
"""

from __future__ import annotations

import numpy as np

from flare.types import Floats
from flare.units import db_to_linear


def path_gain(distance_m: Floats, law: str, exponent: float) -> Floats:
    """Path loss as a power gain, by one of the laws "exponent" (which alone reads `exponent`) and "3gpp-uma"."""
    return urban_macro_gain(distance_m) if law == "3gpp-uma" else exponent_gain(distance_m, exponent)


def exponent_gain(distance_m: Floats, exponent: float) -> Floats:
    """d^-exponent: the paper's law, 3.76 there."""
    return distance_m**-exponent


def urban_macro_gain(distance_m: Floats) -> Floats:
    """3GPP urban macro: a path loss of 128.1 + 37.6 log10(d in km) dB.

    3GPP TR 36.942, clause 4.5.2, at a 2 GHz carrier with the antenna 15 m above the roofs; the same line is in
    TR 36.814, annex A.
    """
    loss_db = 128.1 + 37.6 * np.log10(distance_m * 1e-3)
    return db_to_linear(-loss_db)


def shadowing_gain(num_devices: int, std_db: float, *, rng: np.random.Generator) -> Floats:
    """Log-normal shadowing: normal in dB with mean zero."""
    return db_to_linear(std_db * rng.standard_normal(num_devices))


def rayleigh_gain(num_devices: int, *, rng: np.random.Generator) -> Floats:
    """Rayleigh fading: |h|^2 of a unit complex normal h, which is exponential with mean one."""
    return rng.standard_exponential(num_devices)


def rician_gain(num_devices: int, k_factor: float, *, rng: np.random.Generator) -> Floats:
    """Rician fading with mean one: |sqrt(K/(K+1)) + sqrt(1/(K+1)) z|^2 with z unit complex normal.

    `k_factor` is K, the power of the direct path over the scattered power, a plain ratio; zero is Rayleigh.
    """
    direct = np.sqrt(k_factor / (k_factor + 1.0))
    scattered = np.sqrt(0.5 / (k_factor + 1.0)) * rng.standard_normal((num_devices, 2))  # (devices, re and im)
    gain: Floats = (direct + scattered[:, 0]) ** 2 + scattered[:, 1] ** 2
    return gain
