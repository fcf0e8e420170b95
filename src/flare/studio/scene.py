"""What the Cell screen shows before it is solved: a drawn cell, or devices of a table, with what a hand changed.

A change is told in proportion to what there was, so that it means the same for a drawn cell, a trace and a table: twice
the steps take twice the time, half the distance gives the gain that the path-loss law says, twice the power twice the
received power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from flare.config import Config, WirelessConfig, with_settings
from flare.rng import stream
from flare.scheduling import RoundProblem
from flare.scheduling.known_round import KnownRound, known_from_cell
from flare.scheduling.problem import ABSURD, WIDEST_HZ
from flare.studio.answers import FieldError
from flare.studio.run_folders import below
from flare.studio.settings import Studio
from flare.types import Floats
from flare.units import dbm_per_mhz_to_watt_per_hz, dbm_to_watt
from flare.wireless.cell import Cell
from flare.wireless.channel import path_gain, rayleigh_gain, rician_gain

MIN_DISTANCE_M = 1.0
_GOLDEN_ANGLE = math.pi * (3.0 - math.sqrt(5.0))
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Positive = Annotated[float, Field(ge=1.0 / ABSURD, le=ABSURD)]
Metre = Annotated[float, Field(ge=-1e9, le=1e9)]


class SceneDevice(TypedDict):
    """A device of a table or of a run's round; what is not known of it is left out."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    tau: Annotated[float, Field(ge=1.0, le=ABSURD)]
    compute_s: Annotated[float, Field(ge=0.0, le=ABSURD)]
    snr_hz: Positive
    payload_bits: NotRequired[Positive]
    weight: NotRequired[Positive]
    due_s: NotRequired[Positive]
    cpu_hz: NotRequired[Positive]
    power_w: NotRequired[Positive]
    x_m: NotRequired[Metre]
    y_m: NotRequired[Metre]


class Change(TypedDict):
    """What a hand changed of one device."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    device: Annotated[int, Field(ge=0)]
    x_m: NotRequired[Metre]
    y_m: NotRequired[Metre]
    tau: NotRequired[Annotated[float, Field(ge=1.0, le=1e6)]]
    cpu_hz: NotRequired[Positive]
    power_w: NotRequired[Positive]


class AskedPolicy(TypedDict):
    """A policy of the Cell screen."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    policy: Annotated[str, Field(max_length=64)]
    options: NotRequired[dict[str, Any]]


class Scene(TypedDict):
    """Devices (either `wireless`, settings of a cell that is drawn, or `devices`), what the sliders say, and who is
    asked. A slider that is not moved is left out: the cell's own setting counts."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    policies: Annotated[list[AskedPolicy], Field(min_length=1, max_length=2)]
    wireless: NotRequired[dict[str, Any]]
    devices: NotRequired[Annotated[list[SceneDevice], Field(min_length=1)]]
    seed: NotRequired[Annotated[int, Field(ge=0, le=2**63 - 1)]]
    round: NotRequired[Annotated[int, Field(ge=0, le=2**31 - 1)]]
    bandwidth_hz: NotRequired[Annotated[float, Field(gt=0.0, le=WIDEST_HZ)]]
    deadline_s: NotRequired[Positive]
    payload_bits: NotRequired[Positive]
    gamma: NotRequired[Annotated[float, Field(ge=0.0, le=ABSURD)]]
    fading: NotRequired[Literal["none", "rician", "rayleigh"]]
    changes: NotRequired[list[Change]]
    focus: NotRequired[int]


def known_round(scene: Scene, studio: Studio) -> tuple[KnownRound, float]:
    """The round that a scene shows, with all changes, and the radius of the circle it is drawn in, which no change
    alters; FieldError where the scene cannot be."""
    if ("devices" in scene) == ("wireless" in scene):
        raise FieldError("devices", "give either devices, or the settings of a cell as wireless")
    law, this = _from_devices(scene, studio) if "devices" in scene else _from_cell(scene, studio)
    assert this.distance_m is not None
    radius_m = max(law.max_distance_m if "wireless" in scene else 0.0, float(this.distance_m.max()))
    return changed(this, scene.get("changes", []), lambda far_m: _gain(law, far_m)), radius_m


def changed(this: KnownRound, changes: Sequence[Change], gain: Callable[[Floats], Floats]) -> KnownRound:
    """The round with some devices changed; `gain` is the path-loss law by which a device that moves is heard."""
    if not changes:
        return this
    problem = this.problem
    assert this.distance_m is not None
    assert this.angle_rad is not None
    far_m, angle_rad, tau = this.distance_m.copy(), this.angle_rad.copy(), problem.tau.copy()
    power_w = None if this.power_w is None else this.power_w.copy()
    cpu_hz = None if this.cpu_hz is None else this.cpu_hz.copy()
    for at, change in enumerate(changes):
        device = change["device"]
        if device >= problem.num_devices:
            last = problem.num_devices - 1
            raise FieldError(f"changes[{at}].device", f"device is {device}; the last one is {last}")
        if "x_m" in change and "y_m" in change:
            far_m[device] = max(MIN_DISTANCE_M, math.hypot(change["x_m"], change["y_m"]))
            angle_rad[device] = math.atan2(change["y_m"], change["x_m"])
        tau[device] = change.get("tau", tau[device])
        if power_w is not None:
            power_w[device] = change.get("power_w", power_w[device])
        if cpu_hz is not None:
            cpu_hz[device] = change.get("cpu_hz", cpu_hz[device])
    steps = tau / problem.tau
    speed = np.ones(len(tau)) if cpu_hz is None or this.cpu_hz is None else cpu_hz / this.cpu_hz
    louder = np.ones(len(tau)) if power_w is None or this.power_w is None else power_w / this.power_w
    nearer = gain(far_m) / gain(np.maximum(this.distance_m, MIN_DISTANCE_M))
    energy_j = this.compute_energy_j
    return replace(
        this,
        problem=replace(
            problem,
            tau=tau,
            compute_s=problem.compute_s * (steps / speed),
            snr_hz=problem.snr_hz * (louder * nearer),
            distance_m=far_m,
            angle_rad=angle_rad,
        ),
        distance_m=far_m,
        angle_rad=angle_rad,
        power_w=power_w,
        cpu_hz=cpu_hz,
        compute_energy_j=None if energy_j is None else energy_j * steps * speed**2,
    )


def positions(snr_hz: Floats, distance_m: Floats | None, power_w: Floats | None) -> tuple[Floats, Floats]:
    """Distance and angle of devices of which a table tells no place: as far as the paper's cell would have them for the
    channel that they have, one turned from the next by the golden angle, so that they spread evenly."""
    law = WirelessConfig()
    if distance_m is None:
        sent_w = dbm_to_watt(law.power_dbm) if power_w is None else power_w
        gain = snr_hz * dbm_per_mhz_to_watt_per_hz(law.noise_dbm_per_mhz) / sent_w
        distance_m = np.clip(gain ** (-1.0 / law.path_loss_exponent), MIN_DISTANCE_M, 1e7)
    turned: Floats = _GOLDEN_ANGLE * np.arange(len(distance_m), dtype=np.float64) % (2.0 * math.pi)
    return distance_m, turned


def _gain(law: WirelessConfig, far_m: Floats) -> Floats:
    return path_gain(far_m, law.path_loss, law.path_loss_exponent)


def _from_cell(scene: Scene, studio: Studio) -> tuple[WirelessConfig, KnownRound]:
    sliders = {"total_bandwidth_hz": "bandwidth_hz", "deadline_s": "deadline_s", "payload_bits": "payload_bits"}
    moved: dict[str, Any] = {to: scene[of] for to, of in sliders.items() if of in scene}  # type: ignore[literal-required]
    if "fading" in scene:
        moved["fading"] = scene["fading"]
    config = cell_config(scene.get("wireless", {}) | moved, studio)
    cell = (Cell if config.trace else _cell)(config, scene.get("seed", 0))
    return config, known_from_cell(cell.draw(scene.get("round", 0)), scene.get("gamma", 10.0))


def cell_config(settings: dict[str, Any], studio: Studio) -> WirelessConfig:
    """The settings of a cell, its trace seen from the studio's folder; FieldError where they cannot be, are too much
    for a screen, or name a trace outside that folder."""
    try:
        trace = settings.get("trace")
        if isinstance(trace, str) and trace:
            settings = {**settings, "trace": str(below(studio.folder, trace))}
        config = with_settings(Config(), {"wireless": settings}).wireless
    except ValueError as error:
        first = str(error).partition(" ")[0].rstrip(":;,")
        raise FieldError(first if first.startswith("wireless.") else "wireless", str(error)) from None
    if config.num_devices > studio.limits.max_devices:
        many = f"wireless.num_devices is {config.num_devices:,}; a screen shows at most {studio.limits.max_devices:,}"
        raise FieldError("wireless.num_devices", many, 413)
    return config


@lru_cache(maxsize=32)
def _cell(config: WirelessConfig, seed: int) -> Cell:
    """The same cell, round after round, as a device is dragged."""
    return Cell(config, seed)


def _from_devices(scene: Scene, studio: Studio) -> tuple[WirelessConfig, KnownRound]:
    devices = scene["devices"]
    if len(devices) > studio.limits.max_devices:
        many = f"there are {len(devices):,} devices; a screen shows at most {studio.limits.max_devices:,}"
        raise FieldError("devices", many, 413)
    for name in ("bandwidth_hz", "deadline_s"):
        if name not in scene:
            raise FieldError(name, f"{name} is missing; devices do not say it")

    def column(name: str) -> Floats | None:
        """What all devices have of a name; None where one has it not."""
        values = [one.get(name) for one in devices]
        return None if None in values else np.array(values, dtype=np.float64)

    snr_hz, x_m, y_m, power_w = column("snr_hz"), column("x_m"), column("y_m"), column("power_w")
    assert snr_hz is not None
    if x_m is not None and y_m is not None:
        far_m, angle_rad = np.maximum(np.hypot(x_m, y_m), MIN_DISTANCE_M), np.arctan2(y_m, x_m)
    else:
        far_m, angle_rad = positions(snr_hz, None, power_w)
    bits = scene.get("payload_bits", column("payload_bits"))
    if bits is None:
        raise FieldError("payload_bits", "payload_bits is missing; give it, or one to each device")
    problem = RoundProblem(
        tau=[one["tau"] for one in devices],
        compute_s=[one["compute_s"] for one in devices],
        snr_hz=snr_hz * _fading(scene, len(devices)),
        payload_bits=bits,
        total_bandwidth_hz=scene["bandwidth_hz"],
        deadline_s=scene["deadline_s"],
        gamma=scene.get("gamma", 10.0),
        weight=column("weight"),
        due_s=column("due_s"),
        distance_m=far_m,
        angle_rad=angle_rad,
    )
    law = WirelessConfig()
    return law, KnownRound(
        problem=problem,
        names=[one["name"] for one in devices],
        distance_m=far_m,
        angle_rad=angle_rad,
        power_w=power_w,
        compute_energy_j=None,
        cpu_hz=column("cpu_hz"),
        capacitance=law.capacitance,
    )


def _fading(scene: Scene, number: int) -> Floats:
    """Power gains of this round's fading for devices of a table, as a cell of the same seed draws them."""
    kind, rng = scene.get("fading", "none"), stream(scene.get("seed", 0), "fading", scene.get("round", 0))
    if kind == "rayleigh":
        return rayleigh_gain(number, rng=rng)
    if kind == "rician":
        return rician_gain(number, 10.0 ** (WirelessConfig().rician_k_db / 10.0), rng=rng)
    return np.ones(number)
