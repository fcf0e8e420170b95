"""What devices compute and send with: policies that set speeds and powers ask for it by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from flare.scheduling import checks
from flare.types import Floats, Indices


@dataclass(frozen=True, eq=False)
class Hardware:
    """Processor and radio of each device of a round; arrays of shape (devices,).

    cpu_hz        the speed of its processor, > 0: as fast as it can compute
    power_w       what it can send with, > 0
    cycles        what it has to compute this round, >= 0: `compute_s` of the round is cycles / cpu_hz
    capacitance   a cycle at f Hz takes capacitance x f^2 joule, >= 0; one number for all devices

    At another speed f a device computes for cycles / f. With another power p, its `snr_hz` is in proportion to p.
    """

    cpu_hz: Floats
    power_w: Floats
    cycles: Floats
    capacitance: float

    def __init__(self, cpu_hz: ArrayLike, power_w: ArrayLike, cycles: ArrayLike, capacitance: float) -> None:
        put = object.__setattr__
        put(self, "cpu_hz", checks.vector("cpu_hz", cpu_hz, positive=True))
        put(self, "power_w", checks.vector("power_w", power_w, positive=True))
        put(self, "cycles", checks.vector("cycles", cycles, at_least=0.0))
        put(self, "capacitance", checks.scalar("capacitance", capacitance, zero_allowed=True))
        for name in ("power_w", "cycles"):
            if len(getattr(self, name)) != len(self.cpu_hz):
                raise ValueError(
                    f"{name} of the hardware has {len(getattr(self, name))} devices, cpu_hz has {len(self.cpu_hz)}: "
                    "give one value a device"
                )

    @property
    def num_devices(self) -> int:
        """How many devices it is of."""
        return len(self.cpu_hz)

    @cached_property
    def compute_energy_j(self) -> Floats:
        """What the computing of each device takes at its full speed."""
        return self.capacitance * self.cycles * self.cpu_hz**2

    def of(self, devices: Indices) -> Self:
        """That of these devices, in this order."""
        return type(self)(self.cpu_hz[devices], self.power_w[devices], self.cycles[devices], self.capacitance)


def hardware_for(compute_s: Floats, cpu_hz: Floats, power_w: Floats, capacitance: float) -> Hardware:
    """The hardware of devices that compute for so long at their full speed."""
    return Hardware(cpu_hz, power_w, np.minimum(compute_s * cpu_hz, checks.ABSURD), capacitance)
