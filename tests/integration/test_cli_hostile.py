"""Every option of every command with hostile values: one clear line and exit code 2, or a harmless answer; no hang."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flare.config import SECTIONS
from tests.hostile import TEXTS, flare, paths

RADIO = ["--bandwidth", "10MHz", "--deadline", "400ms", "--payload", "10Mbit"]
READERS = {
    ".csv": [["schedule", "PATH", *RADIO], ["run", "--quiet", "--set", "wireless.trace=PATH"]],
    ".npz": [["run", "--quiet", "--set", "wireless.trace=PATH"]],
    ".mat": [["run", "--quiet", "--set", "wireless.trace=PATH"]],
    ".toml": [["schedule", "--cell", "PATH"], ["run", "PATH"], ["compare", "PATH"]],
    "": [["run", "PATH"], ["run", "--resume", "PATH"], ["compare", "--resume", "PATH"], ["report", "PATH"]],
}
SMALL = ["--set", "wireless.num_devices=3", "--set", "learning.model=logistic", "--set", "run.rounds=1"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLARE_OFFLINE", "1")
    monkeypatch.setenv("FLARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLARE_DATA", raising=False)


def assert_clear(arguments: list[str], answer: tuple[int, str, str]) -> None:
    """One line of error and no output, or none; nothing that acts on a terminal; never a fault of flare."""
    code, out, err = answer
    assert code in (0, 2), (arguments, err)
    assert "\x1b" not in out + err, arguments
    if code == 2:
        assert out == "", arguments
        assert err.startswith("error: "), arguments
        assert err.count("\n") == 1, arguments
        assert len(err) > len("error: ") + 15, arguments


@pytest.mark.parametrize("ending", READERS)
def test_files_that_are_none(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths(tmp_path, ending).values():
        for command in READERS[ending]:
            arguments = [word.replace("PATH", str(path)) for word in command]
            answer = flare(capsys, *arguments)
            assert_clear(arguments, answer)
            assert answer[0] == 2, arguments
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["data show --name mnist --data-dir PATH", "data fetch mnist --data-dir PATH"])
def test_data_folders_that_are_none(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths(tmp_path, "").values():
        arguments = [word.replace("PATH", str(path)) for word in command.split()]
        answer = flare(capsys, *arguments)
        assert_clear(arguments, answer)
        assert answer[0] == 2, arguments


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (["run", "--quiet", *SMALL, "--out"], ""),
        (["compare", "--quiet", *SMALL, "--out"], ""),
        (["schedule", "--cell", "paper", "--plot"], ".png"),
        (["data", "show", "--plot"], ".svg"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_places_to_write_that_are_none(
    command: list[str], ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = paths(tmp_path, ending)
    for name in ("folder", "pipe", "zero", "under a file", "long"):
        assert_clear([*command, str(made[name])], flare(capsys, *command, str(made[name])))


SCHEDULE = "--bandwidth --deadline --payload --gamma --policy --option --cell --seed --round --batch-size --noise"
OPTIONS = {
    "schedule --cell paper": [*SCHEDULE.split(), "--path-loss", "--path-loss-exponent", "--time-limit"],
    "data show": ["--name", "--partition", "--devices", "--seed", "--shards", "--data-dir"],
    "data show --partition dirichlet": ["--alpha"],
    "data show --partition quantity": ["--skew"],
    "reproduce fig7 --quick --out x": ["--seeds", "--device", "--processes"],
}


@pytest.mark.parametrize(("command", "option"), [(one, option) for one, names in OPTIONS.items() for option in names])
def test_values_of_options(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS:
        arguments = [*command.split(), f"{option}={text}"]
        assert_clear(arguments, flare(capsys, *arguments))


@pytest.mark.parametrize("command", [[], ["data", "fetch"], ["report"], ["reproduce"]])
def test_words_that_name_nothing(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS:
        if text not in ("", "../.."):
            answer = flare(capsys, *command, "--", text)
            assert_clear([*command, text], answer)
            assert answer[0] == 2, text


KEYS = ["seed", *(f"{name}.{each.name}" for name, kind in SECTIONS.items() for each in dataclasses.fields(kind))]
NEVER_ENDING = {"9" * 30}  # a number of rounds or steps that is allowed, and takes for ever


@pytest.mark.parametrize("key", KEYS)
def test_values_of_settings(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS:
        if key == "run.rounds" and text in NEVER_ENDING:
            continue
        arguments = ["run", "--quiet", "--force", "--out", "here", *SMALL, "--set", f"{key}={text}"]
        assert_clear(arguments, flare(capsys, *arguments))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("option", ["--entry", "--methods", "--policies", "--option", "--set", "--seeds"])
def test_values_of_compare(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS:
        arguments = ["compare", "--quiet", "--force", "--out", "here", *SMALL, f"{option}={text}"]
        assert_clear(arguments, flare(capsys, *arguments))


@pytest.mark.parametrize("seeds", ["99999999999", "1001", "0", "-1", "1.5"])
@pytest.mark.parametrize("command", [["compare"], ["reproduce", "fig7"]])
def test_numbers_of_seeds_without_sense_are_refused(
    command: list[str], seeds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = flare(capsys, *command, "--seeds", seeds)
    assert code == 2
    assert "--seeds" in err


def test_names_with_escapes_and_line_ends_come_out_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["run", "--set", "learning.model=a\x1b[31m\nb"],
        ["run", "--set", "x\x1b]0;title\x07=1"],
        ["schedule", "--cell", "\x1b[2J.toml"],
        ["schedule", "--policy", "\r\x1b[1A", "--cell", "paper"],
        ["no\x1bsuch"],
        ["run", "--no\x1bsuch"],
    ):
        code, out, err = flare(capsys, *arguments)
        assert (code, out) == (2, "")
        assert err.rstrip("\n").isprintable()
        assert "\N{REPLACEMENT CHARACTER}" in err or "\\x1b" in err
