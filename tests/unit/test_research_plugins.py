"""Runs of a user's own data, policies and methods, when they are compared, loaded and exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import flare
from flare.plugins import load_plugin
from flare.report.paired import By, rank
from tests.plugin_files import registries_as_they_were
from tests.small_runs import SMALL

RINGS = Path(__file__).parents[2] / "examples" / "plugins" / "rings.py"
OF_RINGS = SMALL | {"run.rounds": 2, "data.name": "rings"}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with registries_as_they_were():
        yield


def test_seeds_of_data_that_are_drawn_with_the_seed_are_one_group(tmp_path: Path) -> None:
    load_plugin(RINGS)
    kept = flare.compare(["flare:greedy", "flare:cp"], 3, config=OF_RINGS, out=tmp_path / "runs")
    loaded = flare.load(tmp_path / "runs")
    assert isinstance(loaded, flare.Runs)
    for runs in (kept, loaded):
        assert [len(group.runs) for group in runs.groups] == [3, 3]
        (best, other) = rank(runs.groups, By.ROUNDS).standings
        assert best.difference is None
        assert other.difference is not None
        assert other.difference.mean.count == 3
        assert not other.remarks


def test_data_that_are_drawn_by_other_code_are_another_group(tmp_path: Path) -> None:
    runs = []
    for radius in ("1.0", "2.0"):
        with registries_as_they_were():
            plugin = tmp_path / f"rings-{radius}.py"
            plugin.write_text(RINGS.read_text().replace("1.0 + label", f"{radius} + label"))
            load_plugin(plugin)
            runs += list(flare.compare(["flare:greedy"], 2, config=OF_RINGS, progress=False))
    groups = flare.Runs(runs).groups
    assert [len(group.runs) for group in groups] == [2, 2]
    codes = [group.runs[0].manifest["data_code"][:6] for group in groups]
    assert [group.label for group in groups] == [f"flare:greedy, {code}" for code in codes]
