"""Several processes that share batches of runs: each takes the next batch until none is left, and tells of its rounds.

Each process tells through a pipe of its own, so that one that is killed blocks no other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, final

import torch

from flare.plugins import told_as_plugins
from flare.rounds import RoundRecord, RunStatus
from flare.sweeps.task import Callback, Place, Task

Work = Callable[[Sequence[Task], Place, Callback, Callable[[], bool]], None]
"""Carries out a batch."""
News = list[tuple[str, RoundRecord, RunStatus]]

_LOOK_S = 0.5  # how often `stopping` is asked
_WAIT_S = 60.0  # for a process to end after its round
_KILLED = (
    "a process that trained was killed, perhaps for want of memory; what is done is kept: run the same command again, "
    "with fewer --processes"
)


@final
@dataclass(frozen=True)
class _Fault:
    """An error of a process, in words: not every error passes through a pipe."""

    is_bad_input: bool
    is_disk: bool
    words: str
    trace: str

    def raised(self) -> Exception:
        """The error to raise in its place."""
        kind = ValueError if self.is_bad_input else OSError if self.is_disk else RuntimeError
        error = kind(self.words)
        error.add_note(self.trace)
        return error


@final
@dataclass(frozen=True)
class _Work:
    """What all processes share."""

    batches: Sequence[Sequence[Task]]
    place: Place
    work: Work
    taken: Any  # how many batches are taken: a number with a lock
    stop: Any  # an event
    environment: dict[str, str]  # as it is now


def _context() -> Any:
    """How processes are started: from one that has imported what all of them use and computed nothing, where the system
    can do that; it takes them no time then, and memory that they share. Each imports all by itself otherwise."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def in_processes(
    batches: Sequence[Sequence[Task]],
    place: Place,
    work: Work,
    *,
    callback: Callback,
    stopping: Callable[[], bool],
) -> None:
    """Carry out all batches; raises what a process raised, and OSError where one was killed."""
    context = _context()
    shared = _Work(batches, place, work, context.Value("l", 0), context.Event(), dict(os.environ))
    task_of = {task.key: task for batch in batches for task in batch}
    processes: dict[Connection, BaseProcess] = {}
    try:
        with _ctrl_c_held():  # a process that is still starting would end by it
            for _ in range(min(place.processes, len(batches))):
                listen, tell = context.Pipe(duplex=False)
                process = context.Process(target=_process, args=(shared, tell), daemon=True)
                process.start()
                tell.close()  # the process has the only end left: when it is gone, the pipe says so
                processes[listen] = process
        _listen(processes, shared, task_of, callback, stopping)
    finally:
        shared.stop.set()
        for listen, started in processes.items():
            listen.close()
            started.join(_WAIT_S)
            started.kill()


def _listen(
    processes: dict[Connection, BaseProcess],
    shared: _Work,
    task_of: dict[str, Task],
    callback: Callback,
    stopping: Callable[[], bool],
) -> None:
    """Hear all that the processes tell, until they have ended."""
    talking = set(processes)
    while talking:
        for pipe in talking & set(wait(list(talking), timeout=_LOOK_S)):
            try:
                told: News | _Fault = pipe.recv()
            except (EOFError, OSError):
                talking.remove(pipe)
                _refuse_killed(processes[pipe])
                continue
            if isinstance(told, _Fault):
                raise told.raised()
            for key, record, status in told:
                callback(task_of[key], record, status)
        if stopping():
            shared.stop.set()


def _refuse_killed(process: BaseProcess) -> None:
    process.join(_WAIT_S)
    if process.exitcode != 0:
        raise OSError(_KILLED)


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


def _process(shared: _Work, tell: Connection) -> None:
    """Carry out batches until none is left, or until it is time to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()  # of the process that all come from, which may be older
    os.environ.update(shared.environment)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for batch in _dealt(shared):
            _run(batch, shared, tell)
    except Exception as raised:
        error = told_as_plugins(raised) or raised
        words = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        fault = _Fault(isinstance(error, ValueError), isinstance(error, OSError), words, traceback.format_exc())
        _send(tell, fault)


def _send(tell: Connection, told: News | _Fault) -> None:
    with suppress(OSError):  # where nobody listens any more, the batch is still brought to a good end
        tell.send(told)


def _dealt(shared: _Work) -> Iterator[Sequence[Task]]:
    while not shared.stop.is_set():
        with shared.taken.get_lock():
            number = shared.taken.value
            shared.taken.value += 1
        if number >= len(shared.batches):
            return
        yield shared.batches[number]


def _run(batch: Sequence[Task], shared: _Work, tell: Connection) -> None:
    news: dict[str, tuple[str, RoundRecord, RunStatus]] = {}

    def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
        if task.key in news:  # the next turn
            _send(tell, list(news.values()))
            news.clear()
        news[task.key] = (task.key, record, status)

    shared.work(batch, shared.place, callback, shared.stop.is_set)
    _send(tell, list(news.values()))


def _end_with_parent() -> None:
    """End with the process that this one works for, also where that is killed and can say nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
