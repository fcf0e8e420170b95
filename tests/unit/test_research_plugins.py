"""Runs of a user's own data, policies and methods, when they are compared, loaded and exported."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import flare
from flare import POLICIES
from flare.plugins import load_plugin
from flare.report.paired import By, rank
from flare.research.tables import NotRedrawn
from flare.rounds import RoundRecord
from tests.hostile import flare as command
from tests.made_up_runs import settings, write_run
from tests.plugin_files import registries_as_they_were
from tests.small_runs import SMALL

pd = pytest.importorskip("pandas")
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
        wanted = known.device_table()[0]["why_left_out"].tolist()
    assert "evenly" not in POLICIES
    loaded = flare.load(folder)
    assert isinstance(loaded, flare.Run)
    assert loaded.device_table()[0]["why_left_out"].tolist() == wanted
    assert "does not fit" in wanted


def test_of_a_folder_that_does_not_tell_how_the_band_is_divided_nothing_is_made_up(tmp_path: Path) -> None:
    with registries_as_they_were():
        _, folder = even_run(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["split_evenly"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    loaded = flare.load(folder)
    assert isinstance(loaded, flare.Run)
    with pytest.warns(NotRedrawn, match=r"run: 3 of 3 rounds .* how policy 'evenly' divides the band"):
        assert set(loaded.devices().why_left_out) == {"", "not known"}


def test_an_export_says_what_it_cannot_tell_and_a_plugin_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin, folder = RINGS.with_name("capped.py"), tmp_path / "runs"
    with registries_as_they_were():
        load_plugin(plugin)
        runs = flare.compare(["capped:greedy"], 3, config=SMALL | {"run.rounds": 2}, out=folder)
        wanted = runs.devices().why_left_out.tolist()
    tables = ["--csv", str(tmp_path), "--mat", str(tmp_path / "all.mat")]
    code, _, said = command(capsys, "export", str(folder), *tables)
    assert code == 0
    assert said.splitlines() == [
        "warning: capped-greedy-seed0 and 2 more runs: 2 of 2 rounds cannot be drawn again (there is no method "
        "'capped' here: give the plugin that it is in, or import it); why their devices were left out is not known"
    ]
    code, _, said = command(capsys, "export", str(folder), *tables, "--force", "--plugin", str(plugin))
    assert (code, said) == (0, "")
    assert pd.read_csv(tmp_path / "devices.csv").why_left_out.fillna("").tolist() == wanted


# --- what runs keep in memory -----------------------------------------------------------------------------------


def test_a_run_on_disk_reads_its_records_when_they_are_asked_for(tmp_path: Path) -> None:
    run = flare.simulate(SMALL | {"run.rounds": 3}, out=tmp_path / "run")
    kept = flare.Run(run.records, run.config, run.numbers.manifest)
    assert any(isinstance(each, RoundRecord) for each in reached_from(kept))  # in memory alone
    assert not any(isinstance(each, RoundRecord) for each in reached_from(run))
    assert [record.round for record in run.records] == [0, 1, 2]
    frame = run.frame()
    shutil.rmtree(tmp_path / "run")
    assert run.frame().equals(frame)  # numbers stay
    with pytest.raises(ValueError, match="run"):
        print(run.records)


def test_a_run_that_goes_on_after_it_was_read_shows_what_it_was(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings(), rounds=4)
    run = flare.load(folder)
    assert isinstance(run, flare.Run)
    short = flare.Run(run.records[:2], run.config, run.numbers.manifest, folder)
    assert [record.round for record in short.records] == [0, 1]
    shutil.rmtree(folder)
    write_run(folder, settings(), rounds=3)
    with pytest.raises(ValueError, match="has 3 rounds, and had 4 when it was read; load it again"):
        print(run.records)


def reached_from(start: object) -> list[object]:
    """Everything that an object holds, directly or not, less modules and types."""
    found, left = {id(start): start}, [start]
    while left:
        for each in gc.get_referents(left.pop()):
            if id(each) not in found and not isinstance(each, type | ModuleType | FunctionType):
                found[id(each)] = each
                left.append(each)
    return list(found.values())
