"""Every system of another author through `flare run`, as docs/systems.md calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flare.records import RunFolder
from flare.scheduling import POLICIES
from tests.hostile import flare

SYSTEMS = [name for name, one in POLICIES.items() if one.function.__module__.startswith("flare.scheduling.systems.")]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "systems.md").read_text()
SMALL = ("wireless.num_devices=8", "wireless.deadline_s=0.6", "run.rounds=4", "learning.device=cpu")


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = ["-o", "num_selected=3"] if "num_selected" in POLICIES[name].options else []
    small = [part for setting in SMALL for part in ("--set", setting)]
    for word in POLICIES[name].needed({}):
        small += ["--set", f"data.share_{word}=true"]
    folder = tmp_path / "run"
    code, _, said = flare(
        capsys, "run", "--set", f"scheduling.policy={name}", *count, *small, "--out", str(folder), "--quiet"
    )
    assert code == 0, said
    selected = [record["selected"] for record in RunFolder.open(folder).records()]
    assert len(selected) == 4
    assert all(0 < len(each) <= (3 if count else 8) for each in selected)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_page_says_how_to_call_a_system(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if re.search(rf"`flare run --set scheduling\.policy={name}[ `]", line)]
    assert len(rows) == 1
    assert rows[0].count(" | ") == 6
