"""What a person sees while runs go on: round, simulated time, devices, accuracy, loss, time left."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flare.simulation import Member, RoundRecord

Callback = Callable[[Member, RoundRecord], None]


def showing(members: Sequence[Member], labels: Sequence[str], *, quiet: bool) -> AbstractContextManager[Callback]:
    """A watcher that draws a line for each run on standard error, or none where `quiet`."""
    return nullcontext(lambda member, record: None) if quiet else _lines(members, labels)


@contextmanager
def _lines(members: Sequence[Member], labels: Sequence[str]) -> Iterator[Callback]:
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("round {task.completed}/{task.total}  {task.fields[facts]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
        transient=False,
    )
    tasks: dict[str, TaskID] = {}
    accuracy: dict[str, float] = {}
    for member, label in zip(members, labels, strict=True):
        total = member.simulation.config.run.rounds
        tasks[member.key] = progress.add_task(label, total=total, completed=member.state.rounds_done, facts="")

    def callback(member: Member, record: RoundRecord) -> None:
        if record.test_accuracy is not None:
            accuracy[member.key] = record.test_accuracy
        progress.update(
            tasks[member.key],
            completed=record.round + 1,
            facts=_facts(record, accuracy.get(member.key, math.nan)),
        )

    with progress if console.is_terminal else _plain(console, members, labels) as plain:
        yield callback if console.is_terminal else plain  # type: ignore[misc]


def _facts(record: RoundRecord, accuracy: float) -> str:
    loss = math.nan if record.train_loss is None else record.train_loss
    seen = "" if math.isnan(accuracy) else f"  accuracy {accuracy:.3f}"
    return f"{record.clock_s:8.1f} s  {len(record.selected):3d} devices{seen}  loss {loss:.3f}"


@contextmanager
def _plain(console: Console, members: Sequence[Member], labels: Sequence[str]) -> Iterator[Callback]:
    """Where standard error is no terminal: a line every ten seconds or so."""
    label_of = {member.key: label for member, label in zip(members, labels, strict=True)}
    said = {member.key: time.monotonic() for member in members}

    def callback(member: Member, record: RoundRecord) -> None:
        now = time.monotonic()
        last = record.round + 1 >= member.simulation.config.run.rounds
        if last or now - said[member.key] > 10.0:
            said[member.key] = now
            facts = _facts(record, math.nan if record.test_accuracy is None else record.test_accuracy)
            console.print(f"{label_of[member.key]}: round {record.round + 1}  {facts}", highlight=False, soft_wrap=True)

    yield callback


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
def tensorboard(folders: Sequence[Path], members: Sequence[Member], *, wanted: bool) -> Iterator[Callback]:
    """A watcher that also writes scalars for TensorBoard into each run folder."""
    if not wanted:
        yield lambda member, record: None
        return
    from torch.utils.tensorboard import SummaryWriter

    writers: dict[str, Any] = {
        member.key: SummaryWriter(str(folder / "tensorboard")) for member, folder in zip(members, folders, strict=True)
    }

    def callback(member: Member, record: RoundRecord) -> None:
        for name in ("test_accuracy", "test_loss", "train_loss", "latency_s", "clock_s", "objective", "tau_bar"):
            if (value := getattr(record, name)) is not None:
                writers[member.key].add_scalar(name, value, record.round)

    try:
        yield callback
    finally:
        for writer in writers.values():
            writer.close()
