"""Devices that compute across rounds: by hand, against a plain twin, and against synchronous rounds to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.config import Config
from flare.learning.aggregate import mean, move
from flare.learning.batches import draw_batches
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.job import Job, LocalRule
from flare.rng import stream
from flare.rounds.asynchrony import FREE, Underway, over_all
from flare.scheduling import RoundProblem, solve
from flare.simulation import Simulation
from tests.asynchronous import ASYNC, ages, ended, small

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
