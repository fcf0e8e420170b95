"""What devices hold back: what a codec lost of the vectors that they sent, which they add to the next ones.

Only codecs with error feedback leave something. In a simulation it is part of the state of a run, and of its
checkpoints; a node of Flower keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

import torch
from torch import Tensor


class Part(IntEnum):
    """Which of its vectors a device or the base station sends: the number sets apart the random draws of each
    (`flare.uplink.keys`)."""

    UPDATE = 0
    GRADIENT = 1  # of all its data, before it trains (FedLin)
    CONTROL = 2  # the change of its control variate (SCAFFOLD)
    MODEL = 3  # from here on what the base station broadcasts: the global weights,
    COMMON_GRADIENT = 4  # the mean of the gradients,
    COMMON_CONTROL = 5  # its own control variate

    @property
    def word(self) -> str:
        """In messages and checkpoints."""
        return self.name.lower()

    @property
    def goes_down(self) -> bool:
        """Whether the base station sends it, and not a device."""
        return self >= Part.MODEL


@final
@dataclass(frozen=True, eq=False)
class Residuals:
    """For each part a vector of shape (weights,) by device; nothing for devices that never sent."""

    rows: Mapping[Part, Mapping[int, Tensor]] = field(default_factory=dict)

    def of(self, part: Part) -> Mapping[int, Tensor]:
        """The vectors of a part by device."""
        return self.rows.get(part, {})

    def after(self, part: Part, kept: Mapping[int, Tensor]) -> Residuals:
        """What is held back when some devices have sent; neither this nor its vectors are written to."""
        return Residuals({**self.rows, part: {**self.of(part), **kept}}) if kept else self

    def to_tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: the devices of each part, ascending, and their vectors as rows."""
        tensors = {}
        for part, rows in self.rows.items():
            devices = sorted(rows)
            tensors[f"{part.word}.devices"] = torch.tensor(devices, dtype=torch.int64)
            tensors[f"{part.word}.rows"] = torch.stack([rows[device].cpu() for device in devices])
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Residuals:
        """What `to_tensors` took apart; ValueError where it cannot be that. Every row is a copy: a view would keep all
        rows alive as long as one is."""
        found = {}
        for part in Part:
            devices, rows = (tensors.get(f"{part.word}.{name}") for name in ("devices", "rows"))
            if devices is None and rows is None:
                continue
            if devices is None or rows is None:
                raise ValueError(f"of uplink.{part.word} it has the devices or their rows, and not both")
            if devices.dtype != torch.int64 or devices.ndim != 1 or rows.ndim != 2 or len(rows) != len(devices):
                raise ValueError(
                    f"its uplink.{part.word} has rows of shape {tuple(rows.shape)} for devices of shape "
                    f"{tuple(devices.shape)}; it must have a row for each device"
                )
            found[part] = {device: row.clone() for device, row in zip(devices.tolist(), rows, strict=True)}
            if len(found[part]) != len(devices):
                raise ValueError(f"its uplink.{part.word} has two rows of one device")
        return cls(found)
