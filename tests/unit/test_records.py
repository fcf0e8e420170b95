import copy
import dataclasses
import errno
import gc
import json
import logging
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, RunConfig, to_toml
from flare.records import RunFolder, Snapshot
from flare.records.checkpoint import decode, encode
from flare.records.checkpoints import checkpoint_path, checkpoints
from flare.records.lines import to_line
from flare.rng import stream
from tests.record_writer import CHECKPOINT_EVERY, CONFIG, resume, snapshot, start, step, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def written(path, rounds):
    """A run folder that was written up to a round and closed."""
    with RunFolder.create(path, CONFIG) as folder:
        write(folder, start(), 0, rounds)
    return path


def lines(path):
    return (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)


def checkpoint_names(path):
    return sorted(each.name for each in (path / "checkpoints").iterdir())


def expected(rounds):
    """Weights and lines of a run that nothing ever interrupted."""
    weights, text = start(), []
    for number in range(rounds):
        weights, record = step(weights, number)
        text.append(to_line(record))
    return weights, text


def assert_restored(path, rounds_done):
    """The folder continues from that round, with that round's weights and exactly its records."""
    with RunFolder.open(path) as folder:
        weights, done = resume(folder)
    assert done == rounds_done
    wanted_weights, wanted_lines = expected(done)
    assert torch.equal(weights, wanted_weights)
    assert lines(path) == wanted_lines
    assert not [each for each in path.rglob("*") if each.name.endswith(".part")]


# The folder


def test_a_new_folder_holds_configuration_manifest_and_no_rounds(path):
    config = Config(seed=11, run=RunConfig(rounds=7))
    with RunFolder.create(path, config) as folder:
        assert folder.records() == []
    assert sorted(os.listdir(path)) == ["checkpoints", "config.toml", "manifest.json", "rounds.jsonl"]
    assert (path / "config.toml").read_text() == to_toml(config)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["seed"] == 11
    assert manifest["status"] == "running"
    assert manifest["flare"] == flare.__version__
    assert manifest["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", manifest["commit"])
    hardware = manifest["hardware"]
    assert (hardware["cpu_count"], hardware["torch"]) == (os.cpu_count(), torch.__version__)
    assert (hardware["python"], hardware["gpu"] is None) == (platform.python_version(), not torch.cuda.is_available())


def test_the_commit_is_that_of_the_checkout_and_not_of_where_it_is_called(path, monkeypatch):
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    monkeypatch.setenv("GIT_DIR", os.devnull)
    with RunFolder.create(path, CONFIG) as folder:
        commit = folder.manifest["commit"]
    monkeypatch.delenv("GIT_DIR")
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert commit.removesuffix("-dirty") == head.strip()


def test_opened_again_it_is_the_same_run(path):
    config = Config(seed=3, run=RunConfig(rounds=7))
    RunFolder.create(path, config).close()
    folder = RunFolder.open(path)
    assert folder.config == config
    assert folder.manifest == json.loads((path / "manifest.json").read_text())


def test_an_empty_folder_is_good_for_a_run(path):
    path.mkdir()
    RunFolder.create(path, CONFIG).close()
    assert RunFolder.open(path).config == CONFIG


def test_an_existing_run_is_written_over_by_force_alone(path):
    written(path, 7)
    before = lines(path)
    with pytest.raises(ValueError, match=r"run already holds a run; .*--resume.*--force.*another folder"):
        RunFolder.create(path, CONFIG)
    assert lines(path) == before
    assert checkpoint_names(path) == ["round-000003.safetensors", "round-000006.safetensors"]
    (path / "notes.txt").write_text("mine")
    with RunFolder.create(path, Config(seed=9), force=True) as folder:
        assert folder.records() == []
        assert folder.restore() is None
    assert RunFolder.open(path).config.seed == 9
    assert checkpoint_names(path) == []
    assert (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("manifest", [None, "", "[]", '{"manifest_version": 3, "name": "a browser extension"}'])
def test_somebody_elses_folder_is_never_touched(path, force, manifest):
    path.mkdir()
    (path / "thesis.tex").write_text("mine")
    if manifest is not None:
        (path / "manifest.json").write_text(manifest)
    before = {each.name: each.read_bytes() for each in path.iterdir()}
    with pytest.raises(ValueError, match="run is not empty and not a run folder.*give another"):
        RunFolder.create(path, CONFIG, force=force)
    assert {each.name: each.read_bytes() for each in path.iterdir()} == before


def test_a_file_is_no_folder(path):
    path.write_text("mine")
    with pytest.raises(ValueError, match="run is a file; give a folder"):
        RunFolder.create(path, CONFIG, force=True)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "there is no run folder"),
        (lambda path: (path / "manifest.json").unlink(), "is not a run folder: it has no manifest.json"),
        (lambda path: (path / "manifest.json").write_text('{"format": "fl'), r"manifest.json is damaged"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe"), r"manifest.json is damaged"),
        (lambda path: (path / "manifest.json").write_text("{}"), 'does not say "format": "flare-run"'),
        (lambda path: (path / "config.toml").unlink(), r"damaged, .*config.toml: cannot be read"),
        (lambda path: (path / "config.toml").write_text("seed = "), r"damaged, .*config.toml: is not valid TOML"),
    ],
)
def test_a_damaged_folder_is_named_with_its_damage(path, damage, message):
    damage(written(path, 1))
    with pytest.raises(ValueError, match=message):
        RunFolder.open(path)


def test_a_folder_of_another_version_is_refused(path):
    written(path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format_version": 2, "flare": "7.1"}))
    with pytest.raises(ValueError, match=r"format version 2, this flare reads version 1; use .* \(version 7.1\)"):
        RunFolder.open(path)


def test_a_changed_configuration_cannot_be_continued(path):
    written(path, 4)
    (path / "config.toml").write_text(to_toml(dataclasses.replace(CONFIG, seed=6)))
    with pytest.raises(ValueError, match="config.toml was changed since the run began.*put it back"):
        RunFolder.open(path).restore()
    assert lines(path) == expected(4)[1]


def test_how_a_run_ended_is_in_the_manifest_until_it_goes_on(path):
    with RunFolder.create(path, CONFIG) as folder:
        before = copy.deepcopy(folder.manifest)
        folder.finish("diverged", rounds=np.int64(3), loss=math.inf)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["status"] == "diverged"
    assert manifest["result"] == {"rounds": 3, "loss": None}
    with RunFolder.open(path) as folder:
        folder.restore()
    assert json.loads((path / "manifest.json").read_text()) == before


def test_a_folder_that_is_only_read_refuses_to_write(path):
    folder = RunFolder.open(written(path, 3))
    for call in (lambda: folder.append({}), lambda: folder.checkpoint(snapshot(start(), 3)), lambda: folder.finish("x")):
        with pytest.raises(ValueError, match=r"open to read only; call restore\(\) first"):
            call()


# One writer


def test_a_second_writer_is_refused_a_reader_is_not(path):
    first = RunFolder.create(path, CONFIG)
    first.append({"round": 0})
    second = RunFolder.open(path)
    for call in (second.restore, lambda: RunFolder.create(path, CONFIG, force=True)):
        with pytest.raises(ValueError, match="is being written by another process; wait for that run to end"):
            call()
    assert second.records() == [{"round": 0}]
    first.close()
    assert second.restore() is None
    second.close()


def test_a_forgotten_folder_is_unlocked_and_leaves_no_open_file(path):
    open_files = len(os.listdir("/dev/fd"))
    folder = RunFolder.create(path, CONFIG)
    del folder
    gc.collect()
    assert len(os.listdir("/dev/fd")) == open_files
    with RunFolder.open(path) as again:
        again.restore()


# Records


def test_a_record_is_a_compact_line_with_exact_floats_and_null_for_no_number(path):
    record = {"z": 0.1 + 0.2, "a": [1, math.nan, -math.inf], "t": 'NaN "Infinity" \\"NaN', "n": None, "d": {"x": True}}
    record |= {"i": np.int64(7), "v": np.array([[1.5, np.nan]]), "w": torch.tensor([1, 2]), "f": np.float32(0.5)}
    with RunFolder.create(path, CONFIG) as folder:
        folder.append(record)
    start = b'{"z":0.30000000000000004,"a":[1,null,null],"t":"NaN \\"Infinity\\" \\\\\\"NaN","n":null,"d":{"x":true},'
    assert lines(path) == [start + b'"i":7,"v":[[1.5,null]],"w":[1,2],"f":0.5}\n']


def test_what_cannot_be_recorded_is_refused_and_leaves_no_trace(path):
    with RunFolder.create(path, CONFIG) as folder:
        with pytest.raises(TypeError, match="a set cannot be recorded"):
            folder.append({"round": 0, "who": {1, 2}})
        folder.append({"round": 0})
        assert folder.records() == [{"round": 0}]


def test_a_line_is_there_as_soon_as_append_returns_and_half_a_line_is_not_read(path):
    with RunFolder.create(path, CONFIG) as folder:
        for number in range(3):
            folder.append({"round": number, "text": "line\nbreak"})
            assert len(RunFolder.open(path).records()) == number + 1
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round":3')
    assert [record["round"] for record in RunFolder.open(path).iter_records()] == [0, 1, 2]


@pytest.mark.parametrize("line", [b"{]\n", b"\x00\x00\n", b"\xff\n", b"3\n"])
def test_a_damaged_line_is_named(path, line):
    written(path, 2)
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(ValueError, match=r"rounds.jsonl: line 3 is damaged"):
        RunFolder.open(path).records()


def test_memory_does_not_grow_with_rounds(path):
    with RunFolder.create(path, CONFIG) as folder:
        tracemalloc.start()
        try:
            held = []
            for _ in range(2):
                for number in range(1000):
                    folder.append({"round": number, "values": [0.5] * 50})
                assert sum(1 for _ in folder.iter_records()) == len(held) * 1000 + 1000
                folder.checkpoint(snapshot(start(), len(held) * 1000 + 1000))
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert held[1] - held[0] < 20_000  # 1000 records are 300,000 bytes


# Checkpoints


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
        "half": torch.ones(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "flare": torch.ones(1),
    }


def test_a_snapshot_comes_back_bit_for_bit(path):
    numbers = {"clock_s": 0.1 + 0.2, "none": None, "not": math.nan, "big": 2**80, "sha256": "0", "t": 'é"\\"sha256\\":'}
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({})
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
            assert torch.equal(back.view(torch.uint8), tensor.detach().contiguous().view(torch.uint8)), name
    restored.tensors["weights"].add_(1)  # and can be written to


def test_the_same_snapshot_gives_the_same_bytes():
    numbers = {f"number {k}": k for k in range(20)}
    contents = {b"".join(encode(Snapshot(1, odd_tensors(), numbers))) for _ in range(5)}
    assert len(contents) == 1


def test_a_snapshot_without_tensors_comes_back():
    assert decode(b"".join(encode(Snapshot(0, {}, {})))).tensors == {}


def test_the_last_two_are_kept(path):
    assert checkpoint_names(written(path, 2)) == []
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), 14)
    assert checkpoint_names(path) == ["round-000009.safetensors", "round-000012.safetensors"]


def test_order_is_by_round_also_beyond_a_million(tmp_path):
    for rounds in (1_000_000, 999_999, 10_000_000, 3):
        checkpoint_path(tmp_path, rounds).touch()
    (tmp_path / "round-000004.safetensors.damaged").touch()
    assert [rounds for rounds, _ in checkpoints(tmp_path)] == [10_000_000, 1_000_000, 999_999, 3]


def test_a_snapshot_ahead_of_the_records_is_refused(path):
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({})
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
        folder.append({})
        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "replace", note_replace)
        folder.checkpoint(snapshot(start(), 1))
    name = "round-000001.safetensors"
    partial = f".{name}.{os.getpid()}.part"
    assert calls == [("fsync", "rounds.jsonl"), ("fsync", partial), ("replace", name), ("fsync", "checkpoints")]


# Restoring


def test_nothing_written_starts_from_the_beginning(path):
    assert_restored(written(path, 2), 0)


@pytest.mark.parametrize("tail", [b"", b'{"round":', b"{}\n{}\n", b"\x00" * 5000])
def test_records_are_cut_back_to_the_checkpoint(path, tail):
    written(path, 8)
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(tail)
    assert_restored(path, 6)


def test_any_flipped_bit_is_detected():
    content = b"".join(encode(snapshot(expected(4)[0], 4)))
    rng = stream(0, "flips")
    header = range(8 + int.from_bytes(content[:8], "little"))
    for place in [*header, *rng.integers(len(header), len(content), 300)]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match="checksum|it is not a checkpoint"):
            decode(bytes(damaged))
    assert decode(content).rounds_done == 4


def test_any_missing_or_added_byte_is_detected():
    content = b"".join(encode(snapshot(expected(4)[0], 4)))
    lengths = [0, 1, 7, 8, 9, len(content) - 1, *stream(0, "cuts").integers(0, len(content), 300)]
    for damaged in [*(content[:length] for length in lengths), content + b"\0", content[1:], bytes(len(content))]:
        with pytest.raises(ValueError, match="checksum"):
            decode(damaged)


def test_sound_safetensors_of_another_program_are_no_checkpoint():
    import safetensors.torch

    with pytest.raises(ValueError, match="it has no checksum"):
        decode(safetensors.torch.save({"weights": torch.ones(2)}))


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
    assert checkpoint_names(path) == ["round-000003.safetensors", "round-000006.safetensors.damaged"]
    assert (path / "checkpoints" / "round-000006.safetensors.damaged").read_bytes() == content
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), 9)
    assert_restored(path, 9)


def test_where_none_is_sound_the_run_starts_from_the_beginning(path, caplog):
    written(path, 8)
    for each in (path / "checkpoints").iterdir():
        each.write_bytes(b"")
    assert_restored(path, 0)
    assert len(caplog.records) == 2


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
    read = Path.read_bytes

    def failing(self):
        if self.name == "round-000006.safetensors":
            raise OSError(errno.EIO, "Input/output error")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", failing)
    with RunFolder.open(path) as folder:
        assert folder.restore().rounds_done == 3


# Full and read-only disks

FAULTS = ("write", "fsync", "replace", "open")
READ_ONLY = os.O_RDONLY | os.O_CLOEXEC


class Disk:
    """Counts the calls that need room; from call `full_at` on there is none, for that one call or for good."""

    def __init__(self, monkeypatch, full_at, for_good, error=errno.ENOSPC):
        self.calls, self.full_at, self.for_good, self.error = 0, full_at, for_good, error
        for name in FAULTS:
            monkeypatch.setattr(os, name, self.guarded(name, getattr(os, name)))

    def guarded(self, name, call):
        def guarded(*arguments, **keywords):
            if name == "open" and arguments[1] & ~READ_ONLY == 0:
                return call(*arguments, **keywords)
            number, self.calls = self.calls, self.calls + 1
            if number == self.full_at or (self.for_good and number > self.full_at):
                if name == "write":  # a full disk takes what still fits
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return call(*arguments, **keywords)

        return guarded


def continued(folder, weights, done):
    write(folder, weights, done, 10)
    folder.finish("finished")


def full_disk_moments(tmp_path):
    """How many calls of a continued run need room."""
    with pytest.MonkeyPatch.context() as patch, RunFolder.open(written(tmp_path / "count", 7)) as folder:
        disk = Disk(patch, full_at=-1, for_good=False)
        continued(folder, *resume(folder))
        return disk.calls


@pytest.mark.parametrize("for_good", [False, True])
def test_a_disk_full_at_any_moment_leaves_the_run_resumable(tmp_path, for_good):
    moments = full_disk_moments(tmp_path)
    assert moments > 15
    template = written(tmp_path / "template", 7)
    for moment in range(moments):
        path = tmp_path / f"{moment}"
        shutil.copytree(template, path)
        with pytest.MonkeyPatch.context() as patch, RunFolder.open(path) as folder:
            Disk(patch, moment, for_good)
            with pytest.raises(OSError, match="could not be written") as caught:
                continued(folder, *resume(folder))
        assert f"--resume {path}" in str(caught.value)
        assert "No space left on device" in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        assert not list(path.rglob("*.part"))
        with RunFolder.open(path) as folder:
            assert len(folder.records()) >= 6
            weights, done = resume(folder)
            assert done in (6, 9)
            continued(folder, weights, done)
        assert lines(path) == expected(10)[1]
        assert checkpoint_names(path) == ["round-000006.safetensors", "round-000009.safetensors"]


def test_once_there_is_room_the_same_folder_goes_on(path, monkeypatch):
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, start(), 0, 5)
        weights, record = step(weights, 5)
        with monkeypatch.context() as patch:
            Disk(patch, 0, for_good=True)
            with pytest.raises(OSError, match=r"the record of a round could not be written: .*rounds.jsonl"):
                folder.append(record)
        assert lines(path) == expected(5)[1]
        folder.append(record)
        with monkeypatch.context() as patch:
            Disk(patch, 1, for_good=True)
            with pytest.raises(OSError, match=r"a checkpoint could not be written: .*round-000006.safetensors"):
                folder.checkpoint(snapshot(weights, 6))
        folder.checkpoint(snapshot(weights, 6))
    assert_restored(path, 6)


def test_an_interrupt_in_the_middle_of_a_line_takes_it_back(path, monkeypatch):
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, start(), 0, 4)
        write_bytes = os.write

        def interrupted(file, content):
            write_bytes(file, content[:9])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "write", interrupted)
            folder.append({"round": 4})
        folder.checkpoint(snapshot(weights, 4))
        write(folder, weights, 4, 5)
    assert lines(path) == expected(5)[1]


def test_a_folder_that_cannot_be_made_leaves_room_for_the_next_try(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, full_at=-1, for_good=False)
        RunFolder.create(tmp_path / "count", CONFIG).close()
    for moment in range(disk.calls):
        path = tmp_path / f"{moment}"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, moment, for_good=True)
            with pytest.raises(OSError, match=f"the run folder could not be written: {path}: No space.* start the run"):
                RunFolder.create(path, CONFIG)
        assert not list(path.rglob("*.part"))
        written(path, 4)
        assert_restored(path, 3)


LIMITED = """
import resource, sys
from flare.records import RunFolder
from tests.record_writer import resume, snapshot, step, write
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
folder = RunFolder.open(sys.argv[1])
weights, done = resume(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    write(folder, weights, done, 1000)
except OSError as error:
    print(error.errno, error)
"""


@pytest.mark.parametrize(("limit", "what"), [(1500, "the record of a round"), (700, "a checkpoint")])
def test_a_real_limit_of_the_system_leaves_the_run_resumable(path, limit, what):
    written(path, 5)
    if what == "a checkpoint":  # of 64 float64 and a header: more than the limit, which the records are far from
        assert (path / "checkpoints" / "round-000003.safetensors").stat().st_size > limit
        assert (path / "rounds.jsonl").stat().st_size < limit // 2
    else:
        assert (path / "checkpoints" / "round-000003.safetensors").stat().st_size < limit
    command = [sys.executable, "-c", LIMITED, path, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    assert done.stdout.startswith(f"{errno.EFBIG} {what} could not be written: {path}")
    assert done.stdout.endswith(f"--resume {path}\n")
    recorded = len(lines(path))
    assert lines(path) == expected(recorded)[1]
    assert not list(path.rglob("*.part"))
    rounds_done = recorded // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    assert_restored(path, 3 if what == "a checkpoint" else rounds_done)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_read_only_disk_is_named_and_nothing_changed(path, monkeypatch, error):
    written(path, 5)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    with monkeypatch.context() as patch:
        Disk(patch, 0, for_good=True, error=error)
        for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path / "new", CONFIG)):
            with pytest.raises(OSError, match=f"could not be written: .*{os.strerror(error)}; .*make it writable"):
                call()
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def test_a_folder_of_another_user_can_be_read_and_not_written():
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        path = written(Path(outer) / "run", 5)
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        os.seteuid(65534)
        try:
            assert len(RunFolder.open(path).records()) == 5
            for call in (RunFolder.open(path).restore, lambda: RunFolder.create(Path(outer) / "new", CONFIG)):
                with pytest.raises(OSError, match="the run folder could not be written: .*: Permission denied"):
                    call()
        finally:
            os.seteuid(0)
        assert_restored(path, 3)


def test_a_read_only_folder_can_be_read_and_not_written(path):
    if os.geteuid() == 0:
        pytest.skip("root may write into read-only folders")
    written(path, 5)
    try:
        for each in (path, *path.rglob("*")):
            each.chmod(0o555 if each.is_dir() else 0o444)
        assert len(RunFolder.open(path).records()) == 5
        for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path / "new", CONFIG)):
            with pytest.raises(OSError, match="could not be written: .*: Permission denied"):
                call()
    finally:
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
    assert_restored(path, 3)


# Killed


class Writers:
    """A process that starts writers (tests/record_writer.py), so that each is there in a millisecond."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.record_writer"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )

    def ask(self, task):
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def writers():
    started = Writers()
    yield started
    started.process.stdin.close()
    started.process.stdout.close()
    assert started.process.wait(timeout=60) == 0


def test_killed_at_any_moment_the_run_continues_as_if_it_had_not_been(path, writers):
    rng = stream(0, "moments")
    lost_rounds = 0
    for kill in range(24):
        # Half of them while the writer still opens and restores the folder.
        child = writers.ask(f"write {path}" if kill % 2 == 0 else f"begin {path}")
        if kill % 2 == 0:
            with pytest.raises(ValueError, match="is being written by another process"):
                RunFolder.open(path).restore()
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert writers.ask("reap") == -signal.SIGKILL
        recorded = len(lines(path))
        with RunFolder.open(path) as folder:
            weights, done = resume(folder)
        assert done % CHECKPOINT_EVERY == 0
        assert recorded - CHECKPOINT_EVERY <= done <= recorded
        lost_rounds += recorded - done
        assert_restored(path, done)
    assert lost_rounds > 0
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), done + 10)
    assert lines(path) == expected(done + 10)[1]


def test_killed_while_the_folder_is_made_it_can_be_made_again(tmp_path, writers):
    rng = stream(1, "moments")
    for kill in range(20):
        path = tmp_path / f"{kill}"
        child = writers.ask(f"begin {path}")
        time.sleep(rng.uniform(0, 0.012))
        os.kill(child, signal.SIGKILL)
        assert writers.ask("reap") == -signal.SIGKILL
        with RunFolder.create(path, CONFIG, force=True) as folder:
            write(folder, start(), 0, 4)
        assert_restored(path, 3)
