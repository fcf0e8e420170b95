"""Listening to processes through whatever kind of pipe the system has."""

from __future__ import annotations

import multiprocessing
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flare.config import Config
from flare.rounds import RunStatus
from flare.sweeps import Place, Task, processes


class OtherPipe:
    """What a pipe is on another system: Windows has no `Connection`."""


def test_a_pipe_of_another_kind_is_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "Connection", OtherPipe)
    listen, tell = multiprocessing.Pipe(duplex=False)
    tell.send([("run", "a record", RunStatus.RUNNING)])
    tell.close()
    ended = cast("BaseProcess", SimpleNamespace(join=lambda timeout: None, exitcode=0))
    task, heard = Task("run", Config(), Path("nowhere")), []
    shared = processes._Work([[task]], Place(), lambda *_: None, None, SimpleNamespace(set=lambda: None), {})

    def callback(*told: Any) -> None:
        heard.append(told)

    processes._listen({listen: ended}, shared, {"run": task}, callback, lambda: False)
    assert heard == [(task, "a record", RunStatus.RUNNING)]
