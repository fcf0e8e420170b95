"""Devices that compute across rounds: against a plain twin, by hand, and against synchronous rounds to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flare.config import Config, override
from flare.learning.aggregate import mean, move
from flare.learning.batches import draw_batches
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Job, LocalRule
from flare.learning.methods import Moon
from flare.records import RunFolder
from flare.records.run import run_of
from flare.rng import stream
from flare.rounds import RoundRecord
from flare.rounds.asynchrony import FREE, Underway, over_all, refuse_vectors
from flare.rounds.state import from_tensors, to_tensors
from flare.scheduling import POLICIES, Choice, RoundProblem, admit, policy, solve
from flare.simulation import Member, Simulation, drive, plan_rounds, resume
from tests.driving import followed
from tests.tiny import job, tiny_data, tiny_module

SMALL = (
    *("wireless.num_devices=6", "wireless.deadline_s=1.0", "wireless.batch_size=10", "wireless.fading=rayleigh"),
    *("learning.model=logistic", "learning.device=cpu", "learning.method=fedavg", "data.partition=shards"),
    *("run.payload=wireless", "run.rounds=8", "run.evaluate_every=4", "scheduling.bound=false"),
)
ASYNC = ("learning.asynchronous=true", "scheduling.options.max_devices=2")
RUNS = {
    "settings": ("learning.asynchronous=true", "learning.method=flare", "scheduling.options.max_devices=2"),
    "fedbuff": ("learning.method=fedbuff", "learning.options.buffer=2", "scheduling.policy=greedy"),
    "hu": ("scheduling.policy=hu", "data.share_labels=true", "scheduling.options.num_selected=2"),
}
each_run = pytest.mark.parametrize("name", RUNS)


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(config: Config) -> tuple[Member, list[RoundRecord]]:
    member = Member(Simulation(config))
    return member, followed([member])[0]


def ages(records: list[RoundRecord]) -> list[int]:
    return [age for record in records for age in record.age]


# By hand


def test_what_devices_compute_by_hand() -> None:
    rule = LocalRule(lr=0.5, steps=3, mu=0.25, ascent=0.125)
    model = torch.zeros(2)
    nobody = Underway.nobody(3)
    everybody = np.arange(3)
    assert nobody.free(everybody).tolist() == [0, 1, 2]
    three = {"tau": np.array([1.0, 2.0, 3.0]), "compute_s": np.array([1.0, 2.0, 3.0]), "energy_j": np.array([4.0] * 3)}
    first = nobody.begin(0, everybody, [rule] * 3, **three)
    assert first.free(everybody).size == 0
    assert vars(first.rule(1)) == vars(rule)

    # round 0 lasts 1.5 s and device 0 is heard: it is free, the model has made a step since the others received theirs
    after = first.after_round(0, selected=[0], heard=[0], lasted_s=1.5, model=model)
    assert after.began.tolist() == [FREE, 0, 0]
    assert after.age.tolist() == [0, 1, 1]
    assert after.left_s.tolist() == [0.0, 0.5, 1.5]
    assert list(after.models) == [0]

    # round 1: 0.25 s of broadcast to device 0, meanwhile the others compute; nobody is heard: the model stays the same
    one = {name: values[[1]] for name, values in three.items()}
    second = after.after_time(0.25).begin(1, np.array([0]), [rule], **one)
    assert second.left_s.tolist() == [2.0, 0.25, 1.25]
    later = second.after_round(1, selected=[], heard=[], lasted_s=1.0, model=model + 1.0)
    assert (later.began.tolist(), later.age.tolist()) == ([1, 0, 0], [0, 1, 1])
    assert later.left_s.tolist() == [1.0, 0.0, 0.25]
    assert sorted(later.models) == [0, 1]

    # round 2: devices 1 and 2 are selected, and the update of 2 is lost: it waits, and its computing was paid for
    last = later.after_round(2, selected=[1, 2], heard=[1], lasted_s=0.5, model=model + 2.0)
    assert (last.began.tolist(), last.age.tolist()) == ([1, FREE, 0], [1, 0, 2])
    assert (last.left_s[0], last.left_s[2]) == (0.5, 0.0)
    assert (last.energy_j[0], last.energy_j[2]) == (4.0, 0.0)
    assert sorted(last.models) == [0, 1]
    assert over_all(last, 5).free(np.arange(5)).tolist() == [1, 3, 4]


# Against a plain twin


def plain_twin(config: Config) -> tuple[torch.Tensor, list[tuple[list[int], list[int], float]]]:
    """Asynchronous FedAvg as it happens: who receives a model computes its update at once, and keeps it until it is
    heard. The weights at the end; of each round who was heard, of what age, and when it ended."""
    simulation = Simulation(config)
    engine = ReferenceEngine(simulation.module, simulation.dataset)
    weights, clock_s, steps, told = simulation.start_weights, 0.0, 0, []
    wireless, num_devices = config.wireless, config.wireless.num_devices
    work: dict[int, dict] = {}
    for index in range(config.run.rounds):
        cell = simulation.cell.draw(index)
        for i in set(range(num_devices)) - set(work):
            rng = stream(config.seed, "batch", index, i)
            tau = int(cell.tau[i])
            batches = draw_batches(simulation.held[i], tau, wireless.batch_size, rng=rng)
            (update,) = engine.train([Job(weights, LocalRule(config.learning.local_lr, tau), batches)])
            work[i] = {"tau": tau, "ready_s": clock_s + cell.compute_s[i], "update": update.delta, "steps": steps}
        problem = RoundProblem(
            tau=[work[i]["tau"] for i in range(num_devices)],
            compute_s=[max(0.0, work[i]["ready_s"] - clock_s) for i in range(num_devices)],
            snr_hz=cell.snr_hz,
            payload_bits=wireless.payload_bits,
            total_bandwidth_hz=wireless.total_bandwidth_hz,
            deadline_s=wireless.deadline_s,
            gamma=config.scheduling.gamma,
            max_devices=2,
        )
        schedule = solve(problem, config.scheduling.policy)
        heard = schedule.selected.tolist()
        clock_s += schedule.latency_s if heard else wireless.deadline_s
        told.append((heard, [steps - work[i]["steps"] for i in heard], clock_s))
        if heard:
            weights = move(weights, config.learning.global_lr, mean(work.pop(i)["update"] for i in heard))
            steps += 1
    return weights, told


@pytest.mark.parametrize(
    ("deadline_s", "cycles"), [(1.0, 6e5), (0.35, 6e5), (1.0, 2e7)], ids=["late", "tight", "computing for long"]
)
def test_a_plain_twin_that_computes_at_once_learns_the_same_to_the_last_bit(deadline_s: float, cycles: float) -> None:
    slow = (f"wireless.deadline_s={deadline_s}", f"wireless.cycles_per_sample={cycles}")
    config = small(*ASYNC, *slow, "learning.engine=reference", "run.rounds=12")
    weights, told = plain_twin(config)
    member, records = ended(config)
    assert [record.selected for record in records] == [heard for heard, _, _ in told]
    assert [record.age for record in records] == [age for _, age, _ in told]
    assert [record.clock_s for record in records] == pytest.approx([clock_s for _, _, clock_s in told], rel=1e-12)
    assert torch.equal(member.state.weights, weights)
    assert max(ages(records)) > 1
    assert min(ages(records)) == 0
    heard_while_old = [left for r in records for left, age in zip(r.compute_s, r.age, strict=True) if age > 0]
    assert (max(heard_while_old) > 0.0) == (cycles > 1e6)


# Against synchronous rounds


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("learning.method=flare",),
        ("learning.method=fednova", "wireless.downlink=broadcast"),
        ("learning.method=fedsam",),
        ("learning.method=fedprox", "uplink.codec=topk", "run.payload=model"),
        ("learning.method=fedavgm", "wireless.downlink=broadcast", "wireless.downlink_codec=qsgd", "run.payload=model"),
        ("uplink.air=ota", "run.payload=model"),
    ],
)
def test_where_everybody_is_heard_in_every_round_it_is_synchronous_to_the_last_bit(more: tuple[str, ...]) -> None:
    settings = ("scheduling.policy=all", "wireless.deadline_s=1000", "run.rounds=3", *more)
    sync, plain = ended(small(*settings))
    other, records = ended(small(*settings, "learning.asynchronous=true"))
    assert all(record.sent == list(range(6)) and record.age == [0] * 6 for record in records)
    assert [replace(record, age=[]) for record in records] == plain
    assert torch.equal(other.state.weights, sync.state.weights)
    assert all(torch.equal(value, sync.state.method[name]) for name, value in other.state.method.items())


def test_fedbuff_of_fresh_updates_is_its_inner_method_to_the_last_bit() -> None:
    settings = ("scheduling.policy=all", "wireless.deadline_s=1000", "run.rounds=3")
    buffered = ("learning.method=fedbuff", 'learning.options.inner="flare"')
    one, other = (ended(small(*settings, *more))[0] for more in (("learning.method=flare",), buffered))
    assert torch.equal(one.state.weights, other.state.weights)


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
        state, _ = exact.apply(state, plan, work, updates)
        torch.testing.assert_close(state.weights, wanted, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(over.state.weights, state.weights, rtol=0.0, atol=1e-5)


# What cannot be


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("learning.asynchronous=true", "learning.method=fedlin"), r"learning.asynchronous is true.*needs the grad"),
        (("learning.asynchronous=true", "learning.method=scaffold"), r"sends its devices a control variate"),
        (("learning.asynchronous=true", "learning.method=moon"), r"vectors that belong to one round"),
        (("learning.method=fedbuff", 'learning.options.inner="scaffold"'), r"method 'fedbuff' is asynchronous"),
        (("scheduling.policy=hu", "data.share_labels=true", "learning.method=fedlin"), r"policy 'hu' is asynchronous"),
        (
            ("learning.asynchronous=true", "scheduling.policy=tran"),
            r"policy 'tran' sets the speeds of devices for one round, and some of them have begun to compute in an "
            "earlier round; take another policy",
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
    with pytest.raises(ValueError, match=r"method 'mine' gives devices a rule with mask, which cannot be kept"):
        refuse_vectors("mine", [LocalRule(0.1, 1), LocalRule(0.1, 1, mask=torch.ones(2))])
