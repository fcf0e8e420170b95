"""Which node is which device, for as long as a run lasts.

Flower names nodes by random numbers; schedules, memories and records go by devices counted from 0. A node may say which
device it is (in simulation: its partition); one that does not gets the next free number when it is first seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from flare.flower.faults import Faults
from flare.flower.resources import MAX_BPS, MIN_BPS, Resources

_ROUNDS_A_RATE_COUNTS = 5


@final
@dataclass
class Uplink:
    """What is known of a node's uplink: the least time that a question without a model took, and the last rates.

    Whatever else happens between question and answer only makes a rate look smaller: the greatest is the best guess. A
    rate counts for some rounds only, for a node that looks too slow is not asked to send, and would stay so.
    """

    overhead_s: float = math.inf
    rates: dict[int, float] = field(default_factory=dict)  # round -> bit/s

    def asked(self, after_s: float) -> None:
        """A question without a model was answered after so long."""
        self.overhead_s = min(self.overhead_s, after_s)

    def upload_s(self, transfer_s: float) -> float | None:
        """How long an update took to come, work and overhead aside; None: it cannot be told."""
        return transfer_s - self.overhead_s if transfer_s > self.overhead_s else None  # None of nan too

    def sent(self, index: int, bits: float, transfer_s: float) -> None:
        """An update of so many bits took so long, work aside."""
        if (upload_s := self.upload_s(transfer_s)) is not None:
            self.rates[index] = bits / upload_s

    def rate_bps(self, index: int) -> float:
        """The best guess in a round; 0: none."""
        self.rates = {then: rate for then, rate in self.rates.items() if index - then <= _ROUNDS_A_RATE_COUNTS}
        best = max(self.rates.values(), default=0.0)
        return min(max(best, MIN_BPS), MAX_BPS) if best else 0.0


@final
@dataclass
class Fleet:
    """The device that each node is, and how fast updates came in from it."""

    max_devices: int  # a node may claim a device below this number
    device_of: dict[int, int] = field(default_factory=dict)
    uplinks: dict[int, Uplink] = field(default_factory=dict)
    size: int = 0
    """One more than the greatest device seen so far, those that are gone included."""

    def enrol(self, said: Mapping[int, Resources], faults: Faults) -> dict[int, int]:
        """The node of each device in this round, in the order of the devices.

        Where two nodes claim one device, it is the one that has it already, or else the one with the smaller id. A node
        takes over the device of another that did not answer: a SuperNode that is started again has a new id.
        """
        present: dict[int, int] = {}
        taken = set(self.device_of.values())
        free = (each for each in itertools.count() if each not in taken)
        for node in sorted(said, key=lambda node: self._rank(node, said[node].device)):
            claimed = said[node].device
            device = claimed if claimed is not None else self.device_of[node] if node in self.device_of else next(free)
            if claimed is not None and claimed >= self.max_devices:
                faults.note(node, "query", f"claims device {claimed}, but wireless.num_devices is {self.max_devices}")
            elif device in present:
                faults.note(node, "query", f"claims device {device}, which is node {present[device]}")
            else:
                present[device] = node
                taken.add(device)
        self._take_over(present)
        return dict(sorted(present.items()))

    def _rank(self, node: int, claimed: int | None) -> tuple[bool, bool, bool, int]:
        """In which order nodes are served: who keeps the device it has, then other known nodes, then newcomers."""
        has = self.device_of.get(node)
        keeps = has is not None and claimed in (None, has)
        return (not keeps, has is None, claimed is None, node)

    def _take_over(self, present: Mapping[int, int]) -> None:
        """The nodes in `present` have their devices from now on, and others no longer."""
        for node in [each for each, device in self.device_of.items() if present.get(device, each) != each]:
            del self.device_of[node]
            self.uplinks.pop(node, None)
        self.device_of.update((node, device) for device, node in present.items())
        self.size = max(self.size, 1 + max(present, default=-1))

    def uplink(self, node: int) -> Uplink:
        """What is known of a node's uplink."""
        return self.uplinks.setdefault(node, Uplink())

    def to_numbers(self) -> dict[str, Any]:
        """For a checkpoint."""
        known = {node: each for node, each in self.uplinks.items() if node in self.device_of}
        return {
            "size": self.size,
            "device_of": {str(node): device for node, device in self.device_of.items()},
            "overhead_s": {str(node): each.overhead_s for node, each in known.items() if each.overhead_s < math.inf},
            "rates": {str(node): list(each.rates.items()) for node, each in known.items()},
        }

    def restore(self, numbers: Any) -> None:
        """From a checkpoint; ValueError where it has no fleet."""
        try:
            self.device_of = {int(node): int(device) for node, device in numbers["device_of"].items()}
            self.size = int(numbers["size"])
            for node, overhead_s in numbers["overhead_s"].items():
                self.uplink(int(node)).overhead_s = float(overhead_s)
            for node, rates in numbers["rates"].items():
                self.uplink(int(node)).rates = {int(then): float(rate) for then, rate in rates}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"what it says of the fleet cannot be read ({error})") from None
        devices = self.device_of.values()
        if len(set(devices)) < len(devices) or not all(0 <= device < self.size for device in devices):
            raise ValueError(f"its fleet of {self.size} devices has nodes for devices {sorted(devices)}; each has one")
