"""`flare sweep` from the command line: what is said, written, continued and refused."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import flare as package
from flare.cli import progress
from flare.research import sweep_results
from flare.sweeps import Callback
from tests.hostile import flare
from tests.small_runs import OPTIONS, SETTINGS, rounds_in

Capsys = pytest.CaptureFixture[str]
SWEEP = (
    "seeds = 3\n[set]\n"
    + "".join(f'"{name}" = {value if value != "logistic" else chr(34) + value + chr(34)}\n' for name, value in
              (text.split("=") for text in SETTINGS))
    + '[product]\n"learning.local_lr" = [0.01, 0.1]\n[zip]\n"scheduling.policy" = ["exact", "cp"]\n'
    '"learning.method" = ["flare", "fedavg"]\n'
)  # fmt: skip
NUM_RUNS = 2 * 2 * 3


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep, carried out by this process."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "sweep.toml").write_text(SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["flare", "sweep", f"{folder}/sweep.toml", "--out", f"{folder}/out", "--quiet"])
        with pytest.raises(SystemExit) as ended:
            package.cli.main()
    assert not ended.value.code
    return folder / "out"


def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second report of the whole sweep, whose pictures take their time: `done` has one."""
    monkeypatch.setattr(sweep_results, "write_sweep_report", lambda *_: None)


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def runs_in(out: Path) -> dict[str, Any]:
    return {folder.name: rounds_in(folder) for folder in (out / "runs").iterdir()}


def test_the_table_has_a_row_for_each_run_with_what_its_folder_says(done: Path) -> None:
    rows = results(done)
    assert len(rows) == NUM_RUNS
    assert list(rows[0]) == [
        "run", "learning.local_lr", "scheduling.policy", "learning.method", "seed", "status", "rounds", "clock_s",
        "test_accuracy", "best_accuracy", "target_accuracy", "time_to_target_s", "energy_j", "payload_bits",
    ]  # fmt: skip
    for row in rows:
        run = package.load(done / "runs" / row["run"])
        records = [record for record in run.records if record.test_accuracy is not None]
        assert float(row["test_accuracy"]) == records[-1].test_accuracy
        assert float(row["best_accuracy"]) == max(record.test_accuracy for record in records)
        assert (row["status"], int(row["rounds"])) == ("finished", 6)
        assert float(row["clock_s"]) == run.records[-1].clock_s
        energy_j = sum(sum(record.compute_energy_j) + sum(record.upload_energy_j) for record in run.records)
        assert math.isclose(float(row["energy_j"]), energy_j)
        assert float(row["payload_bits"]) == sum(sum(record.payload_bits) for record in run.records)
        assert run.config.learning.local_lr == float(row["learning.local_lr"])
        assert (run.config.scheduling.policy, run.config.learning.method, str(run.config.seed)) == (
            row["scheduling.policy"], row["learning.method"], row["seed"],
        )  # fmt: skip
    assert len({tuple(row.values())[1:5] for row in rows}) == NUM_RUNS


def test_the_parquet_file_is_the_same_table(done: Path) -> None:
    frame = pytest.importorskip("pandas").read_parquet(done / "results.parquet")
    assert list(frame["run"]) == [row["run"] for row in results(done)]
    assert frame["learning.local_lr"].tolist() == [float(row["learning.local_lr"]) for row in results(done)]
    assert frame["time_to_target_s"].isna().all()


def test_the_report_has_the_effect_of_each_setting(done: Path) -> None:
    page = (done / "report.html").read_text()
    first, second = page.index("Effect of learning.local_lr"), page.index("Effect of scheduling.policy with learning.m")
    assert first < second < page.index("<h2>Results</h2>")
    assert "Compared seed by seed" in page
    runs = package.load(done)
    assert isinstance(runs, package.Runs)
    assert runs.names == sorted(f"runs/{row['run']}" for row in results(done))


@pytest.mark.usefixtures("undrawn")
def test_flare_report_of_its_folder_has_the_effects_too(done: Path, tmp_path: Path, capsys: Capsys) -> None:
    figures = tmp_path / "figures"
    asked = ["--out", "page.html", "--figures", str(figures), "--format", "svg"]
    assert flare(capsys, "report", str(done), *asked)[0] == 0
    own, page = (done / "report.html").read_text(), Path("page.html").read_text()
    for text in ("<h1>Sweep: 2 values of learning.local_lr and 2 values of scheduling.policy with", "Effect of "):
        assert own.count(text) == page.count(text) > 0
    assert {"effect-0.svg", "effect-0-1.svg", "effect-1.svg"} <= {path.name for path in figures.iterdir()}
    shutil.copytree(done, "copy")
    Path("copy/sweep.json").write_text('{"format": "flare-sweep", "swept": 3}')
    code, _, err = flare(capsys, "report", "copy", "--out", "other.html")
    assert code == 2
    assert "what is swept is not known; put it back from a copy, or name copy/runs" in err
    assert flare(capsys, "report", "copy/runs", "--out", "other.html")[0] == 0


def test_the_same_command_does_what_is_missing_and_nothing_twice(done: Path, workplace: Path, capsys: Capsys) -> None:
    out = Path(shutil.copytree(done, workplace / "out"))
    gone = sorted((out / "runs").iterdir())[4:6]
    for folder in gone:
        shutil.rmtree(folder)
    (out / "results.csv").unlink()
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    code, said, err = flare(capsys, "sweep", "sweep.toml", "--out", "out", "--target", "0.3")
    assert (code, err) == (0, "")
    assert "12 runs: 2 of learning.local_lr x 2 of scheduling.policy with learning.method, with 3 seeds; 10 are" in said
    assert "out holds this sweep; what is missing is done." in said
    assert "time to 30 %" in said
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert runs_in(out) == runs_in(done)
    reached = [row for row in results(out) if row["time_to_target_s"]]
    assert reached
    assert all(float(row["best_accuracy"]) >= 0.3 and row["target_accuracy"] == "0.3" for row in reached)


def test_ctrl_c_keeps_what_is_done_and_tells_how_to_go_on(
    done: Path, workplace: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped:
        """Ctrl-C in the third round."""

        def __init__(self, *_: object, **__: object) -> None:
            self.seen = 0

        def __enter__(self) -> Callback | Any:
            return lambda key, rounds, over: setattr(self, "seen", max(self.seen, rounds))

        def __exit__(self, *_: object) -> None:
            return None

    stopped = Stopped()

    class Asked:
        def __enter__(self) -> Any:
            return lambda: stopped.seen >= 3

        def __exit__(self, *_: object) -> None:
            return None

    with monkeypatch.context() as patch:
        patch.setattr(progress, "showing_total", lambda *_, **__: stopped)
        patch.setattr(progress, "interruptible", Asked)
        code, _, err = flare(capsys, "sweep", "sweep.toml", "--out", "out", "--quiet")
    assert (code, err) == (130, "interrupted; the same command continues with what is missing\n")
    assert {(row["status"], row["rounds"]) for row in results(workplace / "out")} == {("interrupted", "3")}
    without_report(monkeypatch)
    assert flare(capsys, "sweep", "sweep.toml", "--out", "out", "--quiet")[0] == 0
    assert runs_in(workplace / "out") == runs_in(done)


def test_a_dry_run_touches_nothing(workplace: Path, capsys: Capsys) -> None:
    code, said, _ = flare(capsys, "sweep", "sweep.toml", "--out", "out", "--dry-run")
    assert code == 0
    assert said.startswith(
        "12 runs: 2 of learning.local_lr x 2 of scheduling.policy with learning.method, with 3 seeds."
    )
    assert re.search(r"About (a|\d+) seconds? by this process: \d+ rounds of 2 runs took this machine ", said)
    assert [path.name for path in workplace.iterdir()] == ["sweep.toml"]


def test_json_is_the_table(done: Path, workplace: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    without_report(monkeypatch)
    shutil.copytree(done, workplace / "out")
    code, said, _ = flare(capsys, "sweep", "sweep.toml", "--out", "out", "--json")
    assert code == 0
    rows = json.loads(said)
    assert [row["run"] for row in rows] == [row["run"] for row in results(done)]
    assert rows[0]["target_accuracy"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep.toml", "--out", "out", "--set", "learning.local_lr=1"], "is in [product] and in --set"),
        (["sweep.toml", "--out", "out", "--set", "run.rond=1"], "the nearest known key is run.rounds"),
        (["sweep.toml", "--out", "sweep.toml"], "is not empty and holds no sweep"),
        (["sweep.toml", "--out", "."], "is not empty and holds no sweep"),
        (["sweep.toml"], "--out"),
        (["nowhere.toml", "--out", "out"], "nowhere.toml"),
        (["sweep.toml", "--out", "out", "--target", "2"], "--target"),
        (["sweep.toml", "--out", "out", "--plugin", "none.py"], "none.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_touched(
    arguments: list[str], said: str, workplace: Path, capsys: Capsys
) -> None:
    code, out, err = flare(capsys, "sweep", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert [path.name for path in workplace.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize("command", ["compare", "run"])
@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("wireless.deadline_s=0.4,0.6", '"wireless.deadline_s" = [0.4, 0.6]'),
        ("wireless.deadline_s=[0.4, 0.6]", '"wireless.deadline_s" = [0.4, 0.6]'),
        ("scheduling.policy=exact,greedy", '"scheduling.policy" = ["exact", "greedy"]'),
    ],
)
def test_several_values_of_a_setting_are_a_sweep(command: str, setting: str, values: str, capsys: Capsys) -> None:
    code, out, err = flare(capsys, command, *OPTIONS, "--set", setting)
    assert (code, out) == (2, "")
    assert f"write them below [product] in a file, {values}, and give it to flare sweep (docs/sweeps.md)" in err


def test_the_run_of_another_seed_in_the_place_of_one_is_refused(done: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(done, tmp_path / "out")
    first, other = sorted((tmp_path / "out" / "runs").iterdir())[:2]
    shutil.rmtree(first)
    shutil.copytree(other, first)
    code, _, err = flare(capsys, "sweep", "sweep.toml", "--out", "out", "--quiet")
    assert code == 2
    assert "holds a run of other settings" in err
