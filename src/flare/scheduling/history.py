"""What a base station has learned of each device, for policies that ask for `history`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import final

import numpy as np

from flare.types import Floats, Indices


@final
@dataclass(frozen=True, eq=False)
class History:
    """Arrays of shape (devices,)."""

    times_sent: Floats
    rounds_since_sent: Floats
    last_loss: Floats
    mean_squared_loss: Floats
    update_norm: Floats
    num_samples: Floats
    compute_s: Floats
    upload_s: Floats
    energy_j: Floats
    label_counts: Floats | None = None

    @property
    def num_devices(self) -> int:
        return len(self.times_sent)

    @classmethod
    def empty(
        cls, num_devices: int, *, num_samples: Floats | None = None, label_counts: Floats | None = None
    ) -> History:
        zeros, unknown = np.zeros(num_devices), np.full(num_devices, math.nan)
        return cls(
            zeros,
            np.full(num_devices, math.inf),
            unknown,
            unknown,
            unknown,
            unknown if num_samples is None else num_samples,
            unknown,
            unknown,
            zeros,
            label_counts,
        )

    def of(self, devices: Indices) -> History:
        return History(
            **{
                each.name: None if getattr(self, each.name) is None else getattr(self, each.name)[devices]
                for each in fields(self)
            }
        )
