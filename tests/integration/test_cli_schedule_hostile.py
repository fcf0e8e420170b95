"""Names and options that nobody should send: harmless output or one clear error, never a fault."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flare.cli import app
from flare.cli import data as cli_data
from flare.cli.reproduce import _print as print_reproduced
from flare.data import fetch as data_fetch
from flare.experiments import EXPERIMENTS
from flare.experiments.reproduce import Reproduced
from flare.scheduling import POLICIES, RoundProblem, policy
from tests.integration.test_cli import flare, refused

NAMES = [
    '=HYPERLINK("http://evil","x")',
    "+1+1",
    "-2",
    "@SUM(A1)",
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines",
    "csi\x9b31m",
    "[red]markup[/]",
    "$\\frac{1}",
    "turned\u202etxt",
]
BASE = ("--bandwidth", "10MHz", "--deadline", "10s", "--payload", "1Mbit")


@pytest.fixture
def hostile_table(tmp_path: Path) -> str:
    path = tmp_path / "devices.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "tau", "compute_s", "snr_hz"])
        for at, name in enumerate(NAMES):
            rows.writerow([name, at + 1, 0.1, 1e9])
    return str(path)


def test_hostile_names_are_harmless_in_a_table(hostile_table: str) -> None:
    shown = flare("schedule", hostile_table, *BASE).stdout
    assert shown.replace("\n", "").isprintable()
    for name in ("=HYPERLINK", "\\x1b[2J", "two\\nlines", "\\x9b31m", "[red]markup[/]", "\\u202e"):
        assert name in shown


def test_hostile_names_are_harmless_in_csv(hostile_table: str) -> None:
    text = flare("schedule", hostile_table, *BASE, "--csv").stdout
    assert text.replace("\n", "").isprintable()
    names = [row["device"] for row in csv.DictReader(io.StringIO(text))]
    assert len(names) == len(NAMES)
    assert not [name for name in names if name.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert names[0] == "'" + NAMES[0]
    assert names[2] == "'-2"


def test_numbers_below_zero_stay_numbers_in_csv(hostile_table: str) -> None:
    text = flare("schedule", hostile_table, *BASE, "--csv", "--compare").stdout
    for row in csv.DictReader(io.StringIO(text)):
        float(row["gap"] or 0.0)


def test_hostile_names_are_exact_in_json(hostile_table: str) -> None:
    text = flare("schedule", hostile_table, *BASE, "--json").stdout
    assert text.replace("\n", "").isprintable()
    assert [device["device"] for device in json.loads(text)["devices"]] == NAMES


def test_hostile_names_can_be_drawn(hostile_table: str, tmp_path: Path) -> None:
    flare("schedule", hostile_table, *BASE, "--plot", str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_a_name_that_stands_twice_is_refused_in_one_harmless_line(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text('name,tau,compute_s,snr_hz\n"\x1b[2J\na",1,1,1e9\n"\x1b[2J\na",1,1,1e9\n')
    message = refused("schedule", str(path), *BASE)
    assert "is already the device of line" in message
    assert message.strip().isprintable()


def invoked(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a call in this process."""
    done = CliRunner().invoke(app, ["schedule", *arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["rng", "problem", "memory", "history", "policy"])
def test_an_option_that_is_none_of_the_policys_business_is_refused(name: str) -> None:
    code, output = invoked("--cell", "paper", "--policy", "ps", "-o", f"{name}=1")
    assert code == 2
    assert f"error: '{name}' is no option of policy 'ps'" in output


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("num_selected=abc", "option 'num_selected' of policy 'ps' is 'abc'; it must be a whole number"),
        ("num_selected=1.5", "option 'num_selected' of policy 'ps' is '1.5'; it must be a whole number"),
        ("num_selected=" + "9" * 5000, "option 'num_selected' of policy 'ps' is '999"),
        ("max_devices=0", "max_devices is 0; it must be a whole number of at least 1"),
        ("max_devices=x", "max_devices is 'x'; it must be a whole number"),
        ("\x1b[2J=3", r"has no option '\x1b[2J'"),
    ],
)
def test_a_hostile_value_of_an_option_is_refused(option: str, expected: str) -> None:
    code, output = invoked("--cell", "paper", "--policy", "ps", "-o", option)
    assert code == 2
    assert expected in output
    assert "fault" not in output


@pytest.fixture
def by_steps() -> Iterator[str]:
    @policy("by-steps")
    def by_steps(problem: RoundProblem) -> np.ndarray:
        """Most local steps: in total."""
        return np.asarray(problem.tau)

    yield "by-steps"
    del POLICIES["by-steps"]


def test_a_policy_by_utility_says_what_is_proven(by_steps: str) -> None:
    arguments = ("--cell", "paper", "--policy", by_steps, "-o", "max_devices=3")
    code, output = invoked(*arguments)
    assert code == 0
    assert "proven to be the greatest that fits (policy by-steps)" in output
    assert "above the optimum (policy by-steps)" in output  # of P2
    answer = json.loads(invoked(*arguments, "--json")[1])
    assert answer["num_selected"] == 3
    assert (
        answer["utility"]
        == answer["utility_bound"]
        == sum(device["tau"] for device in answer["devices"] if device["selected"])
    )
    assert answer["status"] == "feasible"


def test_a_hostile_path_is_harmless_where_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b[31mred [bold]"
    folder.mkdir()
    monkeypatch.setattr(data_fetch, "fetch", lambda name, folder, progress: Path(folder))
    cli_data.fetch_("mnist", folder)
    print_reproduced([Reproduced(EXPERIMENTS["fig3"], {}, ())], folder, quick=False)
    shown = capsys.readouterr().out
    shown += flare("schedule", "--cell", "paper", "--plot", str(folder / "a.svg")).stdout
    assert shown.replace("\n", "").isprintable()
    assert shown.count("\\x1b[31mred [bold]") == 3


def test_only_the_console_prints() -> None:
    own_text = {("run.py", "config")}  # the settings as they are
    for path in Path(cli_data.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and (path.name, function.name) not in own_text:
                calls = [one.func for one in ast.walk(function) if isinstance(one, ast.Call)]
                printing = [one for one in calls if isinstance(one, ast.Name) and one.id == "print"]
                assert not printing or path.name == "console.py", f"{path.name}: {function.name} prints by itself"
