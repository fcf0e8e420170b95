"""Whole runs of methods that keep vectors or take more than plain gradients: engines, resuming, command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flare.config import Config, override
from flare.records import RunFolder
from flare.simulation import Member, Simulation, drive
from tests import hostile
from tests.driving import continued, followed, same_state, stop_after

RUNS = {
    "fedavgm": ["learning.method=fedavgm", "learning.options.inner=scaffold"],
    "fedadam": ["learning.method=fedadam", "learning.options.inner=flare"],
    "fedyogi": ["learning.method=fedyogi"],
    "fedsam": ["learning.method=fedsam"],
    "moon": ["learning.method=moon", "learning.options.moon_mu=5"],
    "heterofl": ["learning.method=heterofl", "learning.options.assign=cpu"],
}
SMALL = [
    *("wireless.num_devices=8", "wireless.deadline_s=1.0", "wireless.batch_size=10", "data.partition=shards"),
    *("run.payload=wireless", "run.rounds=4", "run.evaluate_every=4", "learning.device=cpu"),
    "learning.model_options.hidden=20",
]
each_run = pytest.mark.parametrize("name", RUNS)


def small(name: str, *more: str) -> Config:
    return override(Config(), [*SMALL, *RUNS[name], *more])


@each_run
def test_engines_train_as_the_reference(name: str) -> None:
    configs = [small(name, f"learning.engine={engine}") for engine in ("reference", "sequential", "batched")]
    members = [Member(Simulation(config)) for config in configs]
    plain, same, close = followed(members)
    assert same == plain
    assert torch.equal(members[1].state.weights, members[0].state.weights)
    assert [each.clock_s for each in close] == [each.clock_s for each in plain]
    assert [each.train_loss for each in close] == pytest.approx([each.train_loss for each in plain], rel=1e-3)
    torch.testing.assert_close(members[2].state.weights, members[0].state.weights, rtol=0.0, atol=1e-3)


@each_run
def test_a_run_that_was_stopped_continues_to_the_last_bit(name: str, tmp_path: Path) -> None:
    config = small(name)
    whole = Member(Simulation(config))
    drive([whole])
    stop_after(config, tmp_path / "run", 2)
    member, _, left_after = continued(config, tmp_path / "run")
    assert left_after == 2
    assert same_state(member.state, whole.state)


@each_run
def test_it_runs_from_the_command_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [part for text in [*SMALL, *RUNS[name], "run.rounds=2"] for part in ("--set", text)]
    code, said, errors = hostile.flare(capsys, "run", *told, "--out", str(tmp_path / "run"))
    assert code == 0, said + errors
    with RunFolder.open(tmp_path / "run") as folder:
        assert len(folder.records()) == 2
        assert all(record["sent"] for record in folder.records())
