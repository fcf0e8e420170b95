"""Traces in every form, as they are used: `flare schedule` and `flare run` with the files of examples/traces."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from flare.wireless.trace import read_trace
from tests.hostile import flare

TRACES = Path(__file__).resolve().parents[2] / "examples" / "traces"
FILES = ["rows.csv", "wide.csv", "matrix_h.csv", "antennas.npz", "antennas.mat"]


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cell_with(trace: str | Path) -> str:
    """A cell like that of the examples, with another trace."""
    text = (TRACES / "cell.toml").read_text().replace('"antennas.mat"', json.dumps(str(trace)))
    Path("cell.toml").write_text(text)
    return "cell.toml"


def test_the_examples_are_what_their_script_makes_and_agree(tmp_path: Path) -> None:
    runpy.run_path(str(TRACES / "make_traces.py"))["write"](tmp_path)
    traces = {name: read_trace(TRACES / name) for name in FILES}
    for name, kept in traces.items():
        made = read_trace(tmp_path / name)
        assert list(made.values) == list(kept.values)
        for each, values in made.values.items():
            np.testing.assert_allclose(kept.values[each], values, rtol=1e-9, err_msg=name)
    gains = {name: trace.values["gain_db"] for name, trace in traces.items()}
    assert np.array_equal(gains["antennas.mat"], gains["antennas.npz"])
    assert np.array_equal(gains["rows.csv"], gains["wide.csv"])
    np.testing.assert_allclose(gains["wide.csv"], gains["antennas.mat"], atol=0.0005001)  # three digits
    assert (gains["matrix_h.csv"] < gains["antennas.mat"]).all()  # one antenna receives less than two


@pytest.mark.parametrize("name", FILES)
def test_schedule_and_run_take_every_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cell = cell_with(TRACES / name)
    code, out, err = flare(capsys, "schedule", "--cell", cell, "--round", "2", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    small = ["--set", "learning.model=logistic", "--set", "run.rounds=3", "--set", "run.payload=wireless"]
    code, out, err = flare(capsys, "run", cell, *small, "--quiet", "--json", "--out", "run")
    assert code == 0, err
    (rounds,) = Path("run").glob("rounds.jsonl")
    third = json.loads(rounds.read_text().splitlines()[2])
    assert sorted(third["selected"]) == sorted(
        int(device["device"]) for device in answer["devices"] if device["selected"]
    )


def test_one_device_out_of_range_in_one_round_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    h = np.full((10, 8), 1e-5 + 1e-5j)
    h[4, 6] = 0.0
    savemat("h.mat", {"h": h})
    for command in (["schedule", "--cell"], ["run", "--quiet"]):
        code, out, err = flare(capsys, *command, cell_with(Path("h.mat").absolute()))
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert "h.mat, variable h, round 4, device 6 (h(5,7) in MATLAB): |h|^2 of 0+0j is 0" in err
        assert err.count("\n") == 1
    assert not Path("runs").exists()
