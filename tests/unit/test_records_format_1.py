"""Run folders of format 1, as flare 0.1 wrote them: they can be read, and are not continued."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from flare.records import RunFolder
from flare.records.run import read_run
from tests import ready_python
from tests.record_writer import CONFIG

OLD = Path(__file__).resolve().parents[1] / "golden" / "before" / "run-format-1"


@pytest.fixture
def path(tmp_path):
    return shutil.copytree(OLD, tmp_path / "run")


def contents(path):
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_its_records_are_read_with_the_names_of_today(path):
    written = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    read = RunFolder.open(path).records()
    assert [record["round"] for record in read] == [0, 1, 2, 3]
    assert [record.pop("smoothness") for record in read] == [record.pop("lipschitz") for record in written]
    assert read == written
    assert read_run(path).num_rounds == 4


def test_its_settings_are_read(path):
    config = RunFolder.open(path).config
    assert (config.wireless.num_devices, config.scheduling.policy, config.run.rounds) == (6, "proportional-fair", 6)


@pytest.mark.parametrize(("old", "options"), [(0, {}), (4, {"num_selected": 4})])
def test_the_number_of_devices_has_become_an_option_of_the_policy(path, old, options):
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("num_selected = 0", f"num_selected = {old}"))
    assert dict(RunFolder.open(path).config.scheduling.options) == options


def test_it_is_not_continued_and_nothing_is_changed(path):
    before = contents(path)
    message = r"made by an older flare \(version 0.1.0\) and can be reported on, but not continued; start .*flare run"
    with pytest.raises(ValueError, match=message):
        RunFolder.open(path).restore()
    assert contents(path) == before


@pytest.mark.parametrize(
    "change", [lambda text: text[:1] + text[2:], lambda text: [text[0], *text], lambda text: text[::-1]]
)
def test_a_line_that_is_missing_doubled_or_moved_is_noticed(path, change):
    text = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(b"".join(change(text)))
    words = r"line \d is damaged: .*a line is missing.*put the file back from a copy, or start the run again in another"
    with pytest.raises(ValueError, match=words):
        RunFolder.open(path).records()


def test_it_makes_way_for_a_new_run(path):
    with RunFolder.create(path, CONFIG, force=True) as folder:
        folder.append({"round": 0})
    assert RunFolder.open(path).manifest["format_version"] == 2
    assert RunFolder.open(path).records() == [{"round": 0}]


def test_the_command_refuses_to_continue_it_in_words(tmp_path: Path) -> None:
    shutil.copytree(OLD, tmp_path / "run")
    command = [sys.executable, "-m", "flare", "run", "--resume", str(tmp_path / "run")]
    done = ready_python.run(command, cwd=tmp_path)
    assert done.returncode == 2
    assert "made by an older flare" in done.stderr
