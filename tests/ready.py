"""Processes that are ready for all processes of the tests: started by whoever asks first, and gone when pytest ends.

The process that a developer has started makes a folder, which the others find by their environment, with a pipe that it
holds open. The pipe is the input of every ready process, which ends where the input does.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "PYTEST_READY_FOLDER"
_STARTED: list[subprocess.Popen[bytes]] = []


def begin() -> Callable[[], None]:
    """Make the folder; what is returned ends the processes and removes it."""
    home = Path(tempfile.mkdtemp(prefix="ready"))  # the path of a socket may not be long
    os.mkfifo(home / "end")
    held = os.open(home / "end", os.O_RDWR)
    os.environ[FOLDER] = str(home)

    def end() -> None:
        os.close(held)
        for each in _STARTED:
            each.wait(20)
        shutil.rmtree(home, ignore_errors=True)

    return end


def process(module: str, *words: str, env: Mapping[str, str] | None = None) -> Path:
    """The folder of the process that runs a module with that folder and these words, once it answers at the socket
    `asked` there; its id is in the file `pid`. It is one for all who ask for the same, in the same `env` if given."""
    said = repr((module, words, sorted(env.items()) if env is not None else None))
    folder = Path(os.environ[FOLDER]) / hashlib.sha256(said.encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "asked").exists():
            _start([sys.executable, "-m", module, str(folder), *words], folder, env)
    return folder


def _start(command: Sequence[str], folder: Path, env: Mapping[str, str] | None) -> None:
    with open(os.open(folder.parent / "end", os.O_RDONLY | os.O_NONBLOCK), "rb") as end:
        server = subprocess.Popen(
            command, stdin=end, stdout=subprocess.DEVNULL, cwd=ROOT, env=env, start_new_session=True
        )
    _STARTED.append(server)
    atexit.register(setattr, server, "returncode", 0)  # it may go on, and Python is not to warn of that
    (folder / "pid").write_text(str(server.pid))
    while not (folder / "asked").exists():
        assert server.poll() is None, f"{' '.join(command)} did not get ready; why is on standard error"
        time.sleep(0.02)


def asked(folder: Path, between: Callable[[], object] = bool) -> Iterator[tuple[socket.socket, socket.socket]]:
    """In a ready process: from now on each connection, with what it came by, until the input ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "part"))
        listener.listen(64)
        os.rename(folder / "part", folder / "asked")  # now it answers
        while sys.stdin not in (waiting := select.select([listener, sys.stdin], [], [], 0.1)[0]):
            between()
            if waiting:
                connection, _ = listener.accept()
                with connection:
                    yield connection, listener
