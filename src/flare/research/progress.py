"""How far runs are, while they are carried out: lines in a terminal, bars in a notebook, nothing anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flare.records import RunFolder
from flare.records.manifest import is_run_folder
from flare.rounds import RoundRecord, RunStatus
from flare.sweeps import Callback, Task
from flare.text import printable

_EVERY_S = 0.25  # a notebook is told no more often


def showing(tasks: Sequence[Task], label_of: Mapping[str, str], *, wanted: bool) -> AbstractContextManager[Callback]:
    """A callback that shows how far each run is, by its label, where somebody looks on."""
    if wanted and _in_notebook():
        return _notebook_bars(tasks, label_of)
    screen = Console(stderr=True, highlight=False, emoji=False, markup=False)
    if wanted and screen.is_terminal:
        return terminal_lines(screen, tasks, label_of)
    return nullcontext(lambda task, record, status: None)


@contextmanager
def terminal_lines(screen: Console, tasks: Sequence[Task], label_of: Mapping[str, str]) -> Iterator[Callback]:
    """A callback that draws a line for each run: round, simulated time, devices, accuracy, loss, time left."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("round {task.completed}/{task.total}  {task.fields[facts]}"),
        *clock_columns(),
        console=screen,
        refresh_per_second=4,
    )
    bars: dict[str, TaskID] = {}
    accuracy: dict[str, float] = {}
    for task in tasks:
        total, done = task.config.run.rounds, rounds_done(task)
        bars[task.key] = progress.add_task(printable(label_of[task.key]), total=total, completed=done, facts="")

    def callback(task: Task, record: RoundRecord, _status: RunStatus) -> None:
        if record.test_accuracy is not None:
            accuracy[task.key] = record.test_accuracy
        facts = facts_of(record, accuracy.get(task.key, math.nan))
        progress.update(bars[task.key], completed=record.round + 1, facts=facts)

    with progress:
        yield callback


def clock_columns() -> tuple[TimeElapsedColumn, TextColumn, TimeRemainingColumn]:
    """Time that has passed, and time that is left."""
    return TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()


def rounds_done(task: Task) -> int:
    """How many rounds a run had when it was left."""
    if task.folder is None or not is_run_folder(task.folder):
        return 0
    result = RunFolder.open(task.folder).manifest.get("result")
    rounds = result.get("rounds") if isinstance(result, dict) else 0
    return rounds if isinstance(rounds, int) else 0


def facts_of(record: RoundRecord, accuracy: float) -> str:
    """What is said of a round beside its number."""
    loss = math.nan if record.train_loss is None else record.train_loss
    seen = "" if math.isnan(accuracy) else f"  accuracy {accuracy:.3f}"
    return f"{record.clock_s:8.1f} s  {len(record.selected):3d} devices{seen}  loss {loss:.3f}"


def _in_notebook() -> bool:
    """Whether the code runs in a kernel, as that of Jupyter, whose output is shown as HTML."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _notebook_bars(tasks: Sequence[Task], label_of: Mapping[str, str]) -> Iterator[Callback]:
    from IPython.display import HTML, display

    bars = {task.key: _Bar(label_of[task.key], task.config.run.rounds, rounds_done(task)) for task in tasks}
    handle: Any = display(HTML(_html(bars)), display_id=True)
    told_s = time.monotonic()

    def callback(task: Task, record: RoundRecord, _status: RunStatus) -> None:
        nonlocal told_s
        bars[task.key].tell(record)
        if time.monotonic() - told_s >= _EVERY_S:
            handle.update(HTML(_html(bars)))
            told_s = time.monotonic()

    try:
        yield callback
    finally:
        handle.update(HTML(_html(bars)))


class _Bar:
    """How far one run is."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self.label, self.total, self.done, self.facts, self.accuracy = label, total, done, "", math.nan

    def tell(self, record: RoundRecord) -> None:
        """Take in the news of a round."""
        self.accuracy = self.accuracy if record.test_accuracy is None else record.test_accuracy
        self.done, self.facts = record.round + 1, facts_of(record, self.accuracy)


def _html(bars: Mapping[str, _Bar]) -> str:
    rows = "".join(
        f"<tr><td style='text-align: left'>{escape(printable(bar.label))}</td>"
        f"<td><progress max='{bar.total}' value='{bar.done}'></progress></td>"
        f"<td>round {bar.done}/{bar.total}</td><td style='text-align: left'>{escape(bar.facts)}</td></tr>"
        for bar in bars.values()
    )
    return f"<table>{rows}</table>"
