"""Runs stopped by an error, a second Ctrl-C or a changed file, and continued: nothing is lost, nothing is mixed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flare
from flare.records import RunFolder
from flare.rounds import Arrivals
from flare.rounds.memory import PolicyMemory
from flare.scheduling import Choice, RoundProblem
from flare.simulation import Member, Simulation, drive
from tests.driving import InPlace, continued, followed, stop_after
from tests.plugin_files import registries_as_they_were
from tests.unit.test_simulation import small


@pytest.fixture(autouse=True)
def own_code() -> Iterator[None]:
    with registries_as_they_were():
        yield


def trace_file(path: Path, rounds: int, gain_db: float = -90.0) -> Path:
    np.savez(path, gain_db=np.full((rounds, 8), gain_db))
    return path


def test_an_error_leaves_every_run_where_its_last_round_ended(tmp_path: Path) -> None:
    trace = trace_file(tmp_path / "short.npz", 3)
    configs = [small(f"wireless.trace={trace}", "run.checkpoint_every=50"), small("run.checkpoint_every=50")]
    folders = [RunFolder.create(tmp_path / str(number), config) for number, config in enumerate(configs)]
    members = [Member(Simulation(config), folder) for config, folder in zip(configs, folders, strict=True)]
    with pytest.raises(ValueError, match="round 3 is not in the trace"):
        drive(members)
    for folder in folders:
        folder.close()
    for number, config in enumerate(configs[1:], 1):
        _, records, done = continued(config, tmp_path / str(number))
        assert done == 3
        assert records == followed([Member(Simulation(config))])[0]
    assert RunFolder.open(tmp_path / "0").manifest["status"] == "interrupted"


def test_a_run_goes_by_the_trace_that_it_was_begun_with(tmp_path: Path) -> None:
    config = small(f"wireless.trace={trace_file(tmp_path / 'a.npz', 4)}")
    stop_after(config, tmp_path / "run", 2)
    trace_file(tmp_path / "a.npz", 4, gain_db=-91.0)
    with pytest.raises(ValueError, match="the trace of its channels, speeds or steps is another"):
        continued(config, tmp_path / "run")
    trace_file(tmp_path / "a.npz", 4)
    assert len(continued(config, tmp_path / "run")[1]) == 4


def test_a_policy_finds_its_memory_in_the_same_order_after_a_resume(tmp_path: Path) -> None:
    @flare.policy("by-name")
    def by_name(problem: RoundProblem, *, memory: Mapping[str, Any]) -> Choice:
        """The device that the first array names."""
        first = int(next(iter(memory.values()), np.zeros(1))[0])
        kept = {name: np.full((2, 3), number, order="F")[0] for number, name in enumerate("hcabdefg")}
        return Choice([first], memory=kept)

    config = small("scheduling.policy=by-name", "run.rounds=6")
    (wanted,) = followed([Member(Simulation(config))])
    assert [record.selected for record in wanted] == [[0]] + [[2]] * 5  # "a" is the third
    stop_after(config, tmp_path / "run", 3)
    assert continued(config, tmp_path / "run")[1] == wanted
    table = np.asfortranarray(np.ones((2, 3)))
    assert PolicyMemory({"z": table, "a": np.array(1.0)}).arrays["z"].flags["C_CONTIGUOUS"]


@pytest.mark.parametrize(
    ("of", "step"),
    [(Simulation, "updates_made"), (Simulation, "arrived"), (Arrivals, "reduce"), (Simulation, "applied")],
)
@pytest.mark.parametrize("which", [0, 1])  # all runs are at the same step before the first goes on to the next
def test_a_method_that_changes_its_state_in_place_is_not_left_in_the_middle_of_a_round(
    of: type, step: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flare.method("in-place")(InPlace)
    settings = ("run.rounds=6", "run.checkpoint_every=2", "learning.device=cpu")
    configs = [small(*settings, f"learning.method={name}") for name in ("in-place", "fedavg")]
    wanted = followed([Member(Simulation(config)) for config in configs])
    plain, begun = getattr(of, step), itertools.count()

    def interrupted(self: Any, *given: Any, **named: Any) -> Any:
        if next(begun) == at:
            raise KeyboardInterrupt
        return plain(self, *given, **named)

    calls = 2 * 2 if step == "reduce" else 2  # in a round: it is asked for again when the round is applied
    at = 3 * calls + which
    with monkeypatch.context() as patch:
        patch.setattr(of, step, interrupted)
        with ExitStack() as stack:
            made = [RunFolder.create(tmp_path / str(number), config) for number, config in enumerate(configs)]
            folders = [stack.enter_context(each) for each in made]
            members = [Member(Simulation(config), each) for config, each in zip(configs, folders, strict=True)]
            with pytest.raises(KeyboardInterrupt):
                drive(members)
    left_at = []
    for number, config in enumerate(configs):
        _, records, done = continued(config, tmp_path / str(number))
        assert records == wanted[number]
        left_at.append(done)
    assert left_at == [2, 3]  # where it was last kept, and where its last round ended
