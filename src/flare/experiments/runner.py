"""Carries out trials: those that are not done yet, in lockstep batches, on one process or several.

Each finished run is a file of its own, written when it ends. Stopped anywhere, the next call does what is missing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch

from flare.experiments.trial import Outcome, Trial, outcome_of, read_outcome, write_outcome
from flare.simulation import Member, RoundRecord, RunStatus, Simulation, drive, plan_rounds

Callback = Callable[[Trial, int, bool], None]
"""Sees the number of rounds that a trial has done, and whether it has ended."""


@dataclass(frozen=True)
class Place:
    """Where trials are carried out: their folder, the device, and how many processes share it."""

    folder: Path
    device: str = "auto"
    processes: int = 1


def run_trials(
    trials: Iterable[Trial],
    place: Place,
    *,
    callback: Callback = lambda trial, rounds, ended: None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Outcome]:
    """The outcome of every trial by its key, fewer where `stopping` says so. Trials with the same key are one run."""
    place.folder.mkdir(parents=True, exist_ok=True)
    wanted = {trial.key: trial for trial in trials}
    todo = [trial for key, trial in wanted.items() if read_outcome(_file(place, key)) is None]
    batches = _batches(todo, place)
    if place.processes == 1 or len(batches) < 2:
        for batch in batches:
            if not stopping():
                _run_batch(batch, place, callback, stopping)
    else:
        _run_in_processes(batches, place, callback, stopping)
    done = {key: read_outcome(_file(place, key)) for key in wanted}
    return {key: outcome for key, outcome in done.items() if outcome is not None}


def _file(place: Place, key: str) -> Path:
    return place.folder / f"{key}.json"


def finished(trial: Trial, place: Place) -> bool:
    """Whether the trial need not be run again."""
    return read_outcome(_file(place, trial.key)) is not None


def length(trial: Trial) -> float:
    """About how many rounds a trial has."""
    run = trial.config.run
    return min(float(run.rounds), run.seconds / trial.config.wireless.deadline_s if run.seconds else float("inf"))


def _cost(trial: Trial) -> float:
    """A rough measure of the work in a trial, to deal the long ones out first."""
    config, rounds = trial.config, length(trial)
    share = min(1.0, config.wireless.deadline_s * 1.3e8 / config.wireless.payload_bits / config.wireless.num_devices)
    weight = 0.02 if trial.plan_only else {"cifar-cnn": 3.0, "mnist-cnn": 1.0}.get(config.learning.model, 0.1)
    return rounds * weight * (0.3 + share)


def _batches(trials: Sequence[Trial], place: Place) -> list[list[Trial]]:
    """Lockstep groups of one model and about one length, the costliest first; several for each process."""
    kinds: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        kinds.setdefault((trial.plan_only, trial.config.data.name, trial.config.learning.model), []).append(trial)
    batches = []
    for group in kinds.values():
        group.sort(key=_cost, reverse=True)
        most = _MAX if place.device == "cuda" else _MAX_ON_CPU
        size = max(1, min(most, -(-len(group) // place.processes)))
        batches += [group[first : first + size] for first in range(0, len(group), size)]
    return sorted(batches, key=lambda batch: sum(map(_cost, batch)), reverse=True)


_MAX, _MAX_ON_CPU = 80, 4  # trials in a batch: a GPU wants many devices at once; what is stopped half way is lost


def _run_batch(batch: Sequence[Trial], place: Place, callback: Callback, stopping: Callable[[], bool]) -> None:
    if batch[0].plan_only:
        for trial in batch:
            if stopping():
                return
            simulation = _simulation(trial, place)
            records = plan_rounds(simulation)
            _keep(trial, place, records, RunStatus.FINISHED, simulation)
            callback(trial, len(records), True)
        return
    members = [Member(_simulation(trial, place), key=trial.key) for trial in batch]
    trial_of = {trial.key: trial for trial in batch}
    records_of: dict[str, list[RoundRecord]] = {trial.key: [] for trial in batch}

    def keep(member: Member, record: RoundRecord) -> None:
        trial, records = trial_of[member.key], records_of[member.key]
        records.append(record)
        ended = member.state.status is not RunStatus.RUNNING
        if ended:
            _keep(trial, place, records, member.state.status, member.simulation)
            records.clear()
        callback(trial, record.round + 1, ended)

    drive(members, callback=keep, stopping=stopping)


def _simulation(trial: Trial, place: Place) -> Simulation:
    learning = replace(trial.config.learning, device=place.device)
    return Simulation(replace(trial.config, learning=learning))


def _keep(
    trial: Trial, place: Place, records: Sequence[RoundRecord], status: RunStatus, simulation: Simulation
) -> None:
    outcome = outcome_of(records, status.value, simulation.dataset.num_classes)
    write_outcome(_file(place, trial.key), trial, outcome)


def _run_in_processes(
    batches: Sequence[list[Trial]], place: Place, callback: Callback, stopping: Callable[[], bool]
) -> None:
    spawn = multiprocessing.get_context("spawn")
    news, stop = spawn.SimpleQueue(), spawn.Event()
    by_key = {trial.key: trial for batch in batches for trial in batch}
    over, failed = threading.Event(), list[Exception]()
    listener = threading.Thread(target=_listen, args=(news, over, by_key, callback, failed), daemon=True)
    listener.start()
    patience_s = None  # whatever the processes have said is told, however long that takes
    arguments = (news, stop, os.getpid())
    try:
        with ProcessPoolExecutor(place.processes, spawn, initializer=_begin, initargs=arguments) as pool:
            with _ctrl_c_held():  # a process that is still starting would end by it
                futures = [pool.submit(_work, batch, place) for batch in batches]
            try:
                _wait(futures, stop, lambda: bool(failed) or stopping())
            except BaseException:
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
    except BrokenProcessPool:
        patience_s = 5.0  # a process that was killed may have left half a message
        raise OSError(
            "a process that trained was killed, perhaps for want of memory; what is finished is kept: run the same "
            "command again, with fewer --processes"
        ) from None
    finally:
        over.set()
        listener.join(patience_s)
    if failed:
        raise failed[0]


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


def _wait(futures: Sequence[Any], stop: Event, stopping: Callable[[], bool]) -> None:
    waiting = set(futures)
    while waiting:
        try:
            for future in as_completed(waiting, timeout=0.5):
                waiting.discard(future)
                future.result()
        except TimeoutError:
            pass
        if stopping() and not stop.is_set():
            stop.set()
            for future in waiting:
                future.cancel()
            waiting = {future for future in waiting if not future.cancelled()}


def _listen(
    news: Any, over: threading.Event, by_key: dict[str, Trial], callback: Callback, failed: list[Exception]
) -> None:
    """Tell `callback` what the processes say, until all is told that was said before `over`.

    Where it fails the queue is emptied nevertheless: a full one would hold the processes up.
    """
    last = False
    while not last:
        last = over.is_set()  # asked first: what was said before is in the queue now
        while not news.empty():
            for key, (rounds, ended) in news.get():
                try:
                    if not failed:
                        callback(by_key[key], rounds, ended)
                except Exception as error:
                    failed.append(error)
        over.wait(0.1)


class _Process:
    """What a process of the pool knows."""

    news: Any
    stop: Event


def _begin(news: Any, stop: Event, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    _Process.news, _Process.stop = news, stop
    threading.Thread(target=_outlive, args=(parent,), daemon=True).start()


def _outlive(parent: int) -> None:
    """End with the process that this one works for, also where that is killed and can say nothing."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _work(batch: Sequence[Trial], place: Place) -> None:
    latest: dict[str, tuple[int, bool]] = {}

    def callback(trial: Trial, rounds: int, ended: bool) -> None:
        if trial.key in latest:  # the next turn
            _Process.news.put(list(latest.items()))
            latest.clear()
        latest[trial.key] = (rounds, ended)

    _run_batch(batch, place, callback, lambda: _Process.stop.is_set())
    _Process.news.put(list(latest.items()))
