"""Paths and texts that no command may stumble over, and the command line run within this process."""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from flare.cli import main

TEXTS = [
    "", " ", "nan", "inf", "-inf", "-1", "0", "1e400", "-1e400", "9" * 30, "9" * 5000, "1e-400", "true", "[]", "{}",
    "[" * 3000, "\x1b[31mred", "a\nb", "é", "\u202e", "../..", "=HYPERLINK(1)", "%s%n", "\udcff",
]  # fmt: skip


def paths(folder: Path, ending: str) -> dict[str, Path]:
    """Things that are no small regular file, each at a path with that ending."""
    names = ("missing", "folder", "pipe", "zero", "huge", "socket", "binary", "loop")
    made = {name: folder / f"{name}{ending}" for name in names}
    made["folder"].mkdir()
    os.mkfifo(made["pipe"])
    made["zero"].symlink_to("/dev/zero")
    made["loop"].symlink_to(made["loop"])
    made["binary"].write_bytes(bytes(range(256)) * 20)
    with made["huge"].open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made["socket"]))
    return made | {"under a file": made["binary"] / f"x{ending}", "long": folder / ("x" * 300 + ending)}


def flare(capsys: pytest.CaptureFixture[str], *arguments: str, limit_s: int = 60) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command; an error where it does not end in time."""
    capsys.readouterr()
    code = _exit_code(arguments, limit_s)
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(*arguments: str, cwd: Path, limit_s: int = 60) -> str:
    """The one error line of a command that must be refused with exit code 2 and nothing on standard output."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        code = _exit_code(arguments, limit_s)
    assert (code, out.getvalue()) == (2, ""), out.getvalue() + err.getvalue()
    lines = [line for line in err.getvalue().splitlines() if line.strip()]
    assert len(lines) == 1, err.getvalue()
    assert lines[0].startswith("error: ")
    return lines[0]


def _exit_code(arguments: Sequence[str], limit_s: int) -> int:
    before = sys.argv
    sys.argv = ["flare", *arguments]
    try:
        with _alarm(limit_s):
            main()
    except SystemExit as end:
        code: Any = end.code
    finally:
        sys.argv = before
    return int(code or 0)


@contextmanager
def _alarm(limit_s: int) -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise MemoryError(f"it takes more than {limit_s} s")  # the guard of a command lets this be a fault

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
