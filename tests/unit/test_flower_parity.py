"""The same cell, data and seed on Flower and in the simulator: the same schedules, and the same global model."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from flare.config import Config, override
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.learning.methods import METHODS
from flare.records.run import read_run
from flare.rng import stream
from flare.simulation import Member, Simulation, drive
from tests.driving import settings_of_method
from tests.fleets import FakeGrid, cell_app, running

SAME = ("round", "status", "selected", "tau")
CLOSE = (
    "bandwidth_hz",
    "latency_s",
    "deadline_s",
    "clock_s",
    "lr",
    "tau_bar",
    "objective",
    "compute_energy_j",
    "upload_energy_j",
)


def settings(*more: str) -> Config:
    common = ["wireless.num_devices=12", "wireless.deadline_s=0.6", "run.rounds=4", "run.payload=wireless", "seed=7"]
    common += ["data.share_losses=true", "learning.device=cpu", "learning.engine=sequential"]
    common += ["learning.clip=0"]  # which would be 3 on nodes, and 0 in a simulation
    return override(Config(), [*common, *more])


def both(config: Config, folder: Path, *, apart: float = 1e-6) -> tuple[Member, list[dict], FlareStrategy, list[dict]]:
    """The run simulated, and on nodes that are the devices of its cell, started in another order; the weights are at
    most so far `apart`, relative to their norm."""
    from flare.records import RunFolder

    simulated: list[dict] = []
    simulation = Simulation(config)
    begins = copy.deepcopy(simulation.module)
    member = Member(simulation)
    drive([member], callback=lambda _, record: simulated.append(record.to_json()))
    app = cell_app(simulation.cell, lambda: copy.deepcopy(begins), simulation.dataset, simulation.held)
    order = stream(3, "order").permutation(config.wireless.num_devices)
    nodes = {2**63 + int(place): running(app, 2**63 + int(place), {"partition-id": d}) for place, d in enumerate(order)}
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001)
    result = strategy.start(FakeGrid(nodes), trained_arrays(begins), timeout=60)
    weights = Layout(result.arrays).flatten(result.arrays)
    difference = torch.linalg.vector_norm(weights - member.state.weights) / torch.linalg.vector_norm(weights)
    assert difference < apart
    return member, simulated, strategy, RunFolder.open(folder).records()


CASES = [("flare", policy) for policy in ("greedy", "round-robin", "proportional-fair", "grouped", "random")]
CASES += [(method, "exact") for method in METHODS if method not in ("heterofl", "fedbuff")]
CASES += [("scaffold", "round-robin"), ("fedlin", "grouped")]
CASES += [("fedlin", "oort"), ("fedlin", "power-of-choice"), ("flare", "amiri-bn2-c")]  # two ask for sample counts
CASES += [("fedlin", "ren"), ("fedlin", "luo")]  # weighed, and by the samples that fedlin asks for
NEEDS = {"fedcgd": ("data.share_labels=true", "data.partition=shards")}
CASES += [("fedavg", "fedcgd")]


@pytest.mark.parametrize(("method", "policy"), CASES)
def test_a_fleet_is_scheduled_and_trained_as_the_simulated_cell(tmp_path: Path, method: str, policy: str) -> None:
    config = settings(*settings_of_method(method), f"scheduling.policy={policy}", *NEEDS.get(policy, ()))
    _, simulated, _, recorded = both(config, tmp_path / "run")
    assert len(recorded) == len(simulated) == 4
    assert any(0 < len(each["selected"]) < 12 for each in recorded)
    for ours, theirs in zip(recorded, simulated, strict=True):
        assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}
        for key in CLOSE:
            assert np.allclose(ours[key], theirs[key], rtol=1e-11, atol=0.0), key
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-5)
        assert ours["weights"] == pytest.approx(theirs["weights"], rel=1e-5)  # which go by those norms
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
        assert ours["sent"] == ours["selected"]
        assert ours["faults"] == []


@pytest.mark.parametrize("method", ["fedsam", "moon"])
def test_what_nodes_do_beyond_plain_steps_counts(tmp_path: Path, method: str) -> None:
    ends = [both(settings(f"learning.method={name}"), tmp_path / name)[0].state.weights for name in ("fedavg", method)]
    assert torch.linalg.vector_norm(ends[1] - ends[0]) > 1e-3 * torch.linalg.vector_norm(ends[0])


def test_nodes_keep_their_losses_to_themselves_unless_they_may_tell(tmp_path: Path) -> None:
    member, simulated, _, recorded = both(settings("data.share_losses=false", "run.rounds=2"), tmp_path / "run")
    assert all(each["loss"] == [None] * len(each["sent"]) and each["train_loss"] is None for each in recorded)
    assert all(each["train_loss"] > 0.0 for each in simulated)  # the simulator shows what no base station knows
    assert np.isnan(member.state.history.last_loss).all()
    assert read_run(tmp_path / "run").status == "finished"  # no loss is no divergence


def test_a_method_that_nodes_cannot_follow_is_refused_before_anything_is_asked() -> None:
    for more in (("learning.method=heterofl",), ("learning.method=fedadam", "learning.options.inner=heterofl")):
        with pytest.raises(ValueError, match=r"whose devices train a part of the model.*simulate the run"):
            FlareStrategy(settings(*more))


HU = ("scheduling.options.num_selected=2", "scheduling.options.num_candidates=12", "wireless.cycles_per_sample=7e6")


@pytest.mark.parametrize(
    "more",
    [
        ("learning.method=fedbuff", "learning.options.buffer=3", "scheduling.policy=round-robin"),
        ("learning.asynchronous=true", "scheduling.policy=round-robin", "scheduling.options.max_devices=4"),
        ("scheduling.policy=hu", "data.share_labels=true", "data.partition=shards", *HU),
    ],
    ids=["fedbuff", "settings", "hu"],
)
def test_devices_compute_across_rounds_as_in_the_simulated_cell(tmp_path: Path, more: tuple[str, ...]) -> None:
    _, simulated, _, recorded = both(settings(*more), tmp_path / "run")
    assert max(age for each in simulated for age in each["age"]) > 1
    for ours, theirs in zip(recorded, simulated, strict=True):
        same = (*SAME, "age", "sent")
        assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
        for key in CLOSE:
            assert np.allclose(ours[key], theirs[key], rtol=1e-11, atol=0.0), key
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["faults"] == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("scheduling.policy=hu",), "policy 'hu' .*data.share_labels"),
        (
            ("learning.method=fedbuff", "uplink.codec=qsgd", "uplink.bits=auto", "run.payload=model"),
            "uplink.bits is \"auto\" and method 'fedbuff' is asynchronous",
        ),
        (("learning.asynchronous=true", "learning.method=scaffold"), "method 'scaffold' sends its devices a control"),
    ],
)
def test_what_devices_that_compute_across_rounds_cannot_do_is_refused(more: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        FlareStrategy(settings(*more)).start(FakeGrid({}), ArrayRecord({"w": Array(np.zeros(3, np.float32))}))


def test_a_base_station_with_momentum_around_another_method_is_the_simulators(tmp_path: Path) -> None:
    more = ("learning.method=fedavgm", "learning.options.inner=scaffold")
    member, simulated, _, recorded = both(settings(*more), tmp_path / "run")
    assert set(member.state.method) == {"momentum", "inner.control", "inner.device_control"}
    assert [each["train_loss"] for each in recorded] == pytest.approx([e["train_loss"] for e in simulated], rel=1e-6)


@pytest.mark.parametrize("tau_bar", ["mes", "fmas", "fmes"])
def test_every_reference_number_of_steps_is_the_simulators(tmp_path: Path, tau_bar: str) -> None:
    _, simulated, _, recorded = both(settings(f"learning.options.tau_bar={tau_bar}"), tmp_path / "run")
    assert [each["lr"] for each in recorded] == [each["lr"] for each in simulated]


def test_a_recorded_cell_gives_the_same_bandwidths_to_the_last_bit(tmp_path: Path) -> None:
    draw = stream(4, "trace")
    trace = tmp_path / "cell.npz"
    np.savez(
        trace,
        gain_db=draw.uniform(-120, -90, (5, 12)),
        cpu_hz=draw.uniform(2e9, 4e9, (5, 12)),
        tau=draw.integers(1, 9, (5, 12)),
    )
    _, simulated, _, recorded = both(settings(f"wireless.trace={trace}"), tmp_path / "run")
    assert [each["bandwidth_hz"] for each in recorded] == [each["bandwidth_hz"] for each in simulated]
    assert [each["selected"] for each in recorded] == [each["selected"] for each in simulated]


def test_the_fixed_steps_of_fedavg_are_fixed_on_a_fleet_too(tmp_path: Path) -> None:
    config = settings("learning.method=fedavg-fixed", "learning.options.fixed_steps=4")
    _, simulated, _, recorded = both(config, tmp_path / "run")
    assert [each["tau"] for each in recorded] == [each["tau"] for each in simulated]
    assert {tau for each in recorded for tau in each["tau"]} == {4.0}


@pytest.mark.parametrize("method", ["flare", "scaffold", "fedlin"])
@pytest.mark.parametrize(
    "codec", [("qsgd", "uplink.bits=2"), ("topk", "uplink.share=0.05")], ids=lambda given: given[0]
)
def test_nodes_send_the_bytes_that_the_simulator_counts(tmp_path: Path, codec: tuple[str, str], method: str) -> None:
    """Error feedback (of topk) lies with the nodes here and in the state of the run there."""
    more = [
        "run.payload=model",
        "wireless.deadline_s=0.2",
        "wireless.total_bandwidth_hz=2e4",
        "learning.model=logistic",
    ]
    config = settings(f"uplink.codec={codec[0]}", codec[1], f"learning.method={method}", *more)
    member, simulated, _, recorded = both(config, tmp_path / "run")
    assert len(recorded) == len(simulated) == 4
    assert sum(len(each["sent"]) for each in recorded) > 5
    bits = member.simulation.station.codec.bits(650) * (1 if method == "flare" else 2)
    for ours, theirs in zip(recorded, simulated, strict=True):
        assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}
        for key in CLOSE:
            assert np.allclose(ours[key], theirs[key], rtol=1e-11, atol=0.0), key
        assert ours["payload_bits"] == theirs["payload_bits"] == [bits] * len(ours["sent"])
        assert ours["update_norm"] == pytest.approx(theirs["update_norm"], rel=1e-5)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
        assert ours["faults"] == []


@pytest.mark.parametrize("method", ["flare", "scaffold", "fedlin"])
def test_each_node_codes_with_the_bits_that_the_simulator_chooses_for_its_device(tmp_path: Path, method: str) -> None:
    """An entry whose last bit differs may be rounded to the other of two levels, which moves the weights by a
    thousandth or so; with draws of another round they were more than a hundredth apart."""
    cell = ["run.payload=model", "wireless.deadline_s=0.2", "wireless.total_bandwidth_hz=4e3", "run.rounds=3"]
    auto = ["uplink.codec=qsgd", "uplink.bits=auto", f"learning.method={method}", "learning.model=logistic"]
    member, simulated, _, recorded = both(settings(*cell, *auto), tmp_path / "run", apart=2e-3)
    vectors = member.simulation.station.method.uplink_models
    sent = {bits for each in recorded for bits in each["payload_bits"]}
    assert sent <= {vectors * codec.bits(650) for codec in member.simulation.station.codecs}
    assert len(sent) > 1  # devices differ
    for ours, theirs in zip(recorded, simulated, strict=True):
        assert {key: ours[key] for key in SAME} == {key: theirs[key] for key in SAME}
        for key in CLOSE:
            assert np.allclose(ours[key], theirs[key], rtol=1e-11, atol=0.0), key
        assert ours["sent"] == theirs["sent"] == ours["selected"]
        assert ours["payload_bits"] == theirs["payload_bits"]
        assert ours["faults"] == []
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())["model_of_bits"]
    assert told["bits"] == [codec.bits_per_weight for codec in member.simulation.station.codecs]
