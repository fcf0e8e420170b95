"""How far runs are, while they are carried out: lines in a terminal, bars in a notebook, nothing anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flare.records import RunFolder
from flare.records.manifest import is_run_folder
from flare.rounds import RoundRecord, RunStatus
from flare.sweeps import Callback, Task
from flare.text import printable
from flare.units import human

MAX_ROWS = 12
"""Runs that are shown one by one: a screen has room for no more."""
_ALL = ""  # the key of the row of all runs
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
    """A callback that draws a line for each run (of many, for some): round, simulated time, devices, accuracy, loss,
    time left."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("round {task.completed}/{task.total}  {task.fields[facts]}"),
        *clock_columns(),
        console=screen,
        refresh_per_second=4,
    )
    board = _Board(tasks, label_of)
    lines: dict[str, TaskID] = {}

    def draw(*told: str) -> None:
        rows = board.rows()
        for key in lines.keys() - rows.keys():
            progress.remove_task(lines.pop(key))
        for key, bar in rows.items():
            facts: dict[str, Any] = {"completed": bar.done, "facts": bar.facts}
            if key not in lines:
                lines[key] = progress.add_task(printable(bar.label), total=bar.total, **facts)
            elif key in told:
                progress.update(lines[key], **facts)

    def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
        board.tell(task.key, record, status)
        draw(task.key, _ALL)

    with progress:
        draw()
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
    return f"{human(record.clock_s, 's'):>8}  {len(record.selected):3d} devices{seen}  loss {loss:.3f}"


def _in_notebook() -> bool:
    """Whether the code runs in a kernel, as that of Jupyter, whose output is shown as HTML."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _notebook_bars(tasks: Sequence[Task], label_of: Mapping[str, str]) -> Iterator[Callback]:
    from IPython.display import HTML, display

    board = _Board(tasks, label_of)
    handle: Any = display(HTML(_html(board)), display_id=True)
    told_s = time.monotonic()

    def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
        nonlocal told_s
        board.tell(task.key, record, status)
        if time.monotonic() - told_s >= _EVERY_S:
            handle.update(HTML(_html(board)))
            told_s = time.monotonic()

    try:
        yield callback
    finally:
        handle.update(HTML(_html(board)))


class _Bar:
    """How far one run is, or all of them together."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self.label, self.total, self.done, self.facts, self.accuracy = label, total, done, "", math.nan

    def tell(self, record: RoundRecord) -> None:
        """Take in the news of a round."""
        self.accuracy = self.accuracy if record.test_accuracy is None else record.test_accuracy
        self.done, self.facts = record.round + 1, facts_of(record, self.accuracy)


class _Board:
    """How far all runs are. Of more than `MAX_ROWS` the first few that are still going on have a row, and all of them
    together one above."""

    def __init__(self, tasks: Sequence[Task], label_of: Mapping[str, str]) -> None:
        self._bars = {t.key: _Bar(label_of[t.key], t.config.run.rounds, rounds_done(t)) for t in tasks}
        self._many = len(self._bars) > MAX_ROWS
        bars = self._bars.values()
        self._all = _Bar(f"all {len(bars)} runs", sum(bar.total for bar in bars), sum(bar.done for bar in bars))
        self._ended = 0

    def tell(self, key: str, record: RoundRecord, status: RunStatus) -> None:
        """Take in the news of a run."""
        bar = self._bars[key]
        before = bar.done
        bar.tell(record)
        over = status is not RunStatus.RUNNING
        self._all.done += (bar.total if over else bar.done) - before  # a run may end before its last round
        if over and self._many:
            del self._bars[key]
            self._ended += 1
            self._all.facts = f"{self._ended} ended"

    def rows(self) -> dict[str, _Bar]:
        """The rows to show, from above."""
        if not self._many:
            return self._bars
        return {_ALL: self._all} | dict(islice(self._bars.items(), MAX_ROWS))


def _html(board: _Board) -> str:
    rows = "".join(
        f"<tr><td style='text-align: left'>{escape(printable(bar.label))}</td>"
        f"<td><progress max='{bar.total}' value='{bar.done}'></progress></td>"
        f"<td>round {bar.done}/{bar.total}</td><td style='text-align: left'>{escape(bar.facts)}</td></tr>"
        for bar in board.rows().values()
    )
    return f"<table>{rows}</table>"
