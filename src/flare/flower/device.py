"""What a device says of itself: how fast it trains, as it measures it, and the rate at which the server saw its updates
come in.

Every figure can be set in the node's configuration (`flower-supernode --node-config`), which then counts: tau,
compute-share, samples-per-s, cpu-hz, power-dbm, gain-db, uplink-bps, partition-id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from flwr.app import ConfigRecord, Context, MetricRecord

from flare.flower.speed import Speed
from flare.pools import num_cores
from flare.units import dbm_to_watt
from flare.wireless.cell import Cell

MAX_STEPS = 20
"""A device that nobody told its local steps does as many as fit into its share of the deadline, and not more than
this."""
COMPUTE_SHARE = 0.5
"""The share of the deadline in which a device computes; the rest is for sending."""
_KEPT = "flare.device"  # what a node keeps from message to message, under this name in its state
_CLOCKS = ("cpufreq/cpuinfo_max_freq", "cpufreq/base_frequency")  # in kHz, below /sys/devices/system/cpu/cpu*


def _not_measured() -> Speed | None:
    return None


@dataclass(frozen=True)
class Ask:
    """What the server tells when it asks: enough to answer with sensible defaults; and, on the node, `speed`, which
    says how fast it trains (it measures that when it is first called), or None where that cannot be measured."""

    round: int
    deadline_s: float
    cycles_per_step: float
    power_w: float
    bandwidth_hz: float
    uplink_bps: float  # as measured on this node's last updates; 0: not
    needs_samples: bool = False  # whether the method needs to know how many samples a device holds
    needs_labels: bool = False  # whether the run has devices tell how many they hold of each label
    batch_size: int = 1  # samples of a local step, by the settings of the run
    step_cost: float = 1.0  # of a step of the method, as a multiple of a plain one; `cycles_per_step` includes it
    keeps_model: bool = False  # whether the method compares features with those of a device's own last model
    speed: Callable[[], Speed | None] = field(default=_not_measured, compare=False, repr=False)

    def record(self) -> ConfigRecord:
        """What goes to the node."""
        return ConfigRecord({each.name: getattr(self, each.name) for each in fields(self) if each.name != "speed"})


def own_resources(context: Context, ask: Ask) -> dict[str, float]:
    """The resources of this device: what its node configuration says, and for the rest what it measures.

    A rate that was not measured counts as 1 bit/s for each Hz of the band. Steps that were not set are chosen by the
    deadline, and the share of it that they go by is told, too.
    """
    said = context.node_config
    kept = _kept(context)
    if "cpu_hz" not in kept:
        kept["cpu_hz"] = _said(said, "cpu-hz") or measure_cpu_hz()
    cpu_hz, speed = _number(kept["cpu_hz"]), _speed(said, ask)
    power_dbm, gain_db, tau = _said(said, "power-dbm"), _said(said, "gain-db"), _said(said, "tau")
    answer = {
        "tau": tau or float(_affordable_steps(ask, cpu_hz, speed, _share(said))),
        "cpu_hz": cpu_hz,
        "power_w": ask.power_w if power_dbm is None else dbm_to_watt(power_dbm),
    }
    if not tau:
        answer["compute_share"] = _share(said)
    if speed is not None:
        answer |= {
            "samples_per_s": speed.samples_per_s,
            "speed_spread": speed.spread,
            "batch_samples": speed.batch_samples,
            "setup_s": speed.setup_s,
        }
    if gain_db is not None:
        answer["gain_db"] = gain_db
    else:
        answer["uplink_bps"] = _said(said, "uplink-bps") or ask.uplink_bps or ask.bandwidth_hz
    if "partition-id" in said:
        answer["device"] = float(said["partition-id"])
    return answer


def cell_resources(cell: Cell, context: Context, ask: Ask) -> dict[str, float]:
    """The resources of a modelled device: that of the cell which the node's partition-id counts, in this round."""
    return cell.draw(ask.round).reported(int(context.node_config["partition-id"]))


def measure_cpu_hz() -> float:
    """Cycles that this device does in a second: its usable cores times their clock."""
    return num_cores() * (_clock_hz() or _counted_hz())


def _clock_hz() -> float | None:
    """The clock of the first core, as Linux gives it."""
    for clock in _CLOCKS:
        try:
            return 1e3 * float(Path("/sys/devices/system/cpu/cpu0", clock).read_text())
        except (OSError, ValueError):
            continue
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return 1e6 * max(clocks) if clocks else None


def _counted_hz() -> float:
    """Where the system does not tell: Python's loop takes about 50 cycles a turn."""
    turns = 200_000
    start = time.perf_counter()
    for _ in range(turns):
        pass
    return 50.0 * turns / max(time.perf_counter() - start, 1e-9)


def _speed(said: Mapping[str, object], ask: Ask) -> Speed | None:
    """How fast the device trains: by its configuration, or as measured; None: that follows from `cpu_hz`."""
    fixed = _said(said, "samples-per-s")
    if fixed is not None:
        if not 0.0 < fixed < math.inf:
            raise ValueError(f"node-config samples-per-s is {fixed:g}; it must be greater than 0")
        return Speed(fixed / ask.step_cost, spread=0.0, batch_samples=float(ask.batch_size), setup_s=0.0)
    return None if "cpu-hz" in said else ask.speed()


def _share(said: Mapping[str, object]) -> float:
    """The share of the deadline in which the device computes."""
    share = _said(said, "compute-share")
    if share is not None and not 0.0 < share <= 1.0:
        raise ValueError(f"node-config compute-share is {share:g}; it must be greater than 0, and 1 at most")
    return COMPUTE_SHARE if share is None else share


def _affordable_steps(ask: Ask, cpu_hz: float, speed: Speed | None, share: float) -> int:
    """As many local steps as fit into the device's share of the deadline, and one at least."""
    room_s = share * ask.deadline_s
    steps = int(room_s * cpu_hz / ask.cycles_per_step) if speed is None else speed.steps_within(room_s)
    return max(1, min(MAX_STEPS, steps))


def _kept(context: Context) -> MetricRecord:
    if _KEPT not in context.state:
        context.state[_KEPT] = MetricRecord()
    return context.state.metric_records[_KEPT]


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _said(config: Mapping[str, object], key: str) -> float | None:
    """A number in the node's configuration."""
    if key not in config:
        return None
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"node-config {key} is {value!r}; it must be a number")
    return float(value)
