"""Whole runs whose devices compute across rounds: in company, interrupted, charged, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flare.config import Config, override
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.threads import one_thread
from flare.learning.flat import FlatModel
from flare.learning.job import LocalRule
from flare.learning.methods import METHODS, Moon
from flare.records import RunFolder
from flare.records.run import run_of
from flare.rounds import RoundRecord
from flare.rounds.asynchrony import FREE, refuse_vectors
from flare.rounds.state import from_tensors, to_tensors
from flare.scheduling import POLICIES, Choice, RoundProblem, admit, policy
from flare.simulation import Member, Simulation, drive, plan_rounds, resume
from tests.asynchronous import ASYNC, ages, ended, small
from tests.driving import applied, followed
from tests.tiny import job, tiny_data, tiny_module

RUNS = {
    "settings": ("learning.asynchronous=true", "learning.method=flare", "scheduling.options.max_devices=2"),
    "fedbuff": ("learning.method=fedbuff", "learning.options.buffer=2", "scheduling.policy=greedy"),
    "hu": ("scheduling.policy=hu", "data.share_labels=true", "scheduling.options.num_selected=2"),
}
each_run = pytest.mark.parametrize("name", RUNS)


# Whole runs


@pytest.fixture(scope="module")
def finished() -> dict[str, tuple[Member, list[RoundRecord]]]:
    """Each of the runs, alone."""
    return {name: ended(small(*RUNS[name])) for name in RUNS}


@each_run
def test_records_tell_the_age_of_what_was_heard(name: str, finished: dict) -> None:
    member, records = finished[name]
    assert all(len(record.age) == len(record.sent) for record in records)
    assert max(ages(records)) > 0
    assert member.state.history.age.tolist() == member.state.underway.age.tolist()
    told = [RoundRecord.from_json(record.to_json()) for record in records]
    assert told == records
    assert run_of(told, member.simulation.config, {}, None).round_mean_age()[0] == 0.0  # nobody has waited yet


@each_run
def test_what_is_heard_is_charged_once_and_whole(name: str, finished: dict) -> None:
    member, records = finished[name]
    began = np.zeros(6, dtype=int)  # the round in which each received its model
    for record in records:
        for device, tau, energy_j in zip(record.selected, record.tau, record.compute_energy_j, strict=True):
            then = member.simulation.cell.draw(int(began[device]))
            assert tau == then.tau[device]
            assert energy_j == pytest.approx(then.compute_energy_j[device], rel=1e-12)
            began[device] = record.round + 1


@each_run
def test_it_is_the_same_in_lockstep_and_in_every_engine(name: str, finished: dict) -> None:
    plain = [small(*more) for key, more in RUNS.items() if key != name]
    engines = [small(*RUNS[name], f"learning.engine={engine}") for engine in ("reference", "batched")]
    members = [Member(Simulation(config)) for config in (small(*RUNS[name]), *plain, *engines)]
    with one_thread(torch.device("cpu")):  # so little work is quicker without others
        together, *_, reference, batched = followed(members)
    alone, records = finished[name]
    assert together == records == reference
    assert torch.equal(members[0].state.weights, alone.state.weights)
    assert torch.equal(members[-2].state.weights, alone.state.weights)
    assert [record.selected for record in batched] == [record.selected for record in records]
    torch.testing.assert_close(members[-1].state.weights, alone.state.weights, rtol=0.0, atol=1e-4)


def test_a_stack_of_jobs_that_start_from_different_weights_is_stepped_as_one_by_one() -> None:
    module, data = tiny_module("cnn"), tiny_data()
    start = FlatModel(module).flatten()
    jobs = [job(start * (1.0 - 0.1 * k), LocalRule(0.1, 1 + k % 3, mu=0.5 * (k % 2)), k) for k in range(5)]
    one_by_one, stacked = ReferenceEngine(module, data), BatchedEngine(module, data, device="cpu")
    for one, other in zip(one_by_one.train(jobs), stacked.train(jobs), strict=True):
        torch.testing.assert_close(other.delta, one.delta, rtol=0.0, atol=1e-6)
        assert other.loss == pytest.approx(one.loss, rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.filterwarnings("default")
def test_runs_on_a_gpu_in_lockstep_are_those_on_a_cpu_and_continue_to_the_last_bit(
    finished: dict, tmp_path: Path
) -> None:
    configs = [small(*more, "learning.device=cuda", "learning.engine=batched") for more in RUNS.values()]
    members = [Member(Simulation(config)) for config in configs]
    whole = followed(members)
    for member, name in zip(members, RUNS, strict=True):
        weights = member.state.weights
        assert weights.device.type == "cuda"
        assert all(each.device.type == "cuda" for each in member.state.underway.models.values())
        torch.testing.assert_close(weights.cpu(), finished[name][0].state.weights, rtol=0.0, atol=1e-3)
    folders = [RunFolder.create(tmp_path / name, config) for name, config in zip(RUNS, configs, strict=True)]
    turns = iter(range(100))
    halves = [Member(Simulation(config), folder) for config, folder in zip(configs, folders, strict=True)]
    drive(halves, stopping=lambda: next(turns) >= 5)
    again = [Member(Simulation(config), folder) for config, folder in zip(configs, folders, strict=True)]
    for member in again:
        resume(member)
    rest = followed(again)
    assert rest == [records[5:] for records in whole]
    for one, other in zip(again, members, strict=True):
        assert torch.equal(one.state.weights, other.state.weights)


@each_run
def test_a_run_that_was_stopped_continues_to_the_last_bit(name: str, finished: dict, tmp_path: Path) -> None:
    config = small(*RUNS[name])
    with RunFolder.create(tmp_path / "run", config) as begun:
        turns = iter(range(100))
        drive([Member(Simulation(config), begun)], stopping=lambda: next(turns) >= 5)
    with RunFolder.open(tmp_path / "run") as again:
        member = Member(Simulation(config), again)
        resume(member)
        assert member.state.rounds_done == 5
        assert len(member.state.underway.models) > 1
        (rest,) = followed([member])
    whole, records = finished[name]
    assert rest == records[5:]
    assert torch.equal(member.state.weights, whole.state.weights)


@each_run
def test_a_checkpoint_holds_each_model_in_use_once(name: str, finished: dict) -> None:
    state = finished[name][0].state
    tensors, numbers = to_tensors(state)
    in_use = {began for began in state.underway.began.tolist() if began != FREE}
    assert {key for key in tensors if key.startswith("underway.model.")} == {f"underway.model.{r}" for r in in_use}
    again = to_tensors(from_tensors(state.rounds_done, tensors, numbers))[0]
    assert again.keys() == tensors.keys()
    kept = [key for key in tensors if key.startswith("underway.")]
    assert all(torch.equal(again[key], tensors[key]) for key in kept)


@each_run
def test_rounds_that_are_only_scheduled_are_the_same_rounds(name: str, finished: dict) -> None:
    member, records = Member(Simulation(small(*RUNS[name]))), []
    plan_rounds(member, callback=lambda _, record: records.append(record))
    for name_ in ("selected", "tau", "compute_s", "clock_s", "compute_energy_j"):
        assert [getattr(r, name_) for r in records] == [getattr(r, name_) for r in finished[name][1]]
    assert member.state.underway.models == {}


def test_where_nobody_can_be_heard_the_deadline_passes_and_devices_go_on() -> None:
    slow = ("wireless.tau_law=list", "wireless.tau_values=[40, 40, 40, 40, 40, 40]", "wireless.cycles_per_sample=1e7")
    config = small(*ASYNC, "wireless.deadline_s=0.15", "wireless.payload_bits=1e4", *slow)
    simulation = Simulation(config)
    need_s = float(simulation.cell.draw(0).compute_s.min())
    waiting = int(need_s / 0.15)
    assert waiting > 0
    member, records = ended(replace(config, run=replace(config.run, rounds=waiting + 1)))
    assert all(not record.selected and record.latency_s is None for record in records[:waiting])
    assert records[waiting].sent
    assert records[waiting].age == [0] * len(records[waiting].sent)  # the model has not moved since
    assert records[waiting].compute_s[0] < 0.15
    assert member.state.clock_s > 0.15 * waiting
    sync = ended(replace(config, learning=replace(config.learning, asynchronous=False)))[1]
    assert not any(record.selected for record in sync)


def test_the_model_is_broadcast_to_those_who_were_heard() -> None:
    slow = ("wireless.cycles_per_sample=1e7", "wireless.deadline_s=3", "scheduling.policy=cm")
    simulation = Simulation(small(*ASYNC, *slow, "wireless.downlink=broadcast"))
    state, receivers, still_computing = simulation.start(), [], 0
    for _ in range(3):
        plan = simulation.plan(state)
        receivers.append(plan.receivers.tolist())
        lasts_s = plan.schedule.broadcast_s
        assert lasts_s > 0.0
        assert plan.schedule.downlink_bits == simulation.station.downlink_bits
        computing = np.setdiff1d(np.arange(6), plan.receivers)
        before_s = np.zeros(6) if state.underway is None else state.underway.left_s
        np.testing.assert_allclose(plan.underway.left_s[computing], np.maximum(before_s[computing] - lasts_s, 0.0))
        still_computing += int((plan.underway.left_s[computing] > 0.0).sum())
        state, record = simulation.untrained(state, plan)
        assert record.broadcast_s == lasts_s
    assert still_computing > 0
    assert receivers[0] == list(range(6))
    assert all(0 < len(each) <= 2 for each in receivers[1:])


def test_a_period_lasts_its_deadline_whoever_sends(finished: dict) -> None:
    _, records = finished["hu"]
    assert [record.clock_s for record in records] == pytest.approx([1.0 * (r + 1) for r in range(8)])
    sending = [record for record in records if record.sent]
    assert all(record.latency_s == 1.0 for record in sending)
    assert min(max(np.add(record.compute_s, record.upload_s)) for record in sending) < 0.99
    assert all(sum(record.weights) == pytest.approx(1.0) for record in sending)


def test_an_update_that_is_lost_stays_with_its_device_and_is_computed_and_charged_once() -> None:
    @policy("lossy")
    def lossy(problem: RoundProblem) -> Choice:
        """The two devices that finish first; half of what they send is lost."""
        selected = admit(problem, np.argsort(problem.compute_s, kind="stable"), max_devices=2)
        return Choice(selected, error_rate=np.full(len(selected), 0.5))

    try:
        simulation = Simulation(small("learning.asynchronous=true", "scheduling.policy=lossy"))
        records = followed([Member(simulation)])[0]
    finally:
        del POLICIES["lossy"]
    lost_before: dict[int, float] = {}
    sent_late = 0
    for record in records:
        for device, tau, compute_s, energy_j in zip(
            record.selected, record.tau, record.compute_s, record.compute_energy_j, strict=True
        ):
            if device in lost_before:
                sent_late += device in record.sent
                assert (tau, compute_s, energy_j) == (lost_before[device], 0.0, 0.0)
            else:
                assert energy_j > 0.0
        lost_before |= {d: tau for d, tau in zip(record.selected, record.tau, strict=True) if d in record.lost}
        for device in record.sent:
            lost_before.pop(device, None)
    assert sent_late > 0


def test_fedbuff_over_the_air_discounts_what_devices_send() -> None:
    air = ("uplink.air=ota", "run.payload=model", "scheduling.policy=round-robin", "wireless.noise_dbm_per_mhz=-300")
    over, records = ended(small(*RUNS["fedbuff"], *air))
    assert max(ages(records)) > 0
    exact = Simulation(small(*RUNS["fedbuff"], *air))
    state = exact.start()
    for record in records:
        plan = exact.plan(state)
        work = exact.jobs(state, plan, [])
        updates = ReferenceEngine(exact.module, exact.dataset).train(work.jobs)
        assert plan.selected.tolist() == record.selected
        factor = [(1.0 + age) ** -0.5 for age in record.age]
        wanted = state.weights + sum(f * u.delta for f, u in zip(factor, updates, strict=True)) / len(updates)
        state, _ = applied(exact, state, plan, work, updates)
        torch.testing.assert_close(state.weights, wanted, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(over.state.weights, state.weights, rtol=0.0, atol=1e-5)


# What cannot be


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("learning.asynchronous=true", "learning.method=fedlin"), r"learning.asynchronous is true.*needs the grad"),
        (("learning.asynchronous=true", "learning.method=scaffold"), r"sends its devices a control variate"),
        (("learning.asynchronous=true", "learning.method=moon"), r"vectors that belong to one round"),
        (
            ("learning.method=fedbuff", 'learning.options.inner="scaffold"'),
            r"method 'fedbuff' is asynchronous, but the method inside it, 'scaffold', sends .*; take another inside",
        ),
        (("scheduling.policy=hu", "data.share_labels=true", "learning.method=fedlin"), r"policy 'hu' is asynchronous"),
        (
            ("learning.asynchronous=true", "scheduling.policy=tran"),
            r"policy 'tran' goes by the speeds of devices in one round or sets them, and some of them have begun "
            "to compute in an earlier round; take another policy",
        ),
        (
            ("learning.asynchronous=true", "scheduling.policy=divfl", "scheduling.options.gradients=all"),
            r"policy 'divfl' asks devices what they know of the new model, and some of them still compute from an "
            "older model; take another policy",
        ),
        (("scheduling.policy=hu",), r"policy 'hu' needs .*each label.*set data.share_labels to true"),
    ],
)
def test_what_cannot_be_asynchronous_is_refused_with_the_reason(settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Simulation(small(*settings))


def test_moon_without_its_term_can_be_asynchronous() -> None:
    assert not Moon(moon_mu=0.0).needs_fresh
    assert Moon().needs_fresh


def test_rules_with_vectors_are_refused() -> None:
    rules = [LocalRule(0.1, 1), LocalRule(0.1, 1, mask=torch.ones(2))]
    config = override(Config(), ["learning.asynchronous=true", "learning.method=heterofl"])
    said = r"method 'heterofl' has devices train with a part of the model \(mask\), which is not kept.*, or synchronous"
    with pytest.raises(ValueError, match=said):
        refuse_vectors(config, METHODS.find("heterofl").make(), rules)
    inside = override(Config(), ["learning.method=fedbuff", 'learning.options.inner="heterofl"'])
    said = r"'fedbuff' is asynchronous, but the method inside it, 'heterofl', has .*; take another inside \(.*\)$"
    with pytest.raises(ValueError, match=said):
        refuse_vectors(inside, METHODS.find("fedbuff").make(inner="heterofl"), rules)
