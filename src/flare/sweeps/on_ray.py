"""Workers of a Ray cluster: Ray finds a machine with a free processor, or GPU, for each order.

Ray is an extra; it is imported where it is asked for.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from flare.extras import imported
from flare.records.manifest import flare_version
from flare.sweeps.order import Fault, Order, work
from flare.sweeps.task import Place

_PER_GPU = 8
"""Processes that share a GPU where nothing else is said, if there are two processors for each."""
_ANSWER_S = 10.0
"""For a machine to answer."""
_PATIENCE_S = 90.0
"""What a machine that is lost, or its disk's server, may take to give up the locks of run folders."""


@contextmanager
def ray_workers(place: Place) -> Iterator[RayWorkers]:
    """The workers of the cluster at the address of the place.

    Without an address it is the cluster that this machine belongs to (or that RAY_ADDRESS names); where it belongs to
    none, one of this machine alone is started for as long as it is needed. A program that is connected stays so.
    """
    ray = require_ray(place.ray_address)
    connected = ray.is_initialized()
    if not connected:
        _connect(ray, place.ray_address)
    try:
        workers = RayWorkers(ray, place)
        try:
            yield workers
        finally:
            workers.kill()
    finally:
        if not connected:
            ray.shutdown()


def require_ray(address: str | None) -> Any:
    """Ray itself; an error that says what to do where it is not installed, or nobody answers at the address."""
    ray = imported("ray", "--on ray", "ray")
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal() and int(port) < 1 << 16:  # Ray itself would try for a quarter of an hour
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
        except OSError as error:
            raise _no_cluster(address, error) from None
    elif address not in (None, "auto", "local"):
        raise ValueError(f"{address!r:.80} is not the address of a Ray cluster; give HOST:PORT, such as 10.0.0.1:6379")
    return ray


def knows_cluster() -> bool:
    """Whether this machine belongs to a cluster, by the ways in which Ray looks for one; otherwise Ray starts one of
    this machine alone."""
    of_ray = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local") or of_ray.exists()


def _connect(ray: Any, address: str | None) -> None:
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of what Ray's next versions will do otherwise
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from None
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)  # Ray takes it, and ends the program at once


def _no_cluster(address: str | None, error: Exception) -> OSError:
    where = f"at {address}" if address else "that this machine belongs to"
    return OSError(
        f"there is no Ray cluster {where} that answers ({error}); start one with: ray start --head, or give its "
        "address with --ray-address HOST:PORT"
    )


@final
class RayWorkers:
    """Workers of a cluster. `place` says what of it is taken: a device for all runs, since the numbers of a CPU and of
    a GPU differ, and how many orders at once."""

    patience_s = _PATIENCE_S

    def __init__(self, ray: Any, place: Place) -> None:
        errors = ray.exceptions
        self.killed: tuple[type[BaseException], ...] = (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.LocalRayletDiedError,
        )
        self._ray, self._wanted = ray, place.processes
        device = place.device if place.device in ("cpu", "cuda") else "cuda" if self._amount("GPU") else "cpu"
        if device == "cuda" and not self._amount("GPU"):
            raise ValueError(
                "no machine of the Ray cluster has a GPU; give the device cpu, or start Ray with --num-gpus"
            )
        self._on_gpu = device == "cuda"
        self.place = replace(place, device=device, processes=self.room)
        gpus = min(1.0, int(1000 * self._amount("GPU") / self.room) / 1000) if self._on_gpu else 0
        self._work = ray.remote(work).options(num_cpus=1, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD")
        self._refs: dict[Future[Fault | None], Any] = {}

    @property
    def room(self) -> int:
        """How many orders are given at once: as many as was said, or as the cluster has room for now."""
        if self._wanted is not None:
            return self._wanted
        cpus = int(self._amount("CPU"))
        return max(1, min(int(_PER_GPU * self._amount("GPU")), cpus // 2) if self._on_gpu else cpus)

    def submit(self, order: Order) -> Future[Fault | None]:
        """Have an order carried out somewhere."""
        ref = self._work.remote(order)
        future: Future[Fault | None] = ref.future()
        self._refs = {each: ref for each, ref in self._refs.items() if not each.done()} | {future: ref}
        return future

    def kill(self) -> None:
        """End the orders that are still carried out."""
        for future, ref in self._refs.items():
            if not future.done():
                self._ray.cancel(ref, force=True)

    def _amount(self, resource: str) -> float:
        return float(self._ray.cluster_resources().get(resource, 0.0))


def explained(error: Exception) -> Exception:
    """An error of Ray's own, in words of ours."""
    return OSError(
        f"a machine of the Ray cluster could not carry out its part ({type(error).__name__}: {error}); see that every "
        f"machine has flare {flare_version()} with the same Python"
    )
