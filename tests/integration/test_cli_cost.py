"""What commands cost: each imports what it uses of flare and no more, and computes nothing twice.

The other tests run commands where much is imported already, and would not see that an import is forgotten.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flare.scheduling import RoundProblem, Schedule, known_round, showing, solve
from flare.scheduling.explain import Explanation, explain
from tests import ready_python
from tests.hostile import flare

SMALL = ["--set", "wireless.num_devices=4", "--set", "wireless.deadline_s=5", "--set", "run.rounds=1", "--quiet"]


def test_each_kind_of_command_runs_where_nothing_of_flare_is_imported(tmp_path: Path) -> None:
    for arguments in (
        ["schedule", "--cell", "paper", "--plot", "schedule.png"],
        ["list", "models"],
        ["data", "fetch", "digits"],
        ["data", "show", "--plot", "data.png"],
        ["run", *SMALL, "--out", "run"],
        ["report", "run"],
        ["export", "run", "--csv", "tables"],
    ):
        command = [sys.executable, "-m", "flare", *arguments]
        done = ready_python.run(command, cwd=tmp_path, imported=ready_python.OF_OTHERS)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    wanted = ["report.html", "tables/rounds.csv", "schedule.png", "data.png"]
    assert all((tmp_path / name).stat().st_size > 0 for name in wanted)


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        (["schedule", "--cell", "paper"], {"torch", "flare.data", "matplotlib", "http.client", "scipy.optimize"}),
        (["list", "policies"], {"torch", "flare.data", "matplotlib", "http.client", "scipy"}),
        (["list", "data"], {"torch", "matplotlib", "scipy"}),
    ],
)
def test_a_plain_process_imports_no_more_than_its_command_uses(
    command: list[str], unused: set[str], tmp_path: Path
) -> None:
    code = (
        "import sys\nfrom flare.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(sorted({unused!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_where_the_ready_process_has_died_it_is_said(tmp_path: Path) -> None:
    command, little = [sys.executable, "-c", "pass"], ("json",)
    assert ready_python.run(command, cwd=tmp_path, imported=little).returncode == 0
    server = int((ready_python.process(little) / "pid").read_text())
    os.kill(server, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"the ready Python process {server} has ended"):
        ready_python.run(command, cwd=tmp_path, imported=little)


@pytest.mark.parametrize(("arguments", "times"), [([], 1), (["--json"], 1), (["--csv"], 1), (["--compare"], 2)])
def test_a_schedule_is_solved_twice_only_where_times_are_compared(
    arguments: list[str], times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    explained: list[str] = []

    def solving(problem: RoundProblem, policy: str, **how: Any) -> Schedule:
        asked.append(policy)
        return solve(problem, policy, **how)

    def explaining(*given: Any) -> Explanation:
        explained.append("")
        return explain(*given)

    cli_schedule = import_module("flare.cli.schedule")  # flare.cli has a function of that name
    monkeypatch.setattr(known_round, "solve", solving)
    monkeypatch.setattr(cli_schedule, "explain", explaining)
    monkeypatch.setattr(showing, "explain", explaining)
    assert flare(capsys, "schedule", "--cell", "paper", "--policy", "greedy", *arguments)[0] == 0
    assert [asked.count(name) for name in ("greedy", "exact")] == [times, times]
    assert len(explained) == (0 if "--compare" in arguments else 1)
