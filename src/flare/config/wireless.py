"""The settings of the cell."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from flare.config.guard import MAX_GUARD_SHARE, Guard
from flare.config.option import REFUSED
from flare.config.options import NO_OPTIONS, Options
from flare.config.setting import check, declared, setting, shown

PLAIN = "none"
"""The codec of what is sent as it is, of updates and of the broadcast."""
NO_BROADCAST, BROADCAST = "none", "broadcast"
"""Whether the time counts in which devices are sent the model."""


@dataclass(frozen=True)
class WirelessConfig:
    """The cell: where the devices are, what the radio and their processors do. The defaults are the paper's cell."""

    num_devices: int = setting(40, "devices in the cell, K", at_least=1, at_most=10_000_000)
    min_distance_m: float = setting(100.0, "least distance to the base station, metre", at_least=1.0)
    max_distance_m: float = setting(500.0, "greatest distance to the base station, metre", at_most=1e7)
    path_loss: str = setting(
        "exponent",
        "path loss: power gain d^-path_loss_exponent, or 3GPP urban macro, 128.1 + 37.6 log10(d in km) dB",
        choices=("exponent", "3gpp-uma"),
    )
    path_loss_exponent: float = setting(3.76, "path-loss exponent", above=0.0, at_most=20.0)
    shadowing_db: float = setting(
        0.0, "log-normal shadowing, drawn once for each device: standard deviation in dB", at_least=0.0, at_most=100.0
    )
    fading: str = setting(
        "none", "block fading, drawn for each device and round", choices=("none", "rician", "rayleigh")
    )
    rician_k_db: float = setting(
        6.0, "Rician fading: power of the direct path over the scattered, dB", at_least=-100.0, at_most=100.0
    )
    power_dbm: float = setting(20.0, "transmit power of a device, dBm", at_least=-200.0, at_most=200.0)
    noise_dbm_per_mhz: float = setting(-114.0, "noise power density, dBm/MHz", at_least=-300.0, at_most=200.0)
    total_bandwidth_hz: float = setting(10e6, "the band to divide among the devices, Hz", above=0.0)
    block_hz: float = setting(
        0.0, "width of a resource block, Hz: bandwidths are whole blocks; 0: any bandwidth", at_least=0.0, at_most=1e15
    )
    deadline_s: float = setting(0.4, "when a round must be over, s", above=0.0)
    guard: float | str = setting(
        0.0,
        "what schedules leave free of the deadline, for what no model of the radio holds (protocols, polling): a share "
        'of it, or a time such as "300ms"',
        at_least=0.0,
        at_most=MAX_GUARD_SHARE,
        or_quantity="time",
    )
    payload_bits: float = setting(1e7, "size of a model update, bit", above=0.0)
    downlink: str = setting(
        NO_BROADCAST,
        "whether the time counts in which the base station broadcasts the model to the selected devices",
        choices=(NO_BROADCAST, BROADCAST),
    )
    downlink_power_dbm: float = setting(40.0, "transmit power of the base station, dBm", at_least=-200.0, at_most=200.0)
    downlink_codec: str = setting(PLAIN, "codec of the broadcast: none (float32), or one without error feedback")
    downlink_options: Options = setting(  # noqa: RUF009 (options never change)
        NO_OPTIONS, "options of the codec of the broadcast by name, such as bits = 8"
    )
    cycles_per_sample: float = setting(
        110.0 * 6272.0, "processor cycles for one training sample", above=0.0, at_most=1e18
    )
    batch_size: int = setting(40, "training samples in one local step", at_least=1, at_most=1_000_000_000)
    cpu_min_hz: float = setting(2e9, "slowest processor, Hz", at_least=1.0, at_most=1e15)
    cpu_max_hz: float = setting(4e9, "fastest processor, Hz", at_least=1.0, at_most=1e15)
    cpu_every_round: bool = setting(True, "draw the processor speeds anew every round, or once")
    tau_law: str = setting(
        "exponential",
        "local steps: max(1, round(Exp(tau_mean))) for each device and round, or tau_values for each device or group",
        choices=("exponential", "list", "groups"),
    )
    tau_mean: float = setting(3.0, "mean of the exponential law of the local steps", above=0.0, at_most=1e9)
    tau_values: tuple[int, ...] = setting(
        (),
        "local steps of each device (list), or of each of as many equal groups of devices (groups)",
        of=int,
        at_least=1,
        at_most=1_000_000_000,
    )
    trace: str = setting(
        "",
        "CSV, NPZ or MATLAB (.mat) file of gain_db or h (channel coefficients), cpu_hz, tau for each round and device; "
        "what it does not hold is drawn; relative to this file; empty: none",
    )
    trace_repeat: bool = setting(False, "start the trace again where it ends; otherwise that is an error")
    capacitance: float = setting(
        1e-28, "effective capacitance: a cycle takes this x (CPU speed)^2 joule", at_least=0.0, at_most=1.0
    )

    def __post_init__(self) -> None:
        check(self, "wireless")
        if self.trace:
            object.__setattr__(self, "trace", os.path.abspath(self.trace))
        for least, greatest in (("min_distance_m", "max_distance_m"), ("cpu_min_hz", "cpu_max_hz")):
            low, high = getattr(self, least), getattr(self, greatest)
            if low > high:
                raise ValueError(
                    f"wireless.{least} is {low:g}, more than wireless.{greatest}, {high:g}; it must be at most that"
                )
        if self.usable_s <= 0.0:
            raise ValueError(
                f"wireless.guard is {self.guard}, and wireless.deadline_s is {self.deadline_s:g}: no time is left to "
                "compute and send; the guard must be shorter"
            )
        self._check_tau_values()

    @property
    def usable_s(self) -> float:
        """The deadline less the guard: when schedules have every device finish."""
        return Guard.of(self.guard).left_of(self.deadline_s)

    def _check_tau_values(self) -> None:
        given = f"wireless.tau_values has {len(self.tau_values)} values"
        if self.tau_law == "exponential" and self.tau_values:
            raise ValueError(
                f'{given}, but wireless.tau_law is "exponential", which takes none; '
                'it must be empty, or wireless.tau_law one of "list", "groups"'
            )
        if self.tau_law == "list" and len(self.tau_values) != self.num_devices:
            raise ValueError(
                f'{given}, but wireless.num_devices is {self.num_devices}; with tau_law "list" it must have one for '
                "each device"
            )
        if self.tau_law == "groups" and (not self.tau_values or self.num_devices % len(self.tau_values) != 0):
            raise ValueError(
                f'{given}, but wireless.num_devices is {self.num_devices}; with tau_law "groups" it must have one for '
                "each group of equally many devices, so that their number divides num_devices"
            )


_GUARD = next(declared(each) for each in fields(WirelessConfig) if each.name == "guard")


def checked_guard(told: float | str, name: str, *, as_text: bool = False) -> float | str:
    """A guard that a user told elsewhere than in `wireless.guard`, where it is called `name`; ValueError where the
    setting could not be that. `as_text`: also a share is told as a text."""
    value: float | str = _GUARD.converted(_GUARD.read(told) if as_text and isinstance(told, str) else told)
    if value is REFUSED:
        raise ValueError(f"{name} is {shown(told)}; it must be {_GUARD.in_words()}")
    return value
