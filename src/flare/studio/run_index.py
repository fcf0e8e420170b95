"""Every run below the studio's folder, in a line each; what has not changed since the last look is not read again."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from flare.config import Config
from flare.records.glance import last_rounds, some_tests
from flare.records.growing import GrowingRun
from flare.records.layout import LOCK
from flare.records.lines import first_mark, max_line_bytes
from flare.records.locking import FileKey, file_key, locked_files
from flare.records.manifest import CONFIG, FILE, ROUNDS, read_config, read_manifest
from flare.studio.run_folders import RunFolders, inside
from flare.sweeps.grid import FILE as SWEEP
from flare.sweeps.grid import RUNS
from flare.sweeps.task import COMPARISON
from flare.text import cut, one_line

SPARKLINE_POINTS = 24
MAX_WORD, MAX_PROBLEM = 100, 600
"""Characters of what a folder says of a run; more is no word, and would be sent with every list."""
MAX_ROUNDS_HELD = 400_000
"""Rounds of runs whose numbers are kept in memory, some kilobytes each."""
_FRESH_S = 0.4  # the list is not looked through again within this time
_MAX_LOOK_S = 0.6  # runs that are new to the list and not read by then are read with the next look
UNREAD = "reading"
_SIGN_OF_LIFE_S = 30.0  # a run that wrote so recently goes on, wherever its process is


@dataclass(frozen=True)
class RunLine:
    """A run in the list.

    id        its folder, seen from the studio's
    group     the folder that it lies in, "" for the studio's own; `group_kind` is what that holds
    kind      "simulation", or what else supplied its rounds: "flower", "testbed"
    state     as its manifest says, beside "stopped": its process is gone, "damaged": it cannot be read, and
              "reading": it will be with the next look
    progress  how much of the run is done, from 0 to 1
    problem   what is wrong with it; "": nothing
    """

    id: str
    name: str
    group: str = ""
    group_kind: str = "folder"
    kind: str = "simulation"
    method: str = ""
    policy: str = ""
    seed: int = 0
    state: str = "running"
    rounds: int = 0
    planned_rounds: int = 0
    progress: float = 0.0
    accuracy: float | None = None
    clock_s: float = 0.0
    changed: float = 0.0
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the list of the page."""
        return asdict(self)


@dataclass(frozen=True)
class _Known:
    """A line, and the stamps of the files that it was read from: records and manifest."""

    stamps: tuple[int, ...]
    line: RunLine
    config: Config | None
    lock: FileKey | None  # None: it has none
    says_running: bool


@final
class RunIndex:
    """The runs below a folder. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.folders = RunFolders(self.root)
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._looked_at = -math.inf
        self._sparklines: dict[str, tuple[tuple[int, ...], list[float]]] = {}
        self._numbers: OrderedDict[str, tuple[threading.Lock, GrowingRun]] = OrderedDict()

    def lines(self) -> list[RunLine]:
        """All runs, as they are now or were a moment ago, sorted by path."""
        with self._lock:
            if time.monotonic() - self._looked_at > _FRESH_S:
                self._look()
                self._looked_at = time.monotonic()
            return [known.line for known in self._known.values()]

    def folder(self, run: str) -> Path:
        """The folder of a run; LookupError where there is none of that name inside the studio's folder."""
        found = inside(self.root, run)
        if not os.path.lexists(found / FILE):
            raise LookupError(run)
        return found

    def sparkline(self, run: str) -> list[float]:
        """Some test accuracies along a run, from its first test to its last; [] where there are none."""
        folder = self.folder(run)
        stamps = _stamps(folder)
        held = self._sparklines.get(run)
        if held is None or held[0] != stamps:
            held = (stamps, _tests(folder))
            self._sparklines[run] = held
        return held[1]

    def held_sparkline(self, run: str) -> list[float] | None:
        """The sparkline where it was read before and nothing has changed; None: it has to be asked for."""
        held, known = self._sparklines.get(run), self._known.get(run)
        return held[1] if held is not None and known is not None and held[0] == known.stamps else None

    @contextmanager
    def reading(self, run: str, max_s: float) -> Iterator[GrowingRun]:
        """A run as numbers, read on for about so long; for one thread at a time, and not to be kept. LookupError where
        there is no such run, ValueError where it is damaged from the beginning."""
        folder = self.folder(run)
        with self._lock:
            lock, growing = self._numbers.get(run) or (threading.Lock(), GrowingRun(folder))
            self._numbers[run] = (lock, growing)
            self._numbers.move_to_end(run)
            self._drop_numbers()
        with lock:
            try:
                growing.read_on(max_s)
            except (OSError, ValueError):
                with self._lock:
                    self._numbers.pop(run, None)
                raise
            yield growing

    def _drop_numbers(self) -> None:
        """Forget the numbers that were asked for longest ago, where they are too many."""
        total = sum(growing.num_rounds for _, growing in self._numbers.values())
        while total > MAX_ROUNDS_HELD and len(self._numbers) > 1:
            _, (_, dropped) = self._numbers.popitem(last=False)
            total -= dropped.num_rounds

    def _look(self) -> None:
        locked, now, begin = locked_files(), time.time(), time.monotonic()
        known: dict[str, _Known] = {}
        for run in self.folders.look():
            folder = self.root if run == "." else self.root / run
            before, stamps = self._known.get(run), _stamps(folder)
            is_new = before is None or before.line.state == UNREAD
            if is_new and time.monotonic() - begin > _MAX_LOOK_S:
                before = _Known((), replace(self._line(run, stamps), state=UNREAD), None, None, False)
            elif before is None or before.stamps != stamps:
                before = self._read(run, folder, stamps, before)
            state = before.line.state
            if before.says_running:
                state = "running" if _goes_on(before, locked, now) else "stopped"
            line = before.line if state == before.line.state else replace(before.line, state=state)
            known[run] = replace(before, line=line)
        self._known = known
        for run in [each for each in list(self._sparklines) if each not in known]:
            self._sparklines.pop(run, None)

    def _read(self, run: str, folder: Path, stamps: tuple[int, ...], before: _Known | None) -> _Known:
        line = self._line(run, stamps)
        try:
            manifest = read_manifest(folder)
            config = before.config if before is not None and before.stamps[-2:] == stamps[-2:] else None
            config = config or read_config(folder / CONFIG)
            line = _told(line, folder, manifest, config)
        except (ValueError, OSError) as error:
            problem = cut(one_line(str(error).replace(str(folder), run)), MAX_PROBLEM)
            return _Known(stamps, replace(line, state="damaged", problem=problem), None, None, False)
        return _Known(stamps, line, config, file_key(folder / LOCK), line.state == "running")

    def _line(self, run: str, stamps: tuple[int, ...]) -> RunLine:
        """What the place of a run alone tells of it."""
        name = self.root.name if run == "." else run.rpartition("/")[2]
        return RunLine(run, name, *self._group_of(run), changed=_time(stamps))

    def _group_of(self, run: str) -> tuple[str, str]:
        """The folder that a run belongs to, and what that is: a sweep keeps its runs in a folder of its own."""
        parent = run.rpartition("/")[0]
        above, _, last = parent.rpartition("/")
        if last == RUNS and SWEEP in self.folders.beside(above):
            return above, "sweep"
        names = self.folders.beside(parent)
        return parent, "sweep" if SWEEP in names else "comparison" if COMPARISON in names else "folder"


def _told(line: RunLine, folder: Path, manifest: dict[str, Any], config: Config) -> RunLine:
    """A line with what manifest, configuration and the last records say."""
    first = first_mark(manifest).check
    try:
        last, tested = last_rounds(folder / ROUNDS, first, max_line_bytes(config.wireless.num_devices))
    except FileNotFoundError:
        last, tested = {}, {}
    rounds, clock_s = last["round"] + 1 if last else 0, float(last.get("clock_s") or 0.0)
    shares = [rounds / config.run.rounds, clock_s / config.run.seconds if config.run.seconds else 0.0]
    state = cut(str(manifest.get("status") or "unknown"), MAX_WORD)
    ended = state in ("finished", "reached", "diverged")
    return replace(
        line,
        kind=cut(str(manifest.get("driver", "simulation")), MAX_WORD),
        method=cut(config.learning.method, MAX_WORD),
        policy=cut(config.scheduling.policy, MAX_WORD),
        seed=config.seed,
        state=state,
        rounds=rounds,
        planned_rounds=config.run.rounds,
        progress=1.0 if ended else min(1.0, max(shares)),
        accuracy=tested.get("test_accuracy"),
        clock_s=clock_s,
    )


def _tests(folder: Path) -> list[float]:
    try:
        manifest = read_manifest(folder)
        first = first_mark(manifest).check
        tests = some_tests(folder / ROUNDS, first, max_line_bytes(0), SPARKLINE_POINTS)
    except (ValueError, OSError):  # the list says what is wrong
        return []
    return [round(value, 4) for _, value in tests if math.isfinite(value)]


def _stamps(folder: Path) -> tuple[int, ...]:
    """What changes when a run goes on, two numbers a file: size and time of records, manifest and configuration."""
    stamps: list[int] = []
    for name in (ROUNDS, FILE, CONFIG):
        try:
            status = os.stat(folder / name, follow_symlinks=False)
        except OSError:
            stamps += [0, 0]
        else:
            stamps += [status.st_size, status.st_mtime_ns]
    return tuple(stamps)


def _time(stamps: tuple[int, ...]) -> float:
    """When records or manifest last changed, in seconds."""
    return max(stamps[1], stamps[3]) / 1e9


def _goes_on(known: _Known, locked: frozenset[FileKey] | None, now: float) -> bool:
    """Whether somebody still carries out a run that says so: who does has its lock, on this machine."""
    return (locked is not None and known.lock in locked) or now - known.line.changed < _SIGN_OF_LIFE_S
