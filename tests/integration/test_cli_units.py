"""Units on the command line: what is said of a bare number, and that nothing but standard error says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hostile import flare

DEVICES = str(Path(__file__).resolve().parents[2] / "examples" / "devices.csv")
RADIO = {"--bandwidth": "10MHz", "--deadline": "2s", "--payload": "10Mbit", "--noise": "-114dBm/MHz"}


def answered(capsys: pytest.CaptureFixture[str], **changes: str) -> tuple[dict[str, object], list[str]]:
    """The answer in JSON without the time it took, and the lines on standard error."""
    texts = RADIO | {f"--{name}": text for name, text in changes.items()}
    code, out, err = flare(capsys, "schedule", DEVICES, *(word for pair in texts.items() for word in pair), "--json")
    assert code == 0, err
    return {key: value for key, value in json.loads(out).items() if "time" not in key}, err.splitlines()


def test_with_units_nothing_is_said_and_the_noise_is_the_same_in_each(capsys: pytest.CaptureFixture[str]) -> None:
    expected, lines = answered(capsys)
    assert lines == []
    for noise in ("-174dBm/Hz", "-114 dBm/MHz", "-114", "-144dBm/kHz"):
        assert answered(capsys, noise=noise) == (expected, [])
    assert answered(capsys, noise="-164dBm/Hz")[0] != expected


@pytest.mark.parametrize(
    ("option", "bare", "meant", "says"),
    [
        ("bandwidth", "1e7", "10MHz", "warning: --bandwidth 1e7 is read as 10 MHz; write the unit, such as 10MHz"),
        ("payload", "10000000", "10Mbit", "warning: --payload 10000000 is read as 10 Mbit; write the unit"),
        ("deadline", "400", "400s", "warning: --deadline 400 is read as 400 s; write the unit, such as 400ms"),
        ("noise", "-174", "-174dBm/MHz", "warning: --noise -174 is read as -174 dBm/MHz, 60 dB below thermal noise"),
    ],
)
def test_a_bare_number_is_one_warning_and_the_answer_of_its_unit(
    option: str, bare: str, meant: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, (line,) = answered(capsys, **{option: bare})
    assert line.startswith(says)
    assert (answer, []) == answered(capsys, **{option: meant})


def test_a_deadline_of_seconds_needs_no_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(capsys, deadline="2") == answered(capsys)


def test_an_error_is_one_line_also_beside_bare_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    radio = ["--bandwidth", "10", "--payload", "10", "--deadline", "400"]
    for wrong in (["--noise=-174dB"], ["--noise=-400"], ["--policy", "exakt"], ["--plot", f"{DEVICES}/x.png"]):
        code, out, err = flare(capsys, "schedule", DEVICES, *radio, *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: ")


def test_a_cell_whose_deadline_is_written_with_its_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answers = []
    for deadline in ('"400ms"', "0.4"):
        (tmp_path / "cell.toml").write_text(f"[wireless]\ndeadline_s = {deadline}\n")
        code, out, err = flare(capsys, "schedule", "--cell", str(tmp_path / "cell.toml"), "--csv")
        assert (code, err) == (0, "")
        answers.append(out)
    assert answers[0] == answers[1]
