"""Runs give what they gave before a round had one home: the records and weights in tests/golden/before."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flare.config import Config, override
from flare.config.names import MOVED
from flare.learning.engine.threads import one_thread
from flare.records import RunFolder
from flare.rng import stream
from flare.simulation import Member, Simulation, drive, resume
from tests.golden.arithmetic import arithmetic

BEFORE = Path(__file__).parent / "before"
COMPUTED = {path.parent.name: path.parent for path in sorted(BEFORE.glob("*/records.json"))}
"""What was computed before, by the name of the arithmetic that it was computed with."""
ON_SAME = arithmetic() in COMPUTED
THEN = COMPUTED.get(arithmetic(), next(iter(COMPUTED.values())))
RUNS: dict[str, dict[str, Any]] = json.loads((THEN / "records.json").read_text())
RENAMED = {"lipschitz": "smoothness"}
LEARNED = {"train_loss", "test_loss", "test_accuracy"}
METHODS_SINCE = {"fedavgm", "fedadam", "fedyogi", "fedsam", "moon", "heterofl", "fedpaq", "fedbuff"}
"""There is no before of them."""
# Relative: of schedules, of what is learned, and on Flower, where updates are added in the order of their arrival. With
# another torch or processor sums are cut otherwise, and some rounds of training make more of that.
SCHEDULED, LEARNED_HERE, ON_FLOWER = (1e-15, 1e-12, 1e-6) if ON_SAME else (1e-9, 1e-4, 1e-4)
BY_GRADIENTS = SCHEDULED if ON_SAME else 1e-6
"""Of schedules whose gamma or tau_bar comes from gradients, which are sums of float32 as all that is learned."""


@pytest.fixture(scope="module")
def weights() -> Iterator[Any]:
    with np.load(THEN / "weights.npz") as held:
        yield held


def test_the_same_runs_were_computed_before_with_each_arithmetic() -> None:
    runs = [json.loads((folder / "records.json").read_text()).keys() for folder in COMPUTED.values()]
    assert all(each == RUNS.keys() for each in runs)
    if not ON_SAME:
        pytest.skip(f"none of them with this arithmetic ({arithmetic()}): runs are compared less sharply")


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_what_it_gave_before(name: str, weights: Any, tmp_path: Path) -> None:
    config = override(Config(), written_today(RUNS[name]["settings"]))
    kind = name.partition("-")[0]
    if kind == "flower":  # nodes told their losses then, whatever the settings, and no update was clipped
        config = override(config, ["data.share_losses=true", "learning.clip=0"])
    make = {"flower": on_flower, "resume": resumed}.get(kind, straight)
    records, final = make(config, tmp_path / "run")
    tolerance = ON_FLOWER if kind == "flower" else LEARNED_HERE
    scheduled = BY_GRADIENTS if name.startswith(("gamma-auto", "tau-bar-safe")) else SCHEDULED
    before = RUNS[name]["records"]
    assert len(records) == len(before)
    for now, then in zip(records, before, strict=True):
        for key, value in then.items():
            found = now[RENAMED.get(key, key)]
            if key in LEARNED and value is not None:
                assert found == pytest.approx(value, rel=tolerance), key
            elif isinstance(value, float) or (isinstance(value, list) and value and isinstance(value[0], float)):
                assert found == pytest.approx(value, rel=scheduled, abs=0.0), key
            else:
                assert found == value, key
    assert final.numpy()[:2000] == pytest.approx(weights[name], rel=tolerance, abs=tolerance)


def written_today(settings: list[str]) -> list[str]:
    """The settings with those that have become options in their new place."""
    where = {moved.former: moved.where for moved in MOVED}
    split = [each.partition("=") for each in settings]
    return [f"{where.get(name, name)}={value}" for name, _, value in split]


def straight(config: Config, folder: Path) -> tuple[list[dict[str, Any]], Tensor]:
    records: list[dict[str, Any]] = []
    member = Member(Simulation(config))
    with one_thread(torch.device("cpu")):  # as they were made: the bits of `batched` on a CPU depend on it
        drive([member], callback=lambda _, record: records.append(record.to_json()))
    return records, member.state.weights


def resumed(config: Config, folder: Path) -> tuple[list[dict[str, Any]], Tensor]:
    with RunFolder.create(folder, config) as begun:
        turns = iter(range(100))
        drive([Member(Simulation(config), begun)], stopping=lambda: next(turns) >= 3)
    with RunFolder.open(folder) as again:
        member = Member(Simulation(config), again)
        resume(member)
        assert member.state.rounds_done == 3
        drive([member])
        return again.records(), member.state.weights


def on_flower(config: Config, folder: Path) -> tuple[list[dict[str, Any]], Tensor]:
    pytest.importorskip("flwr")
    from flare.flower import FlareStrategy, trained_arrays
    from flare.flower.arrays import Layout
    from tests.fleets import FakeGrid, cell_app, running

    simulation = Simulation(config)
    app = cell_app(simulation.cell, lambda: copy.deepcopy(simulation.module), simulation.dataset, simulation.held)
    order = stream(3, "order").permutation(config.wireless.num_devices)
    nodes = {2**63 + k: running(app, 2**63 + k, {"partition-id": int(device)}) for k, device in enumerate(order)}
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001)
    result = strategy.start(FakeGrid(nodes), trained_arrays(simulation.module), timeout=60)
    return RunFolder.open(folder).records(), Layout(result.arrays).flatten(result.arrays)


def test_the_runs_cover_what_there_is() -> None:
    from flare.learning.methods import METHODS
    from flare.scheduling import POLICIES

    settings = {setting for run in RUNS.values() for setting in run["settings"]}
    known = set(METHODS) - METHODS_SINCE
    assert {f"learning.method={name}" for name in known} <= settings | {"learning.method=flare"}
    later = "flare.scheduling.systems."  # they came after these runs were made
    modules = {name: each.function.__module__ for name, each in POLICIES.items()}
    built_in = {
        name for name, module in modules.items() if module.startswith("flare.") and not module.startswith(later)
    }
    assert built_in <= {name.removeprefix("policy-") for name in RUNS if name.startswith("policy-")}
