"""Runs on a real Ray cluster of two nodes: processes of this machine, started by the commands of the guide."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import flare
from flare import POLICIES
from tests import ready_python
from tests.flower_processes import ROOT, World, wait_until
from tests.hostile import flare as command_line
from tests.integration.kill_helper import num_lines
from tests.small_runs import OPTIONS, rounds_in
from tests.way_out import way_out

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")
GUIDE = (ROOT / "docs" / "clusters.md").read_text()
ADDRESS = "10.0.0.1:6379"
PLUGIN = """
import pathlib
import time

import flare

@flare.policy("first-three")
def first_three(problem):
    "The first three devices that can; in no hurry while there is a file HOLD."
    if pathlib.Path("HOLD").exists():
        time.sleep(0.05)
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
TUNING = shlex.split(
    "--target 0.75 --within 0.3s --trials 2 --batch 2 --seeds 1 --fresh-seeds 1 --no-search all "
    "--search learning.local_lr=0.001..0.3"
)


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
        made.exported["RAY_worker_niceness"] = "0"  # Ray's workers step back for all others: here for the other tests
        try:
            yield made
        finally:
            made.kill(made.alive())
            made.close()
            shutil.rmtree(short, ignore_errors=True)


@contextmanager
def begun(world: World, name: str, command: Sequence[str]) -> Iterator[ready_python.Started]:
    """A command of FLARE under way in that world, which begins with torch and flare imported, and Ray not."""
    folder = world.folder / name
    folder.mkdir()
    process = ready_python.start(command, folder, cwd=world.folder, env=world.env)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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
@pytest.mark.usefixtures("undrawn")
def test_whatever_is_killed_no_run_is_lost_and_none_is_another(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker, then the command, which is given again, then a node: the results are those of one process. What is left
    of the cluster then carries out a tuning, likewise. Pictures are drawn by the commands on the cluster alone."""
    hold = world.folder / "hold"  # while it is there no node ends what it has before the other has begun
    plugin = PLUGIN.replace("HOLD", str(hold))
    for name, text in (("sweep.toml", SWEEP), ("base.toml", BASE), ("mine.py", plugin), (hold.name, "")):
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

    with begun(world, "first", command) as first:
        wait_until(lambda: written(out) > 40 and bool(workers(world, head) and workers(world, other)), 300, "both work")
        world.kill(workers(world, other))
        gone = written(out)
        wait_until(lambda: written(out) > gone + 40 and bool(workers(world, other)), 300, "another worker took over")
        ended = {path: path.read_bytes() for path in out.glob("runs/*/rounds.jsonl") if num_lines(path) == 200}
        before = set(world.alive("ray::work"))
        world.kill([first.pid])
        assert first.wait(60) == -signal.SIGKILL

    with begun(world, "second", command) as second:
        wait_until(lambda: bool(set(workers(world, other)) - before), 300, "the command given again has a worker there")
        world.kill([other, *workers(world, other)])
        hold.unlink()
        assert second.wait(600) == 0, [*second.said(), world.logs()]
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

    tune = ["tune", *OPTIONS, "--set", "run.evaluate_every=1", *TUNING, "--quiet"]
    on_ray = ["--out", "tuned", "--on", "ray", "--ray-address", address]
    with begun(world, "tune", [sys.executable, "-m", "flare", *tune, *on_ray]) as tuning:
        assert tuning.wait(600) == 0, [*tuning.said(), world.logs()]
    assert command_line(capsys, *tune, "--out", "here")[0] == 0
    tuned, here = world.folder / "tuned", world.folder / "here"
    assert len(runs_in(tuned)) == 2
    assert runs_in(tuned) == runs_in(here)
    assert (tuned / "results.csv").read_bytes() == (here / "results.csv").read_bytes()
    assert (tuned / "best.toml").read_bytes() == (here / "best.toml").read_bytes()
