"""Every command and every piece of Python that the documents show is run, and every link in them leads somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flare
from flare import POLICIES
from tests import ready_python

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [(page.name, text) for page in PAGES for kind, text in BLOCK.findall(page.read_text()) if kind == language]


COMMANDS = [
    (page, [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()])
    for page, text in blocks("sh")
    # Some start servers (test_flower_guide.py and test_studio_guide.py follow them), of one each step needs the last,
    # and one needs the rights of root (test_testbed.py).
    if page not in ("flower.md", "for-researchers.md", "studio.md", "testbed.md")
    and "ray start" not in text  # tests/integration/test_ray.py does
    and not text.startswith("flare reproduce fig3 fig7 --quick ")  # and tests/integration/test_cli_reproduce.py
]
TRAINS = re.compile(r"flare (run|compare|sweep|tune) ")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """An empty folder with the examples in it, for commands that write files."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    if command[0] == sys.executable:
        done = ready_python.run(command, cwd=folder, timeout=300)
    else:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_flare(line: str, folder: Path) -> str:
    return run([sys.executable, "-m", "flare", *shlex.split(line)[1:]], folder)


def fewer_rounds(line: str) -> str:
    """The command with two rounds, and four trials: whether it works does not depend on how many there are."""
    line = re.sub(r"--trials \d+", "--trials 4", re.sub(r" --set run\.rounds=\d+", "", line))
    return f"{line} --set run.rounds=2" if TRAINS.match(f"{line} ") else line


def test_fewer_rounds_are_all_that_a_shown_command_loses() -> None:
    shown = "flare tune x.toml --set run.rounds=20 --trials 12 --out y"
    assert fewer_rounds(shown) == "flare tune x.toml --trials 4 --out y --set run.rounds=2"
    assert fewer_rounds("flare run") == "flare run --set run.rounds=2"
    assert fewer_rounds("flare report runs") == "flare report runs"


def test_the_documents_show_commands() -> None:
    shown = [line for _, lines in COMMANDS for line in lines]
    assert any(line.startswith("flare ") for line in shown)
    assert any(line.startswith("make ") for line in shown)


@pytest.mark.parametrize(("page", "lines"), COMMANDS, ids=[f"{page}: {lines[0]}" for page, lines in COMMANDS])
def test_commands_shown(page: str, lines: list[str], workplace: Path) -> None:
    """The commands of a block, one after the other, as a reader types them but for how long they train."""
    for line in lines:
        program = shlex.split(line)[0]
        assert program in {"flare", "make", "python"}, f"{page} shows '{line}', which no test knows how to run"
        if program == "flare":
            assert run_flare(fewer_rounds(line), workplace)
        elif program == "python":
            assert run([sys.executable, *shlex.split(line)[1:]], workplace)
        else:  # the targets of make set up environments and run this very suite: check that they are there
            assert run(["make", "--dry-run", *shlex.split(line)[1:]], ROOT)


def test_the_demo_does_what_it_says(workplace: Path) -> None:
    recipe = run(["make", "--dry-run", "demo"], ROOT).replace("\\\n", " ")
    scheduling, training = [line for line in recipe.splitlines() if "/flare " in line]
    assert "proportional-fair" in run_flare(scheduling, workplace)
    assert (workplace / "out" / "schedule.png").stat().st_size < 200_000
    fewer = training.replace("--seeds 3", "--seeds 2")
    assert fewer != training
    told = run_flare(f"{fewer} --quiet --set run.rounds=2", workplace)
    for name in ("flare:greedy (SPF)", "flare:exact", "(SP)", "(PS)", "(CP)", "(DM)", "(CM)"):
        assert name in told
    assert "out/demo/report.html" in told


ALONE = [(page, code) for page, code in blocks("python") if page not in ("for-researchers.md", "studio.md")]


@pytest.mark.parametrize(("page", "code"), ALONE, ids=lambda value: value if "\n" not in value else "code")
def test_python_shown(page: str, code: str, workplace: Path) -> None:
    assert run([sys.executable, "-c", code], workplace)


def test_the_way_to_a_policy_of_ones_own(workplace: Path) -> None:
    """docs/for-researchers.md from its first step to its last, with fewer rounds."""
    (workplace / "docs").symlink_to(ROOT / "docs")
    text = (ROOT / "docs" / "for-researchers.md").read_text()
    said = []
    for before, kind, code in re.findall(r"([^\n]*)\n\n```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        named = re.search(r"Save as `([\w.]+)`:$", before)
        if named:
            (workplace / named[1]).write_text(code)
        elif kind == "python":
            said.append(run([sys.executable, "-c", code], workplace))
        else:
            for line in code.splitlines():
                if line.startswith("flare "):
                    said.append(run_flare(re.sub(r"run\.rounds=\d+", "run.rounds=2", line), workplace))
                elif line.startswith(("cp ", "mkdir ")):
                    run(shlex.split(line), workplace)
    assert len(said) == 8
    assert "longest-wait" in said[0]
    assert "proven to be the greatest that fits" in said[1]
    assert "difference to the best" in said[3]
    assert "flare:longest-wait" in said[5]
    assert "fedavg:cm" in said[6]
    assert "fig5-cm-worst" in said[7]
    assert (workplace / "out" / "again" / "figures" / "fig5-rounds.pdf").exists()
    assert not list((workplace / "out" / "again" / "trials").iterdir())
    assert {path.suffix for path in (workplace / "out" / "figures").iterdir()} == {".pdf"}
    assert (workplace / "out" / "accuracy.pdf").stat().st_size > 3000


def test_the_first_commands_of_the_readme(workplace: Path) -> None:
    """One for each kind of user, the one of Flower's being that with which the guide begins."""
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^- \*\*(?:researchers|Flower|network).*?`([^`]+)`", readme, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["flare", "flwr", "flare"]
    assert f"{commands[1]}\n" in (ROOT / "docs" / "flower.md").read_text()
    for command in (commands[0] + " --set run.rounds=3", commands[2]):
        assert run_flare(command, workplace)


def test_the_picture_of_the_readme_is_that_of_its_snippet(workplace: Path) -> None:
    (code,) = [text for page, text in blocks("python") if page == "README.md"]
    told = run([sys.executable, "-c", code], workplace).splitlines()[0]
    sends, after = re.fullmatch(r"(\d+ of \d+ devices send); the round ends after ([\d.]+ ms)", told).groups()  # type: ignore[union-attr]
    (caption,) = re.findall(r"!\[(.*?)\]\(docs/schedule.png\)", (ROOT / "README.md").read_text())
    assert f"{sends}, each finishes after {after}" in caption
    drawn = run_flare("flare schedule --cell paper --deadline 1s --seed 3 --plot out/cell.svg", workplace)
    assert sends in drawn
    assert after in drawn


def test_the_policy_of_the_guide_prefers_who_has_waited() -> None:
    (code,) = [text for _, text in blocks("python") if '@flare.policy("curious"' in text]
    there: dict[str, Any] = {}
    try:
        exec(code.partition("\nproblem = ")[0], there)
        problem = flare.round_problem(flare.Cell(flare.CELLS["paper"], seed=1).draw(0))
        memory = None
        for turn in range(3):  # two devices that differ in nothing but when they last sent, which changes
            first, second = problem.reachable[:2]
            since = np.full(40, 1.0)
            since[second if turn % 2 else first] = 2.0
            history = replace(flare.scheduling.History.empty(40, num_samples=np.full(40, 9.0)), rounds_since_sent=since)
            answer = flare.solve(problem, "curious", history=history, memory=memory, max_devices=1)
            assert answer.selected.tolist() == [second if turn % 2 else first]
            memory = answer.memory
    finally:
        del POLICIES["curious"]


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example(script: Path, workplace: Path) -> None:
    assert run([sys.executable, str(script)], workplace)


def test_the_readme_shows_fifteen_lines_of_python_at_most() -> None:
    (code,) = [text for page, text in blocks("python") if page == "README.md"]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tests_named_in_the_errata_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "errata.md").read_text())
    assert len(named) >= 8
    for path in named:
        assert (ROOT / path).is_file(), path


def test_the_guide_lists_every_policy_with_its_options() -> None:
    lines = (ROOT / "docs" / "scheduling.md").read_text().splitlines()
    for name, policy in POLICIES.items():
        (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
        assert policy.summary.partition(": ")[2].rstrip(".") in row
        assert all(f"`{option}=" in row for option in policy.options)
        assert ("draws" in row, "remembers" in row) == (policy.draws, policy.remembers)
