"""Carries out runs, or what is missing of them, in lockstep batches: here, by processes of this machine, or on Ray.

Every run is a folder, written round by round. Stopped anywhere and by whatever, the next call continues; so is a batch
whose worker was killed given to another one, which goes on where it was.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

from flare.rounds import RoundRecord, RunStatus
from flare.sweeps.batches import batches
from flare.sweeps.lockstep import run_batch
from flare.sweeps.on_processes import processes
from flare.sweeps.on_ray import explained, ray_workers
from flare.sweeps.order import (
    Fault,
    Order,
    go_signal,
    is_of_memory,
    keep_going,
    let_go_of_memory,
    say_stop,
    sent_plugins,
)
from flare.sweeps.tail import Seal, Tail
from flare.sweeps.task import LOCAL, Callback, Place, Task

_LOOK_S = 0.5  # how often the folders are read, and `stopping` is asked
_END_S = 60.0  # for a worker to come to the end of its round
_RETRY_PATIENCE_S = 60.0  # for what was killed to be gone
_MAX_KILLED = 3  # times that the worker of a batch is killed
_NAMED = 3  # runs that an error names


class Workers(Protocol):
    """Who carries out orders.

    place        with what the caller left open decided: device and number of processes
    room         how many orders they take at once
    killed       the errors of an order whose worker was killed
    patience_s   how long a worker may find a run folder taken by one that is gone
    """

    place: Place
    patience_s: float
    killed: tuple[type[BaseException], ...]

    @property
    def room(self) -> int: ...  # noqa: D102

    def submit(self, order: Order) -> Future[Fault | None]: ...  # noqa: D102

    def kill(self) -> None: ...  # noqa: D102


Hire = Callable[[Sequence[Task]], Workers]
"""Gives workers for tasks: the same ones whenever it is asked."""


def run_tasks(
    tasks: Sequence[Task],
    place: Place,
    *,
    callback: Callback = lambda task, record, status: None,
    stopping: Callable[[], bool] = lambda: False,
    hire: Hire | None = None,
    sealed: Callable[[Task, Seal], None] = lambda task, seal: None,
) -> None:
    """Begin or continue every run and go on to its end. Where `stopping` says so, they are left to be continued.
    `hire` is that of `staying`, for workers who stay; without it some are started for this call. `sealed` is told the
    seal of a round before the callback sees it, where others carry out the run and its folder is read.

    Raises what a run raises: ValueError for settings that cannot be and folders that cannot be used, OSError where a
    folder cannot be written or workers were killed again and again.
    """
    if place.on == LOCAL:
        in_order = batches(tasks, place)
        if place.num_processes == 1 or len(in_order) == 1:
            here = _Here(place, callback, stopping)
            for batch in in_order:
                here.run(batch)
            return
    if tasks and not stopping():
        with _workers(tasks, place) if hire is None else nullcontext(hire(tasks)) as found:
            _run_elsewhere(tasks, found, callback, stopping, sealed)


@contextmanager
def staying(place: Place, *, pool: ProcessPoolExecutor | None = None) -> Iterator[Hire]:
    """Workers for several calls of `run_tasks`, since it takes time to start them: who is first asked for stays.
    `pool`: as many processes of this machine as the place has, which the caller began to start while it was still busy
    with something else (`flare.pools`), and which end with this."""
    with ExitStack() as stack:
        hired: list[Workers] = []
        if pool is not None:
            hired.append(stack.enter_context(processes(place, pool)))

        def hire(tasks: Sequence[Task]) -> Workers:
            if not hired:
                hired.append(stack.enter_context(_workers(tasks, place)))
            return hired[0]

        yield hire


@final
class _Here:
    """Carries out batches in this process, in two parts one after the other where memory runs out.

    Runs without a folder then begin again: each round is told once all the same.
    """

    def __init__(self, place: Place, callback: Callback, stopping: Callable[[], bool]) -> None:
        self._place, self._callback, self._stopping = place, callback, stopping
        self._rounds: dict[str, int] = {}  # that were told, by run
        self._ended: set[str] = set()

    def run(self, batch: Sequence[Task]) -> None:
        """OSError where memory is too little for one run alone."""
        if self._stopping():
            return
        try:
            run_batch(batch, self._place, self._tell, self._stopping)
            return
        except Exception as error:
            if not is_of_memory(error):
                raise
            if len(batch) == 1:
                raise _too_little(batch, str(error)) from error
        let_go_of_memory()
        for part in _halves(batch):
            left = [task for task in part if task.folder is not None or task.key not in self._ended]
            if left:
                self.run(left)

    def _tell(self, task: Task, record: RoundRecord, status: RunStatus) -> None:
        if record.round < self._rounds.get(task.key, 0):
            return
        self._rounds[task.key] = record.round + 1
        if status is not RunStatus.RUNNING:
            self._ended.add(task.key)
        self._callback(task, record, status)


def _halves(tasks: Sequence[Task]) -> list[Sequence[Task]]:
    half = -(-len(tasks) // 2)
    return [tasks[:half], tasks[half:]]


def _too_little(tasks: Sequence[Task], why: str) -> OSError:
    """The error that says that there is not enough memory for a run."""
    kept = "; what is done is kept, and the same call goes on with it" if all(task.folder for task in tasks) else ""
    return OSError(
        f"memory ran out with {_named(tasks)} ({why[:300]}): take a smaller model or smaller batches, or free memory "
        f"that other programs hold{kept}"
    )


def _named(tasks: Sequence[Task]) -> str:
    """Some runs by name."""
    names = [task.key if task.folder is None else task.folder.name for task in tasks]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"the run{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"


def _run_elsewhere(
    tasks: Sequence[Task],
    workers: Workers,
    callback: Callback,
    stopping: Callable[[], bool],
    sealed: Callable[[Task, Seal], None],
) -> None:
    """Have workers carry out the runs."""
    plugins = sent_plugins(tasks)
    with ExitStack() as stack:
        own = {task.key: task for task in tasks}
        placed = stack.enter_context(_in_folders(tasks))
        folder = _folder_of(placed[0]).parent
        folder.mkdir(parents=True, exist_ok=True)
        signal = stack.enter_context(go_signal(folder))
        in_order = [
            _Batch(Order(tuple(batch), workers.place, signal, plugins, workers.patience_s), {})
            for batch in batches(placed, workers.place)
        ]
        for batch in in_order:
            batch.tails.update({t.key: Tail(_folder_of(t), t.config.wireless.num_devices) for t in batch.order.tasks})

        def tell(batch: _Batch, *, last: bool = False) -> None:
            for key, tail in batch.tails.items():
                for record, status in tail.news(last=last):
                    sealed(own[key], tail.seal_of(record))
                    callback(own[key], record, status)

        _Dispatch(workers, in_order, signal).carry_out(tell, stopping)


def _workers(tasks: Sequence[Task], place: Place) -> AbstractContextManager[Workers]:
    if place.on == LOCAL:
        return processes(place)
    return ray_workers(_on_one_device(tasks, place))


def _on_one_device(tasks: Sequence[Task], place: Place) -> Place:
    """The place with the device of the settings: machines of a cluster may have several, and their numbers differ."""
    named = sorted({task.config.learning.device for task in tasks})
    if place.device is not None or named == ["auto"]:
        return place
    if len(named) > 1:
        raise ValueError(
            f"the settings learning.device of the runs are {', '.join(named)}; on Ray all runs have one: give the same"
        )
    return replace(place, device=named[0])


def _folder_of(task: Task) -> Path:
    assert task.folder is not None
    return task.folder


@contextmanager
def _in_folders(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The tasks, those without a folder each with one for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="flare-") as base:
        yield [
            replace(task, folder=Path(base) / str(number) if task.folder is None else task.folder.absolute())
            for number, task in enumerate(tasks)
        ]


@final
@dataclass(frozen=True)
class _Batch:
    """An order, who tells of its runs, how often its worker was killed, and whether it is to be done alone: it is one
    run, and there was no memory for it beside others."""

    order: Order
    tails: dict[str, Tail]
    killed: int = 0
    alone: bool = False

    def again(self) -> _Batch:
        """The batch for another worker; OSError where that has been tried often enough."""
        if self.killed + 1 >= _MAX_KILLED:
            raise OSError(
                f"a process that trained was killed {_MAX_KILLED} times, perhaps for want of memory, or on Ray with "
                f"its machine, with {_named(self.order.tasks)}; what is done is kept: run the same command again, with "
                "fewer --processes or on a machine with more memory (in a script of your own, all that starts "
                "processes stands under `if __name__ == '__main__':`)"
            )
        patient = replace(self.order, patience_s=max(self.order.patience_s, _RETRY_PATIENCE_S))
        return replace(self, order=patient, killed=self.killed + 1)

    def halves(self) -> Iterator[_Batch]:
        """The batch as two smaller ones."""
        for part in _halves(self.order.tasks):
            tails = {task.key: self.tails[task.key] for task in part}
            yield replace(self, order=replace(self.order, tasks=tuple(part)), tails=tails)


@final
class _Dispatch:
    """Gives batches to workers until all are done, or it is time to stop."""

    def __init__(self, workers: Workers, in_order: Sequence[_Batch], signal: Path) -> None:
        self._workers, self._signal = workers, signal
        self._waiting = deque(in_order)
        self._short: list[_Batch] = []  # of memory, each a run alone: they wait for another batch to end
        self._going: dict[Future[Fault | None], _Batch] = {}

    def carry_out(self, tell: Callable[..., None], stopping: Callable[[], bool]) -> None:
        """Raises what a worker raised. KeyboardInterrupt is of who does not want to wait: workers are ended at once."""
        stopped, patience_s = False, _END_S
        try:
            while self._going or (self._waiting and not stopped):
                while self._waiting and not stopped and self._has_room():
                    batch = self._waiting.popleft()
                    self._going[self._workers.submit(batch.order)] = batch
                done, _ = wait(self._going, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                keep_going(self._signal)
                for batch in self._going.values():
                    tell(batch)
                for future in done:
                    self._settle(future, tell)
                if not stopped and stopping():
                    stopped = True
                    say_stop(self._signal)
        except KeyboardInterrupt:
            patience_s = 0.0
            raise
        finally:
            say_stop(self._signal)
            if wait(self._going, timeout=patience_s).not_done:
                self._workers.kill()

    def _settle(self, future: Future[Fault | None], tell: Callable[..., None]) -> None:
        """Take in how an order ended."""
        batch = self._going.pop(future)
        try:
            fault = future.result()
        except self._workers.killed:
            self._waiting.appendleft(batch.again())
            return
        except Exception as error:
            raise explained(error) from error
        if fault is not None and fault.is_memory:
            self._make_smaller(batch, fault)
            return
        self._waiting.extend(self._short)  # there is more memory now
        self._short.clear()
        tell(batch, last=True)
        if fault is not None:
            raise fault.raised()

    def _has_room(self) -> bool:
        """Whether one more order can be given."""
        return len(self._going) < self._workers.room and not any(batch.alone for batch in self._going.values())

    def _make_smaller(self, batch: _Batch, fault: Fault) -> None:
        """Have a batch for which memory was too little done in parts, a single run when others have ended, and at last
        alone; OSError where also that fails."""
        if batch.alone:
            raise _too_little(batch.order.tasks, fault.words)
        if len(batch.order.tasks) > 1:
            self._waiting.extend(batch.halves())
        elif self._going or self._waiting:
            self._short.append(batch)
        else:
            self._waiting.append(replace(batch, alone=True))
