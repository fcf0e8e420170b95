"""The testbed for real, where network namespaces are allowed: a small run, and what is left of one that was killed."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from flare.flower.radio import FRAME_BYTES
from flare.testbed import network, rights, run
from flare.testbed.measured import Delivery
from flare.testbed.programs import Programs
from flare.testbed.run import Results
from flare.testbed.settings import Settings
from tests.flower_processes import ready_programs
from tests.hostile import flare
from tests.unit.test_testbed_numbers import made

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testbed.md"
SMALL = ["--policy", "cm", "--rounds", "2", "--devices", "3", "--update", "1Mbit", "--calibration", "0", "--no-tls"]


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Network namespaces for one test at a time; it is skipped where there are none, or where somebody has some up."""
    what = rights.missing()
    if what is not None:
        pytest.skip(f"no testbed here: {what}")
    with FileLock(Path(tempfile.gettempdir()) / "flare-testbed-tests.lock", timeout=400):
        if network.ours():
            pytest.skip(f"no testbed here: another one is up ({network.ours()[0]})")
        yield
        left = network.ours()
        network.clean()
    assert left == []


def apps_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower starts by name for every message begins with everything imported (tests/ready_flower.py)."""
    usual = Programs._env.fget
    assert usual is not None

    def env(programs: Programs) -> dict[str, str]:
        own = usual(programs)
        return {**own, "PATH": f"{ready_programs()}{os.pathsep}{own['PATH']}"}

    monkeypatch.setattr(Programs, "_env", property(env))


@pytest.mark.waits(seconds=35)
@pytest.mark.usefixtures("namespaces")
def test_three_devices_deliver_at_the_rates_that_they_are_granted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and order are checked, and rates from below: a shaped link is never faster, however busy the machine is."""
    apps_are_ready(monkeypatch)
    code, said, wrong = flare(capsys, "testbed", "--out", str(tmp_path / "bed"), *SMALL, limit_s=400)
    assert code == 0, wrong
    assert "in time" in said
    with (tmp_path / "bed" / "measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["round"] for row in rows} == {"0", "1"}
    assert len(rows) == 6  # cm selects everybody: the deadline is generous
    for row in rows:
        told = {name: float(value) for name, value in row.items() if name != "run"}
        assert told["frame_bytes"] > told["tcp_bytes"] > told["payload_bits"] / 8.0
        twice = 10 * FRAME_BYTES  # what TCP may have sent before it has heard how slow the link is
        assert told["tcp_bytes"] < 1.1 * told["payload_bits"] / 8.0 + twice
        bucket_s = 8.0 * 5000.0 / told["rate_bps"]  # what the token bucket lets pass at once, at most
        assert told["net_upload_s"] > told["upload_s"] - bucket_s
        assert told["measured_compute_s"] > told["compute_s"] - 1e-3
        assert told["delivery_s"] > 0.0
        assert told["measured_finish_s"] > told["measured_compute_s"] + told["measured_upload_s"]
    assert json.loads((tmp_path / "bed" / "testbed.json").read_text())["policies"] == ["cm"]
    code, again, _ = flare(capsys, "testbed", "--read", str(tmp_path / "bed"))
    assert code == 0
    assert again.splitlines()[:2] == said.splitlines()[:2]


@pytest.mark.waits(seconds=12)
@pytest.mark.usefixtures("namespaces")
def test_what_a_killed_testbed_leaves_is_taken_down(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flare", "testbed", "--out", str(tmp_path / "bed"), *SMALL]
    with (tmp_path / "said").open("wb") as said:
        killed = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ)
    end = time.monotonic() + 60
    while not list((tmp_path / "bed").glob("logs/node-1.log")):
        assert killed.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < end
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    assert len(network.ours()) == 4
    code, _, wrong = flare(capsys, "testbed", "--out", str(tmp_path / "other"), *SMALL)
    assert code == 2
    assert "a testbed is up on this machine, or one was killed" in wrong
    assert not (tmp_path / "other").exists()
    assert len(network.ours()) == 4  # the other's are left alone
    code, told, _ = flare(capsys, "testbed", "--clean")
    assert code == 0
    assert re.search(r"4 namespaces and [1-9]\d* programs of a testbed were taken down", told)
    assert network.ours() == []


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_page(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each is read as it is printed, and its settings are made; what takes half an hour is not waited for."""
    asked: list[Settings] = []

    def delivered() -> Results:
        one: list[Delivery] = [made("cm", 0, 0, 1.0)]
        return Results({"cm": one}, ["cm"])

    def run_testbed(settings: Settings, folder: Path, say: run.Say) -> Results:
        asked.append(settings)
        folder.mkdir(parents=True)
        settings.config(settings.policies[0])
        return delivered()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "run_testbed", run_testbed)
    monkeypatch.setattr(run, "read_testbed", lambda folder: (folder.mkdir(parents=True), delivered())[1])
    monkeypatch.setattr(network, "NOTES", tmp_path / "notes")
    monkeypatch.setattr(network, "clean", lambda: network.Cleaned([], 0))
    program, *words = shlex.split(line.removeprefix("sudo "))
    assert program == (".venv/bin/flare" if line.startswith("sudo ") else "flare")  # sudo has a path of its own
    code, _, wrong = flare(capsys, *words)
    assert code == 0, wrong
    assert asked or "--clean" in words or "--read" in words
