"""The order in which the tests are dealt out to processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SECONDS, dealt


@dataclass(frozen=True, eq=False)
class MadeUp:
    """As much of a test as the order goes by."""

    path: Path
    mark: pytest.Mark | None

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark if name == "waits" else None


def made_up(file: str, waits_s: float | None = None) -> Any:
    return MadeUp(Path(f"{file}.py"), None if waits_s is None else pytest.mark.waits(seconds=waits_s).mark)


@pytest.mark.parametrize("parts", [1, 2, 4, 18])
def test_every_test_is_dealt_once_and_the_parts_are_those_that_xdist_cuts(parts: int) -> None:
    items = [made_up(name) for name in SECONDS for _ in range(3)]
    items += [made_up("test_waits", seconds) for seconds in (30.0, 120.0, 40.0, 90.0)]
    items += [made_up("test_short") for _ in range(501)]
    dealt_out = dealt(items, parts, 2)
    assert sorted(id(item) for part in dealt_out for item in part) == sorted(map(id, items))
    left = len(items)
    for number, part in enumerate(dealt_out):
        assert len(part) == left // (parts - number)
        left -= len(part)


def test_tests_that_wait_come_first_in_few_parts_and_long_files_stay_whole() -> None:
    waiting = [made_up("test_waits", seconds) for seconds in (30.0, 120.0, 40.0, 90.0)]
    files = {name: [made_up(name) for _ in range(3)] for name in SECONDS}
    items = [made_up("test_short") for _ in range(500)] + [item for each in files.values() for item in each] + waiting
    parts = dealt(items, 4, 2)
    assert parts[0][:2] == [waiting[1], waiting[0]]
    assert parts[1][:2] == [waiting[3], waiting[2]]
    for tests in files.values():
        (home,) = [part for part in parts if tests[0] in part]
        start = home.index(tests[0])
        assert home[start : start + 3] == tests
