"""`flare tune` from the command line: what is found, written, continued and refused."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import flare as package
from flare.cli import progress
from flare.config import load
from flare.extras import how_to_install
from flare.records import RunFolder
from flare.records.run import read_run
from flare.tuning import tuned
from flare.tuning.batch import read_until
from tests.hostile import flare
from tests.small_runs import OPTIONS, rounds_in, timeless

Capsys = pytest.CaptureFixture[str]
SEARCH = (
    "--no-search", "all", "--search", "learning.local_lr=0.001..0.3", "--search", "uplink.codec=none,qsgd",
    "--search", "uplink.bits=2..6",
)  # fmt: skip
NUMBERS = (
    "--target", "0.75", "--within", "0.3s", "--trials", "12", "--batch", "4", "--seeds", "2", "--fresh-seeds", "3",
)  # fmt: skip
TUNE = ("tune", *OPTIONS, "--set", "run.evaluate_every=1", *NUMBERS, *SEARCH)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; reports, whose pictures take their time, are written by the first tuning alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuned, "write_report", lambda *_: None)
    return tmp_path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tuning, never stopped."""
    out = tmp_path_factory.mktemp("tuning") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["flare", *TUNE, "--out", str(out), "--quiet"])
        with pytest.raises(SystemExit) as ended:
            package.cli.main()
    assert not ended.value.code
    return out


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def runs_in(out: Path, kind: str = "runs") -> dict[str, Any]:
    return {folder.name: rounds_in(folder) for folder in sorted((out / kind).iterdir()) if folder.is_dir()}


def test_the_table_tells_what_the_run_folders_do(done: Path) -> None:
    rows = results(done)
    assert [row["trial"] for row in rows] == [str(number) for number in range(12)]
    assert (rows[0]["learning.local_lr"], rows[0]["uplink.codec"], rows[0]["uplink.bits"]) == ("0.05", "none", "")
    complete = [row for row in rows if row["status"] == "complete" and not row["same_as"]]
    pruned = [row for row in rows if row["status"] == "pruned"]
    assert complete
    assert pruned
    assert {row["status"] for row in rows} == {"complete", "pruned"}
    for row in complete:
        runs = [package.load(done / "runs" / f"trial-{int(row['trial']):04d}-seed{seed}") for seed in (0, 1)]
        times = [next((r.clock_s for r in run.records if (r.test_accuracy or 0.0) >= 0.75), math.nan) for run in runs]
        assert all(run.status in ("reached", "finished") for run in runs)
        assert row["time_to_target_s"] == ("" if math.isnan(sum(times)) else repr(sum(times) / 2))
        assert runs[0].config.uplink.codec == row["uplink.codec"]
        assert str(runs[0].config.uplink.bits) == (row["uplink.bits"].removesuffix(".0") or "default")
    for row in pruned:
        runs = [read_run(done / "runs" / f"trial-{int(row['trial']):04d}-seed{seed}") for seed in (0, 1)]
        assert "pruned" in {run.status for run in runs}
        assert not any(RunFolder.open(run.folder).has_checkpoints for run in runs if run.folder)
        assert row["why"]


def test_a_pruned_trial_could_not_have_won_or_was_below_the_median(done: Path) -> None:
    rows = results(done)
    best_s = min(float(row["time_to_target_s"]) for row in rows if row["time_to_target_s"])
    for row in rows:
        if "no longer be better" in row["why"]:
            runs = [read_run(done / "runs" / f"trial-{int(row['trial']):04d}-seed{seed}") for seed in (0, 1)]
            if not any(run.ended and run.status != "reached" for run in runs):
                assert sum(run.clock_s for run in runs) / 2 >= best_s


def test_the_winner_runs_and_is_the_best_of_the_table(done: Path, capsys: Capsys) -> None:
    rows = results(done)
    winner = min((row for row in rows if row["time_to_target_s"]), key=lambda row: float(row["time_to_target_s"]))
    best = load(done / "best.toml")
    assert best.learning.local_lr == float(winner["learning.local_lr"])
    code, said, _ = flare(capsys, "run", str(done / "best.toml"), "--out", "again", "--quiet")
    assert (code, "reached after" in said) == (0, True)
    assert rounds_in(Path("again")) == rounds_in(done / "runs" / f"trial-{int(winner['trial']):04d}-seed0")


def test_the_winner_is_judged_with_seeds_that_no_trial_had(done: Path) -> None:
    seeds = {read_run(folder).config.seed for folder in (done / "judged").iterdir() if folder.is_dir()}
    assert seeds == {2, 3, 4}
    names = {folder.name.rpartition("-seed")[0] for folder in (done / "judged").iterdir() if folder.is_dir()}
    assert "start" in names
    assert len(names) == 2
    assert load(done / "judged" / "start-seed2" / "config.toml").learning.local_lr == 0.05


def test_the_report_has_the_judgement_the_search_and_what_mattered(done: Path) -> None:
    page = (done / "report.html").read_text()
    places = [page.index(f"<h2>{title}</h2>") for title in (
        "The winner beside the start", "The search", "What mattered", "Results",
    )]  # fmt: skip
    assert places == sorted(places)
    for name in ("importance", "best-so-far", "effect-of-0", "effect-of-1", "effect-of-2"):
        assert f'id="{name}' in page, name
    head = page.partition("<main>")[0]
    assert "<h1>Tuning: least simulated time to " in head
    assert '<p class="lead">With fresh seeds the winner ' in head
    assert "has the best test accuracy" not in head
    assert "best settings (trial" in page
    assert "start settings" in page


def test_a_run_is_read_as_it_was_at_a_pause(done: Path) -> None:
    folder = done / "judged" / "start-seed2"
    whole = read_run(folder)
    clock_s = whole.of_round["clock_s"]
    for rounds in range(1, whole.num_rounds):
        for pause_s in (clock_s[rounds - 1], 0.5 * (clock_s[rounds - 2] + clock_s[rounds - 1]) if rounds > 1 else 1e-9):
            cut = read_until(folder, float(pause_s))
            assert (cut.num_rounds, cut.status, cut.ended) == (rounds, "interrupted", False)
    last = read_until(folder, float(clock_s[-1]))
    assert (last.num_rounds, last.status) == (whole.num_rounds, whole.status)


class Killed(BaseException):
    """What kill -9 is like from inside: nothing is put in order."""


@pytest.mark.parametrize("rounds", [3, 60])
def test_killed_anywhere_it_goes_on_as_if_nothing_had_been(
    done: Path, workplace: Path, rounds: int, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    @contextmanager
    def dying(*_: object, **__: object) -> Iterator[Any]:
        def callback(key: str, number: int, over: bool) -> None:
            nonlocal seen
            seen += 1
            if seen == rounds:
                raise Killed

        yield callback

    with monkeypatch.context() as patch:
        patch.setattr(progress, "showing_total", dying)
        with pytest.raises(Killed):
            flare(capsys, *TUNE, "--out", "out", "--quiet")
    assert not (workplace / "out" / "best.toml").exists()
    _goes_on_as_if_nothing_had_been(capsys, workplace / "out", done)


def test_killed_when_a_batch_is_over_and_not_yet_written_down(
    done: Path, workplace: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its runs are further then than they were when it was decided who is hopeless."""

    def dying(out: Path, trials: list[Any], seal: str) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(tuned, "write_trials", dying)
        with pytest.raises(Killed):
            flare(capsys, *TUNE, "--out", "out", "--quiet")
    assert not (workplace / "out" / "trials.jsonl").exists()
    _goes_on_as_if_nothing_had_been(capsys, workplace / "out", done)


def _goes_on_as_if_nothing_had_been(capsys: Capsys, out: Path, done: Path) -> None:
    code, said, _ = flare(capsys, *TUNE, "--out", "out")
    assert code == 0
    assert "out holds this tuning" in said
    for name in ("trials.jsonl", "results.csv", "best.toml", "tuning.json"):
        assert (out / name).read_bytes() == (done / name).read_bytes(), name
    assert runs_in(out) == runs_in(done)
    assert runs_in(out, "judged") == runs_in(done, "judged")


def test_ctrl_c_keeps_what_is_done_and_tells_how_to_go_on(
    workplace: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    @contextmanager
    def pressed() -> Iterator[Any]:
        def stopping() -> bool:
            nonlocal asked
            asked += 1
            return asked > 4

        yield stopping

    monkeypatch.setattr(progress, "interruptible", pressed)
    code, _, err = flare(capsys, *TUNE, "--out", "out", "--quiet")
    assert (code, err) == (130, "interrupted; the same command goes on where it was\n")
    assert (workplace / "out" / "tuning.json").exists()
    assert not (workplace / "out" / "trials.jsonl").exists()


def test_a_damaged_list_of_trials_can_be_deleted_as_the_error_says(done: Path, workplace: Path, capsys: Capsys) -> None:
    out = Path(shutil.copytree(done, workplace / "out"))
    (out / "trials.jsonl").write_bytes((done / "trials.jsonl").read_bytes()[:-50])
    code, _, err = flare(capsys, *TUNE, "--out", "out", "--quiet")
    assert code == 2
    assert "out/trials.jsonl: line 12 is damaged, or of another tuning" in err
    assert "delete it: the same command makes it again" in err
    (out / "trials.jsonl").unlink()
    _goes_on_as_if_nothing_had_been(capsys, out, done)


def test_started_again_it_does_nothing_twice_and_more_trials_continue_it(
    done: Path, workplace: Path, capsys: Capsys
) -> None:
    out = Path(shutil.copytree(done, workplace / "out"))
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    code, said, _ = flare(capsys, *TUNE, "--out", "out", "--json")
    assert code == 0
    told = json.loads(said)
    assert told["trials"] == 12
    assert told["goal"] == "time"
    assert [each["seed"] for each in told["fresh_seeds"]["best"]] == [2, 3, 4]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    more = [*TUNE[: TUNE.index("12")], "13", *TUNE[TUNE.index("12") + 1 :]]
    code, said, _ = flare(capsys, *more, "--out", "out")
    assert code == 0
    assert "12 trials of it done" in said
    assert (out / "trials.jsonl").read_bytes().startswith((done / "trials.jsonl").read_bytes())
    assert len(results(out)) == 13


def test_a_target_that_nobody_reaches_is_said_and_the_most_accurate_wins(workplace: Path, capsys: Capsys) -> None:
    short = ("--target", "0.99", "--trials", "3", "--seeds", "1", "--fresh-seeds", "1", "--batch", "3")
    code, said, _ = flare(capsys, "tune", *OPTIONS, *short, *SEARCH, "--out", "out")
    assert code == 0
    assert "0 reached the target" in said
    assert "No trial reached 99 % with every seed" in said
    rows = results(workplace / "out")
    best = max(rows, key=lambda row: float(row["best_accuracy"]))
    assert load(workplace / "out" / "best.toml").learning.local_lr == float(best["learning.local_lr"])


@pytest.mark.parametrize("goal", ["energy", "accuracy"])
def test_other_goals(goal: str, workplace: Path, capsys: Capsys) -> None:
    numbers = ("--trials", "4", "--seeds", "1", "--fresh-seeds", "1", "--batch", "4", "--goal", goal)
    wanted = ("--within", "100ms") if goal == "accuracy" else ("--target", "0.3")
    code, _, err = flare(capsys, "tune", *OPTIONS, *numbers, *wanted, *SEARCH, "--out", "out", "--quiet")
    assert (code, err) == (0, "")
    rows = [row for row in results(workplace / "out") if row["status"] == "complete"]
    if goal == "energy":
        winner = min(rows, key=lambda row: float(row["energy_to_target_j"] or "inf"))
    else:
        winner = max(rows, key=lambda row: float(row["test_accuracy"]))
        assert "time_to_target_s" not in winner
    assert load(workplace / "out" / "best.toml").learning.local_lr == float(winner["learning.local_lr"])


def test_a_trial_that_diverges_is_a_result(workplace: Path, capsys: Capsys) -> None:
    warm = ("--set", "run.evaluate_every=6")  # so late that weights are lost before the first test
    hot = ("--no-search", "all", "--search", "learning.local_lr=0.05,1e38", "--no-prune")
    numbers = ("--target", "0.2", "--trials", "6", "--seeds", "1", "--fresh-seeds", "1", "--batch", "6")
    code, said, _ = flare(capsys, "tune", *OPTIONS, *warm, *numbers, *hot, "--out", "out")
    assert code == 0
    assert "a run diverged" in said
    assert "had the settings of an earlier one" in said
    lost = [row for row in results(workplace / "out") if row["num_diverged"] == "1"]
    assert lost
    assert {row["learning.local_lr"] for row in lost} == {"1e+38"}
    assert load(workplace / "out" / "best.toml").learning.local_lr == 0.05
    assert "No trial was better than the start settings: they are the winner." in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "2"], "the target is 2"),
        (["--target", "0.9", "--goal", "best"], "one of time, energy, accuracy"),
        (["--goal", "accuracy"], "give it, with --within 20s"),
        (["--target", "0.9", "--within", "5 m"], "--within"),
        (["--target", "0.9", "--search", "learning.rate=0.1..0.2"], "unknown key learning.rate"),
        (["--target", "0.9", "--search", "learning.method=flaer,fedavg"], "did you mean 'flare'"),
        (["--target", "0.9", "--set", "learning.method=nobody"], "there is no method 'nobody'"),
        ([], "give the test accuracy to reach"),
        (["--target", "0.9", "--on", "moon"], "--on is 'moon'"),
    ],
)
def test_bad_input_is_one_error_before_anything_is_touched(
    workplace: Path, capsys: Capsys, arguments: list[str], words: str
) -> None:
    code, said, err = flare(capsys, "tune", *OPTIONS, *arguments, "--out", "out")
    assert (code, said) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1
    assert not (workplace / "out").exists()


def test_without_optuna_it_says_how_to_install_it(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    code, _, err = flare(capsys, "tune", "--target", "0.9", "--out", "out")
    assert (code, err) == (2, f"error: tuning needs optuna: {how_to_install('tune')}\n")


@pytest.mark.usefixtures("ready_workers")
def test_processes_share_the_work_with_the_same_result(done: Path, workplace: Path, capsys: Capsys) -> None:
    """The first batch, by two processes."""
    first = [*TUNE[: TUNE.index("12")], "4", *TUNE[TUNE.index("12") + 1 :]]
    code, _, err = flare(capsys, *first, "--processes", "2", "--out", "out", "--quiet")
    assert (code, err) == (0, "")
    lines = (workplace / "out" / "trials.jsonl").read_text()
    assert (done / "trials.jsonl").read_text().startswith(lines)


def test_in_a_line_of_python(workplace: Path) -> None:
    heard: list[int] = []
    settings = {
        "wireless": {"num_devices": 8, "deadline_s": 0.02, "batch_size": 10},
        "learning.model": "logistic",
        "run": {"rounds": 6, "evaluate_every": 1},
    }

    def tuned() -> Any:
        return package.tune(
            settings, target=0.3, out=workplace / "out", trials=4, seeds=1, fresh_seeds=2, batch=2, no_search=["all"],
            search={"learning.local_lr": (0.01, 0.2)}, callback=lambda trial: heard.append(trial.number),
        )  # fmt: skip

    first, second = tuned(), tuned()
    assert heard == [0, 1, 2, 3] * 2
    assert first.settings == second.settings == {"learning.local_lr": first.best.learning.local_lr}
    assert "4 trials" in repr(first)
    assert {run.config.seed for run in first.runs} == {1, 2}
    again = package.simulate(first.best, progress=False)
    trial = first.judged.trial.number
    assert timeless(again.records) == timeless(
        package.load(workplace / "out" / "runs" / f"trial-{trial:04d}-seed0").records
    )
