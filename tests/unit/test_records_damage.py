"""Records and checkpoints that somebody changed: noticed, said, and nothing lost."""

import json
import logging
import os
import shutil

import pytest
import torch

from flare.records import RunFolder, Snapshot
from flare.rng import stream
from tests.record_writer import CONFIG, resume, write
from tests.run_folders import assert_restored, checkpoint_names, expected, lines, written


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def edited(line):
    record = json.loads(line)
    return json.dumps(record | {"head": [*record["head"], 1.0]}, separators=(",", ":")).encode() + b"\n"


def sealed_elsewhere(line):
    """The line of a run with another configuration: JSON, round and form are right."""
    return line[:-6] + bytes([line[-6] ^ 1]) + line[-5:]


# What is done to the lines of 8 rounds at a place, and what is said of which line.
CHANGES = {
    "deleted": (lambda text, at: text[:at] + text[at + 1 :], 0, "a line is missing, doubled or moved"),
    "doubled": (lambda text, at: text[: at + 1] + text[at:], 1, "a line is missing, doubled or moved"),
    "swapped": (
        lambda text, at: [*text[:at], text[at + 1], text[at], *text[at + 2 :]],
        0,
        "a line is missing, doubled or moved",
    ),
    "edited": (lambda text, at: [*text[:at], edited(text[at]), *text[at + 1 :]], 0, "the line was edited"),
    "foreign": (lambda text, at: [*text[:at], sealed_elsewhere(text[at]), *text[at + 1 :]], 0, "or is of another run"),
    "unsealed": (
        lambda text, at: [*text[:at], b'{"round":%d}\n' % at, *text[at + 1 :]],
        0,
        'does not end in a "check"',
    ),
    "no JSON": (lambda text, at: [*text[:at], b"\x00\xff{]\n", *text[at + 1 :]], 0, 'does not end in a "check"'),
    "empty": (lambda text, at: [*text[:at], b"\n", *text[at:]], 0, 'does not end in a "check"'),
}


def damage(path, change, at):
    before = lines(path)
    (path / "rounds.jsonl").write_bytes(b"".join(CHANGES[change][0](before, at)))
    return (path / "rounds.jsonl").read_bytes()


def test_a_damaged_line_is_told_also_where_a_file_stands_in_place_of_the_checkpoints(path):
    damage(written(path, 8), "edited", 2)
    shutil.rmtree(path / "checkpoints")
    (path / "checkpoints").write_text("")
    with pytest.raises(ValueError, match=r"line 3 is damaged.*start the run again in another folder"):
        RunFolder.open(path).records()


@pytest.mark.parametrize("at", [0, 2, 4, 6])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_is_named_to_readers(path, change, at):
    damage(written(path, 8), change, at)
    _, later, why = CHANGES[change]
    # three rounds are before the older of the two checkpoints that are kept
    way_back = f"go back to the last sound checkpoint with --resume {path}"
    way_back = way_back if at + later >= 3 else "start the run again in another folder"
    pattern = rf"rounds.jsonl: line {at + later + 1} is damaged: .*{why}.*put the file back from a copy, or {way_back}$"
    with pytest.raises(ValueError, match=pattern):
        RunFolder.open(path).records()
    read = RunFolder.open(path).iter_records()
    assert [next(read)["round"] for _ in range(at + later)] == list(range(at + later))


@pytest.mark.parametrize(("at", "rounds_left"), [(6, 6), (5, 3), (3, 3)])
@pytest.mark.parametrize("change", CHANGES)
def test_a_run_goes_back_to_what_records_and_checkpoint_agree_on(path, caplog, change, at, rounds_left):
    whole = damage(written(path, 8), change, at)
    if change == "doubled" and at == 5:
        rounds_left = 6  # the first of the two is in its place
    with caplog.at_level(logging.WARNING):
        assert_restored(path, rounds_left)
    assert f"line {at + 1 + CHANGES[change][1]} is damaged" in caplog.text
    assert f"the first {rounds_left} rounds are kept, all after them is dropped and computed again" in caplog.text
    assert (path / "rounds.jsonl.aside-1").read_bytes() == whole
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), 8)
    assert lines(path) == expected(8)[1]
    assert len(RunFolder.open(path).records()) == 8


@pytest.mark.parametrize("change", CHANGES)
def test_where_no_checkpoint_fits_nothing_is_touched(path, change):
    damage(written(path, 8), change, 0 if change == "doubled" else 1)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    pattern = (
        r"run cannot be continued: .*line 2 is damaged.*nothing was changed: put rounds.jsonl and checkpoints back"
    )
    with pytest.raises(ValueError, match=pattern):
        RunFolder.open(path).restore()
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before
    (path / "rounds.jsonl").write_bytes(b"".join(expected(8)[1]))
    assert_restored(path, 6)  # the lock is free, and all is as it was


def test_any_flipped_bit_of_the_records_is_noticed(path):
    written(path, 4)
    content = (path / "rounds.jsonl").read_bytes()
    rng = stream(0, "flips")
    for place in range(len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        (path / "rounds.jsonl").write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            RunFolder.open(path).records()


def test_records_of_another_run_are_noticed_by_the_checkpoints(tmp_path):
    def run(name, wall_s):
        with RunFolder.create(tmp_path / name, CONFIG) as folder:
            for number in range(4):
                folder.append({"round": number, "wall_s": wall_s})
                folder.checkpoint(Snapshot(number + 1, {"weights": torch.ones(3)}, {}))
            folder.finish("interrupted")
        return tmp_path / name

    ours, theirs = run("ours", 0.1), run("theirs", 0.2)
    shutil.copyfile(theirs / "rounds.jsonl", ours / "rounds.jsonl")
    with pytest.raises(ValueError, match=r"round-000004.safetensors cannot be used: it continues other records"):
        RunFolder.open(ours).restore()
    assert lines(ours) == lines(theirs)
    with pytest.raises(ValueError, match="line 4 is not the one that the run ended with"):
        RunFolder.open(ours).records()


def test_last_lines_that_are_missing_are_noticed_once_the_run_has_ended(path):
    with RunFolder.create(path, CONFIG) as folder:
        write(folder, torch.zeros(64, dtype=torch.float64), 0, 5)
        folder.finish("interrupted")
    assert len(RunFolder.open(path).records()) == 5
    (path / "rounds.jsonl").write_bytes(b"".join(expected(3)[1]))
    with pytest.raises(ValueError, match="lines 4 to 5 are missing; put the file back"):
        RunFolder.open(path).records()
    assert_restored(path, 3)
    assert len(RunFolder.open(path).records()) == 3


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: [each.unlink() for each in folder.iterdir()]])
def test_without_checkpoints_the_run_starts_again_and_its_records_are_kept(path, caplog, remove):
    written(path, 8)
    remove(path / "checkpoints")
    with caplog.at_level(logging.WARNING), RunFolder.open(path) as folder:
        weights, done = resume(folder)
        assert done == 0
        assert (path / "rounds.jsonl.aside-1").read_bytes() == b"".join(expected(8)[1])
        assert "no checkpoint is left" in caplog.text
        assert "the records as they were are kept in rounds.jsonl.aside-1" in caplog.text
        write(folder, weights, 0, 5)  # the folder of checkpoints is there again
    assert_restored(path, 3)
    assert checkpoint_names(path) == ["round-000003.safetensors"]
    assert os.listdir(path).count("rounds.jsonl.aside-1") == 1


def test_a_checkpoint_folder_that_goes_while_the_run_writes_is_made_again(path):
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, torch.zeros(64, dtype=torch.float64), 0, 5)
        shutil.rmtree(path / "checkpoints")
        write(folder, weights, 5, 7)
    assert_restored(path, 6)


def test_rounds_before_the_first_checkpoint_are_computed_again_without_ado(path, caplog):
    with caplog.at_level(logging.WARNING):
        assert_restored(written(path, 2), 0)
    assert caplog.text == ""
    assert not list(path.glob("*.aside-*"))


@pytest.mark.parametrize("what", ["file", "link", "pipe"])
def test_something_in_the_place_of_the_checkpoints_is_refused(path, tmp_path, what):
    written(path, 8)
    (path / "checkpoints").rename(tmp_path / "elsewhere")
    {
        "file": lambda at: at.write_text("mine"),
        "link": lambda at: at.symlink_to(tmp_path / "elsewhere"),
        "pipe": os.mkfifo,
    }[what](path / "checkpoints")
    before = lines(path), sorted(each.name for each in (tmp_path / "elsewhere").iterdir())
    for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path, CONFIG, force=True)):
        with pytest.raises(
            ValueError, match=r"checkpoints is a (file|link|named pipe), and must be a folder; nothing was"
        ):
            call()
        assert (lines(path), sorted(each.name for each in (tmp_path / "elsewhere").iterdir())) == before
    assert len(RunFolder.open(path).records()) == 8
    (path / "checkpoints").unlink()
    (tmp_path / "elsewhere").rename(path / "checkpoints")
    assert_restored(path, 6)


def test_what_is_put_aside_twice_is_kept_twice_until_the_run_is_written_over(path):
    written(path, 8)
    for number in (1, 2):
        damage(path, "edited", 6)
        assert_restored(path, 6)
        with RunFolder.open(path) as folder:
            write(folder, *resume(folder), 8)
        assert len(list(path.glob("rounds.jsonl.aside-*"))) == number
    RunFolder.create(path, CONFIG, force=True).close()
    assert not list(path.glob("*.aside-*"))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"round": 1}, '0 rounds are recorded, and the next record says "round": 1; append the record of round 0'),
        ({}, '"round": None'),
        ({"round": 0, "check": "mine"}, 'the key "check" is taken'),
        ({"round": 0, "text": "a" * (18 << 20)}, "has 18874[0-9]* bytes, and a run of so few devices has at most"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_written(path, record, message):
    with RunFolder.create(path, CONFIG) as folder:
        with pytest.raises(ValueError, match=message):
            folder.append(record)
        assert lines(path) == []
        folder.append({"round": 0})
        assert folder.records() == [{"round": 0}]
