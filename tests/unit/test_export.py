"""`flare export`: what is written is what other programs read back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat

import flare
from flare.records.run import read_run
from flare.research.export import export
from flare.research.tables import NotRedrawn
from tests.hostile import flare as command
from tests.made_up_runs import settings, write_run
from tests.small_runs import SMALL

pd = pytest.importorskip("pandas")
FORMULA = "=HYPERLINK(1)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of which is called what a spreadsheet would compute."""
    base = tmp_path_factory.mktemp("export") / "runs"
    entries = ["flare:greedy", {"label": FORMULA, "policy": "cp"}]
    flare.compare(entries, config=SMALL | {"run.rounds": 3}, out=base)
    return base


@pytest.fixture(scope="module")
def runs(folder: Path) -> flare.Runs:
    loaded = flare.load(folder)
    assert isinstance(loaded, flare.Runs)
    return loaded


def test_csv_is_read_back(folder: Path, runs: flare.Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = command(capsys, "export", str(folder), "--csv", str(tmp_path / "new" / "tables"))
    assert code == 0
    assert str(tmp_path / "new" / "tables" / "rounds.csv") in said
    for name, wanted in (("rounds", runs.frame()), ("devices", runs.devices())):
        frame = pd.read_csv(tmp_path / "new" / "tables" / f"{name}.csv", keep_default_na=False, na_values={})
        assert f"'{FORMULA}" in set(frame.label)  # a text, not a formula
        frame["label"] = frame.label.str.lstrip("'")
        assert list(frame.columns) == list(wanted.columns)
        for column in wanted.columns:
            read = pd.to_numeric(frame[column]) if wanted[column].dtype.kind == "f" else frame[column]
            pd.testing.assert_series_equal(read, wanted[column], check_exact=True, check_dtype=False)
    assert not list(tmp_path.rglob("*.part"))


def test_parquet_is_read_back(
    folder: Path, runs: flare.Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(capsys, "export", str(folder), "--parquet", str(tmp_path))[0] == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, wanted in (("rounds", runs.frame()), ("devices", runs.devices())):
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        frame = table.to_pandas()
        for column in wanted.columns:
            read = frame[column].astype(wanted[column].dtype)
            pd.testing.assert_series_equal(read, wanted[column], check_exact=True)
        for number in ("smoothness", "upload_s"):
            if number in wanted:
                assert table.column(number).null_count == wanted[number].isna().sum() > 0


def test_matlab_is_read_back(
    folder: Path, runs: flare.Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.mat"
    assert command(capsys, "export", str(folder), "--mat", str(file))[0] == 0
    read = loadmat(file, simplify_cells=True)
    for name, wanted in (("rounds", runs.frame()), ("devices", runs.devices())):
        struct = read[name]
        for column in wanted.columns:
            values = struct[column]
            assert values.shape == (len(wanted),)
            if f"{column}_names" in struct:
                names = np.atleast_1d(struct[f"{column}_names"]).tolist()
                texts = ["" if code == 0 else names[code - 1] for code in values.tolist()]
                assert texts == wanted[column].tolist()
            else:
                np.testing.assert_array_equal(values, wanted[column].to_numpy())
    assert loadmat(file)["rounds"]["clock_s"][0, 0].shape == (6, 1)  # a column, as MATLAB has it
    assert read["devices"]["selected"].dtype == np.uint8  # MATLAB's logical


def test_one_run_has_the_same_columns_as_many(runs: flare.Runs, tmp_path: Path) -> None:
    files = export(runs[0], "csv", tmp_path)
    assert [file.name for file in files] == ["rounds.csv", "devices.csv"]
    assert list(pd.read_csv(files[0]).columns) == list(runs.frame().columns)


def test_nothing_is_written_over_without_force(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "devices.csv").write_text("mine")
    arguments = ["export", str(folder), "--mat", str(tmp_path / "a.mat"), "--csv", str(tmp_path)]
    code, _, said = command(capsys, *arguments)
    assert (code, said.count("\n")) == (2, 1)
    assert "devices.csv is there already; give another place, or --force" in said
    assert [each.name for each in tmp_path.iterdir()] == ["devices.csv"]
    assert (tmp_path / "devices.csv").read_text() == "mine"
    assert command(capsys, *arguments, "--force")[0] == 0
    assert (tmp_path / "devices.csv").read_text() != "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.mat", "devices.csv", "rounds.csv"]


def test_bad_requests_are_answered_in_a_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = write_run(tmp_path / "damaged", settings(), rounds=3)
    (damaged / "rounds.jsonl").write_bytes((damaged / "rounds.jsonl").read_bytes()[:-40])
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.iterdir())
    for arguments, words in (
        ([str(folder)], "nothing is asked for"),
        ([str(tmp_path / "none"), "--csv", str(tmp_path / "out")], "there is no folder"),
        ([str(damaged), "--csv", str(tmp_path / "out")], "rounds.jsonl"),
        ([str(folder), "--mat", str(tmp_path / "out.csv")], "ends in .mat"),
        ([str(folder), "--csv", str(tmp_path / "file")], "is a file; give a folder"),
        ([str(folder), "--csv", str(tmp_path / "file" / "below")], "Not a directory"),
    ):
        code, _, said = command(capsys, "export", *arguments)
        assert (code, said.count("\n")) == (2, 1), said
        assert words in said
    assert sorted(tmp_path.iterdir()) == before


def test_without_pyarrow_the_extra_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, _, said = command(capsys, "export", str(folder), "--parquet", str(tmp_path / "out"))
    assert (code, "pip install -c constraints.txt '.[research]'" in said) == (2, True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert command(capsys, "export", str(folder), "--csv", str(tmp_path / "out"))[0] == 0


def test_a_run_that_does_not_tell_everything_is_exported(tmp_path: Path) -> None:
    run = flare.load(write_run(tmp_path / "run", settings(), rounds=2))
    with pytest.warns(NotRedrawn, match=r"run: 2 of 2 rounds .* does not tell the size of its model"):
        (rounds, devices) = export(run, "csv", tmp_path / "tables")
    assert len(pd.read_csv(rounds)) == 2
    table: Any = pd.read_csv(devices)
    assert set(table.why_left_out.dropna()) == {"not known"}
    assert read_run(tmp_path / "run").num_devices * 2 == len(table)
