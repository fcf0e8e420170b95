"""Weights of updates and lost packets: what a policy may say of the devices that it selects, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, override
from flare.learning.aggregate import WeightedSum
from flare.learning.job import Update
from flare.learning.methods import make_method
from flare.rng import stream
from flare.rounds import (
    Arrivals,
    BaseStation,
    Observation,
    Plan,
    RoundRecord,
    RunState,
    first_state,
    local_rules,
    plan_round,
    untrained,
)
from flare.scheduling import POLICIES, Choice, RoundProblem, policy, solve
from tests.small_runs import SMALL, interrupted_after, timeless

VECTORS = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 4.0]), torch.tensor([2.0, 2.0])]
ANSWER: dict[str, Choice] = {}
"""What policy `told` answers in the test at hand."""


@pytest.fixture(autouse=True)
def _told_policy() -> Iterator[None]:
    @policy("told")
    def told(problem: RoundProblem) -> Choice:
        """What the test says."""
        return ANSWER["now"]

    yield
    del POLICIES["told"]


def weighed(answer: Choice, *settings: str, devices: int = 3) -> tuple[BaseStation, RunState, Plan]:
    """A planned round of devices that all could send."""
    ANSWER["now"] = answer
    config = override(
        Config(), ["wireless.deadline_s=5", "scheduling.policy=told", "learning.method=fedavg", *settings]
    )
    station = BaseStation(config, make_method(config.learning), 2)
    reported = Observation(
        devices=np.arange(devices),
        num_devices=devices,
        tau=np.full(devices, 2.0),
        cpu_hz=np.full(devices, 3e9),
        snr_hz=np.full(devices, 1e8),
        power_w=np.full(devices, 0.1),
        num_samples=np.full(devices, 50.0),
    )
    state = first_state(torch.tensor([10.0, 20.0]), station.method.start(2, devices), devices)
    plan = plan_round(station, state, reported)
    assert plan is not None
    return station, state, plan


def arrived(station: BaseStation, state: RunState, plan: Plan, missing: int = -1) -> tuple[RunState, RoundRecord]:
    rules = local_rules(station, plan)
    arrivals = Arrivals(station, state, plan, rules)
    for device in rules:
        if device != missing:
            arrivals.add(device, Update(VECTORS[device], loss=1.0))
    return arrivals.end()


def test_the_model_moves_by_the_weighted_sum() -> None:
    # Named in the order 2, 0, 1: device 0 counts 0.25, device 1 counts 3, device 2 counts 0.5; eta_g is 2.
    answer = Choice([2, 0, 1], weights=[0.5, 0.25, 3.0])
    station, state, plan = weighed(answer, "learning.global_lr=2")
    assert plan.weights is not None
    assert plan.weights.tolist() == [0.25, 3.0, 0.5]
    after, record = arrived(station, state, plan)
    # 0.25 (1, 0) + 3 (0, 4) + 0.5 (2, 2) = (1.25, 13)
    assert after.weights.tolist() == [12.5, 46.0]
    assert record.weights == [0.25, 3.0, 0.5]
    assert RoundRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(("keep_total", "scale"), [(False, 1.0), (True, 3.75 / 3.25)])
def test_one_that_does_not_arrive(keep_total: bool, scale: float) -> None:
    answer = Choice([0, 1, 2], weights=[0.25, 3.0, 0.5], keep_total=keep_total)
    after, _ = arrived(*weighed(answer), missing=2)
    np.testing.assert_allclose(after.weights.numpy() - [10.0, 20.0], np.array([0.25, 12.0]) * scale, rtol=1e-5)


def test_weights_of_nothing_move_nothing() -> None:
    total = WeightedSum({0: 0.0, 1: 2.0}, keep_total=True)
    total.add(VECTORS[0], 0)
    assert total.end().tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="no sum over no devices"):
        WeightedSum({0: 1.0}).end()


def test_equal_weights_are_the_mean() -> None:
    mean, _ = arrived(*weighed(Choice([0, 1, 2])))
    same, _ = arrived(*weighed(Choice([0, 1, 2], weights=np.full(3, 1 / 3))))
    np.testing.assert_allclose(same.weights.numpy(), mean.weights.numpy(), rtol=1e-7)


def test_a_server_optimiser_steps_by_the_weighted_sum() -> None:
    answer = Choice([0, 1], weights=[1.0, 0.5])
    after, _ = arrived(*weighed(answer, "learning.method=fedavgm"))
    assert after.weights.tolist() == [11.0, 22.0]


def test_gradients_that_devices_are_told_are_weighed_as_updates_are() -> None:
    station, _, plan = weighed(Choice([0, 2], weights=[0.5, 2.0]), "learning.method=fedlin")
    rules = local_rules(station, plan, [(0, VECTORS[0]), (2, VECTORS[2])])
    for rule in rules.values():
        assert rule.drift is not None
        assert rule.drift.tolist() == [4.5, 4.0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Choice([0, 1], weights=[1.0]), r"gave weights of shape \(1,\) .* each of the 2 devices that it selected"),
        (Choice([1, 2], weights=[1.0, -0.5]), r"gave device 2 weights = -0.5; it must be a number from 0 to"),
        (Choice([1], weights=[np.nan]), "gave device 1 weights = nan"),
        (Choice([1], weights=["a"]), "gave weights of shape .* and type <U1"),
        (Choice([1], error_rate=[1.01]), "gave device 1 error_rate = 1.01; it must be a number from 0 to 1"),
        (Choice(utility=np.ones(3), weights=np.ones(3)), "gave utilities with `weights`"),
        (Choice(utility=np.ones(3), error_rate=np.ones(3)), "gave utilities with `error_rate`"),
        (Choice([1], keep_total=True), "gave keep_total = True; it is True or False, and says"),
    ],
)
def test_what_a_policy_may_not_say(answer: Choice, reason: str) -> None:
    with pytest.raises(ValueError, match=f"policy 'told' {reason}"):
        weighed(answer)


@pytest.mark.parametrize(
    ("answer", "settings", "reason"),
    [
        (Choice([0], weights=[1.0]), ["learning.method=scaffold"], "method 'scaffold' has a reducer of its own"),
        (Choice([0], weights=[1.0]), ["uplink.air=ota"], "the channel adds them all up alike"),
        (Choice([0], error_rate=[0.1]), ["uplink.air=ota"], "there are no packets that could be"),
    ],
)
def test_what_weights_do_not_go_with(answer: Choice, settings: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        weighed(answer, *settings)


@pytest.mark.parametrize("name", ["chen", "luo", "ren", "hu"])
def test_a_policy_that_weighs_is_refused_before_the_first_round(name: str) -> None:
    # Chen weighs only where the samples of those that it selected differ: a first round may do without.
    given = [f"scheduling.policy={name}", "learning.method=heterofl", "data.share_labels=true"]
    config = override(Config(), given)
    with pytest.raises(ValueError, match=f"policy '{name}' says how much each update counts, but method 'heterofl'"):
        BaseStation(config, make_method(config.learning), 2)


def test_a_comparison_with_a_policy_that_weighs_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    alone = {"label": "chen", "method": "scaffold", "policy": "chen", "scheduling.options.num_blocks": 1}
    with pytest.raises(ValueError, match=r"policy 'chen' .* method 'scaffold' has a reducer of its own"):
        # one sender: no round would have shown it
        flare.compare(["scaffold:exact", alone], config=SMALL, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_packets_are_lost_as_often_as_they_say() -> None:
    # The draws by hand: each device has its own stream of the round.
    draws = [stream(0, "packet", 0, device).random() for device in range(3)]
    rate = [draws[0] + 1e-9, draws[1] - 1e-9, 1.0]
    _, _, plan = weighed(Choice([0, 1, 2], error_rate=rate))
    assert plan.lost.tolist() == [0, 2]
    _, _, plan = weighed(Choice([2, 1], error_rate=[0.0, 1.0]))
    assert plan.lost.tolist() == [1]


def test_a_lost_update_is_paid_for_and_changes_nothing() -> None:
    answer = Choice([0, 1, 2], error_rate=[0.0, 1.0, 0.0])
    station, state, plan = weighed(answer)
    after, record = arrived(station, state, plan)
    # The mean of devices 0 and 2, (1.5, 1).
    assert after.weights.tolist() == [11.5, 21.0]
    assert (record.selected, record.sent, record.lost) == ([0, 1, 2], [0, 2], [1])
    assert record.error_rate == [0.0, 1.0, 0.0]
    assert record.clock_s == plan.latency_s < 5.0
    assert len(record.upload_energy_j) == 3
    spent_j = np.array(record.compute_energy_j) + record.upload_energy_j
    np.testing.assert_array_equal(after.history.energy_j, spent_j)
    assert after.history.times_sent.tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(after.history.update_norm[1])
    only_planned, _ = untrained(station, state, plan)
    np.testing.assert_array_equal(only_planned.history.energy_j, spent_j)
    assert only_planned.history.times_sent.tolist() == [1.0, 0.0, 1.0]


def test_a_round_in_which_everything_is_lost_leaves_the_model_as_it_is() -> None:
    station, state, plan = weighed(Choice([0, 1], error_rate=[1.0, 1.0]))
    after, record = arrived(station, state, plan)
    assert torch.equal(after.weights, state.weights)
    assert (record.sent, record.lost) == ([], [0, 1])
    assert record.clock_s == plan.latency_s
    assert after.history.energy_j[:2].min() > 0.0


def test_records_of_older_versions_are_read() -> None:
    _, record = arrived(*weighed(Choice([0, 1])))
    told = record.to_json()
    for name in ("weights", "error_rate", "lost"):
        assert told.pop(name) == []
    assert RoundRecord.from_json(told) == record
    with pytest.raises(ValueError, match="has 1 values of weights for 2 devices selected"):
        RoundRecord.from_json(told | {"weights": [1.0]})


def test_a_schedule_tells_the_weights_of_its_senders() -> None:
    cell = RoundProblem(np.ones(3), np.zeros(3), np.full(3, 1e8), 1e5, 1e6, 10.0)
    ANSWER["now"] = Choice([2, 0], weights=[0.5, 0.25], error_rate=[0.1, 0.0])
    devices = solve(cell, "told").to_dict()["devices"]
    assert [each["update_weight"] for each in devices] == [0.25, None, 0.5]
    assert [each["error_rate"] for each in devices] == [0.0, None, 0.1]


def test_a_run_with_lost_packets_is_resumed_to_the_bit(tmp_path: Path) -> None:
    ANSWER["now"] = Choice([0, 1, 2], weights=[0.2, 0.3, 0.5], error_rate=[0.5, 0.5, 0.5])
    small = SMALL | {"learning.method": "fedlin", "scheduling.policy": "told", "wireless.deadline_s": 1.0}
    whole = flare.simulate(small, progress=False)
    with pytest.raises(KeyboardInterrupt):
        flare.simulate(small, out=tmp_path / "run", callback=interrupted_after(3), progress=False)
    resumed = flare.simulate(small, out=tmp_path / "run", progress=False)
    assert timeless(resumed.records) == timeless(whole.records)
    assert 0 < sum(len(each.lost) for each in whole.records) < 18
    assert all(sorted(each.sent + each.lost) == each.selected == [0, 1, 2] for each in whole.records)
