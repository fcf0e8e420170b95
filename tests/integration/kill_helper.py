"""Kill a command as the power would: no warning, no clean-up. For tests that then continue what it left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a command ended: by our signal or on its own, and what it had said."""

    killed: bool
    returncode: int
    output: str


def kill_after(
    command: Sequence[str | Path],
    seconds: float,
    *,
    with_signal: signal.Signals = signal.SIGKILL,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command and kill it, with all its children, after so many seconds; it may end before."""
    start = time.monotonic()
    return kill_when(command, lambda: time.monotonic() >= start + seconds, with_signal=with_signal, cwd=cwd, env=env)


def kill_when(
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    with_signal: signal.Signals = signal.SIGKILL,
    limit_s: float = 120.0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command and kill it, with all its children, once `ready()` is true (it is asked every millisecond).

    `ready` makes the moment independent of how fast the machine is: `lambda: num_lines(rounds) >= 7`. After `limit_s`
    the command is killed and TimeoutError raised; so it is where it does not end within that time of a milder signal.
    """
    with tempfile.TemporaryFile() as output:  # a pipe that nobody reads would stop the command
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,
        )
        killed = False
        try:
            _wait_until(lambda: process.poll() is not None or ready(), limit_s)
            killed = process.poll() is None
            if killed:
                os.killpg(process.pid, with_signal)
            _wait_until(lambda: process.poll() is not None, limit_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return Ended(killed, process.returncode, output.read().decode(errors="replace"))


def num_lines(path: Path) -> int:
    """How many whole lines a file has; 0 where there is no such file."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _wait_until(true: Callable[[], bool], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s:g} s in vain")
        time.sleep(0.001)
