"""The order of the tests: those that take longest first, so that at the end no worker waits for another; and no test
fails for being slow on a busy machine."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

LONG = (
    "test_flower_guide",
    "test_flower_faults",
    "test_killed_runs",
    "test_cli_reproduce",
    "test_benchmarks",
    "test_cli_run",
    "test_docs",
    "test_extreme_cells",
    "test_experiments",
    "test_trials",
    "test_cli_hostile",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order of `LONG`, then the others as they are."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))
