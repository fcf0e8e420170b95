"""What the devices report when a round begins: drawn by a simulated cell, or told by the nodes of a fleet."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from flare.config import WirelessConfig
from flare.types import Flags, Floats, Indices
from flare.wireless.rate import downlink_snr_hz

Arrays = TypeVar("Arrays", bound=Any)
"""A dataclass of arrays, in each of which a row is a device, and of such dataclasses; the rest is of all devices."""


@dataclass(frozen=True, eq=False)
class Speeds:
    """How fast devices train, as each measured it with its own model and batches; arrays of shape (present,), nan where
    one did not measure."""

    samples_per_s: Floats
    spread: Floats  # standard deviation of the time of a step over its mean
    batch_samples: Floats  # samples of a local step
    setup_s: Floats  # of a round beside its steps: making the model, loading weights and data

    def compute_s(self, steps: Floats, samples: Floats | float = 0.0) -> Floats:
        """How long a round takes with so many local steps, and so many samples beside them."""
        return self.setup_s + (steps * self.batch_samples + samples) / self.samples_per_s


@dataclass(frozen=True, eq=False)
class Observation:
    """The devices that are there, and what each of them can do; arrays of shape (present,).

    Devices are counted from 0 over the whole cell or fleet; one that is silent this round keeps its number.
    """

    devices: Indices  # ascending
    num_devices: int  # of the cell; of a fleet, all that were ever seen
    tau: Floats  # local steps that it can do before the deadline
    cpu_hz: Floats
    snr_hz: Floats  # p h^2 / N_0
    power_w: Floats
    num_samples: Floats  # training samples that it holds; nan: it does not say
    label_counts: Floats | None = None  # (present, classes), where the run shares them
    mean_snr_hz: Floats | None = None  # snr_hz without fading; None where nothing fades, or the mean is not known
    speeds: Speeds | None = None  # None: nobody measured
    compute_share: Floats | None = None  # of the deadline, by which a node chose its steps; nan, None: they are fixed
    rate_is_told: Flags | None = None  # by a node that does not know its gain: it is the same on every band
    voters: Indices | None = None  # connected nodes: their updates say how long one usually is; None: all heard so far

    @property
    def num_present(self) -> int:
        """How many devices are there."""
        return len(self.devices)

    def downlink_snr_hz(self, wireless: WirelessConfig) -> Floats:
        """P_bs h^2 / N_0 with which the devices hear the base station of a cell, shape (present,)."""
        return downlink_snr_hz(self.snr_hz, self.power_w, wireless.downlink_power_dbm)

    def only(self, places: Indices) -> Observation:
        """Those of the devices that have these places here, counted from 0."""
        return replace(_rows(replace(self, voters=None), places), voters=self.voters)

    def over_all(self, values: Floats) -> Floats:
        """Values of the present devices over all devices, shape (devices,); 0 of those that are silent."""
        everyone = np.zeros(self.num_devices)
        everyone[self.devices] = values
        return everyone


def _rows(of: Arrays, places: Indices) -> Arrays:
    """The same of some rows."""
    values = {each.name: getattr(of, each.name) for each in fields(of)}
    arrays = {name: each[places] for name, each in values.items() if isinstance(each, np.ndarray)}
    groups = {name: _rows(each, places) for name, each in values.items() if is_dataclass(each)}
    changed: Arrays = replace(of, **arrays, **groups)
    return changed
