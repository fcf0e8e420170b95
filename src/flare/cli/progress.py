"""Runs are carried out while somebody looks on: round, simulated time, devices, accuracy, loss, time left."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from types import FrameType
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from flare.cli.console import console, say
from flare.research.progress import clock_columns, facts_of, terminal_lines
from flare.rounds import RoundRecord, RunStatus
from flare.sweeps import Callback, Place, Task, run_tasks
from flare.text import printable

CountCallback = Callable[[str, int, bool], None]
"""Sees the key of a run, how many rounds it has done, and whether it has ended."""


def carry_out(
    tasks: Sequence[Task],
    labels: Sequence[str],
    place: Place,
    *,
    again: str,
    quiet: bool,
    with_tensorboard: bool,
) -> None:
    """Drive the runs to their end, or to the first Ctrl-C. `again` is the command that continues them."""
    with (
        redirect_stdout(sys.stderr),  # for what plugins print: standard output is for results
        interruptible() as stopping,
        tensorboard(tasks, wanted=with_tensorboard) as log,
        showing_runs(tasks, labels, quiet=quiet) as show,
    ):

        def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
            log(task, record, status)
            show(task, record, status)

        try:
            run_tasks(tasks, place, callback=callback, stopping=stopping)
        except OSError as error:
            raise OSError(f"{error} Continue with: {again}") from None


def showing_runs(tasks: Sequence[Task], labels: Sequence[str], *, quiet: bool) -> AbstractContextManager[Callback]:
    """A callback that draws a line for each run on standard error, or none where `quiet`."""
    if quiet:
        return nullcontext(lambda task, record, status: None)
    label_of = {task.key: printable(label) for task, label in zip(tasks, labels, strict=True)}
    screen = console(stderr=True)
    return terminal_lines(screen, tasks, label_of) if screen.is_terminal else _plain_lines(label_of)


@contextmanager
def _plain_lines(label_of: Mapping[str, str]) -> Iterator[Callback]:
    """Where standard error is no terminal: a line every ten seconds or so."""
    said = dict.fromkeys(label_of, time.monotonic())

    def callback(task: Task, record: RoundRecord, _status: RunStatus) -> None:
        now = time.monotonic()
        last = record.round + 1 >= task.config.run.rounds
        if last or now - said[task.key] > 10.0:
            said[task.key] = now
            facts = facts_of(record, math.nan if record.test_accuracy is None else record.test_accuracy)
            say(f"{label_of[task.key]}: round {record.round + 1}  {facts}", stderr=True)

    yield callback


@contextmanager
def showing_total(rounds_of: Mapping[str, float], *, quiet: bool) -> Iterator[CountCallback]:
    """A callback that shows how many of many runs, and of their rounds, are done. `rounds_of` says about how many
    rounds each run has, by its key; it may grow while they go on."""
    if quiet:
        yield lambda key, rounds, over: None
        return
    screen = console(stderr=True)
    done: dict[str, float] = {}
    known, total, ended, said = len(rounds_of), sum(rounds_of.values()), 0, time.monotonic()
    told = ""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.percentage:3.0f} %"),
        *clock_columns(), console=screen, refresh_per_second=2,
    )  # fmt: skip
    line = bar.add_task(f"0 of {len(rounds_of)} runs", total=total)

    def callback(key: str, rounds: int, over: bool) -> None:
        nonlocal known, total, ended, said, told
        if len(rounds_of) != known:
            known, total = len(rounds_of), sum(rounds_of.values())
        before = done.get(key, 0.0)
        done[key] = rounds_of[key] if over else min(0.99 * rounds_of[key], float(rounds))
        ended += over
        words = f"{ended} of {len(rounds_of)} runs"
        bar.update(line, advance=done[key] - before, total=total, description=words)
        if not screen.is_terminal and time.monotonic() - said > 15.0:
            said, told = time.monotonic(), words
            say(f"{words}, {100.0 * sum(done.values()) / total:.0f} % of the rounds", stderr=True)

    with bar if screen.is_terminal else nullcontext():
        yield callback
    if told and told != (words := f"{ended} of {len(rounds_of)} runs"):  # what was said last is no longer so
        say(words, stderr=True)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C (or SIGTERM) into a polite end after the round; the second ends at once."""
    asked = False

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def tensorboard(tasks: Sequence[Task], *, wanted: bool) -> Iterator[Callback]:
    """A callback that also writes scalars for TensorBoard into each run folder."""
    if not wanted:
        yield lambda task, record, status: None
        return
    from torch.utils.tensorboard import SummaryWriter

    writers: dict[str, Any] = {
        task.key: SummaryWriter(str(task.folder / "tensorboard")) for task in tasks if task.folder is not None
    }

    def callback(task: Task, record: RoundRecord, _status: RunStatus) -> None:
        for name in ("test_accuracy", "test_loss", "train_loss", "latency_s", "clock_s", "objective", "tau_bar"):
            if (value := getattr(record, name)) is not None:
                writers[task.key].add_scalar(name, value, record.round)

    try:
        yield callback
    finally:
        for writer in writers.values():
            writer.close()
