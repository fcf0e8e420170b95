"""Nodes as slow as they are: real processes on this machine, two of them slowed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flare.records import RunFolder
from tests.flower_processes import ROOT, World, wait_until, world
from tests.integration.kill_helper import num_lines

APP, NODE = ROOT / "tests" / "uneven_fleet", ROOT / "tests" / "hostile_fleet" / "node.py"
STEP_S = [0.1, 0.3, 0.5]  # of each device; a step has 8 samples
UPLINK_BPS = [32e6, 8e6, 4e6]
BITS = 32 * 250_000


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, ready=True) as made:
        yield made


@pytest.mark.waits(seconds=42)
def test_after_three_rounds_nodes_are_known_to_be_as_slow_as_they_are(place: World) -> None:
    place.superlink("--insecure")
    place.connect(address=f"127.0.0.1:{place.port('superlink')}", insecure=True)
    folder = place.folder / "run"
    place.start("run", ["flwr", "run", str(APP), "fleet", "--stream", "--run-config", f"folder='{folder}'"])
    speeds = enumerate(zip(STEP_S, UPLINK_BPS, strict=True))
    does = [word for device, (step_s, bps) in speeds for word in (str(device), f"{step_s}@{bps:g}")]
    address = f"127.0.0.1:{place.port('superlink')}"
    place.start("nodes", [sys.executable, str(NODE), "--app", f"{APP}:uneven.client_app", address, *does])
    wait_until(lambda: num_lines(folder / "rounds.jsonl") == 5, 200, "five rounds are over")

    recorded = RunFolder.open(folder).records()
    assert all(each["sent"] == [0, 1, 2] for each in recorded)
    planned, measured, upload_s = (
        np.array([each[name] for each in recorded[3:]], dtype=float)  # (rounds, devices)
        for name in ("compute_s", "measured_compute_s", "measured_upload_s")
    )
    error = np.median(np.abs(planned / measured - 1.0), axis=0)
    assert (error < 0.15).all(), (planned, measured)
    told = np.array(recorded[-1]["samples_per_s"])
    assert told == pytest.approx(8 / np.array(STEP_S), rel=0.15)
    assert [each[0] > each[2] for each in (told, recorded[-1]["tau"])] == [True, True]
    least_s = BITS / np.array(UPLINK_BPS)  # the rest is Flower's, and what else this machine does
    assert (upload_s > 0.95 * least_s).all(), upload_s
    assert (np.diff(np.median(upload_s, axis=0)) > 0.0).all(), upload_s
