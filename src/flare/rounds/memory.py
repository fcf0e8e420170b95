"""What a policy remembers from round to round, kept for devices that come and go.

A policy hands over arrays by name. Those whose name begins with "device_" have one entry for each device of the round
and are kept by device: the policy is given the entries of the devices that are there, in their order, whoever was there
before. Others are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from flare.rounds.observation import Observation
from flare.scheduling.registry import OF_DEVICES
from flare.types import Indices

Array = NDArray[Any]
_PREFIX, _KNOWN_PREFIX = "memory.", "memory_known."


@final
@dataclass(frozen=True, eq=False)
class PolicyMemory:
    """`arrays` by name, those of devices over all devices, shape (devices, ...); `known` says, for each of these, which
    devices have an entry, shape (devices,)."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    known: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # In one order and layout, however the policy handed it over: it shall find it so after a resume, too.
        kept = {name: np.asarray(self.arrays[name], order="C") for name in sorted(self.arrays)}
        object.__setattr__(self, "arrays", kept)

    def recall(self, seen: Observation) -> dict[str, Array]:
        """What the policy is given, nothing in its first round. A newcomer has the middle value of the others that are
        there; an array of which no device that is there has an entry is left out."""
        recalled = {}
        for name, values in self.arrays.items():
            rows = _rows(values, self.known[name], seen.devices) if name in self.known else values
            if rows is not None:
                recalled[name] = rows
        return recalled

    def after(self, seen: Observation, told: Mapping[str, Array]) -> PolicyMemory:
        """The memory when a policy has handed over `told`; where that is nothing, it stays as it is."""
        if not told:
            return self
        arrays, known = {}, {}
        for name, each in told.items():
            arrays[name] = np.asarray(each)
            if name.startswith(OF_DEVICES):
                arrays[name], known[name] = self._with_rows(name, arrays[name], seen)
        return PolicyMemory(arrays, known)

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint."""
        named = {f"{_PREFIX}{name}": each for name, each in self.arrays.items()}
        return named | {f"{_KNOWN_PREFIX}{name}": each for name, each in self.known.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> PolicyMemory:
        """What `to_arrays` took apart, among other arrays."""

        def below(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}

        return cls(below(_PREFIX), below(_KNOWN_PREFIX))

    def _with_rows(self, name: str, rows: Array, seen: Observation) -> tuple[Array, NDArray[np.bool_]]:
        """The array over all devices with new rows for those that are there, and who has an entry."""
        everyone = np.zeros((seen.num_devices, *rows.shape[1:]), dtype=rows.dtype)
        known = np.zeros(seen.num_devices, dtype=bool)
        before = self.arrays.get(name)
        if before is not None and before.shape[1:] == rows.shape[1:]:
            everyone[: len(before)] = before
            known[: len(before)] = self.known[name]
        everyone[seen.devices] = rows
        known[seen.devices] = True
        return everyone, known


def _rows(values: Array, known: NDArray[np.bool_], devices: Indices) -> Array | None:
    """The entries of the devices, of a newcomer the middle value of the others'; None where all are newcomers."""
    has = np.zeros(len(devices), dtype=bool)
    old = devices < len(known)
    has[old] = known[devices[old]]
    if not has.any():
        return None
    rows = np.empty((len(devices), *values.shape[1:]), dtype=values.dtype)
    rows[has] = values[devices[has]]
    rows[~has] = np.sort(rows[has], axis=0)[np.count_nonzero(has) // 2]
    return rows
