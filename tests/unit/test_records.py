import copy
import dataclasses
import gc
import hashlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, RunConfig, to_toml
from flare.records import RunFolder
from flare.records import folder as folder_module
from flare.records import manifest as manifests
from flare.records.locking import lock
from flare.records.manifest import is_run_folder
from tests.record_writer import CONFIG, snapshot, start
from tests.run_folders import assert_restored, checkpoint_names, expected, lines, written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def test_a_new_folder_holds_configuration_manifest_and_no_rounds(path):
    config = Config(seed=11, run=RunConfig(rounds=7))
    with RunFolder.create(path, config) as folder:
        assert folder.records() == []
    assert sorted(os.listdir(path)) == [".lock", "checkpoints", "config.toml", "manifest.json", "rounds.jsonl"]
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
    manifests._commit.cache_clear()  # not what an earlier test was told
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
    with pytest.raises(ValueError, match=r"run is not empty and not a run folder.*give another"):
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


def never_begun(path):
    """What is left where a process is killed between manifest and configuration."""
    with RunFolder.create(path, CONFIG):
        pass
    for name in ("config.toml", "rounds.jsonl"):
        (path / name).unlink()
    return path


def test_a_folder_whose_run_never_began_is_taken_for_a_new_one(path):
    never_begun(path)
    with pytest.raises(ValueError, match=r"holds no run yet: .* or was killed there, and nothing is lost; start"):
        RunFolder.open(path)
    assert not is_run_folder(path)
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
    assert len(RunFolder.open(path).records()) == 1


@pytest.mark.parametrize("left", ["config.toml", "rounds.jsonl", "checkpoints/round-000001.safetensors"])
def test_a_folder_with_anything_of_a_run_is_not_taken(path, left):
    (never_begun(path) / left).write_text("something")
    assert is_run_folder(path)
    with pytest.raises(ValueError, match=r"already holds a run"):
        RunFolder.create(path, CONFIG)
    with pytest.raises(ValueError, match=r"damaged"):
        RunFolder.open(path)


def test_a_folder_whose_run_never_began_with_files_of_others_is_not_taken(path):
    (never_begun(path) / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty: it holds files beside a run that never began"):
        RunFolder.create(path, CONFIG)
    with RunFolder.create(path, CONFIG, force=True):
        assert (path / "mine.txt").read_text() == "mine"


def test_a_folder_of_another_version_is_refused(path):
    written(path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"format_version": 3, "flare": "7.1"}))
    with pytest.raises(
        ValueError, match=r"format version 3, this flare reads versions 1 and 2; use .* \(version 7.1\)"
    ):
        RunFolder.open(path)


def test_a_changed_configuration_cannot_be_continued(path):
    written(path, 4)
    (path / "config.toml").write_text(to_toml(dataclasses.replace(CONFIG, seed=6)))
    with pytest.raises(ValueError, match=r"config.toml was changed since the run began.*put it back"):
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
    for call in (
        lambda: folder.append({}),
        lambda: folder.checkpoint(snapshot(start(), 3)),
        lambda: folder.finish("x"),
    ):
        with pytest.raises(ValueError, match=r"open to read only; call restore\(\) first"):
            call()


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


def test_of_two_that_make_the_same_folder_the_later_does_not_write_over_the_earlier(path, monkeypatch):
    def late(path):
        monkeypatch.setattr(folder_module, "lock", lock)
        written(path, 4)  # the other process begins and ends between our look at the folder and our lock
        return lock(path)

    monkeypatch.setattr(folder_module, "lock", late)
    with pytest.raises(ValueError, match="run already holds a run"):
        RunFolder.create(path, CONFIG)
    assert_restored(path, 3)


def test_a_forgotten_folder_is_unlocked_and_leaves_no_open_file(path):
    open_files = len(os.listdir("/dev/fd"))
    folder = RunFolder.create(path, CONFIG)
    del folder
    gc.collect()
    assert len(os.listdir("/dev/fd")) == open_files
    with RunFolder.open(path) as again:
        again.restore()


def test_a_record_is_a_compact_line_with_exact_floats_and_null_for_no_number(path):
    record = {
        "round": 0,
        "z": 0.1 + 0.2,
        "a": [1, math.nan, -math.inf],
        "t": 'NaN "Infinity" \\"NaN',
        "n": None,
        "d": {"x": True},
    }
    record |= {"i": np.int64(7), "v": np.array([[1.5, np.nan]]), "w": torch.tensor([1, 2]), "f": np.float32(0.5)}
    with RunFolder.create(path, CONFIG) as folder:
        folder.append(record)
    start = b'{"round":0,"z":0.30000000000000004,"a":[1,null,null],"t":"NaN \\"Infinity\\" \\\\\\"NaN",'
    body = start + b'"n":null,"d":{"x":true},"i":7,"v":[[1.5,null]],"w":[1,2],"f":0.5'
    before = hashlib.sha256((path / "config.toml").read_bytes()).hexdigest()[:16]
    check = hashlib.sha256(before.encode() + body).hexdigest()[:16].encode()
    assert lines(path) == [body + b',"check":"' + check + b'"}\n']


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
                    folder.append({"round": len(held) * 1000 + number, "values": [0.5] * 50})
                assert sum(1 for _ in folder.iter_records()) == len(held) * 1000 + 1000
                folder.checkpoint(snapshot(start(), len(held) * 1000 + 1000))
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert held[1] - held[0] < 20_000  # 1000 records are 300,000 bytes


IDENTITY = {"data": "digits, sha256 12ab", "model": "mlp"}


def test_a_run_of_something_else_is_refused_with_the_parts_that_differ(path):
    with RunFolder.create(path, CONFIG, identity=IDENTITY) as folder:
        folder.append({"round": 0})
    folder = RunFolder.open(path)
    assert folder.manifest["identity"] == IDENTITY
    folder.refuse_other(IDENTITY)
    with pytest.raises(
        ValueError, match=r"its data is digits, sha256 12ab, and here it is mine; continue it in Python"
    ):
        folder.refuse_other(IDENTITY | {"data": "mine"})
    with pytest.raises(ValueError, match=r"its model is mlp, and here it is not known; .*its policy is not known"):
        folder.refuse_other({"data": IDENTITY["data"], "policy": "greedy"})


def test_what_a_run_is_made_of_can_be_said_before_its_first_round(path):
    with RunFolder.create(path, CONFIG) as folder:
        with pytest.raises(ValueError, match="its data is not known"):
            folder.refuse_other(IDENTITY)
        folder.identify(IDENTITY)
        folder.append({"round": 0})
        folder.identify(IDENTITY)
        with pytest.raises(ValueError, match="its data is digits"):
            folder.identify({"data": "mine"})
    assert RunFolder.open(path).manifest["identity"] == IDENTITY


def test_a_run_that_never_said_what_it_is_made_of_is_not_taken_for_another(path):
    with RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
        with pytest.raises(ValueError, match=r"its data is not known, and here it is digits"):
            folder.identify(IDENTITY)
