"""The order of the tests, in which they take the least time; and no test fails for being slow on a busy machine.

With `pytest -n N --dist worksteal` each of N processes begins with a part of the list, the parts being of equal length;
one that is done takes over from the end of another's. So every part begins with what takes long, about the same time in
all of them, and ends with short tests, to be taken over. Long files stay whole: what their tests share is made once.
Tests that wait for other programs stand one after another in a few parts, and leave the cores to the others.
"""

from __future__ import annotations

import gc
import html
import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest
from hypothesis import settings

from tests import ready

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

SECONDS = {
    "test_docs": 57.0,
    "test_experiments": 44.0,
    "test_extreme_cells": 38.0,
    "test_cell_screen": 35.0,
    "test_cli_reproduce": 31.0,
    "test_runs_screen": 28.0,
    "test_policies": 20.0,
    "test_run_report": 18.0,
    "test_new_run_screen": 15.0,
    "test_cli_tune": 15.0,
    "test_notebooks": 14.0,
    "test_schedule_plot": 14.0,
    "test_benchmarks": 13.0,
    "test_cli_run": 11.0,
    "test_cli_hostile": 11.0,
    "test_robust": 10.0,
    "test_flower_parity": 10.0,
    "test_workers": 9.0,
    "test_batched": 8.0,
    "test_cli": 8.0,
    "test_killed_runs": 8.0,
    "test_cli_sweep": 8.0,
    "test_trials": 7.0,
    "test_studio_guide": 7.0,
    "test_cli_cost": 6.0,
    "test_report_in_browser": 6.0,
}
"""What the files take that take long: of computing, roughly, the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C as a user has it, and where the processes of pytest find those that all of them share."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.add_cleanup(ready.begin())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # whoever collects the tests
        gc.disable()  # until all is imported, none of which is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put them into the order of this file."""
    parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for part in dealt(items, parts, parts - (os.cpu_count() or 1)) for item in part]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking again and again over all that is imported, which stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def dealt(items: list[pytest.Item], parts: int, waiting_parts: int) -> list[list[pytest.Item]]:
    """The tests in parts, so many of which begin with those that wait."""
    made: list[list[pytest.Item]] = [[] for _ in range(parts)]
    load = [0.0] * parts

    def deal(tests: list[pytest.Item], seconds: float, among: int) -> None:
        least = load.index(min(load[:among]))
        load[least] += seconds
        made[least] += tests

    waits = {item: mark.kwargs["seconds"] for item in items if (mark := item.get_closest_marker("waits"))}
    for item in sorted(waits, key=lambda item: -waits[item]):
        deal([item], waits[item], max(waiting_parts, 1))
    short: list[pytest.Item] = []
    long: dict[str, list[pytest.Item]] = {name: [] for name in SECONDS}
    for item in items:
        if item not in waits:
            long.get(item.path.stem, short).append(item)
    for name, seconds in SECONDS.items():
        deal(long[name], seconds, parts)
    left = len(items)
    for number, part in enumerate(made):  # up to the length at which xdist cuts
        room = max(left // (parts - number) - len(part), 0)
        part += short[:room]
        del short[:room]
        left -= len(part)
    return made


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have empty pictures, with their names and what they say of themselves: for tests of the words around."""

    def empty(name: str, alt: str, draw: object) -> str:
        return f'<svg id="{name}" role="img" aria-label="{html.escape(alt)}"></svg>'

    monkeypatch.setattr("flare.report.panels.inline_svg", empty)


@pytest.fixture
def ready_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a sweep are copies of a process that has imported what they import, and computed nothing: that
    they can do it themselves is seen in the tests of `flare reproduce` and of plug-ins."""
    ready = multiprocessing.get_context("forkserver")
    ready.set_forkserver_preload(["flare.sweeps.on_processes", "flare.simulation"])

    def get_context(method: str) -> multiprocessing.context.ForkServerContext:
        assert method == "spawn"
        return ready

    monkeypatch.setattr("flare.pools.multiprocessing", SimpleNamespace(get_context=get_context))
