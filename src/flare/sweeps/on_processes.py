"""Workers that are processes of this machine: those of `concurrent.futures`, which live no longer than this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import final

from flare.learning.engine import prepare_gpu
from flare.sweeps.order import Fault, Order, work
from flare.sweeps.task import Place


@contextmanager
def processes(place: Place) -> Iterator[ProcessWorkers]:
    """So many processes, started as they are needed."""
    workers = ProcessWorkers(place)
    try:
        yield workers
    finally:
        workers.kill()


@final
class ProcessWorkers:
    """Processes that share orders; where one is killed, all are ended by the pool, and new ones take the next order."""

    killed: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    patience_s = 0.0

    def __init__(self, place: Place) -> None:
        self.place = replace(place, processes=place.num_processes)
        self._pool = self._new_pool()
        self._given: list[Future[Fault | None]] = []  # orders

    @property
    def room(self) -> int:
        """How many orders are carried out at once."""
        return self.place.num_processes

    def get_ready(self) -> None:
        """Start processes before there is an order for them, as it takes each of them a while to import all: as many as
        can do so at once. Where there are to be more, these start with the orders."""
        with _while_starting():
            for _ in range(min(self.room, _num_cores())):
                self._pool.submit(_prepare, self.place.device)

    def submit(self, order: Order) -> Future[Fault | None]:
        """Have an order carried out."""
        with _while_starting():
            try:
                given = self._pool.submit(work, order)
            except BrokenProcessPool:
                self._pool = self._new_pool()
                given = self._pool.submit(work, order)
        self._given.append(given)
        return given

    def kill(self) -> None:
        """End all processes, whatever they do. Those that have nothing to do hold nothing that others may want, and are
        not waited for: it may take a GPU seconds to let go of them."""
        is_idle = all(given.done() for given in self._given)
        for process in list((self._pool._processes or {}).values()):  # from Python 3.14 on: kill_workers()
            process.kill()
        self._pool.shutdown(wait=not is_idle, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.place.num_processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
        )


def _num_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _while_starting() -> Iterator[None]:
    """Ctrl-C waits while processes are started, which would end by it; they inherit that, and never see it."""
    resource_tracker.ensure_running()  # if it were started below, Ctrl-C would no longer be held
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a process -----------------------------------------------------------------------------------------------


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _prepare(device: str | None) -> None:
    """What every batch on a GPU needs first. What goes wrong here is told when it is needed."""
    with suppress(Exception):
        if device == "cuda":
            prepare_gpu()


def _end_with_parent() -> None:
    """End with the process that this one works for, also where that is killed and can say nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
