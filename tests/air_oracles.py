"""Over-the-air aggregation symbol by symbol: complex channels, precoders, radiated power, noise of power N_0 B.

It follows the text of `flare.uplink.air.scheme` in plain physical units and shares nothing with the fast way, which
never forms a symbol.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flare.types import Floats
from flare.uplink.air import Precoding


@dataclass(frozen=True)
class Air:
    """A cell in physical units: complex channels (devices,), power limits (devices,), N_0 and B."""

    channel: np.ndarray
    power_w: Floats
    noise_w_per_hz: float
    bandwidth_hz: float

    @property
    def snr_hz(self) -> Floats:
        return self.power_w * np.abs(self.channel) ** 2 / self.noise_w_per_hz

    @property
    def noise_w(self) -> float:
        """Power of the noise on the whole band, and so of a complex symbol of it."""
        return self.noise_w_per_hz * self.bandwidth_hz

    def white_noise(self, symbols: int, rng: np.random.Generator) -> np.ndarray:
        parts = rng.normal(scale=np.sqrt(self.noise_w / 2), size=(2, symbols))
        return parts[0] + 1j * parts[1]


def in_symbols(update: Floats) -> np.ndarray:
    """Two weights in a complex symbol, the last filled up by a zero."""
    filled = np.append(update, np.zeros(len(update) % 2))
    return filled[0::2] + 1j * filled[1::2]


def sent(air: Air, precoding: Precoding, shares: Floats, updates: Floats) -> np.ndarray:
    """What each device radiates, complex (devices, symbols), in the square root of a watt."""
    rows = []
    for channel, share, update in zip(air.channel, shares, updates, strict=True):
        precoder = np.sqrt(air.noise_w / 2) * precoding.amplitude * share / channel  # inverts size and phase
        rows.append(precoder * in_symbols(update - precoding.offset))
    return np.array(rows)


def received(air: Air, precoding: Precoding, shares: Floats, updates: Floats, noise: np.ndarray) -> Floats:
    """The mean that the base station makes of what its antenna hears, (weights,)."""
    antenna = noise + (air.channel[:, np.newaxis] * sent(air, precoding, shares, updates)).sum(axis=0)
    scaled = antenna / (np.sqrt(air.noise_w / 2) * precoding.amplitude * shares.sum())
    return precoding.offset + np.stack([scaled.real, scaled.imag], axis=1).reshape(-1)[: updates.shape[1]]
