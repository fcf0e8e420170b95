"""What a policy remembers from round to round, kept for devices that come and go.

A policy hands over arrays. Those with one entry for each device of the round are kept by device: the policy is given
the entries of the devices that are there, in their order, whoever was there before. Others are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from flare.rounds.observation import Observation

Array = NDArray[Any]


@final
@dataclass(frozen=True, eq=False)
class PolicyMemory:
    """`of_devices` has arrays of shape (devices, ...), `known` says whose entries they hold, `of_run` has the rest."""

    of_devices: Mapping[str, Array] = field(default_factory=dict)
    of_run: Mapping[str, Array] = field(default_factory=dict)
    known: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def recall(self, seen: Observation) -> dict[str, Array]:
        """What the policy is given: nothing in its first round; for a newcomer the middle value of the others."""
        known = self._known(seen.num_devices)[seen.devices]
        if self.of_devices and not known.any():
            return {}
        rows = {name: _rows(values, seen.devices, known) for name, values in self.of_devices.items()}
        return rows | dict(self.of_run)

    def after(self, seen: Observation, told: Mapping[str, Array]) -> PolicyMemory:
        """The memory when a policy has handed over `told`; where that is nothing, it stays as it is."""
        if not told:
            return self
        mine = {name: each for name, each in told.items() if np.ndim(each) and len(each) == seen.num_present}
        known = self._known(seen.num_devices)
        known[seen.devices] = True
        of_devices = {name: self._with(name, each, seen) for name, each in mine.items()}
        return PolicyMemory(of_devices, {name: each for name, each in told.items() if name not in mine}, known)

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint."""
        arrays = {f"memory.device.{name}": each for name, each in self.of_devices.items()}
        arrays |= {f"memory.run.{name}": each for name, each in self.of_run.items()}
        return arrays | ({"memory_known": self.known} if len(self.known) else {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> PolicyMemory:
        """What `to_arrays` took apart, among other arrays."""

        def below(part: str) -> dict[str, Array]:
            return {name.removeprefix(part): each for name, each in arrays.items() if name.startswith(part)}

        known = arrays.get("memory_known", np.zeros(0, dtype=bool))
        return cls(below("memory.device."), below("memory.run."), known)

    def _known(self, num_devices: int) -> NDArray[np.bool_]:
        known = np.zeros(num_devices, dtype=bool)
        known[: len(self.known)] = self.known
        return known

    def _with(self, name: str, rows: Array, seen: Observation) -> Array:
        """The array over all devices with new rows for those that are there."""
        rows = np.asarray(rows)
        if seen.num_present == seen.num_devices:
            return rows
        before = self.of_devices.get(name)
        everyone = np.zeros((seen.num_devices, *rows.shape[1:]), dtype=rows.dtype)
        if before is not None and before.shape[1:] == rows.shape[1:]:
            everyone[: len(before)] = before
        everyone[seen.devices] = rows
        return everyone


def _rows(values: Array, devices: NDArray[np.intp], known: NDArray[np.bool_]) -> Array:
    """The entries of the devices; the middle value of those known where there is none."""
    if known.all():
        return values[devices]
    rows = np.empty((len(devices), *values.shape[1:]), dtype=values.dtype)
    rows[known] = values[devices[known]]
    rows[~known] = np.sort(rows[known], axis=0)[np.count_nonzero(known) // 2]
    return rows
