"""Python processes that begin with torch and flare imported: a command costs what it does, not what importing takes.

`run` takes what `subprocess.run` takes for `[sys.executable, "-m", "flare", ...]`, `[sys.executable, "-c", code]` or
`[sys.executable, script, ...]`. Behind it stands one process for each process of the tests. It has imported much and
computed nothing; for every command it makes a copy of itself (fork) with the folder, environment, arguments and output
of that command. Whoever tests what happens while Python starts takes `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = (
    "flare.cli",
    "flare.cli.progress",
    "flare.cli.run_results",
    "flare.experiments",
    "flare.report.run_report",
    "flare.report.schedule_plot",
    "flare.simulation",
    "scipy.optimize",
)


def run(
    command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run a command of Python to its end; TimeoutExpired where that takes longer than `timeout` seconds."""
    words = [str(word) for word in command]
    assert words[0] == sys.executable, f"only Python is ready: {words[0]}"
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("out", "err")]
        asked = {
            "words": words[1:],
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "outputs": list(map(str, outputs)),
            "timeout": timeout,
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked).encode() + b"\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        said = [path.read_text(errors="replace") for path in outputs]
    if code is None:
        raise subprocess.TimeoutExpired(words, timeout, *said)
    return subprocess.CompletedProcess(words, code, *said)


@cache
def _server() -> subprocess.Popen[bytes]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.ready_python"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(_end, started)
    return started


def _end(server: subprocess.Popen[bytes]) -> None:
    with server:  # closes its input, at which it ends
        pass


# --- in the process that is ready ---------------------------------------------------------------------------------


def _serve() -> None:
    for name in IMPORTED:
        import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(asked: dict[str, Any]) -> int | None:
    """The exit code of a command, None where it took too long."""
    child = os.fork()
    if child == 0:
        _become(asked)
    end = time.monotonic() + asked["timeout"]
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become(asked: dict[str, Any]) -> None:
    """Turn into the process of the command, and end as it ends."""
    os.setsid()
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
    _serve()
