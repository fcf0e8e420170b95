"""What a testbed is asked for and what it needs: settings, rights, programs, and files that cannot be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flare.learning.flat import update_bits
from flare.testbed import network, rights, task
from flare.testbed.capture import read_frames
from flare.testbed.client_app import modelled_s
from flare.testbed.moments import SENT, Moment, read_moments
from flare.testbed.run import read_testbed
from flare.testbed.settings import CALIBRATION, Settings
from flare.wireless.cell import Cell
from tests.hostile import flare


@pytest.mark.parametrize("bits", [1e6, 4e6, 1e7])
def test_an_update_is_about_as_large_as_was_asked_for(bits: float) -> None:
    model = task.model_of(Settings(update_bits=bits).config("cm"))
    assert update_bits(sum(each.numel() for each in model.parameters())) == pytest.approx(bits, rel=2e-3)


def test_a_node_computes_as_long_as_the_schedule_predicts() -> None:
    config = Settings().config("cm")
    drawn = Cell(config.wireless, config.seed).draw(3)
    for device in range(8):
        assert modelled_s(config, drawn, device, int(drawn.tau[device])) == pytest.approx(drawn.compute_s[device])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policies": ()}, "the policies are none"),
        ({"policies": ("cm", "cm")}, "each once"),
        ({"policies": ("nobody-has-this",)}, "nobody-has-this"),
        ({"rounds": 0}, "rounds: 0 is not possible"),
        ({"devices": 201}, "devices: 201 is not possible; it must be from 1 to 200"),
        ({"update_bits": 1e9}, "the size of an update"),
        ({"calibration_rounds": -1}, "calibration rounds"),
    ],
)
def test_settings_that_cannot_be(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("scheduling.policy=dm", "--set scheduling.policy is not possible on the testbed; use --policy instead"),
        ("wireless.num_devices=3", "use --devices instead"),
        ("run.rounds=3", "use --rounds instead"),
        ("learning.model_options.hidden=3", "use --update instead"),
        ("learning.method=fedlin", "--set learning.method=fedlin: it asks devices for gradients"),
        ("wireless.guard=0.1", "--set wireless.guard: the guard is derived from the calibration; .*--calibration 0"),
        ("fleet.evaluate_share=0.5", "--set fleet.evaluate_share: the nodes of the testbed train and do not test"),
    ],
)
def test_what_may_not_be_set_beside_the_options(setting: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(changed=("wireless.deadline_s=8", setting))


def test_a_setting_of_the_cell_may_be_changed() -> None:
    config = Settings(calibration_rounds=0, changed=("wireless.deadline_s=8", "wireless.guard=0.1")).config(
        "dm", rounds=2
    )
    assert (config.wireless.usable_s, config.run.rounds) == (pytest.approx(7.2), 2)
    assert (config.scheduling.policy, config.wireless.num_devices) == ("dm", 8)


def test_without_the_rights_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(*words: str) -> str:
        raise OSError("Operation not permitted")

    monkeypatch.setattr(network, "ip", refused)
    code, _, said = flare(capsys, "testbed", "--out", str(tmp_path / "bed"))
    assert code == 2
    assert "the testbed cannot be set up" in said
    for need in ("network namespaces", "tc tbf", "root", "CAP_NET_ADMIN", "CAP_SYS_ADMIN", "Flower"):
        assert need in said
    assert not (tmp_path / "bed").exists()
    monkeypatch.setattr(rights.sys, "platform", "darwin")
    assert "this system is darwin" in str(rights.missing())


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert str(rights.missing()).startswith("the program ip is not here")


def test_a_folder_that_is_no_testbed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, said = flare(capsys, "testbed", "--read", str(tmp_path))
    assert code == 2
    assert "has no testbed.json" in said
    (tmp_path / "testbed.json").write_text(json.dumps({"runs": 3})[:-1])
    with pytest.raises(ValueError, match="damaged"):
        read_testbed(tmp_path)


@pytest.mark.parametrize("runs", [5, None, [{}], [], ["../cm"], [".."], [CALIBRATION], "cm"])
def test_runs_that_are_no_names(runs: object, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "testbed.json").write_text(json.dumps({"runs": runs}))
    code, _, said = flare(capsys, "testbed", "--read", str(tmp_path))
    assert code == 2
    words = " ".join(said.split())
    assert "testbed.json is damaged (its runs are" in words or "testbed.json names no run" in words


@pytest.mark.parametrize("change", [
    {"what": []}, {"time_s": "x"}, {"time_s": 1e300}, {"time_s": math.nan}, {"round": 1.5}, {"device": None},
    {"busy_s": -1.0}, {"run": {}},
])  # fmt: skip
def test_moments_that_cannot_be_are_named(change: dict[str, object], tmp_path: Path) -> None:
    sound = vars(Moment(SENT, "cm", 0, 1, 1.5))
    (tmp_path / "moments.jsonl").write_text(json.dumps(sound) + "\n" + json.dumps(sound | change) + "\n")
    with pytest.raises(ValueError, match=rf"line 2 is no moment of a testbed \({next(iter(change))} is "):
        list(read_moments(tmp_path / "moments.jsonl"))


@pytest.mark.parametrize("content", [b"", b"ab"])
def test_a_file_without_a_frame_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "frames.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"frames.bin holds no frame"):
        read_frames(tmp_path / "frames.bin")
