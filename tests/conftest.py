"""The order of the tests, in which they take the least time; and no test fails for being slow on a busy machine.

With `pytest -n N --dist worksteal` each of N processes begins with a part of the list, the parts being of equal length;
one that is done takes over from the end of another's. So every part begins with what takes long, about the same time in
all of them, and ends with short tests, to be taken over. Long files stay whole: what their tests share is made once.
Tests that wait for other programs stand one after another in a few parts, and leave the cores to the others.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

SECONDS = {
    "test_docs": 60.0,
    "test_experiments": 45.0,
    "test_extreme_cells": 36.0,
    "test_cli_reproduce": 30.0,
    "test_cli_run": 22.0,
    "test_notebooks": 21.0,
    "test_run_report": 20.0,
    "test_benchmarks": 17.0,
    "test_schedule_plot": 16.0,
    "test_cli_hostile": 15.0,
    "test_cli": 14.0,
    "test_killed_runs": 12.0,
    "test_cli_sweep": 11.0,
    "test_cli_cost": 9.0,
    "test_batched": 8.0,
    "test_trials": 7.0,
}
"""What the files take that take long: of computing, roughly, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put them into the order of this file."""
    parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for part in dealt(items, parts, parts - (os.cpu_count() or 1)) for item in part]


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
    others = [item for item in items if item not in waits]
    for name, seconds in SECONDS.items():
        deal([item for item in others if item.path.stem == name], seconds, parts)
    short = [item for item in others if item.path.stem not in SECONDS]
    left = len(items)
    for number, part in enumerate(made):  # up to the length at which xdist cuts
        room = max(left // (parts - number) - len(part), 0)
        part += short[:room]
        del short[:room]
        left -= len(part)
    return made
