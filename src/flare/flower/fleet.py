"""Which node is which device, for as long as a run lasts.

Flower names nodes by random numbers; schedules, memories and records go by devices counted from 0. A node may say which
device it is (in simulation: its partition); one that does not gets the next free number when it is first seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import numpy as np

from flare.flower.faults import Faults
from flare.flower.resources import MAX_BPS, MIN_BPS, Resources, snr_of_rate
from flare.wireless.rate import rate_bps

Value = TypeVar("Value")

ROUNDS_KEPT = 5
"""Rounds for which an answer counts: clocks drift, and a node that looks too slow is not asked to send and would stay
so."""
MAX_DELAY_S, MAX_UPLOAD_S = 1e10, 1e9
"""No clock is further from the server's, and no upload takes longer: what says otherwise is not believed."""
SURE_S = 2.5
"""An upload that took so long says how fast the uplink is; a shorter one, that it is not slower. Flower looks for
answers every 0.5 s on the node, every `poll_s` on the server and every 0.5 s for the arrays of one: half of this."""


@final
@dataclass
class Uplink:
    """What is known of a node's uplink, from when its answers were made and when they were here.

    An answer says when it was made, by the node's clock. From then until it is here, by the server's clock, is its
    delay: the difference of the two clocks, what any answer takes, and the upload. The waiting for Flower to fetch the
    question, the start of the app, the way of the model to the node and its work came before. An answer without a model
    has the same delay but for the upload, so the least of those in the last rounds is taken off. What is left beside
    the upload is waiting for the next look of Flower, which only makes a rate look smaller: the greatest counts. Under
    a loop of Flower's own, long uploads look up to twice as long as they are: it looks for announced arrays after 1, 3,
    7 and 15 s. `FlareStrategy.start` has them looked for in even pauses (`backoff.py`).
    """

    delays_s: dict[int, float] = field(default_factory=dict)  # round -> least delay of an answer without a model
    rates: dict[int, tuple[float, bool]] = field(default_factory=dict)  # round -> bit/s on the whole band, whether sure

    def asked(self, index: int, delay_s: float) -> None:
        """A question without a model was answered in a round, with such a delay."""
        self.delays_s = _of_last_rounds(self.delays_s, index)
        if abs(delay_s) <= MAX_DELAY_S:  # not of nan
            self.delays_s[index] = min(delay_s, self.delays_s.get(index, math.inf))

    def upload_s(self, index: int, delay_s: float) -> float | None:
        """How long an update of such a delay took to come; None: it cannot be told."""
        self.delays_s = _of_last_rounds(self.delays_s, index)
        upload_s = delay_s - min(self.delays_s.values(), default=math.inf)
        return upload_s if 0.0 < upload_s <= MAX_UPLOAD_S else None  # None of nan too

    def sent(self, index: int, bits: float, delay_s: float, *, share: Share | None = None) -> None:
        """An update of so many bits came with such a delay; `share` is the part of the band that the network gave it,
        None where it gave all that there is."""
        upload_s = self.upload_s(index, delay_s)
        if upload_s is None:
            return
        rate = bits / upload_s if share is None else share.on_whole_band(bits / upload_s)
        differ_s = max(self.delays_s.values()) - min(self.delays_s.values())
        self.rates[index] = (min(max(rate, MIN_BPS), MAX_BPS), upload_s >= max(SURE_S, 2.0 * differ_s))

    def rate_bps(self, index: int, assumed_bps: float) -> float:
        """The best guess in a round; 0: none. `assumed_bps` counts until an upload took long enough to be sure of."""
        self.rates = _of_last_rounds(self.rates, index)
        if not self.rates:
            return 0.0
        best = max(rate for rate, _ in self.rates.values())
        return best if any(sure for _, sure in self.rates.values()) else max(best, assumed_bps)


@dataclass(frozen=True)
class Share:
    """A part of the band that a network really gives a node, and no more."""

    bandwidth_hz: float
    total_bandwidth_hz: float

    def on_whole_band(self, rate: float) -> float:
        """The rate that a node would have on the whole band which has this one on its share."""
        snr_hz = snr_of_rate(np.array([rate]), self.bandwidth_hz)
        return float(rate_bps(np.array([self.total_bandwidth_hz]), snr_hz)[0])


def _of_last_rounds(values: dict[int, Value], index: int) -> dict[int, Value]:
    return {then: value for then, value in values.items() if index - then <= ROUNDS_KEPT}


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
            "delays_s": {str(node): list(each.delays_s.items()) for node, each in known.items()},
            "uplink": {str(node): [(then, *rate) for then, rate in each.rates.items()] for node, each in known.items()},
        }

    def restore(self, numbers: Any) -> None:
        """From a checkpoint; ValueError where it has no fleet. What older versions measured of uplinks is not read."""
        try:
            self.device_of = {int(node): int(device) for node, device in numbers["device_of"].items()}
            self.size = int(numbers["size"])
            if self.size != numbers["size"]:
                raise ValueError(f"{numbers['size']} is no number of devices")
            for node, delays in numbers.get("delays_s", {}).items():
                self.uplink(int(node)).delays_s = {int(then): _finite(delay_s) for then, delay_s in delays}
            for node, rates in numbers.get("uplink", {}).items():
                told = {int(then): (_finite(rate, MIN_BPS), bool(sure)) for then, rate, sure in rates}
                self.uplink(int(node)).rates = told
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"what it says of the fleet cannot be read ({error})") from None
        devices = self.device_of.values()
        if len(set(devices)) < len(devices) or not all(0 <= device < self.size for device in devices):
            raise ValueError(f"its fleet of {self.size} devices has nodes for devices {sorted(devices)}; each has one")


def _finite(value: Any, least: float = -math.inf) -> float:
    """A number of a checkpoint; ValueError where it cannot be one."""
    number = float(value)
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{number} is no delay or rate")
    return number
