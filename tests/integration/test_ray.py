"""Runs on a real Ray cluster of two nodes: processes of this machine, started by the commands of the guide."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import flare
from flare import POLICIES
from tests.flower_processes import ROOT, World, wait_until
from tests.hostile import flare as command_line
from tests.integration.kill_helper import num_lines
from tests.small_runs import rounds_in
from tests.way_out import way_out

pytest.importorskip("ray", reason="the extra ray is not installed")
GUIDE = (ROOT / "docs" / "clusters.md").read_text()
ADDRESS = "10.0.0.1:6379"
PLUGIN = """
import flare

@flare.policy("first-three")
def first_three(problem):
    "The first three devices that can."
    return problem.reachable[:3]
"""
SWEEP = """
base = "base.toml"
seeds = 4
[product]
"learning.local_lr" = [0.01, 0.1]
"""
BASE = """
plugins = ["mine.py"]
[wireless]
num_devices = 8
deadline_s = 1.0
batch_size = 10
[scheduling]
policy = "first-three"
[learning]
model = "logistic"
[run]
payload = "wireless"
rounds = 200
"""
NUM_RUNS = 8


def commands(heading: str) -> list[str]:
    """The lines of the shell that a section of the guide shows."""
    section = GUIDE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


def test_the_guide_begins_with_one_machine() -> None:
    (line,) = commands("This machine")
    assert shlex.split(line)[-2:] == ["--processes", "2"]  # tests/integration/test_docs.py runs it


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A place for Ray's processes, of which none is left at the end."""
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the names of sockets may not be longer
    with way_out() as out:
        made = World(tmp_path, out)
        made.exported = {"RAY_TMPDIR": short, "PYTHONPATH": str(Path(flare.__file__).parents[1])}
        try:
            yield made
        finally:
            made.kill(made.alive())
            made.close()
            shutil.rmtree(short, ignore_errors=True)


def runs_in(out: Path) -> dict[str, object]:
    return {folder.name: rounds_in(folder) for folder in (out / "runs").iterdir() if folder.is_dir()}


def workers(world: World, raylet: int) -> list[int]:
    """The processes of a node that carry out runs."""
    found = world.alive("ray::work")
    return [pid for pid in found if f"PPid:\t{raylet}\n" in Path(f"/proc/{pid}/status").read_text()]


def written(out: Path) -> int:
    """How many rounds lie in the folders of all runs."""
    return sum(num_lines(path) for path in out.glob("runs/*/rounds.jsonl"))


@pytest.mark.waits(seconds=40)
def test_whatever_is_killed_no_run_is_lost_and_none_is_another(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker, then the command, which is given again, then a node: the results are those of one process."""
    for name, text in (("sweep.toml", SWEEP), ("base.toml", BASE), ("mine.py", PLUGIN)):
        (world.folder / name).write_text(text)
    start_head, start_other, sweep = commands("Several machines")
    address = f"127.0.0.1:{world.port('ray')}"
    here = "--num-cpus=1 --disable-usage-stats --node-ip-address=127.0.0.1"
    world.do(shlex.split(start_head.replace("6379", str(world.port("ray"))) + f" {here} --include-dashboard=false"))
    (head,) = world.alive("raylet/raylet")
    world.do(shlex.split(start_other.replace(ADDRESS, address) + f" {here}"))
    (other,) = set(world.alive("raylet/raylet")) - {head}
    assert sweep.startswith("flare sweep examples/sweep.toml --out shared/sweep --on ray ")
    words = shlex.split(sweep.replace(ADDRESS, address).replace("examples/", ""))[1:]
    command, out = [sys.executable, "-m", "flare", *words, "--quiet"], world.folder / "shared" / "sweep"

    world.start("first", command)
    wait_until(lambda: bool(workers(world, head) and workers(world, other)) and written(out) > 40, 120, "both work")
    world.kill(workers(world, other))
    gone = written(out)
    wait_until(lambda: bool(workers(world, other)) and written(out) > gone + 40, 120, "another worker has taken over")
    ended = {path: path.read_bytes() for path in out.glob("runs/*/rounds.jsonl") if num_lines(path) == 200}
    before = set(world.alive("ray::work"))
    world.kill([world.started["first"].pid])

    world.start("second", command)
    wait_until(lambda: bool(set(workers(world, other)) - before), 120, "the command given again has a worker there")
    world.kill([other, *workers(world, other)])
    assert world.started["second"].wait(180) == 0, world.logs()
    assert {path: path.read_bytes() for path in ended} == ended  # what was done was not done again

    monkeypatch.chdir(world.folder)
    try:
        assert command_line(capsys, "sweep", "sweep.toml", "--out", "local", "--quiet")[0] == 0
    finally:
        del POLICIES["first-three"]
    assert len(runs_in(out)) == NUM_RUNS
    assert runs_in(out) == runs_in(world.folder / "local")
    for name in ("results.csv", "sweep.json"):
        assert (out / name).read_bytes() == (world.folder / "local" / name).read_bytes()
    assert world.started["first"].wait(10) == -signal.SIGKILL
