"""The round loop: what a run records, where it ends, and that it depends on nothing but its own seed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flare.config import Config, override
from flare.data.dataset import Dataset
from flare.learning.batches import draw_batches
from flare.learning.methods import METHODS
from flare.records import RunFolder
from flare.rng import stream
from flare.scheduling import POLICIES
from flare.simulation import Member, RoundRecord, RunStatus, Simulation, drive, resume
from tests.driving import followed, settings_of_method
from tests.method_rounds import OF_ANY_MODEL

SMALL = (
    "wireless.num_devices=8",
    "wireless.deadline_s=1.0",
    "wireless.batch_size=10",
    "learning.model=logistic",
    "learning.device=cpu",
    "run.payload=wireless",
    "run.rounds=4",
    "run.evaluate_every=2",
)


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def records_of(*configs: Config, **options: Any) -> list[list[RoundRecord]]:
    """Run configurations in lockstep and give the records of each."""
    members = [Member(Simulation(config, **options)) for config in configs]
    return followed(members)


def weights_of(config: Config) -> torch.Tensor:
    member = Member(Simulation(config))
    drive([member])
    return member.state.weights


def test_every_quantity_of_a_round_is_recorded() -> None:
    (records,) = records_of(small())
    for r, record in enumerate(records):
        assert record.round == r
        senders = len(record.selected)
        assert senders > 0
        for name in ("tau", "lr", "bandwidth_hz", "compute_s", "upload_s", "compute_energy_j", "upload_energy_j"):
            assert len(getattr(record, name)) == senders
            assert min(getattr(record, name)) > 0.0
        assert record.status == "optimal"
        assert record.objective == record.lower_bound
        assert record.tau_bar == max(record.tau)  # MaS
        finish = np.add(record.compute_s, record.upload_s)
        assert finish == pytest.approx(record.latency_s, rel=1e-9)
        assert record.latency_s <= record.deadline_s == 1.0
        assert record.train_loss > 0.0
        assert (record.test_accuracy is not None) == (r in (1, 3))
        assert record.lr == [0.05 * (record.tau_bar / tau) for tau in record.tau]


def test_the_clock_adds_up_the_latencies() -> None:
    (records,) = records_of(small("run.rounds=6"))
    assert [r.clock_s for r in records] == pytest.approx(
        list(itertools.accumulate(r.latency_s for r in records)), rel=1e-14
    )


def test_a_round_with_nobody_feasible_is_recorded_and_passes() -> None:
    (records,) = records_of(small("wireless.deadline_s=1e-4"))
    assert [r.status for r in records] == ["infeasible"] * 4
    assert [r.clock_s for r in records] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4])
    for record in records:
        assert record.selected == []
        assert record.latency_s is None
        assert record.train_loss is None
    config = small("wireless.deadline_s=1e-4")
    assert torch.equal(weights_of(config), Simulation(config).start().weights)


def test_training_lowers_the_loss_and_beats_chance() -> None:
    (records,) = records_of(small("run.rounds=30"))
    assert records[-1].test_accuracy > 0.6
    assert records[-1].test_loss < records[1].test_loss


@pytest.mark.parametrize("method", METHODS)
def test_a_run_gives_the_same_numbers_alone_and_in_company(method: str) -> None:
    model = "learning.model=logistic" if method in OF_ANY_MODEL else "learning.model=mlp"
    own = small(*settings_of_method(method), "data.partition=shards", model)
    company = [small("learning.method=fedavg", "seed=5", model), small("scheduling.policy=grouped", "run.rounds=2")]
    (alone,) = records_of(own)
    _, together, _ = records_of(company[0], own, company[1])
    assert together == alone


@pytest.mark.parametrize("method", ["flare", "scaffold", "fedlin"])
def test_the_batched_engine_trains_as_the_sequential_one(method: str) -> None:
    settings = [f"learning.method={method}", "data.partition=shards", "run.rounds=12", "run.evaluate_every=1"]
    sequential, batched = records_of(
        small(*settings, "learning.engine=sequential"), small(*settings, "learning.engine=batched")
    )
    for one, other in zip(sequential, batched, strict=True):
        assert other.selected == one.selected
        assert other.clock_s == one.clock_s
        assert other.train_loss == pytest.approx(one.train_loss, rel=1e-3)
        assert other.test_accuracy == pytest.approx(one.test_accuracy, abs=0.01)


def shared_for(policy: str) -> list[str]:
    """What devices must be let tell for a policy."""
    return [f"data.share_{word}=true" for word in POLICIES[policy].needed({})]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_trains(policy: str) -> None:
    (records,) = records_of(small(f"scheduling.policy={policy}", *shared_for(policy)))
    assert len(records) == 4
    for record in records:
        assert record.lower_bound is not None
        assert record.objective is None or record.objective >= record.lower_bound * (1.0 - 1e-9)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    one, same, other = (records_of(small(f"seed={seed}"))[0] for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_flare_with_equal_taus_is_fedavg_to_the_last_bit() -> None:
    equal = ["wireless.tau_law=groups", "wireless.tau_values=[3, 3]"]
    flare = weights_of(small("learning.method=flare", *equal))
    assert torch.equal(flare, weights_of(small("learning.method=fedavg", *equal)))
    unequal = ["wireless.tau_law=groups", "wireless.tau_values=[3, 6]"]
    assert not torch.equal(
        weights_of(small("learning.method=flare", *unequal)), weights_of(small("learning.method=fedavg", *unequal))
    )


def test_fedprox_without_its_term_is_fedavg_to_the_last_bit() -> None:
    fedavg = weights_of(small("learning.method=fedavg"))
    assert torch.equal(weights_of(small("learning.method=fedprox", "learning.options.prox_mu=0.0")), fedavg)
    assert not torch.equal(weights_of(small("learning.method=fedprox", "learning.options.prox_mu=1.0")), fedavg)


def test_extra_traffic_and_computing_are_on_the_clock() -> None:
    fedavg, scaffold, fedlin = (
        Simulation(small(f"learning.method={method}", "scheduling.policy=all", "wireless.deadline_s=9.0"))
        for method in ("fedavg", "scaffold", "fedlin")
    )
    plans = [one.plan(one.start()) for one in (fedavg, scaffold, fedlin)]
    assert [set(plan.problem.payload_bits.tolist()) for plan in plans] == [{1e7}, {2e7}, {2e7}]
    assert plans[1].schedule.latency_s > 1.5 * plans[0].schedule.latency_s
    assert np.array_equal(plans[1].problem.compute_s, plans[0].problem.compute_s)
    # FedLin's gradient over all of a device's samples: that many samples more to compute.
    cpu_hz = fedlin.cell.draw(0).cpu_hz
    extra_s = fedlin.num_samples * fedlin.config.wireless.cycles_per_sample / cpu_hz
    assert plans[2].problem.compute_s == pytest.approx(plans[0].problem.compute_s + extra_s, rel=1e-12)


def test_the_payload_is_the_size_of_the_model_unless_the_cell_says_it() -> None:
    assert Simulation(small("run.payload=model")).station.payload_bits == 32 * (64 * 10 + 10)
    assert Simulation(small("run.payload=wireless")).station.payload_bits == 1e7


def test_fixed_steps_replace_what_the_devices_could_do() -> None:
    (records,) = records_of(small("learning.method=fedavg-fixed", "learning.options.fixed_steps=4"))
    for record in records:
        assert record.tau == [4.0] * len(record.selected)
        assert record.lr == [0.05] * len(record.selected)


def test_a_run_ends_after_its_simulated_seconds() -> None:
    (records,) = records_of(small("run.rounds=50", "run.seconds=3.0"))
    assert records[-1].clock_s >= 3.0 > records[-2].clock_s
    assert records[-1].test_accuracy is not None


def test_a_run_ends_at_its_target() -> None:
    config = small("run.rounds=50", "run.target_accuracy=0.93", "run.evaluate_every=1")
    member = Member(Simulation(config))
    scores: list[float] = []
    drive([member], callback=lambda _, record: scores.append(record.test_accuracy))
    assert member.state.status is RunStatus.REACHED
    assert scores[-1] >= 0.93 > max(scores[:-1])


def test_a_run_that_diverges_ends_and_leaves_its_neighbours_alone() -> None:
    healthy = small("seed=3")
    (alone,) = records_of(healthy)
    wild = small("learning.local_lr=1e30", "run.rounds=20", "learning.model=mlp")
    members = [Member(Simulation(wild)), Member(Simulation(healthy))]
    wild_records, healthy_records = followed(members)
    assert members[0].state.status is RunStatus.DIVERGED
    assert 1 <= len(wild_records) < 20
    assert wild_records[-1].test_accuracy is None
    assert members[1].state.status is RunStatus.FINISHED
    assert healthy_records == alone


@pytest.mark.parametrize(
    "settings",
    [
        ("learning.method=scaffold", "scheduling.policy=round-robin"),
        ("learning.method=flare", "learning.options.tau_bar=fmas", "scheduling.policy=grouped"),
        ("learning.method=fedlin", "scheduling.policy=proportional-fair", "wireless.fading=rayleigh"),
    ],
)
def test_a_run_resumed_after_any_round_is_the_run_never_interrupted(tmp_path: Path, settings: tuple[str, ...]) -> None:
    config = small(*settings, "run.rounds=5", "run.checkpoint_every=1")
    whole = Member(Simulation(config), RunFolder.create(tmp_path / "whole", config))
    drive([whole])
    assert whole.folder is not None
    for stop_after in range(1, 5):
        folder = tmp_path / f"cut-{stop_after}"
        cut = Member(Simulation(config), RunFolder.create(folder, config))
        turns = itertools.count()
        drive([cut], stopping=lambda turns=turns, n=stop_after: next(turns) >= n)  # type: ignore[misc]
        assert cut.state.rounds_done == stop_after
        assert cut.folder is not None
        cut.folder.close()
        again = Member(Simulation(config), RunFolder.open(folder))
        resume(again)
        assert again.state.rounds_done == stop_after
        drive([again])
        assert torch.equal(again.state.weights, whole.state.weights)
        assert again.folder is not None
        assert without_wall(again.folder) == without_wall(whole.folder)


def without_wall(folder: RunFolder) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "wall_s"} for record in folder.iter_records()]


def test_ps_is_tuned_on_the_cell_unless_told() -> None:
    assert 1 <= Simulation(small("scheduling.policy=ps")).station.policy_options["num_selected"] <= 8
    told = Simulation(small("scheduling.policy=ps", "scheduling.options.num_selected=3"))
    assert told.station.policy_options == {"num_selected": 3}


def test_a_users_own_data_and_module() -> None:
    draw = stream(0, "own data")
    x = draw.normal(size=(200, 6)).astype(np.float32)
    y = (x @ draw.normal(size=6) > 0).astype(np.int64)
    dataset = Dataset("own", x[:160], y[:160], x[160:], y[160:], num_classes=2)
    held = np.split(np.arange(160), 8)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 2)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(batch))

    (records,) = records_of(small("run.rounds=20"), dataset=dataset, held=held, module=Own())
    assert records[-1].test_accuracy > 0.8


def test_held_samples_must_fit_the_cell() -> None:
    dataset = Simulation(small()).dataset
    with pytest.raises(ValueError, match="3 devices"):
        Simulation(small(), dataset=dataset, held=[np.arange(5)] * 3)
    with pytest.raises(ValueError, match="device 7 holds no"):
        Simulation(small(), dataset=dataset, held=[np.arange(5)] * 7 + [np.zeros(0, dtype=np.intp)])


@pytest.mark.parametrize(("held", "steps", "batch_size"), [(50, 3, 10), (7, 4, 10), (1, 2, 3), (30, 3, 10)])
def test_batches_go_through_a_devices_samples_in_a_random_order(held: int, steps: int, batch_size: int) -> None:
    samples = np.arange(100, 100 + held)
    batches = draw_batches(samples, steps, batch_size, rng=stream(1, "batch"))
    assert batches.shape == (steps, batch_size)
    flat = batches.ravel()
    for start in range(0, len(flat), held):  # each pass uses every sample once
        part = flat[start : start + held]
        assert len(set(part.tolist())) == len(part)
    assert set(flat.tolist()) <= set(samples.tolist())
    assert np.array_equal(batches, draw_batches(samples, steps, batch_size, rng=stream(1, "batch")))


def test_runs_of_another_batch_size_do_not_share_an_engine() -> None:
    one, same, other = Simulation(small()), Simulation(small("seed=4")), Simulation(small("wireless.batch_size=11"))
    assert one.engine_key == same.engine_key
    assert one.engine_key != other.engine_key
    assert replace(one.config, seed=4) == same.config


def test_a_run_gives_whole_blocks_and_keeps_the_limit_on_devices() -> None:
    settings = ("wireless.deadline_s=9.0", "wireless.block_hz=180e3", "scheduling.policy=all")
    simulation = Simulation(small(*settings, "scheduling.options.max_devices=3"))
    plan = simulation.plan(simulation.start())
    assert plan is not None
    assert (plan.problem.block_hz, plan.problem.max_devices) == (180e3, 3)
    blocks = plan.schedule.bandwidth_hz[plan.schedule.selected] / 180e3
    assert len(blocks) == 3
    np.testing.assert_allclose(blocks, np.rint(blocks), rtol=1e-12)
    assert blocks.sum() == pytest.approx(55)
