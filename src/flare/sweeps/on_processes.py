"""Workers that are processes of this machine: those of `concurrent.futures`, which live no longer than this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import final

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

    @property
    def room(self) -> int:
        """How many orders are carried out at once."""
        return self.place.num_processes

    def submit(self, order: Order) -> Future[Fault | None]:
        """Have an order carried out."""
        resource_tracker.ensure_running()  # if it were started below, Ctrl-C would no longer be held
        with _ctrl_c_held():  # a process that is still starting would end by it
            try:
                return self._pool.submit(work, order)
            except BrokenProcessPool:
                self._pool = self._new_pool()
                return self._pool.submit(work, order)

    def kill(self) -> None:
        """End all processes, whatever they do."""
        for process in list((self._pool._processes or {}).values()):  # from Python 3.14 on: kill_workers()
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.place.num_processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin
        )


@contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Ctrl-C waits while processes are started; they inherit that, and never see it."""
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


def _end_with_parent() -> None:
    """End with the process that this one works for, also where that is killed and can say nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
