"""Python processes that begin with torch and flare imported: a command costs what it does, not what importing takes.

`run` takes what `subprocess.run` takes for `[sys.executable, "-m", "flare", ...]`, `[sys.executable, "-c", code]` or
`[sys.executable, script, ...]`. Behind it stands one process for all of the tests (tests/ready.py). It has imported
much and computed nothing; for every command it makes a copy of itself (fork) with the folder, environment, arguments
and output of that command. Whoever tests what happens while Python starts takes `subprocess`; whoever tests that a
command imports what it uses of flare passes `imported=OF_OTHERS`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests import ready

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "PIL.BmpImagePlugin",  # with the four others that Pillow imports before it opens anything
    "PIL.GifImagePlugin",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.PpmImagePlugin",
    "flare.cli",
    "flare.cli.progress",
    "flare.cli.run_results",
    "flare.cli.run_setup",
    "flare.experiments.reproduce",
    "flare.report.run_report",
    "flare.report.schedule_plot",
    "flare.simulation",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "scipy.optimize",
    "typer.rich_utils",  # for --help
)
OF_OTHERS = ("matplotlib.figure", "rich.progress", "scipy.optimize", "torch", "typer")
"""What takes its time to import, and nothing of flare."""


@dataclass(frozen=True)
class Started:
    """A command under way: the leader of a group of processes, with what it has said so far in two files."""

    pid: int
    out: Path
    err: Path
    imported: tuple[str, ...]

    def poll(self) -> int | None:
        """Its exit code, minus the signal that ended it; None while it runs."""
        return _asked(self.imported, poll=self.pid)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, where it ends within so many seconds; asked for once, it is not to be asked for again."""
        if not hasattr(os, "pidfd_open"):
            time.sleep(min(seconds, 0.005))
            return self.poll()
        end = os.pidfd_open(self.pid)
        try:
            return self.poll() if select.select([end], [], [], seconds)[0] else None
        finally:
            os.close(end)

    def said(self) -> list[str]:
        """Standard output and standard error."""
        return [path.read_text(errors="replace") for path in (self.out, self.err)]


def start(
    command: Sequence[str | Path],
    folder: Path,
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None = None,
    imported: tuple[str, ...] = IMPORTED,
) -> Started:
    """Begin a command of Python where these modules are imported; what it says goes into files in `folder`."""
    words = [str(word) for word in command]
    assert words[0] == sys.executable, f"only Python is ready: {words[0]}"
    out, err = folder / "out", folder / "err"
    place = str(Path.cwd() if cwd is None else cwd)
    environment = dict(os.environ if env is None else env)
    pid = _asked(imported, words=words[1:], cwd=place, env=environment, outputs=[str(out), str(err)])
    assert pid is not None
    return Started(pid, out, err, imported)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = 240.0,
    imported: tuple[str, ...] = IMPORTED,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Python to its end; TimeoutExpired where that takes longer than `timeout` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(command, Path(folder), cwd=cwd, env=env, imported=imported)
        end = time.monotonic() + timeout
        while (code := process.wait(1.0)) is None:
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(map(str, command)), timeout, *process.said())
        return subprocess.CompletedProcess(list(map(str, command)), code, *process.said())


def _asked(imported: tuple[str, ...], **question: Any) -> int | None:
    server, line = process(imported), ""
    with suppress(ConnectionError), socket.socket(socket.AF_UNIX) as asked:  # it is gone, and so is its answer
        asked.connect(str(server / "asked"))
        asked.sendall(json.dumps(question).encode() + b"\n")
        with asked.makefile() as answers:
            line = answers.readline()
    if not line:
        raise RuntimeError(
            f"the ready Python process {(server / 'pid').read_text()} has ended, perhaps for want of memory; what it "
            "said last is on standard error"
        )
    answer: int | None = json.loads(line)
    return answer


@cache
def process(imported: tuple[str, ...]) -> Path:
    """The folder of the process that has imported these modules (tests/ready.py)."""
    return ready.process("tests.ready_python", *imported)


# --- in the process that is ready ---------------------------------------------------------------------------------


def _serve(folder: Path, imported: Sequence[str]) -> None:
    gc.disable()  # until all is imported, none of which is garbage
    for name in imported:
        import_module(name)
    gc.collect()
    gc.freeze()  # no copy walks over what is imported, and so copies it in earnest
    gc.enable()
    for connection, _ in ready.asked(folder):
        with suppress(ConnectionError), connection.makefile() as questions:
            if line := questions.readline():
                connection.sendall(json.dumps(_answer(json.loads(line))).encode() + b"\n")


def _answer(asked: dict[str, Any]) -> int | None:
    """The id of a new process, or the exit code of one that was started before, None while it runs."""
    if "poll" in asked:
        ended, status = os.waitpid(asked["poll"], os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    child = os.fork()
    if child == 0:
        _become(asked)
    with suppress(OSError):  # whoever of the two comes first
        os.setpgid(child, child)
    return child


def _become(asked: dict[str, Any]) -> None:
    """Turn into the process of the command, and end as it ends."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate((os.devnull, *asked["outputs"])):
        flags = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        os.dup2(os.open(path, flags, 0o600), number)
    os.closerange(3, 100)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    code: Any = 0
    try:
        _execute(asked["words"])
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _execute(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
