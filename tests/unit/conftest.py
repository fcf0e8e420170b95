"""Small runs that several files of tests look at: made once."""

from __future__ import annotations

from pathlib import Path

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
