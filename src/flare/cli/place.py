"""`--processes`, `--on` and `--ray-address` in every command that carries out runs."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from flare.cli.console import say
from flare.config import LearningConfig

if TYPE_CHECKING:
    from flare.sweeps import Place

MAX_PROCESSES = 8
"""That share a GPU, where nothing else is said."""
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # there with an NVIDIA driver: on Linux, and in Linux on Windows
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help="Processes that share the work. (default: 1, on a GPU up to 8, on Ray all there is room for)",
    ),
]
On = Annotated[str, typer.Option("--on", help="local: this machine; ray: a Ray cluster.")]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", help="Address of the Ray cluster. (default: the one this machine belongs to)"),
]


def place_of(processes: int | None, on: str, ray_address: str | None, *, device: str | None = None) -> Place:
    """Who computes the runs, by the options of a command; `device` where it has one that counts for all runs."""
    from flare.learning.engine import compute_device  # here, because torch takes its time to import
    from flare.sweeps import LOCAL, PLACES, RAY, Place
    from flare.sweeps.on_ray import knows_cluster, require_ray

    if on not in PLACES:
        raise ValueError(f"--on is '{on}'; it must be one of {', '.join(PLACES)}")
    if device not in (None, "auto", "cpu", "cuda"):
        raise ValueError(f"--device is '{device}'; it must be one of auto, cpu, cuda")
    if on == RAY:
        require_ray(ray_address)  # before anything is touched
        if ray_address is None and not knows_cluster():
            say("This machine belongs to no Ray cluster: Ray is started on it alone, for this command.", stderr=True)
        return Place(None if device == "auto" else device, processes, on, ray_address)
    if device is None:
        return Place(None, processes, LOCAL, ray_address)
    where = compute_device(LearningConfig(device=device))
    return Place(where, processes or _usual_processes(where), LOCAL, ray_address)


def as_options(place: Place) -> str:
    """What was said of a place, as options of a command; nothing where it is the usual one."""
    is_said = place.processes is not None and (place.on != "local" or place.processes > 1)
    told = [f"--processes {place.processes}"] if is_said else []
    told += [f"--on {place.on}"] if place.on != "local" else []
    told += [f"--ray-address {shlex.quote(place.ray_address)}"] if place.ray_address is not None else []
    return "".join(f" {each}" for each in told)


def _usual_processes(device: str) -> int:
    return min(MAX_PROCESSES, max(1, (os.cpu_count() or 2) // 2)) if device == "cuda" else 1


def expected_place(processes: int | None, on: str, device: str) -> tuple[str, int]:
    """The device and the number of processes that `place_of` will probably say, before torch is there to be asked."""
    has_gpu = any(map(os.path.exists, _GPU_FILES))
    where = device if device != "auto" else "cuda" if has_gpu else "cpu"
    is_refused = where not in ("cpu", "cuda") or (where == "cuda" and not has_gpu)
    return where, 1 if on != "local" or is_refused else processes or _usual_processes(where)
