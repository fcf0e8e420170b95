"""What a worker is told, and does: a batch of runs, the plugins that they need, and a file that says when to stop.

Workers are processes of this machine or of others. They write run folders and say nothing else: who wants to know how
far they are reads the folders (`flare.sweeps.tail`).
"""

from __future__ import annotations

import gc
import os
import platform
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch

from flare.plugins import plugin_text, take_plugin, told_as_plugins
from flare.reading import read_small
from flare.records.manifest import flare_version
from flare.sweeps.lockstep import run_batch
from flare.sweeps.task import Place, Task

GO, _STOP = b"go", b"stop"
_LOOK_S = 0.5  # how often a worker looks whether it is to stop
_ENOUGH_BYTES = 100
_SIGNAL = ".going-on-"
_STALE_S = 3600.0  # without a sign of life


@final
@dataclass(frozen=True)
class SentPlugin:
    """A plugin as it travels: the path by which the settings name it, what the file holds, and its SHA-256."""

    path: str
    content: bytes
    sha256: str


@final
@dataclass(frozen=True)
class Order:
    """A batch for a worker.

    signal       a file beside the run folders: it says "go", and the runs are left to be continued when it does not
    patience_s   how long to wait for run folders that another process writes
    """

    tasks: tuple[Task, ...]
    place: Place
    signal: Path
    plugins: tuple[SentPlugin, ...] = ()
    patience_s: float = 0.0
    version: str = field(default_factory=flare_version)


@final
@dataclass(frozen=True)
class Fault:
    """An error of a worker, in words: not every error can be sent."""

    is_bad_input: bool
    is_disk: bool
    is_memory: bool
    words: str
    trace: str

    def raised(self) -> Exception:
        """The error to raise in its place."""
        kind = ValueError if self.is_bad_input else OSError if self.is_disk else RuntimeError
        error = kind(self.words)
        error.add_note(self.trace)
        return error


def sent_plugins(tasks: Sequence[Task]) -> tuple[SentPlugin, ...]:
    """The plugins of runs as they are now; ValueError where one cannot be read."""
    paths = dict.fromkeys(path for task in tasks for path in task.config.plugins)
    return tuple(SentPlugin(path, *plugin_text(path)) for path in paths)


@contextmanager
def go_signal(folder: Path) -> Iterator[Path]:
    """A file in a folder that says "go" for as long as it is wanted. Those that killed processes left are removed."""
    for each in folder.glob(f"{_SIGNAL}*"):
        with suppress(OSError):
            if time.time() - each.stat().st_mtime > _STALE_S:
                each.unlink()
    with tempfile.NamedTemporaryFile(dir=folder, prefix=_SIGNAL, delete=False) as made:
        made.write(GO)
    path = Path(made.name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def keep_going(signal: Path) -> None:
    """Show that the signal is somebody's; to be called now and then."""
    with suppress(OSError):
        os.utime(signal)


def say_stop(signal: Path) -> None:
    """Tell all workers to leave their runs after the round; a full disk does not keep it from being said."""
    with suppress(OSError):
        signal.write_bytes(_STOP)


def work(order: Order) -> Fault | None:
    """Carry out a batch, in a worker; what went wrong, if something did."""
    try:
        torch.set_num_threads(1)
        _refuse_another_place(order)
        for plugin in order.plugins:
            take_plugin(plugin.path, plugin.content, plugin.sha256)
        run_batch(
            order.tasks,
            order.place,
            lambda task, record, status: None,
            _asking(order.signal),
            patience_s=order.patience_s,
        )
    except (Exception, SystemExit) as raised:
        return _fault_of(raised)  # nothing here may hold the error: it holds the runs, and they the memory
    finally:
        let_go_of_memory()
    return None


def _fault_of(raised: BaseException) -> Fault:
    """What went wrong, told as the error of a plugin where it is one."""
    error = told_as_plugins(raised) or raised
    return Fault(
        is_bad_input=isinstance(error, ValueError),
        is_disk=isinstance(error, OSError),
        is_memory=is_of_memory(raised),
        words=str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}",
        trace="".join(traceback.format_exception(raised)),
    )


def is_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; on a CPU, torch says so in words alone."""
    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def let_go_of_memory() -> None:
    """Give back what this process holds of a GPU and does not use: other processes may want it."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _refuse_another_place(order: Order) -> None:
    """ValueError where this machine does not see the folders, or has another FLARE."""
    if order.version != flare_version():
        raise ValueError(
            f"machine {platform.node()} has flare {flare_version()}, and the command was given to flare "
            f"{order.version}; install the same version on all machines"
        )
    if not order.signal.exists():  # who gave the order removes it when no worker is left
        raise ValueError(
            f"machine {platform.node()} does not see what is in the folder {order.signal.parent}; give an --out on a "
            "disk that all machines of the cluster share"
        )


def _asking(signal: Path) -> Callable[[], bool]:
    """Whether the signal is to stop; the file is read now and then. Where it is gone, so is who made it."""
    last_s, stop = -_LOOK_S, False

    def stopping() -> bool:
        nonlocal last_s, stop
        now_s = time.monotonic()
        if not stop and now_s - last_s >= _LOOK_S:
            last_s, stop = now_s, _said(signal) != GO
        return stop

    return stopping


def _said(signal: Path) -> bytes:
    try:
        return read_small(signal, _ENOUGH_BYTES)
    except (ValueError, OSError):
        return _STOP
