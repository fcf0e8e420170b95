"""The example of a method with a reducer of its own: what it makes of a round, and after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from flare.learning.job import LocalRule, Update
from flare.learning.methods import Method, Round, make_method
from flare.plugins import load_plugins
from flare.records import RunFolder
from flare.simulation import Member, Simulation, drive, resume
from tests.plugin_files import registries_as_they_were
from tests.unit.test_simulation import small

FILE = str(Path(__file__).resolve().parents[2] / "examples" / "plugins" / "by_loss.py")
CONFIG = small("learning.method=by-loss", "run.rounds=4", f"plugins=['{FILE}']")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    with registries_as_they_were():
        yield


def by_loss() -> Method:
    load_plugins((FILE,))
    return make_method(CONFIG.learning)


def test_a_round_by_hand() -> None:
    method = by_loss()
    state = method.enrol({"loss": torch.tensor([4.0, 0.0], dtype=torch.float64)}, np.ones(3))  # one device is new
    now = Round(torch.tensor([1.0, 1.0]), np.array([0, 2]), np.ones(3), local_lr=0.1, global_lr=2.0)
    reducer = method.reducer(state, now)
    reducer.add(2, LocalRule(0.1, 1), Update(torch.tensor([0.0, 1.0]), loss=1.0))
    reducer.add(0, LocalRule(0.1, 1), Update(torch.tensor([1.0, 0.0]), loss=2.0))
    weights, after = reducer.end()
    assert after["loss"].tolist() == [3.0, 0.0, 1.0]  # half of 4 and half of 2; unheard; its first
    assert weights.tolist() == [1.0 + 2.0 * 3.0 / 4.0, 1.0 + 2.0 * 1.0 / 4.0]
    assert state["loss"].tolist() == [4.0, 0.0, 0.0]


def test_what_it_remembers_survives_a_resume(tmp_path: Path) -> None:
    whole = Member(Simulation(CONFIG))
    drive([whole])
    first = Member(Simulation(CONFIG), RunFolder.create(tmp_path / "run", CONFIG))
    drive([first], stopping=lambda: first.state.rounds_done == 2)
    first.keeper.close()
    second = Member(Simulation(CONFIG), RunFolder.open(tmp_path / "run"))
    resume(second)
    assert second.state.rounds_done == 2
    drive([second])
    assert torch.equal(second.state.weights, whole.state.weights)
    assert torch.equal(second.state.method["loss"], whole.state.method["loss"])
    assert whole.state.method["loss"].max() > 0.0
