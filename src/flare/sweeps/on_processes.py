"""Workers that are processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from typing import final

from flare.learning.engine import prepare_gpu
from flare.pools import end, new_pool, while_starting
from flare.sweeps.order import Fault, Order, work
from flare.sweeps.task import Place


@contextmanager
def processes(place: Place, pool: ProcessPoolExecutor | None = None) -> Iterator[ProcessWorkers]:
    """So many processes, started as they are needed, or those of a pool that is there, which ends with them."""
    workers = ProcessWorkers(place, pool)
    try:
        yield workers
    finally:
        workers.kill()


@final
class ProcessWorkers:
    """Processes that share orders; where one is killed, all are ended by the pool, and new ones take the next order."""

    killed: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    patience_s = 0.0

    def __init__(self, place: Place, pool: ProcessPoolExecutor | None = None) -> None:
        self.place = replace(place, processes=place.num_processes)
        self._pool = new_pool(self.room) if pool is None else pool
        self._given: list[Future[Fault | None]] = []  # orders

    @property
    def room(self) -> int:
        """How many orders are carried out at once."""
        return self.place.num_processes

    def submit(self, order: Order) -> Future[Fault | None]:
        """Have an order carried out."""
        with while_starting():
            try:
                given = self._pool.submit(work, order)
            except BrokenProcessPool:
                self._pool = new_pool(self.room)
                given = self._pool.submit(work, order)
        self._given.append(given)
        return given

    def kill(self) -> None:
        """End all processes, whatever they do. Those that have nothing to do hold nothing that others may want, and are
        not waited for: it may take a GPU seconds to let go of them."""
        end(self._pool, wait=not all(given.done() for given in self._given))


def prepare(device: str | None) -> None:
    """What every batch on a GPU needs first; `flare.pools.get_ready` has it done in processes before there is one."""
    if device == "cuda":
        prepare_gpu()
