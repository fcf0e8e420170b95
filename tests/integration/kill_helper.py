"""Kill a command as the power would: no warning, no clean-up. For tests that then continue what it left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import ready_python


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
    """Run a command of Python and kill it, with all its children, after so many seconds; it may end before."""
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
    """Run a command of Python and kill it, with all its children, once `ready()` is true, asked every millisecond.

    `ready` makes the moment independent of how fast the machine is: `lambda: num_lines(rounds) >= 7`. After `limit_s`
    the command is killed and TimeoutError raised; so it is where it does not end within that time of a milder signal.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = None if env is None else {**os.environ, **env}
        process = ready_python.start(command, Path(folder), cwd=cwd, env=environment)
        code: list[int] = []
        killed = False

        def ended() -> bool:
            if not code and (polled := process.wait(0.0)) is not None:
                code.append(polled)
            return bool(code)

        try:
            _wait_until(lambda: ended() or ready(), limit_s)
            killed = not ended()
            if killed:
                os.killpg(process.pid, with_signal)
            _wait_until(ended, limit_s)
        finally:
            if not ended():
                os.killpg(process.pid, signal.SIGKILL)
        return Ended(killed, code[0], "".join(process.said()))


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
