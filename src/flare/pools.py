"""Pools of processes of this machine: those of `concurrent.futures`, which live no longer than this process.

Nothing here takes long to import: processes can start while this one is still importing what it gives them to do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import resource_tracker


def num_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_pool(number: int) -> ProcessPoolExecutor:
    """A pool of so many processes, each started when it is needed, by a call `while_starting`."""
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)


def get_ready(pool: ProcessPoolExecutor, number: int, module: str, function: str, *given: object) -> None:
    """Start processes of a pool of so many, as many as can import at once, and have each call a function that gets it
    ready; that is named, since it need not be imported here yet. What goes wrong there is told when it is needed."""
    with while_starting():
        for _ in range(min(number, num_cores())):
            pool.submit(_call, module, function, *given)


def end(pool: ProcessPoolExecutor, *, wait: bool) -> None:
    """End all processes, whatever they do."""
    for process in list((pool._processes or {}).values()):  # from Python 3.14 on: kill_workers()
        process.kill()
    pool.shutdown(wait=wait, cancel_futures=True)


@contextmanager
def while_starting() -> Iterator[None]:
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


def _call(module: str, function: str, *given: object) -> None:
    with suppress(Exception):
        getattr(import_module(module), function)(*given)


def _end_with_parent() -> None:
    """End with the process that this one works for, also where that is killed and can say nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
