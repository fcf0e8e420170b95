"""Runs that are read while they grow: the same numbers as of those that are read at once, and each line once."""

import os
from dataclasses import fields

import numpy as np
import pytest

from flare.records import RunFolder, locking
from flare.records import following as following_module
from flare.records.following import Follower
from flare.records.glance import last_rounds, some_tests
from flare.records.growing import GrowingRun
from flare.records.lines import first_mark
from flare.records.locking import file_key, lock, locked_files
from flare.records.run import RunNumbers, read_run
from tests.studio_runs import CONFIG, record, written

MAX_LINE = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def assert_same(one: RunNumbers, other: RunNumbers) -> None:
    for each in fields(RunNumbers):
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, dict):
            assert mine.keys() == theirs.keys()
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name])
        elif isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)


def check_before_first(path):
    return first_mark(RunFolder.open(path).manifest).check


def test_a_run_that_grows_has_the_numbers_of_one_that_is_read_at_once(path):
    with RunFolder.create(path, CONFIG) as folder:
        growing = GrowingRun(path)
        for rounds in (0, 1, 5):
            for index in range(growing.num_rounds, rounds):
                folder.append(record(index).to_json())
            growing.read_on()
            assert growing.num_rounds == rounds
            assert growing.is_whole
            assert_same(growing.numbers, read_run(path))


def test_only_new_lines_are_read(path, monkeypatch):
    lines = []

    def counted(file, *args):
        for told in reading(file, *args):
            lines.append(told[0]["round"])
            yield told

    reading = following_module.read_lines
    monkeypatch.setattr(following_module, "read_lines", counted)
    with RunFolder.create(path, CONFIG) as folder:
        growing = GrowingRun(path)
        for index in range(4):
            folder.append(record(index).to_json())
            growing.read_on()
            growing.read_on()
    assert lines == [0, 1, 2, 3]


def test_one_round_is_read_from_its_place(path):
    written(path, 5)
    growing = GrowingRun(path)
    growing.read_on()
    assert [growing.record(index) for index in (4, 0, 2)] == [record(4), record(0), record(2)]
    for index in (-1, 5):
        with pytest.raises(ValueError, match="5 are recorded"):
            growing.record(index)


def test_a_round_that_was_edited_since_is_told(path):
    growing = GrowingRun(written(path, 3))
    growing.read_on()
    text = (path / "rounds.jsonl").read_bytes()
    (path / "rounds.jsonl").write_bytes(text.replace(b'"gamma":10.0', b'"gamma":11.0'))
    with pytest.raises(ValueError, match="no longer what it was"):
        growing.record(1)


def test_rounds_that_are_done_again_take_the_place_of_the_first(path):
    written(path, 6, status="running")
    growing = GrowingRun(path)
    growing.read_on()
    line = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(b"".join(line[:2]))
    with RunFolder.open(path) as folder:
        folder.restore()
        for index in range(7):
            folder.append(record(index, train_loss=7.0).to_json())
    growing.read_on()
    assert_same(growing.numbers, read_run(path))
    assert growing.num_rounds == 7
    assert growing.record(3).train_loss == 7.0


def test_what_is_sound_before_damage_is_read_and_not_read_again(path, monkeypatch):
    written(path, 4, status="running")
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(b"".join([*lines[:2], lines[2].replace(b"10.0", b"11.0"), lines[3]]))
    growing = GrowingRun(path)
    growing.read_on()
    assert (growing.num_rounds, growing.is_whole) == (2, True)
    assert "line 3 is damaged" in growing.fault
    monkeypatch.setattr(following_module, "read_lines", None)  # reading it again would fail
    growing.read_on()
    assert growing.num_rounds == 2


def test_reading_ends_when_its_time_is_over_and_goes_on_from_there(path):
    written(path, 200)
    growing = GrowingRun(path)
    growing.read_on(max_s=0.0)
    assert growing.num_rounds == 64
    assert not growing.is_whole
    assert 0.2 < growing.share_read < 0.5
    while not growing.is_whole:
        growing.read_on(max_s=0.0)
    assert_same(growing.numbers, read_run(path))


def test_a_run_that_is_begun_anew_is_read_anew(path):
    written(path, 3)
    growing = GrowingRun(path)
    growing.read_on()
    with RunFolder.create(path, CONFIG.__class__(seed=9), force=True) as folder:
        folder.append(record(0, gamma=3.0).to_json())
    growing.read_on()
    assert (growing.num_rounds, growing.numbers.config.seed) == (1, 9)


def test_a_follower_tells_lines_once_and_all_of_them_after_a_change(path):
    written(path, 3, status="running")
    follower = Follower(path, MAX_LINE)
    assert [told["round"] for told, _ in follower.read_on()] == [0, 1, 2]
    assert list(follower.read_on()) == []
    (path / "rounds.jsonl").write_bytes(b"")
    assert list(follower.read_on()) == []


@pytest.mark.parametrize(("rounds", "tested"), [(0, None), (1, None), (2, 1), (7, 5), (300, 299)])
def test_the_last_rounds_are_found_without_reading_the_others(path, rounds, tested):
    written(path, rounds)
    last, test = last_rounds(path / "rounds.jsonl", check_before_first(path), MAX_LINE)
    assert last.get("round") == (rounds - 1 if rounds else None)
    assert test.get("round") == tested


def test_a_last_line_that_is_still_written_does_not_count(path):
    written(path, 4)
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":4,')
    last, _ = last_rounds(path / "rounds.jsonl", check_before_first(path), MAX_LINE)
    assert last["round"] == 3


def test_tests_along_a_run_are_those_of_its_records(path):
    written(path, 300)
    found = some_tests(path / "rounds.jsonl", check_before_first(path), MAX_LINE, 10)
    assert found[0][0] == 1
    assert found[-1][0] == 299
    assert 10 <= len(found) <= 11
    assert all(value == record(index).test_accuracy for index, value in found)


def test_a_glance_at_an_edited_line_says_so(path):
    written(path, 4)
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(b"".join([*lines[:3], lines[3].replace(b"10.0", b"11.0")]))
    with pytest.raises(ValueError, match="was edited"):
        last_rounds(path / "rounds.jsonl", check_before_first(path), MAX_LINE)


def test_which_folders_are_written_shows_without_locking_them(path):
    written(path, 1)
    mine = file_key(path / ".lock")
    if locked_files() is None:
        pytest.skip("this system does not tell which files are locked")
    unlock = lock(path)
    assert mine in locked_files()
    unlock()
    assert mine not in locked_files()


def test_a_locked_file_of_another_disk_is_another_file(path, monkeypatch):
    written(path, 1)
    status = (path / ".lock").stat()
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    listed = path.parent / "locks"
    monkeypatch.setattr(locking, "_SYSTEM_LOCKS", listed)
    for device, is_mine in (((major, minor), True), ((major + 1, minor), False)):
        listed.write_text(
            f"1: FLOCK  ADVISORY  WRITE 77 {device[0]:02x}:{device[1]:02x}:{status.st_ino} 0 EOF\n"
            "2: -> what nobody can read\n3: POSIX  ADVISORY  READ 78 <none>:0 0 EOF\n"
        )
        assert (file_key(path / ".lock") in locked_files()) == is_mine
    assert file_key(path / "nothing") is None
