import errno
import io
import logging
import math
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from flare.records import RunFolder, Snapshot
from flare.records.checkpoint import decode, encode
from flare.records.checkpoints import checkpoint_path, checkpoints
from flare.rng import stream
from tests.record_writer import CONFIG, resume, snapshot, start, write
from tests.run_folders import assert_restored, checkpoint_names, expected, lines, written


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def content_of(snapshot):
    return b"".join(encode(snapshot, "0123456789abcdef"))


def decoded(content):
    back, check = decode(io.BytesIO(content), len(content))
    assert check == "0123456789abcdef"
    return back


def odd_tensors():
    matrix = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "weights": torch.tensor([0.1, -0.0, math.nan, math.inf, 1e-45]),
        "a row of a matrix": matrix[1],
        "its transpose": matrix.T,
        "the same again": matrix,
        "wants a gradient": torch.ones(2, requires_grad=True),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "nothing": torch.zeros(0, 4),
        "nothing, again and again": torch.zeros(1).as_strided((0,), (0,)),
        "one of many": torch.arange(6.0)[4:5].as_strided((1,), (0,), 4),
        "one number for all": torch.full((1,), 0.25).expand(3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "flare": torch.ones(1),
    }


def test_a_snapshot_comes_back_bit_for_bit(path):
    numbers = {"clock_s": 0.1 + 0.2, "none": None, "not": math.nan, "big": 2**80, "sha256": "0", "t": 'é"\\"sha256\\":'}
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
        folder.checkpoint(Snapshot(1, odd_tensors(), numbers))
    with RunFolder.open(path) as folder:
        restored = folder.restore()
    assert restored.rounds_done == 1
    assert repr(restored.numbers) == repr(numbers)
    assert restored.tensors.keys() == odd_tensors().keys()
    for name, tensor in odd_tensors().items():
        back = restored.tensors[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        if tensor.dim():
            anew = torch.cat([tensor.detach().reshape(-1)])  # whatever its strides
            assert torch.equal(back.reshape(-1).view(torch.uint8), anew.view(torch.uint8)), name
    restored.tensors["weights"].add_(1)  # and can be written to


def test_the_same_snapshot_gives_the_same_bytes():
    numbers = {f"number {k}": k for k in range(20)}
    contents = {content_of(Snapshot(1, odd_tensors(), numbers)) for _ in range(5)}
    assert len(contents) == 1


def test_numbers_that_the_format_does_not_have_are_refused():
    with pytest.raises(ValueError, match=r"'phase' is a tensor of torch.complex64, which no checkpoint can hold"):
        content_of(Snapshot(1, {"phase": torch.zeros(2, dtype=torch.complex64)}, {}))


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_could_not_be_read_back_are_refused(name):
    with pytest.raises(ValueError, match="use another name"):
        content_of(Snapshot(1, {name: torch.zeros(2)}, {}))


def test_a_snapshot_without_tensors_comes_back():
    assert decoded(content_of(Snapshot(0, {}, {}))).tensors == {}


def test_the_last_two_are_kept(path):
    assert checkpoint_names(written(path, 2)) == []
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), 14)
    assert checkpoint_names(path) == ["round-000009.safetensors", "round-000012.safetensors"]


def test_order_is_by_round_also_beyond_a_million(tmp_path):
    for rounds in (1_000_000, 999_999, 10_000_000, 3):
        checkpoint_path(tmp_path, rounds).touch()
    (tmp_path / "round-000004.safetensors.aside-1").touch()
    assert [rounds for rounds, _ in checkpoints(tmp_path)] == [10_000_000, 1_000_000, 999_999, 3]


def test_a_snapshot_ahead_of_the_records_is_refused(path):
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
        with pytest.raises(ValueError, match="after 2 rounds is ahead of the 1 recorded rounds"):
            folder.checkpoint(snapshot(start(), 2))
    assert checkpoint_names(path) == []


def test_a_snapshot_behind_the_records_takes_them_back(path):
    # Ctrl-C between the record of a round and the new state.
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, start(), 0, 4)
        folder.append({"round": 4})
        folder.checkpoint(snapshot(weights, 4))
        write(folder, weights, 4, 5)
    assert lines(path) == expected(5)[1]
    assert_restored(path, 4)


def test_records_reach_the_disk_before_the_checkpoint_is_named(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(file):
        calls.append(("fsync", os.path.basename(os.readlink(f"/dev/fd/{file}"))))
        fsync(file)

    def note_replace(old, new):
        calls.append(("replace", Path(new).name))
        replace(old, new)

    with RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
        folder.checkpoint(snapshot(start(), 1))
        folder.append({"round": 1})
        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "replace", note_replace)
        folder.checkpoint(snapshot(start(), 2))
    name = "round-000002.safetensors"
    partial = f".{name}.{os.getpid()}.part"
    assert calls == [("fsync", "rounds.jsonl"), ("fsync", partial), ("replace", name), ("fsync", "checkpoints")]


def test_nothing_written_starts_from_the_beginning(path):
    assert_restored(written(path, 2), 0)


@pytest.mark.parametrize("tail", [b"", b'{"round":', b"{}\n{}\n", b"\x00" * 5000])
def test_records_are_cut_back_to_the_checkpoint(path, tail):
    written(path, 8)
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(tail)
    assert_restored(path, 6)


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(path):
    written(path, 4)
    for name in (".manifest.json.12.part", "checkpoints/.round-000006.safetensors.7.part", "film.part", ".mine.part"):
        (path / name).write_bytes(b"half")
    with RunFolder.open(path) as folder:
        assert folder.restore().rounds_done == 3
    assert sorted(each.name for each in path.rglob("*.part")) == [".mine.part", "film.part"]


def test_any_flipped_bit_is_detected():
    content = content_of(snapshot(expected(4)[0], 4))
    rng = stream(0, "flips")
    header = range(8 + int.from_bytes(content[:8], "little"))
    for place in [*header, *rng.integers(len(header), len(content), 300)]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match=r"checksum|it is not a checkpoint"):
            decoded(bytes(damaged))
    assert decoded(content).rounds_done == 4


def test_any_missing_or_added_byte_is_detected():
    content = content_of(snapshot(expected(4)[0], 4))
    lengths = [0, 1, 7, 8, 9, len(content) - 1, *stream(0, "cuts").integers(0, len(content), 300)]
    for damaged in [*(content[:length] for length in lengths), content + b"\0", content[1:], bytes(len(content))]:
        with pytest.raises(ValueError, match=r"checksum|it is not a checkpoint"):
            decoded(damaged)


def test_sound_safetensors_of_another_program_are_no_checkpoint():
    with pytest.raises(ValueError, match="it has no checksum"):
        decoded(safetensors.torch.save({"weights": torch.ones(2)}))


@pytest.mark.parametrize("seed", range(6))
def test_of_a_damaged_checkpoint_the_one_before_is_used(path, caplog, seed):
    written(path, 8)
    newest = path / "checkpoints" / "round-000006.safetensors"
    content = bytearray(newest.read_bytes())
    rng = stream(seed, "damage")
    if seed < 3:
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    else:
        content = content[: rng.integers(len(content)) if seed < 5 else 0]
    newest.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert_restored(path, 3)
    assert "round-000006.safetensors cannot be used" in caplog.text
    assert checkpoint_names(path) == ["round-000003.safetensors", "round-000006.safetensors.aside-1"]
    assert (path / "checkpoints" / "round-000006.safetensors.aside-1").read_bytes() == content
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), 9)
    assert_restored(path, 9)


def test_where_none_is_sound_the_run_starts_from_the_beginning(path, caplog):
    written(path, 8)
    for each in (path / "checkpoints").iterdir():
        each.write_bytes(b"")
    assert_restored(path, 0)
    assert caplog.text.count("cannot be used") == 2


def test_a_checkpoint_ahead_of_lost_records_is_not_used(path, caplog):
    written(path, 8)
    (path / "rounds.jsonl").write_bytes(b"".join(expected(4)[1]))
    assert_restored(path, 3)
    assert "4 rounds are recorded" in caplog.text


def test_a_checkpoint_under_another_rounds_name_is_not_used(path):
    written(path, 8)
    (path / "checkpoints" / "round-000006.safetensors").rename(path / "checkpoints" / "round-000007.safetensors")
    assert_restored(path, 3)


def test_a_disk_that_cannot_read_a_checkpoint_counts_as_damage(path, monkeypatch):
    written(path, 8)
    open_file = os.open

    def failing(name, *arguments):
        if Path(name).name == "round-000006.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        return open_file(name, *arguments)

    monkeypatch.setattr(os, "open", failing)
    with RunFolder.open(path) as folder:
        assert folder.restore().rounds_done == 3
