"""A cell: devices at fixed places whose radio, processor and local steps are drawn anew for every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flare.config import WirelessConfig
from flare.rng import stream
from flare.text import html_table
from flare.types import Floats
from flare.units import db_to_linear, dbm_per_mhz_to_watt_per_hz, dbm_to_watt, human, linear_to_db
from flare.wireless.channel import path_gain, rayleigh_gain, rician_gain, shadowing_gain
from flare.wireless.compute import compute_energy_j, compute_s
from flare.wireless.geometry import place_devices
from flare.wireless.rate import snr_hz, upload_energy_j
from flare.wireless.trace import read_trace

CELLS: dict[str, WirelessConfig] = {
    "paper": WirelessConfig(),
    "paper-cifar10": WirelessConfig(payload_bits=6.4e7, cycles_per_sample=85 * 24576, deadline_s=1.5),
}
"""Cells by name: the paper's, with the payload, the cycles and the deadline of MNIST and of CIFAR-10."""
RESOURCES = "resources"
"""What a node of a fleet calls the record of what it says of itself (`flare.flower.resources`)."""


@dataclass(frozen=True, eq=False)
class CellRound:
    """What the radio and the processors allow in one round; every array has shape (devices,).

    config                  the cell's settings
    distance_m, angle_rad   where the device is, seen from the base station
    gain_db                 power gain h^2 of its channel, in dB
    cpu_hz                  speed of its processor
    tau                     local steps that it can do, whole numbers
    snr_hz                  p h^2 / N_0
    power_w                 power that it sends with
    mean_snr_hz             snr_hz without fading; None where nothing fades, and where a trace gives the gains
    """

    config: WirelessConfig
    distance_m: Floats
    angle_rad: Floats
    gain_db: Floats
    cpu_hz: Floats
    tau: Floats
    snr_hz: Floats
    power_w: Floats
    mean_snr_hz: Floats | None = None

    @cached_property
    def compute_s(self) -> Floats:
        """How long the local steps of each device take, Eq. (4)."""
        return compute_s(self.tau, self.config.cycles_per_sample, self.config.batch_size, self.cpu_hz)

    @cached_property
    def compute_energy_j(self) -> Floats:
        """What they take of energy."""
        config = self.config
        work = (self.tau, config.cycles_per_sample, config.batch_size, self.cpu_hz)
        return compute_energy_j(*work, config.capacitance)

    def upload_energy_j(self, upload_s: Floats) -> Floats:
        """Energy that each device radiates if it sends for `upload_s`, in joule; zero seconds where it does not."""
        return upload_energy_j(self.power_w, upload_s)

    def reported(self, device: int) -> dict[str, float]:
        """What a device of the cell says of itself when it is asked."""
        said = {name: float(getattr(self, name)[device]) for name in ("tau", "cpu_hz", "power_w", "gain_db")}
        return said | {"device": float(device)}


class Cell:
    """The devices of a configuration; the same seed gives the same devices and the same rounds, in whatever order.

    What a trace file holds (gains, processor speeds, local steps) is taken from it; the rest is drawn.
    """

    def __init__(self, config: WirelessConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.trace = read_trace(config.trace) if config.trace else None
        if self.trace is not None and self.trace.num_devices != config.num_devices:
            turned = self.trace.num_rounds == config.num_devices
            raise ValueError(
                f"{self.trace.path}: the trace has {self.trace.num_devices} devices, wireless.num_devices is "
                f"{config.num_devices}; set wireless.num_devices = {self.trace.num_devices}"
                + (", or transpose the trace: a row is a round, a column a device" if turned else "")
            )
        num_devices = config.num_devices
        self.distance_m, self.angle_rad = place_devices(
            num_devices, config.min_distance_m, config.max_distance_m, rng=stream(seed, "geometry")
        )
        self.shadowing = shadowing_gain(num_devices, config.shadowing_db, rng=stream(seed, "shadowing"))
        self.mean_gain = self.shadowing * path_gain(self.distance_m, config.path_loss, config.path_loss_exponent)
        self.power_w = np.full(num_devices, dbm_to_watt(config.power_dbm))
        self._mean_gain_db = linear_to_db(self.mean_gain)
        self._noise_w_per_hz = dbm_per_mhz_to_watt_per_hz(config.noise_dbm_per_mhz)
        self._mean_snr_hz = snr_hz(self.power_w, self.mean_gain, self._noise_w_per_hz)
        self._fixed_cpu_hz = None if config.cpu_every_round else self._draw_cpu_hz(stream(seed, "cpu"))
        self._fixed_tau = self._listed_tau()
        for shared in (self.distance_m, self.angle_rad, self.shadowing, self.mean_gain, self.power_w):
            shared.setflags(write=False)  # every round hands them out
        for kept in (self._mean_gain_db, self._mean_snr_hz, self._fixed_cpu_hz, self._fixed_tau):
            if kept is not None:
                kept.setflags(write=False)

    def __repr__(self) -> str:
        return f"<Cell: seed {self.seed}, " + ", ".join(f"{what} {value}" for what, value in self._facts()) + ">"

    def _repr_html_(self) -> str:
        return html_table(f"Cell of seed {self.seed}", ("what", "how much"), self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        config = self.config
        law = f"exponent {config.path_loss_exponent:g}" if config.path_loss == "exponent" else config.path_loss
        nearest, farthest = float(self.distance_m.min()), float(self.distance_m.max())
        return [
            ("devices", str(config.num_devices)),
            ("band", human(config.total_bandwidth_hz, "Hz")),
            ("deadline", human(config.deadline_s, "s")),
            ("update", human(config.payload_bits, "bit")),
            ("distance", f"{nearest:.0f} to {farthest:.0f} m"),
            ("path loss", law),
            ("fading", config.fading),
            ("local steps", config.tau_law),
            *([("trace", str(config.trace))] if config.trace else []),
        ]

    def draw(self, index: int) -> CellRound:
        """The cell in a round, counted from 0."""
        if index < 0:
            raise ValueError(f"round is {index}; rounds are counted from 0")
        config = self.config
        traced = {} if self.trace is None else self.trace.round(index, repeat=config.trace_repeat)
        if "gain_db" in traced:
            gain_db = traced["gain_db"]
            gain = db_to_linear(gain_db)
        else:
            gain, gain_db = self._gain(index)
        fades = config.fading != "none" and "gain_db" not in traced
        cpu_hz = traced["cpu_hz"] if "cpu_hz" in traced else self._cpu_hz(index)
        tau = traced["tau"] if "tau" in traced else self._tau(index)
        return CellRound(
            config=config,
            distance_m=self.distance_m,
            angle_rad=self.angle_rad,
            gain_db=gain_db,
            cpu_hz=cpu_hz,
            tau=tau,
            snr_hz=self._mean_snr_hz if gain is self.mean_gain else snr_hz(self.power_w, gain, self._noise_w_per_hz),
            power_w=self.power_w,
            mean_snr_hz=self._mean_snr_hz if fades else None,
        )

    def _gain(self, index: int) -> tuple[Floats, Floats]:
        """The power gains with this round's fading, and the same in dB."""
        config = self.config
        if config.fading == "none":
            return self.mean_gain, self._mean_gain_db
        rng = stream(self.seed, "fading", index)
        if config.fading == "rayleigh":
            fading = rayleigh_gain(config.num_devices, rng=rng)
        else:
            fading = rician_gain(config.num_devices, db_to_linear(config.rician_k_db), rng=rng)
        gain = self.mean_gain * fading
        return gain, linear_to_db(gain)

    def _cpu_hz(self, index: int) -> Floats:
        return self._draw_cpu_hz(stream(self.seed, "cpu", index)) if self._fixed_cpu_hz is None else self._fixed_cpu_hz

    def _draw_cpu_hz(self, rng: np.random.Generator) -> Floats:
        return rng.uniform(self.config.cpu_min_hz, self.config.cpu_max_hz, self.config.num_devices)

    def _tau(self, index: int) -> Floats:
        if self._fixed_tau is not None:
            return self._fixed_tau
        drawn = stream(self.seed, "tau", index).exponential(self.config.tau_mean, self.config.num_devices)
        return np.maximum(1.0, np.rint(drawn))

    def _listed_tau(self) -> Floats | None:
        """The local steps of the laws "list" and "groups" (equal and contiguous), which no round changes."""
        if self.config.tau_law == "exponential":
            return None
        values = np.array(self.config.tau_values, dtype=np.float64)
        return np.repeat(values, self.config.num_devices // len(values))
