"""A server that is killed again and again, at any moment of a round, ends with the records and the model of one that
never was."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flare.flower.arrays import Layout
from flare.records import RunFolder
from flare.rng import stream
from tests import ready_python
from tests.fleet_runs import REAL_TIME
from tests.killed_fleet import KINDS, ROUNDS, serve

ROOT = Path(__file__).resolve().parents[2]
KILLS = 20
MOMENTS = 55  # a round has about 25: some attempts get further than one


def plain(folder: Path) -> list[dict[str, Any]]:
    return [each | REAL_TIME for each in RunFolder.open(folder).records()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_killed_twenty_times_ends_as_one_that_never_was(kind: str, tmp_path: Path) -> None:
    draw, done = stream(6, "kills"), []
    for _ in range(KILLS):
        given = (str(tmp_path / "killed"), kind, int(draw.integers(1, MOMENTS)))
        code = f"from tests.killed_fleet import serve; serve{given!r}"
        ended = ready_python.run([sys.executable, "-c", code], cwd=ROOT, imported=("tests.killed_fleet",))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        records = tmp_path / "killed" / "rounds.jsonl"
        done.append(len(records.read_bytes().splitlines()) if records.exists() else 0)
    assert 1 < max(done) < ROUNDS
    assert len(set(done)) > 3  # it got on between the kills, and was never done
    ends = [serve(tmp_path / name, kind) for name in ("killed", "whole")]
    assert torch.equal(*(Layout(each).flatten(each) for each in ends))
    assert plain(tmp_path / "killed") == plain(tmp_path / "whole")
    assert len(plain(tmp_path / "whole")) == ROUNDS
    assert all(each["faults"] == [] for each in plain(tmp_path / "whole"))
    assert any(each["sent"] for each in plain(tmp_path / "whole"))
