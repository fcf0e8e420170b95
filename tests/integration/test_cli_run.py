"""`flare run`, `compare`, `config` and `report` as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flare.cli.run import require_tensorboard
from flare.records import RunFolder
from flare.report import run_report
from tests import ready_python
from tests.hostile import flare as flare_here
from tests.hostile import refused
from tests.integration.kill_helper import kill_when, num_lines

SMALL = [
    "--set", "wireless.num_devices=8",
    "--set", "wireless.deadline_s=1.0",
    "--set", "wireless.batch_size=10",
    "--set", "learning.model=logistic",
    "--set", "run.rounds=6",
    "--set", "run.evaluate_every=3",
    "--set", "run.checkpoint_every=2",
]  # fmt: skip

ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flare", *arguments]


def flare(*arguments: str, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = ready_python.run(command(*arguments), cwd=cwd, env=ENVIRONMENT)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Standard output of a command that this process carries out, in `tmp_path`. It writes no report, whose pictures
    take their time: `test_compare_runs_all_in_lockstep_as_if_alone_and_reports` has one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_report, "write_page", lambda *_, **__: None)

    def run(*arguments: str) -> str:
        code, out, err = flare_here(capsys, *arguments)
        assert code == 0, out + err
        return out

    return run


def records(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run, less the time they took on this machine."""
    rounds = RunFolder.open(folder).records()
    return [{key: value for key, value in record.items() if key != "wall_s"} for record in rounds]


def test_run_writes_a_folder_that_says_everything(tmp_path: Path) -> None:
    done = flare("run", *SMALL, "--out", "first", cwd=tmp_path)
    folder = tmp_path / "first"
    assert "finished" in done.stdout
    assert len(records(folder)) == 6
    assert json.loads((folder / "manifest.json").read_text())["status"] == "finished"
    assert len(list((folder / "checkpoints").iterdir())) == 2
    again = flare("run", "first/config.toml", "--out", "second", "--quiet", cwd=tmp_path)
    assert again.stderr == ""
    assert records(tmp_path / "second") == records(folder)


def test_run_without_arguments_picks_a_new_folder_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        flare("run", *SMALL, "--quiet", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["flare-exact-seed0", "flare-exact-seed0-2"]


def test_json_is_the_outcome(tmp_path: Path) -> None:
    outcome = json.loads(flare("run", *SMALL, "--json", cwd=tmp_path).stdout)
    assert outcome["status"] == "finished"
    assert outcome["rounds"] == 6
    assert outcome["test_accuracy"] == records(tmp_path / outcome["folder"])[-1]["test_accuracy"]


def test_an_existing_run_is_never_written_over_without_force(tmp_path: Path) -> None:
    flare("run", *SMALL, "--out", "here", "--quiet", cwd=tmp_path)
    before = (tmp_path / "here" / "rounds.jsonl").read_bytes()
    assert "here" in refused("run", *SMALL, "--out", "here", cwd=tmp_path)
    assert (tmp_path / "here" / "rounds.jsonl").read_bytes() == before
    flare("run", *SMALL, "--out", "here", "--force", "--quiet", "--set", "run.rounds=3", cwd=tmp_path)
    assert len(records(tmp_path / "here")) == 3
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    refused("run", *SMALL, "--out", "mine", "--force", cwd=tmp_path)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "wireless.deadlin_s=1"], ["wireless.deadlin_s", "wireless.deadline_s"]),
        (["--set", "radio.deadline_s=1"], ["radio", "wireless"]),
        (["--set", "deadline"], ["deadline", "section.key=value"]),
        (["--set", "run.rounds=0"], ["run.rounds", "at least 1"]),
        (["--set", "run.rounds=many"], ["run.rounds", "many"]),
        (["--set", "learning.method=fedavgg"], ["fedavgg", "fedavg", "scaffold"]),
        (["--set", "scheduling.policy=exakt"], ["exakt", "exact", "greedy"]),
        (["--set", "learning.model=cnn"], ["cnn", "mnist-cnn"]),
        (["--set", "data.name=mnits"], ["mnits", "mnist"]),
        (["--set", "wireless.num_devices=100000"], ["devices"]),
        (["--set", "learning.model=mnist-cnn"], ["mnist-cnn"]),
        (["none.toml"], ["none.toml"]),
        (["--resume", "nowhere"], ["nowhere"]),
    ],
)
def test_bad_input_is_one_error_and_makes_no_folder(tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    message = refused("run", *arguments, cwd=tmp_path)
    for part in expected:
        assert part in message
    assert list(tmp_path.iterdir()) == []


def test_a_changed_configuration_is_not_resumed(tmp_path: Path) -> None:
    flare("run", *SMALL, "--out", "here", "--quiet", cwd=tmp_path)
    assert "keeps its configuration" in refused("run", "--resume", "here", "--set", "run.rounds=9", cwd=tmp_path)
    config = tmp_path / "here" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 6", "rounds = 9"))
    assert "config.toml" in refused("run", "--resume", "here", cwd=tmp_path)


def test_ctrl_c_stops_after_the_round_and_resume_ends_with_the_same_run(tmp_path: Path) -> None:
    long = [*SMALL, "--set", "run.rounds=150"]
    flare("run", *long, "--out", "whole", "--quiet", cwd=tmp_path)
    rounds = tmp_path / "cut" / "rounds.jsonl"
    ended = kill_when(
        command("run", *long, "--out", "cut", "--quiet"),
        lambda: num_lines(rounds) > 2,
        with_signal=signal.SIGINT,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert (ended.killed, ended.returncode) == (True, 130)
    assert "flare run --resume cut" in ended.output
    done = len(records(tmp_path / "cut"))
    assert 0 < done < 150
    flare("run", "--resume", "cut", "--quiet", cwd=tmp_path)
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


def test_compare_runs_all_in_lockstep_as_if_alone_and_reports(tmp_path: Path) -> None:
    entries = ["--entry", "flare:greedy", "--entry", "fedavg:cp", "--seeds", "2"]
    done = flare("compare", *entries, *SMALL, "--out", "all", "--quiet", cwd=tmp_path)
    assert "all/report.html" in done.stdout
    page = (tmp_path / "all" / "report.html").read_text()
    assert "(SPF)" in page
    assert "difference to the best" in done.stdout
    assert "of 2" in done.stdout  # seeds won
    names = {f"{pair}-seed{seed}" for pair in ("flare-greedy", "fedavg-cp") for seed in (0, 1)}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names | {"report.html", "comparison.json"}
    alone = ["--set", "learning.method=fedavg", "--set", "scheduling.policy=cp", "--set", "seed=1"]
    flare("run", *SMALL, *alone, "--out", "alone", "--quiet", cwd=tmp_path)
    assert records(tmp_path / "alone") == records(tmp_path / "all" / "fedavg-cp-seed1")
    flare("report", "all", "alone", "--out", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_compare_says_where_nothing_is_compared_after_equal_time(here: Callable[..., str]) -> None:
    once = ["--set", "run.rounds=2", "--set", "run.evaluate_every=2"]
    said = here("compare", "--entry", "flare:exact", "--entry", "flare:cp", *SMALL, *once, "--out", "all", "--quiet")
    words = "Not compared after equal simulated time: there is no time that the tests of all runs reach"
    assert words in " ".join(said.split())
    assert "Not compared after equal rounds" not in said


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    flare("run", *SMALL, "--out", "here", "--quiet", cwd=tmp_path)
    before, manifest = records(tmp_path / "here"), tmp_path / "here" / "manifest.json"
    told = json.loads(manifest.read_text()) | {"ended": "2026-01-02T03:04:05+00:00"}  # long ago
    manifest.write_text(json.dumps(told))
    said = flare("run", "--resume", "here", "--quiet", cwd=tmp_path).stdout
    assert "finished" in said
    assert "nothing was left to do" in said
    assert "--set run.rounds=N" in said
    assert records(tmp_path / "here") == before
    assert json.loads(manifest.read_text()) == told


def test_compare_looks_at_all_folders_before_it_touches_one(tmp_path: Path, here: Callable[..., str]) -> None:
    pair = ["--entry", "flare:cp", "--entry", "fedavg:cp", *SMALL, "--out", "all"]
    told = json.loads(here("compare", "--entry", "flare:cp", *SMALL, "--out", "all", "--json"))
    assert [one["status"] for one in told["runs"]] == ["finished"]
    assert [(one["by"], one["groups"][0]["name"]) for one in told["rankings"]] == [
        ("rounds", "flare:cp"),
        ("simulated time", "flare:cp"),
    ]
    before = records(tmp_path / "all" / "flare-cp-seed0")
    (tmp_path / "all" / "fedavg-cp-seed0").mkdir()
    (tmp_path / "all" / "fedavg-cp-seed0" / "thesis.txt").write_text("years of work")
    assert "not a run folder" in refused("compare", *pair, "--force", cwd=tmp_path)
    assert records(tmp_path / "all" / "flare-cp-seed0") == before
    assert "keeps its configuration" in refused("compare", "--resume", "all", "--seeds", "3", cwd=tmp_path)


def test_a_comparison_is_resumed_whole_or_not_at_all(tmp_path: Path, here: Callable[..., str]) -> None:
    pair = ["--entry", "flare:cp", "--entry", "fedavg:cp", *SMALL, "--seeds", "2", "--out", "all", "--quiet"]
    here("compare", *pair)
    assert "finished" in here("compare", "--resume", "all", "--quiet")
    (tmp_path / "all" / "fedavg-cp-seed0").rename(tmp_path / "elsewhere")
    said = refused("compare", "--resume", "all", cwd=tmp_path)
    assert "no folder of a comparison" in refused("compare", "--resume", "elsewhere", cwd=tmp_path)
    told = re.search(r"\(flare (run OTHER/config.toml --set seed=SEED --out all/fedavg-cp-seed0)\)", said)
    assert told is not None
    here(*told[1].replace("OTHER", "all/fedavg-cp-seed1").replace("SEED", "0").split(), "--quiet")
    assert records(tmp_path / "all" / "fedavg-cp-seed0") == records(tmp_path / "elsewhere")
    assert "finished" in here("compare", "--resume", "all", "--quiet")


def test_a_comparison_that_was_stopped_goes_on_to_the_same_runs(tmp_path: Path, here: Callable[..., str]) -> None:
    pair = ["--entry", "flare:cp", "--entry", "fedavg:cp", *SMALL, "--set", "run.rounds=30", "--quiet"]
    here("compare", *pair, "--out", "whole")
    rounds = tmp_path / "cut" / "fedavg-cp-seed0" / "rounds.jsonl"
    ended = kill_when(
        command("compare", *pair, "--out", "cut"),
        lambda: rounds.exists() and num_lines(rounds) > 10,
        with_signal=signal.SIGINT,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert (ended.killed, ended.returncode) == (True, 130)
    assert "interrupted; continue with: flare compare --resume cut" in ended.output
    assert 10 < len(records(rounds.parent)) < 30
    here("compare", "--resume", "cut", "--quiet")
    for name in ("flare-cp-seed0", "fedavg-cp-seed0"):
        assert records(tmp_path / "cut" / name) == records(tmp_path / "whole" / name)


def test_tensorboard_that_is_not_installed_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="tensorboard"):
        require_tensorboard(True)
    require_tensorboard(False)


def test_compare_refuses_what_it_cannot_run_before_it_writes(tmp_path: Path) -> None:
    assert "METHOD:POLICY" in refused("compare", "--entry", "flare", cwd=tmp_path)
    said = refused("compare", "--entry", "flare:cp", "--entry", "flare:cp", cwd=tmp_path)
    assert "two entries are called 'flare:cp'; each is run once, so name it once" in said
    assert "fedavvg" in refused("compare", "--entry", "flare:cp", "--entry", "fedavvg:cp", *SMALL, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_config_prints_a_file_that_runs(tmp_path: Path) -> None:
    text = flare("config", cwd=tmp_path).stdout
    (tmp_path / "default.toml").write_text(text)
    of_options = re.compile(r"# [\w-]+: \w+ = ")
    comments = [line for line in text.splitlines() if line.startswith("#") and not of_options.match(line)]
    keys = [line for line in text.splitlines() if (" = " in line and line[0] != "#") or line.endswith("options]")]
    assert len(comments) == len(keys) > 30
    flare("run", "default.toml", *SMALL, "--out", "here", "--quiet", cwd=tmp_path)
    assert len(records(tmp_path / "here")) == 6


def test_report_refuses_what_is_no_run(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("report", str(tmp_path), cwd=tmp_path)


def test_tensorboard_writes_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    flare("run", *SMALL, "--out", "here", "--quiet", "--tensorboard", cwd=tmp_path)
    assert list((tmp_path / "here" / "tensorboard").iterdir())
