"""Which node is which device, for as long as a run lasts.

Flower names nodes by random numbers; schedules, memories and records go by devices counted from 0. A node may say which
device it is (in simulation: its partition); one that does not gets the next free number when it is first seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from flare.flower.faults import Faults
from flare.flower.resources import Resources


@final
@dataclass
class Fleet:
    """The device that each node is, and the uplink rate at which its last update came in, in bit/s."""

    most_devices: int  # a node may claim a device below this number
    device_of: dict[int, int] = field(default_factory=dict)
    uplink_bps: dict[int, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Devices that have been seen so far, those that are gone included."""
        return 1 + max(self.device_of.values(), default=-1)

    def enrol(self, said: Mapping[int, Resources], faults: Faults) -> dict[int, int]:
        """The node of each device in this round, in the order of the devices.

        Where two nodes claim one device, it is the one that has it already, or else the one with the smaller id. A node
        takes over the device of another that did not answer: a SuperNode that is started again has a new id.
        """
        present: dict[int, int] = {}
        for node in sorted(said, key=lambda node: (node not in self.device_of, node)):
            device = self._device(node, said[node].device, present, faults)
            if device is not None:
                present[device] = node
        for device, node in present.items():
            for other in [each for each, held in self.device_of.items() if held == device and each != node]:
                del self.device_of[other]
                self.uplink_bps.pop(other, None)
            self.device_of[node] = device
        return dict(sorted(present.items()))

    def _device(self, node: int, claimed: int | None, present: Mapping[int, int], faults: Faults) -> int | None:
        if claimed is not None and claimed >= self.most_devices:
            faults.note(node, "query", f"claims device {claimed}, but wireless.num_devices is {self.most_devices}")
            return None
        device = claimed
        if device is None:
            taken = {*self.device_of.values(), *present}
            device = self.device_of.get(node, next(free for free in range(len(taken) + 1) if free not in taken))
        if device in present:
            faults.note(node, "query", f"claims device {device}, which is node {present[device]}")
            return None
        return device

    def to_numbers(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "device_of": {str(node): device for node, device in self.device_of.items()},
            "uplink_bps": {str(node): rate for node, rate in self.uplink_bps.items()},
        }

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self.device_of = {int(node): int(device) for node, device in numbers["device_of"].items()}
        self.uplink_bps = {int(node): float(rate) for node, rate in numbers["uplink_bps"].items()}
