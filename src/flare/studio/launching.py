"""Runs started from the studio: processes of their own, `python -m flare ...`, in folders below the studio's.

They go on when the studio ends, and a studio that is started again finds them: of each there is a note and what it
printed in the folder `.flare-studio`. A process is known again by its number and the time when it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from flare.atomic import write_whole
from flare.reading import read_small
from flare.records.locking import InUseError, lock
from flare.records.manifest import CHECKPOINTS, FILE, now
from flare.records.regular_files import open_regular
from flare.studio.run_folders import MAX_DEPTH
from flare.sweeps.entries import new_folder
from flare.text import one_line

NOTES = ".flare-studio"
MAX_RUNNING = 8
MAX_KEPT = 200
"""Notes of processes that have ended."""
MAX_NAME = 120
_MAX_NOTE_BYTES = 1 << 20
_SAID_BYTES = 4000
_SECRETS = ("FLARE_TOKEN", "FLARE_STUDIO")
_PART_OF_NAME = re.compile(r"[^\W_][\w.+=-]*( [\w.+=-]+)*")
_NOTE = re.compile(r"[0-9]{6,9}\.json")
_WAIT_S = 5.0  # for another studio that starts something
_SETTLED_NS = 2_000_000_000  # a folder may change twice within a tick of its clock


class NotNowError(Exception):
    """What cannot be done to a run as it is now."""


@dataclass(frozen=True)
class Job:
    """A process that the studio started.

    id        its number, the newest the highest
    run       the folder of the run or comparison that it carries out, seen from the studio's
    words     what follows `flare` on its command line
    began     when, by the system's clock of processes: with the number of the process, nobody else's
    started   when, for people
    code      what it ended with; None: it goes on, or no studio was there to see its end
    """

    id: int
    run: str
    words: tuple[str, ...]
    pid: int
    began: str
    started: str
    code: int | None = None


@final
class Launcher:
    """Starts and stops runs below a folder. Safe for several threads. `program` is what carries them out."""

    def __init__(self, root: Path, program: Sequence[str] = (sys.executable, "-m", "flare")) -> None:
        self.root = root.resolve()
        self._program = tuple(program)
        self._lock = threading.Lock()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._jobs: dict[int, Job] = {}
        self._read_at_ns = 0
        self._asked_to_stop: set[int] = set()

    def free_name(self, name: str) -> str:
        """A name for a new run: this one, or with a number behind it where it is taken."""
        with self._lock:
            taken = [self.root / job.run for job in self._known().values() if self._is_running(job)]
            return new_folder(self.root, name, taken).relative_to(self.root).as_posix()

    def start(self, words: Sequence[str], run: str) -> Job:
        """Start `flare` with these words, which is to write into the folder `run`; NotNowError where that cannot be."""
        with self._lock, self._alone():
            running = [job for job in self._known(again=True).values() if self._is_running(job)]
            if any(job.run == run for job in running):
                raise NotNowError(f"{run} is being carried out; stop it first")
            if len(running) >= MAX_RUNNING:
                raise NotNowError(f"{MAX_RUNNING} runs go on that were started here; wait for one, or stop it")
            return self._start(tuple(words), run)

    def _start(self, words: tuple[str, ...], run: str) -> Job:
        notes = self.root / NOTES
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        environment["PYTHONSAFEPATH"] = "1"  # what lies in the studio's folder is no module
        number, log = _new_log(notes, max(self._known(), default=0) + 1)
        try:
            child = subprocess.Popen(
                [*self._program, *words, "--quiet"],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it outlives the studio, and Ctrl-C that ends the studio is not for it
            )
        finally:
            os.close(log)
        job = Job(number, run, words, child.pid, _began(child.pid), now())
        self._children[number] = child
        self._known()[number] = job
        _write(notes, job)
        self._drop_old()
        return job

    def stop(self, run: str) -> None:
        """End the process that carries out a run as Ctrl-C does: it writes a checkpoint and can be resumed. Asked
        again, it is ended at once. NotNowError where no process that was started here does."""
        with self._lock:
            job = self._of(run)
            if job is None:
                raise NotNowError(
                    f"{run} was not started in this studio, or has ended; press Ctrl-C where it was started"
                )
            again = job.id in self._asked_to_stop
            self._asked_to_stop.add(job.id)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM if again else signal.SIGINT)

    def jobs(self) -> list[dict[str, Any]]:
        """All that was started here, the newest first: is it going on, and what it said last."""
        with self._lock:
            return [self._told(job) for job in sorted(self._known().values(), key=lambda one: -one.id)]

    def is_running(self, run: str) -> bool:
        """Whether a process that was started here carries out this run, or a comparison that it is of."""
        with self._lock:
            return self._of(run) is not None

    def let_end(self, run: str, max_s: float) -> None:
        """Wait for a process that was asked to stop: it writes down how its run ended some time before it is gone."""
        end = time.monotonic() + max_s
        while time.monotonic() < end:
            with self._lock:
                job = self._of(run)
                if job is None or job.id not in self._asked_to_stop:
                    return
            time.sleep(0.05)

    def _of(self, run: str) -> Job | None:
        found = [job for job in self._known().values() if run == job.run or run.startswith(f"{job.run}/")]
        return next((job for job in reversed(found) if self._is_running(job)), None)

    def _told(self, job: Job) -> dict[str, Any]:
        running = self._is_running(job)
        code = self._known().get(job.id, job).code
        return {
            "id": job.id,
            "run": job.run,
            "words": list(job.words),
            "started": job.started,
            "state": "running" if running else "failed" if code not in (None, 0, 130) else "ended",
            "code": code,
            "stopping": running and job.id in self._asked_to_stop,
            "said": _end_of(self.root / NOTES / f"{job.id:06d}.log"),
        }

    def _is_running(self, job: Job) -> bool:
        child = self._children.get(job.id)
        if child is None:
            return job.code is None and bool(job.began) and _began(job.pid) == job.began
        code = child.poll()
        if code is not None and job.code is None:  # kept, for a studio that is started again is not its parent
            self._known()[job.id] = ended = replace(job, code=code)
            with contextlib.suppress(OSError):
                _write(self.root / NOTES, ended)
        return code is None

    def _known(self, *, again: bool = False) -> dict[int, Job]:
        """All jobs by their numbers; read again where another studio may have written a note."""
        folder = self.root / NOTES
        try:
            changed_ns = os.lstat(folder).st_mtime_ns
            if again or self._read_at_ns - changed_ns < _SETTLED_NS:
                self._read_at_ns = time.time_ns()
                listed = sorted(folder.iterdir()) if not folder.is_symlink() else []
                read = (_read(path) for path in listed if _NOTE.fullmatch(path.name))
                self._jobs = {job.id: job for job in read if job is not None}
        except OSError:  # nothing was started here, or it is no folder
            self._jobs = {}
        return self._jobs

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other studio of this folder starts anything; NotNowError where its notes cannot be written."""
        folder, end = self.root / NOTES, time.monotonic() + _WAIT_S
        if folder.is_symlink():
            raise NotNowError(f"{NOTES} is a link, so that nothing is written there; remove it")
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            while True:
                try:
                    unlock = lock(folder)
                    break
                except InUseError:
                    if time.monotonic() > end:
                        raise NotNowError("another studio starts a run in this folder; try again") from None
                    time.sleep(0.02)
            try:
                yield
            finally:
                unlock()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NotNowError(f"{NOTES}, where the studio notes what it starts, cannot be written: {why}") from None

    def _drop_old(self) -> None:
        """Forget the oldest of those that have ended, where they are many."""
        known = self._known()
        for number in sorted(known)[: max(0, len(known) - MAX_KEPT)]:
            if not self._is_running(known[number]):
                del known[number]
                self._children.pop(number, None)
                self._asked_to_stop.discard(number)
                for end in ("json", "log"):
                    with contextlib.suppress(OSError):
                        (self.root / NOTES / f"{number:06d}.{end}").unlink()


def refuse_name(root: Path, name: str) -> None:
    """ValueError where this can be no name of a new run: of a new folder below `root`, with / between its parts."""
    if len(name) > MAX_NAME or not all(_PART_OF_NAME.fullmatch(part) for part in name.split("/")):
        raise ValueError(
            f"the name is {name!r:.80}; it must be made of letters, digits, spaces and _ . + = -, begin with a letter "
            f"or digit, and have at most {MAX_NAME} characters; / makes a folder in a folder"
        )
    parts = name.split("/")
    if len(parts) > MAX_DEPTH or CHECKPOINTS in parts:
        raise ValueError(
            f"the name is {name}, and no run is looked for there; give one of at most {MAX_DEPTH} parts, none of them "
            f"{CHECKPOINTS}"
        )
    found = root
    for part in parts:
        found = found / part
        if found.is_symlink() or (found.exists() and not found.is_dir()):
            raise ValueError(f"the name is {name}, but {part} is a link or a file; give another")
        if found != root / name:
            refuse_run(found)
    if found.exists():
        raise ValueError(f"{name} is there already; give another name, or leave it empty")


def refuse_run(folder: Path) -> None:
    """ValueError where the folder is a run's, in which no other is looked for."""
    if os.path.lexists(folder / FILE):
        raise ValueError(f"{folder.name} is the folder of a run, which holds no other; begin it elsewhere")


def _new_log(notes: Path, number: int) -> tuple[int, int]:
    """A new file for what a process prints, open, and its number: the first free one from `number` on."""
    while True:
        path = notes / f"{number:06d}.log"
        if not os.path.lexists(path.with_suffix(".json")):
            with contextlib.suppress(FileExistsError):  # whatever it is: a file, a link, a named pipe
                return number, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        number += 1


def _write(notes: Path, job: Job) -> None:
    write_whole(notes / f"{job.id:06d}.json", (json.dumps(asdict(job)) + "\n").encode())


def _read(path: Path) -> Job | None:
    """A note; None where somebody else wrote it."""
    try:
        told = json.loads(read_small(path, _MAX_NOTE_BYTES))
        job = Job(**{**told, "words": tuple(map(str, told["words"]))})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    sound = type(job.id) is int and type(job.pid) is int and job.pid > 1 and f"{job.id:06d}.json" == path.name
    sound = sound and (job.code is None or type(job.code) is int) and isinstance(job.started, str)
    return job if sound and isinstance(job.run, str) and isinstance(job.began, str) else None


def _began(pid: int) -> str:
    """When a process began, in the system's own words; "" where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # state and start time, proc(5)
    except (OSError, IndexError):
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _end_of(path: Path) -> list[str]:
    """The last lines that a process printed."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SAID_BYTES))
            text = file.read(_SAID_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return []
    return [one_line(line)[:400] for line in text.splitlines() if line.strip()][-12:]
