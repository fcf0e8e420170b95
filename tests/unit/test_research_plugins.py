"""Runs of a user's own data, policies and methods, when they are compared, loaded and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import flare
from flare import POLICIES
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


EVEN = """
import flare

@flare.policy("evenly", split_evenly=True)
def evenly(problem):
    '''As many as finish on equal shares of the band, those that need the least first.'''
    order = problem.needed_hz.argsort()
    return [k for place, k in enumerate(order, 1) if place * problem.needed_hz[k] <= problem.capacity_hz]
"""


def even_run(tmp_path: Path) -> tuple[flare.Run, Path]:
    """A run by a policy of a plugin that divides the band evenly, and what it says while the plugin is known."""
    (tmp_path / "evenly.py").write_text(EVEN)
    load_plugin(tmp_path / "evenly.py")
    narrow = SMALL | {"run.rounds": 3, "wireless.total_bandwidth_hz": 1.5e6}
    return flare.simulate(narrow, policy="evenly", out=tmp_path / "run"), tmp_path / "run"


def test_why_devices_were_left_out_does_not_depend_on_the_policy_being_at_hand(tmp_path: Path) -> None:
    with registries_as_they_were():
        known, folder = even_run(tmp_path)
        wanted = known.device_columns["why_left_out"].tolist()
    assert "evenly" not in POLICIES
    loaded = flare.load(folder)
    assert isinstance(loaded, flare.Run)
    assert loaded.device_columns["why_left_out"].tolist() == wanted
    assert "does not fit" in wanted


def test_of_a_folder_that_does_not_tell_how_the_band_is_divided_nothing_is_made_up(tmp_path: Path) -> None:
    with registries_as_they_were():
        _, folder = even_run(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["split_evenly"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    loaded = flare.load(folder)
    assert isinstance(loaded, flare.Run)
    assert set(loaded.device_columns["why_left_out"]) == {"", "not known"}
