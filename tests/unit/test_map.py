"""The map in CONTRIBUTING.md names every file and no other; what is compiled beside pip is what pip installs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import compiling

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "flare"
HOUSE = (ROOT / "CONTRIBUTING.md").read_text().partition("## The house")[2].partition("## Rules")[0]


def named(station: str) -> set[str]:
    """The files that the paragraph of a station names, "fig3.py to fig8.py" in full."""
    (paragraph,) = re.findall(rf"\*\*`{station}`\*\*(.*?)\n\n", HOUSE, flags=re.DOTALL)
    names = set(re.findall(r"`(\w+\.py)`", paragraph))
    return names | {f"fig{number}.py" for number in range(3, 9)} if "fig3.py" in names else names


def test_every_file_of_every_station_is_on_the_map() -> None:
    stations = [each.name for each in PACKAGE.iterdir() if (each / "__init__.py").exists()]
    assert set(re.findall(r"\*\*`(\w+)`\*\*", HOUSE)) == set(stations)
    for station in stations:
        files = {each.name for each in (PACKAGE / station).rglob("*.py")} - {"__init__.py"}
        assert named(station) == files, station


def test_every_file_at_the_bottom_is_on_the_map() -> None:
    bottom = HOUSE.partition("At the bottom:")[2].partition("\n\n")[0]
    files = {each.name for each in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert set(re.findall(r"`(\w+\.py)`", bottom)) == files


def test_every_task_leads_to_a_file() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| task | file |")[2].partition("## The house")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) >= 10
    for row in rows:
        paths = re.findall(r"`([\w/]+/[\w./]*)`", row)
        assert paths, row
        for path in paths:
            assert (PACKAGE / path).exists() or (ROOT / path).exists(), path


def test_what_is_compiled_while_pip_installs_is_what_it_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name in compiling.IMPORTED if not compiling.is_whole(name)] == []
    monkeypatch.setattr(compiling, "IMPORTED", {"no_such_package": "no_such_package"})
    monkeypatch.setattr(compiling.time, "sleep", lambda _: pytest.fail("it waits for what never comes"))
    compiling.main()
