"""The folder of a testbed, read again: damaged files are named, and nothing waits or fills the memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flare.records.lines import first_mark, seal
from flare.testbed import run as testbed_run
from flare.testbed.capture import FRAME, read_frames
from flare.testbed.moments import FETCHED, SENT, TRAINED, Moment, note
from flare.testbed.run import FACTS, read_testbed
from tests.fleet_runs import node, run, settings
from tests.hostile import flare


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A testbed of one device, one policy and one round, as its programs would have left it."""
    folder = tmp_path_factory.mktemp("testbed")
    run({1: node()}, settings("run.rounds=1"), folder / "runs" / "all")
    (folder / FACTS).write_text(json.dumps({"runs": ["all"]}))
    for moment in (
        Moment(SENT, "all", 0, 0, 0.2),
        Moment(TRAINED, "all", 0, 0, 1.0, began_s=0.5, busy_s=0.1),
        Moment(FETCHED, "all", 0, 0, 2.0),
    ):
        note(folder / "moments.jsonl", moment)
    frames = np.zeros(2, dtype=FRAME)
    frames["time_ns"], frames["up"], frames["frame_bytes"], frames["tcp_bytes"] = [10**9 + 1, 1.5e9], 1, 5066, 5000
    (folder / "frames.bin").write_bytes(frames.tobytes())
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "testbed"))


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said where the folder is read, which is over at once."""
    code, _, said = flare(capsys, "testbed", "--read", str(folder), limit_s=5)
    assert code == 2
    assert str(folder) in said
    return said


def test_a_sound_folder_is_read(folder: Path) -> None:
    (delivery,) = read_testbed(folder).delivered["all"]
    assert (delivery.measured_compute_s, delivery.link.frames) == (0.5, 2)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", [FACTS, "moments.jsonl", "frames.bin"])
@pytest.mark.parametrize(("put", "why"), [(pipe, "is a named pipe"), (endless, "is a device"), (gone, "")])
def test_what_is_no_file_is_not_read(
    name: str, put: Callable[[Path], None], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder / name)
    told = refused(folder, capsys)
    assert name in told
    assert why in told


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ("[" * 900_000, "is damaged"),
        (json.dumps({"runs": ["a" * 200_000 + "/"]}), "they must be names"),
        (json.dumps({"runs": ["a" * 201]}), "they must be names"),
        (json.dumps({"runs": [".."]}), "they must be names"),
        (json.dumps({"runs": ["all"] * 100_000}), "named twice"),
    ],
    ids=["deep", "long", "longer than a folder's", "dots", "often"],
)
def test_facts_that_are_none(facts: str, why: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / FACTS).write_text(facts)
    told = refused(folder, capsys)
    assert FACTS in told
    assert why in told


def test_moments_that_are_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "moments.jsonl").write_bytes(b"\xe6\xff\x00")
    assert "moments.jsonl: line 1 is no moment" in refused(folder, capsys)


@pytest.mark.parametrize(
    ("field", "value"),
    [("up", 2), ("pad", 1), ("pad2", 1), ("frame_bytes", 0), ("frame_bytes", 70_000), ("tcp_bytes", 5067),
     ("time_ns", 2**64 - 1)],
)  # fmt: skip
def test_frames_that_are_none(field: str, value: int, folder: Path) -> None:
    frames = read_frames(folder / "frames.bin")
    frames[field][1] = value
    (folder / "frames.bin").write_bytes(frames.tobytes())
    with pytest.raises(ValueError, match=r"frames\.bin is damaged: entry 2 is no frame"):
        read_frames(folder / "frames.bin")


def test_frames_of_another_testbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = read_frames(folder / "frames.bin")
    frames["time_ns"] += np.uint64(10**15)
    (folder / "frames.bin").write_bytes(frames.tobytes())
    monkeypatch.setattr(testbed_run, "LARGE_BYTES", 1)  # or the update of this model would be too small to be found
    with pytest.raises(ValueError, match=r"frames\.bin holds no frame of the 1 updates that came in run all"):
        read_testbed(folder)


@pytest.mark.parametrize("name", ["compute_s", "upload_s"])
def test_a_prediction_of_no_time_is_damage(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    within = folder / "runs" / "all"
    manifest = (within / "manifest.json").read_text()
    record = json.loads((within / "rounds.jsonl").read_text())
    check = record.pop("check")
    line, mark = seal(record | {name: [0.0]}, first_mark(json.loads(manifest)))
    (within / "rounds.jsonl").write_bytes(line)
    (within / "manifest.json").write_text(manifest.replace(check, mark.check))
    assert f"round 1 of its records has {name} = 0, which must be greater than 0" in refused(folder, capsys)
