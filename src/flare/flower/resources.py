"""What a node says of itself, and what of that is believed.

A node reports, in a MetricRecord named "resources", its local steps, processor speed and transmit power, of its channel
either the power gain or the uplink rate that was measured, and how fast it trains where it measures that. Every number
must lie in a range that a device can have: beyond, it is a slip of the unit, a fault or a lie, and the node is left out
of the round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord

from flare.config import WirelessConfig
from flare.flower.speed import Speed
from flare.rounds import Observation
from flare.rounds.observation import Speeds
from flare.types import Floats
from flare.units import db_to_linear, dbm_per_mhz_to_watt_per_hz
from flare.wireless.cell import RESOURCES
from flare.wireless.rate import LN2, snr_hz

MAX_BPS_PER_HZ = 30.0
"""A rate above this many bit/s for each Hz counts as this many: no radio has more, and 2 to that power is finite."""

MIN_BPS, MAX_BPS = 1.0, 1e13
# Name -> (least, greatest, whether whole). A channel does not amplify; no device of a cell sends with more than 100 W.
_RANGES = {
    "cpu_hz": (1e6, 1e14, False),
    "power_w": (1e-9, 100.0, False),
    "gain_db": (-300.0, 0.0, False),
    "uplink_bps": (MIN_BPS, MAX_BPS, False),
    "device": (0.0, 1e7, True),
    "compute_share": (1e-6, 1.0, False),
    "num_samples": (1.0, 1e12, True),
    "samples_per_s": (1e-6, 1e12, False),
    "speed_spread": (0.0, 1e6, False),
    "batch_samples": (1.0, 1e9, False),
    "setup_s": (0.0, 1e6, False),
}
LABEL_COUNTS = "label_counts"
MAX_LABELS = 100_000
_OF_SPEED = ("speed_spread", "batch_samples", "setup_s")


@dataclass(frozen=True)
class Resources:
    """A node's resources, each in its range; of gain and uplink rate one at least is there."""

    tau: float
    cpu_hz: float
    power_w: float
    gain_db: float | None
    uplink_bps: float | None
    device: int | None  # which device of the cell it says to be
    num_samples: float | None = None  # training samples that it holds
    speed: Speed | None = None  # None: it does not say, and its processor speed counts
    compute_share: float | None = None  # of the deadline, by which it chose its steps; None: they are fixed
    label_counts: tuple[float, ...] | None = None  # samples that it holds of each label, from 0 on, where it is asked


def read_resources(answer: Message, max_steps: int, *, needs_samples: bool = False, max_labels: int = 0) -> Resources:
    """The resources in a node's answer; ValueError says what is missing or cannot be. Of labels it may tell of so many;
    where it was not asked for any, they are left alone."""
    said = answer.content.get(RESOURCES)
    if not isinstance(said, MetricRecord):
        raise ValueError(f"its answer has no record '{RESOURCES}'")
    ranges = _RANGES | {"tau": (1.0, float(max_steps), True)}
    values = {name: _number(name, said[name], *limits) for name, limits in ranges.items() if name in said}
    for name in ("tau", "cpu_hz", "power_w", *(["num_samples"] if needs_samples else [])):
        if name not in values:
            raise ValueError(f"{name} is missing")
    if "gain_db" not in values and "uplink_bps" not in values:
        raise ValueError("gain_db and uplink_bps are both missing; one is needed")
    speed, device = _speed(values), values.get("device")
    counts = _label_counts(said, max_labels) if max_labels else None
    return Resources(
        tau=values["tau"],
        cpu_hz=values["cpu_hz"],
        power_w=values["power_w"],
        gain_db=values.get("gain_db"),
        uplink_bps=values.get("uplink_bps"),
        device=None if device is None else int(device),
        num_samples=_samples(values.get("num_samples"), counts),
        speed=speed,
        compute_share=values.get("compute_share"),
        label_counts=counts,
    )


def _samples(told: float | None, counts: tuple[float, ...] | None) -> float | None:
    """How many samples a node holds, where it tells that; ValueError where its labels say otherwise."""
    if counts is None:
        return told
    number = _number("the sum of label_counts", sum(counts), *_RANGES["num_samples"])
    if told is not None and told != number:
        raise ValueError(f"num_samples is {told:g}, and label_counts add up to {number:g}")
    return number


def _label_counts(said: MetricRecord, max_labels: int) -> tuple[float, ...]:
    """How many samples of each label a node holds; ValueError where that is missing or cannot be."""
    told = said.get(LABEL_COUNTS)
    if told is None:
        raise ValueError(
            f"{LABEL_COUNTS} is missing, and the run has devices tell their labels (data.share_labels): an older "
            "version of this package on the node cannot; bring it up to date"
        )
    if not isinstance(told, list) or not 0 < len(told) <= max_labels:
        what = f"has {len(told):,} numbers" if isinstance(told, list) else f"is {str(told)[:40]}"
        raise ValueError(f"{LABEL_COUNTS} {what}; it must be a list of up to {max_labels:,}, with so many devices")
    return tuple(_number(LABEL_COUNTS, each, 0.0, 1e12, True) for each in told)


def _speed(values: Mapping[str, float]) -> Speed | None:
    """The speed of training among what a node says; ValueError where it says a part of it only."""
    if "samples_per_s" not in values:
        return None
    for name in _OF_SPEED:
        if name not in values:
            raise ValueError(f"samples_per_s is there, and {name} is missing; both are needed")
    return Speed(values["samples_per_s"], values["speed_spread"], values["batch_samples"], values["setup_s"])


def observation(said: Mapping[int, Resources], num_devices: int, config: WirelessConfig) -> Observation:
    """What the nodes report, by the devices that they are, in ascending order, of a fleet of `num_devices`."""
    resources = list(said.values())

    def every(values: Iterable[float | None]) -> Floats:
        return np.array([math.nan if value is None else value for value in values], dtype=np.float64)

    return Observation(
        devices=np.array(list(said), dtype=np.intp),
        num_devices=num_devices,
        tau=every(each.tau for each in resources),
        cpu_hz=every(each.cpu_hz for each in resources),
        snr_hz=channel_hz(resources, config),
        power_w=every(each.power_w for each in resources),
        num_samples=every(each.num_samples for each in resources),
        speeds=_speeds([each.speed for each in resources]),
        compute_share=every(each.compute_share for each in resources),
        rate_is_told=np.array([each.gain_db is None for each in resources], dtype=np.bool_),
        label_counts=_in_columns([each.label_counts for each in resources]),
    )


def _in_columns(told: list[tuple[float, ...] | None]) -> Floats | None:
    """The counts of all nodes, shape (nodes, labels); None where they are not told."""
    counts = [each for each in told if each is not None]
    if not counts or len(counts) < len(told):
        return None
    table = np.zeros((len(counts), max(map(len, counts))))
    for row, each in zip(table, counts, strict=True):
        row[: len(each)] = each
    return table


def _speeds(told: list[Speed | None]) -> Speeds | None:
    """The speeds of all nodes; None where none of them says its own."""
    if all(each is None for each in told):
        return None

    def every(name: str) -> Floats:
        return np.array([math.nan if each is None else getattr(each, name) for each in told])

    return Speeds(every("samples_per_s"), every("spread"), every("batch_samples"), every("setup_s"))


def channel_hz(resources: list[Resources], config: WirelessConfig) -> Floats:
    """p h^2 / N_0 of each node, shape (nodes,).

    From the gain where it is known; otherwise the value at which the whole band carries the measured rate.
    """
    noise = dbm_per_mhz_to_watt_per_hz(config.noise_dbm_per_mhz)
    power = np.array([each.power_w for each in resources])
    gain_db = np.array([math.nan if each.gain_db is None else each.gain_db for each in resources])
    rate = np.array([1.0 if each.uplink_bps is None else each.uplink_bps for each in resources])
    band = config.total_bandwidth_hz
    measured = snr_of_rate(rate, band)
    return np.where(np.isnan(gain_db), measured, snr_hz(power, db_to_linear(gain_db), noise))


def snr_of_rate(rate: Floats, bandwidth_hz: float) -> Floats:
    """p h^2 / N_0 at which a band of b carries such a rate: b (2^(rate / b) - 1), Eq. (5) solved for it."""
    return bandwidth_hz * np.expm1(LN2 * np.minimum(rate / bandwidth_hz, MAX_BPS_PER_HZ))


def _number(name: str, value: Any, least: float, greatest: float, whole: bool) -> float:
    if not isinstance(value, int | float) or not least <= value <= greatest:  # false of nan, too
        raise ValueError(f"{name} is {str(value)[:40]}; it must be a number from {least:g} to {greatest:g}")
    if whole and value != math.floor(value):
        raise ValueError(f"{name} is {value:g}; it must be a whole number")
    return float(value)
