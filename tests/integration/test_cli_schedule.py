"""`flare schedule` in a pipeline: a table from standard input, answers for programs, policies with options."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flare.scheduling import POLICIES, RoundProblem, policy, solve
from flare.scheduling import table as device_table
from tests.cells import paper_cell
from tests.hostile import flare

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ROOT / "examples" / "devices.csv"
SETTINGS = ("--bandwidth", "10MHz", "--deadline", "2s", "--payload", "10Mbit")
CELL = ("schedule", "--cell", "paper", "--seed", "3")


class Endless(io.RawIOBase):
    """Never ends, and counts what is taken from it."""

    taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer[:] = b"1" * len(buffer)
        self.taken += len(buffer)
        return len(buffer)


def given(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """What comes from standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_table_from_standard_input_gives_what_the_file_gives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from_file = flare(capsys, "schedule", str(DEVICES), *SETTINGS, "--json")
    given(monkeypatch, DEVICES.read_bytes())
    assert flare(capsys, "schedule", "-", *SETTINGS, "--json") == from_file
    assert from_file[0] == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "standard input: empty; it needs a line of column names"),
        (b"\n\n", "standard input: empty"),
        (b"tau,compute_s,snr_hz\n", "standard input: no devices below the column names"),
        (b"tau,compute_s,snr_hz\n3,fast,1\n", "standard input, line 2, column compute_s: 'fast' is not a number"),
        (b"\xff\xfe\x00", "standard input: not a text file in UTF-8"),
    ],
)
def test_what_standard_input_cannot_hold_is_one_error(
    content: bytes, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, content)
    code, out, err = flare(capsys, "schedule", "-", *SETTINGS)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_of_an_endless_input_no_more_is_read_than_a_table_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_table, "MAX_TABLE_BYTES", 1 << 16)
    endless = Endless()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    code, out, err = flare(capsys, "schedule", "-", *SETTINGS)
    assert (code, out) == (2, "")
    assert "standard input: has more than the 65536 bytes" in err
    assert endless.taken < 1 << 18


def test_json_carries_times_reasons_and_the_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(flare(capsys, *CELL, "--policy", "greedy", "--json")[1])
    certificate = (
        "status",
        "lower_bound",
        "gap",
        "band_residual",
        "finish_spread",
        "policy",
        "utility",
        "utility_bound",
    )
    assert set(certificate) <= set(told)
    assert told["gap"] == pytest.approx(told["objective"] / told["lower_bound"] - 1.0)
    for device in told["devices"]:
        assert (device["finish_s"] is None) == bool(device["reason"]) == (not device["selected"])
        assert (device["objective_change"] is not None) == ("the objective" in device["reason"])


def test_compared_policies_get_the_options_that_they_have(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--compare", "-o", "num_selected=2", "-o", "window=4")
    rows = {row["policy"]: row for row in json.loads(flare(capsys, *CELL, *given, "--json")[1])["policies"]}
    assert set(rows) == {name for name, one in POLICIES.items() if "labels" not in one.needed({})}
    assert rows["proportional-fair"]["options"] == {"num_selected": 2, "window": 4.0}
    assert rows["ps"]["options"] == {"num_selected": 2}
    assert rows["exact"]["options"] == {}
    assert rows["ps"]["num_selected"] == rows["round-robin"]["num_selected"] == 2
    assert rows["exact"]["finish_spread"] <= 1e-9
    assert "proportional-fair, num_selected=2, window=4" in flare(capsys, *CELL, *given)[1]
    limited = json.loads(flare(capsys, *CELL, "--compare", "--time-limit", "3", "--json")[1])["policies"]
    assert {row["policy"]: row["options"] for row in limited if row["options"]} == {"exact": {"time_limit_s": 3.0}}


def test_an_option_that_no_compared_policy_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = flare(capsys, *CELL, "--compare", "-o", "windows=4")
    assert (code, out) == (2, "")
    assert "none of the policies has an option 'windows' (their options: exact: time_limit_s;" in err


def test_an_option_wins_over_the_time_limit_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "cell.toml").write_text("[scheduling.options]\ntime_limit_s = 5.0\n")
    cell = ("schedule", "--cell", str(tmp_path / "cell.toml"), "--compare", "--json")
    for more, wins in (((), 5.0), (("--time-limit", "3"), 3.0), (("--time-limit", "3", "-o", "time_limit_s=2"), 2.0)):
        rows = json.loads(flare(capsys, *cell, *more)[1])["policies"]
        assert next(row["options"] for row in rows if row["policy"] == "exact") == {"time_limit_s": wins}


def test_a_narrow_terminal_has_the_numbers_of_the_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flare.cli.console._WIDTH", 80)
    out = flare(capsys, *CELL)[1]
    assert "worse by 0.733" in out
    assert "does not fit" in out
    assert "35 do not fit, 2 would worsen the objective" in out
    assert max(map(len, out.splitlines())) <= 90


def test_a_fraction_of_a_local_step_is_taken_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, b"name,tau,compute_s,snr_hz\na,5.5,0.1,1e10\nb,3,0.1,1e10\n")
    code, out, err = flare(capsys, "schedule", "-", *SETTINGS, "--json")
    assert code == 0
    assert json.loads(out)["devices"][0]["tau"] == 5.5
    assert err.startswith(
        "warning: standard input: one device has a fraction of a local step in tau, such as 5.5 of 'a'"
    )


@pytest.fixture
def whole_numbers() -> Iterator[str]:
    @policy("whole-numbers")
    def whole_numbers(problem: RoundProblem) -> np.ndarray:
        """Steps: as whole numbers."""
        return problem.tau.astype(np.int64)

    yield "whole-numbers"
    del POLICIES["whole-numbers"]


def test_utilities_of_whole_numbers_are_told_to_be_floats(whole_numbers: str) -> None:
    with pytest.raises(ValueError, match=r"named a device twice; if these are utilities, .* make them floats"):
        solve(paper_cell(0), whole_numbers)
    with pytest.raises(ValueError, match="outside 0 to 0; if these are utilities"):
        solve(paper_cell(0, num_devices=1), whole_numbers)
