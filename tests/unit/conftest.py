"""Small runs that several files of tests look at, made once; and processes that begin with torch imported."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest

import flare
from tests.small_runs import ENTRIES, SMALL


@pytest.fixture(scope="session")
def in_memory() -> flare.Run:
    """A run without a folder."""
    return flare.simulate(SMALL, policy="greedy", progress=False)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[flare.Runs, Path]:
    """Three entries with two seeds each, and the folder that they are in."""
    base = tmp_path_factory.mktemp("compared") / "all"
    return flare.compare(ENTRIES, 2, config=SMALL, out=base), base


@pytest.fixture
def ready_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a sweep are copies of a process that has imported what they import, and computed nothing: that
    they can do it themselves is seen wherever a command is given --processes."""
    ready = multiprocessing.get_context("forkserver")
    ready.set_forkserver_preload(["flare.sweeps.on_processes", "flare.simulation"])

    def get_context(method: str) -> multiprocessing.context.ForkServerContext:
        assert method == "spawn"
        return ready

    monkeypatch.setattr("flare.sweeps.on_processes.multiprocessing", SimpleNamespace(get_context=get_context))
