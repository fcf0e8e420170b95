"""Flower's programs, ready: a process that has imported Flower, torch and flare copies itself for each of them.

A SuperNode starts a program for every message, and most of what that computes is importing. `programs` is a folder
with programs of Flower's names, to come first in PATH. Each hands its arguments, folder, environment, network and
outputs to the process that is ready (tests/ready.py). A copy of that (fork) then does what Flower's
own program does. The two end together: a signal goes on to the copy, and whoever kills one has killed the other.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tests import ready

PROGRAMS = ("flower-superexec", "flower-superlink", "flower-supernode", "flwr", "flwr-clientapp", "flwr-serverapp")
IMPORTED = (
    "flare.flower",
    "flare.data.sources",
    "flare.learning.models",
    "flare.wireless.cell",
    "flwr.superlink.main",
    "flwr.supernode.main",
    "httpcore",
    "netrc",
    "numpy.ma",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
_ASK = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    told = {{"words": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
    with open("/proc/self/ns/net") as network:
        socket.send_fds(asked, [b"."], [0, 1, 2, network.fileno()])
    asked.sendall(json.dumps(told).encode() + b"\\n")
    answers = asked.makefile()
    program = int(answers.readline())
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: os.kill(program, number))
    sys.exit(int(answers.readline() or 1))
"""


@cache
def programs(environment: tuple[tuple[str, str], ...]) -> Path:
    """The folder of the programs, once they can be started; the process behind them begins with that environment.

    Their torch computes in one thread, as in all processes of the tests: on busy cores two wait for one another.
    """
    return ready.process("tests.ready_flower", env={**dict(environment), "OMP_NUM_THREADS": "1"})


# --- in the process that is ready ---------------------------------------------------------------------------------


def _serve(folder: Path) -> None:
    gc.disable()  # until all is imported, none of which is garbage
    known = {each.name: each.load() for each in entry_points(group="console_scripts") if each.name in PROGRAMS}
    for name in IMPORTED:
        import_module(name)
    assert "scipy" not in sys.modules, "a node would import it for every message, and does not use it"
    for name in PROGRAMS:
        (folder / name).write_text(_ASK.format(python=sys.executable, address=str(folder / "asked")))
        (folder / name).chmod(0o700)
    gc.collect()
    gc.freeze()  # no copy walks over what is imported, and so copies it in earnest
    gc.enable()
    for connection, listener in ready.asked(folder, between=_reap):
        if os.fork() == 0:
            listener.close()
            _become(connection, known)


def _reap() -> None:
    """Let go of the copies that have ended: as long as nobody asks for its exit code, a process counts as there."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(connection: socket.socket, known: Mapping[str, Callable[[], Any]]) -> None:
    """Turn into the process of the program, and end as it ends."""
    code: Any = 1
    try:
        os.setsid()
        _, (*given, network), _, _ = socket.recv_fds(connection, 1, 4)
        _enter(network)
        with connection.makefile() as file:
            asked = json.loads(file.readline())
        for number, each in enumerate(given):
            os.dup2(each, number)
            os.close(each)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        connection.sendall(f"{os.getpid()}\n".encode())
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        sys.argv, sys.path[0] = asked["words"], str(Path(sys.executable).parent)
        code = known[Path(sys.argv[0]).name]()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        code = code if isinstance(code, int) else int(code is not None)
        connection.sendall(f"{code}\n".encode())
        os._exit(code)


def _enter(network: int) -> None:
    """Go into a network namespace, where it is another one: for which only root has the right."""
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(network, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(network)


def _end_with(connection: socket.socket) -> None:
    connection.recv(1)  # nothing ever comes but the end of the other side
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
