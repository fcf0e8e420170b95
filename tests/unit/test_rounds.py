"""A round by itself: what the base station remembers, what it makes of arrivals, what is written down."""

from __future__ import annotations

import gc
import json
import math
import re
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flare.config import Config, override
from flare.learning.job import LocalRule, Update
from flare.learning.methods import PlainMethod, equal_rates, make_method
from flare.learning.methods.base import Round
from flare.rounds import (
    Arrivals,
    BaseStation,
    Observation,
    Plan,
    RoundRecord,
    RunState,
    RunStatus,
    first_state,
    local_rules,
    plan_round,
    untrained,
)
from flare.rounds.asynchrony import over_all
from flare.rounds.memory import PolicyMemory
from flare.rounds.method_answers import first_method_state
from flare.rounds.state import from_tensors, to_tensors
from flare.scheduling import POLICIES, Choice, History, policy
from tests.driving import settings_of_method
from tests.method_rounds import OF_ANY_MODEL

WEIGHTS = 3


def station(*settings: str) -> BaseStation:
    config = override(Config(), ["wireless.deadline_s=5", "run.payload=wireless", "scheduling.policy=all", *settings])
    return BaseStation(config, make_method(config.learning), WEIGHTS)


def seen(devices: list[int], num_devices: int, **changes: object) -> Observation:
    count = len(devices)
    told = {
        "tau": np.arange(1.0, 1.0 + count),
        "cpu_hz": np.full(count, 3e9),
        "snr_hz": np.full(count, 1e8),
        "power_w": np.full(count, 0.1),
        "num_samples": np.full(count, 50.0),
    }
    return Observation(devices=np.array(devices, dtype=np.intp), num_devices=num_devices, **(told | changes))  # type: ignore[arg-type]


def start(base: BaseStation, num_devices: int) -> RunState:
    method = first_method_state(base.config.learning.method, base.method, WEIGHTS, num_devices)
    return first_state(torch.zeros(WEIGHTS), method, num_devices)


def begun(base: BaseStation, state: RunState, reported: Observation) -> tuple[Plan, Arrivals]:
    plan = plan_round(base, state, reported)
    assert plan is not None
    gradients = [(device, torch.ones(WEIGHTS)) for device in plan.selected.tolist()]
    return plan, Arrivals(base, state, plan, local_rules(base, plan, gradients))


def sent(value: float, **told: float) -> Update:
    return Update(torch.full((WEIGHTS,), value), **({"loss": 1.0} | told))


# What is known of the devices


def test_the_history_follows_what_the_devices_did() -> None:
    base = station("data.share_losses=true")
    state = start(base, 3)
    plan, arrivals = begun(base, state, seen([0, 1, 2], 3))
    assert plan.selected.tolist() == [0, 1, 2]
    arrivals.add(2, sent(2.0, loss=0.5, squared_loss=0.3))
    arrivals.add(0, sent(1.0, loss=0.75, squared_loss=0.6))
    state, record = arrivals.end()
    history = state.history
    assert history.times_sent.tolist() == [1, 0, 1]
    assert history.rounds_since_sent.tolist() == [1, np.inf, 1]
    assert np.array_equal(history.last_loss, [0.75, np.nan, 0.5], equal_nan=True)
    assert np.array_equal(history.mean_squared_loss, [0.6, np.nan, 0.3], equal_nan=True)
    assert history.update_norm[[0, 2]] == pytest.approx([3**0.5, 12**0.5])
    assert history.num_samples.tolist() == [50, 50, 50]
    assert history.compute_s[2] == record.compute_s[2]
    assert history.upload_s[0] == record.upload_s[0]
    assert history.energy_j[1] == 0.0
    assert history.energy_j[2] == pytest.approx(record.compute_energy_j[2] + record.upload_energy_j[2])
    _, arrivals = begun(base, state, seen([1, 2], 3, num_samples=np.array([np.nan, 70.0])))
    arrivals.add(1, sent(1.0))
    state, _ = arrivals.end()
    assert state.history.times_sent.tolist() == [1, 1, 1]
    assert state.history.rounds_since_sent.tolist() == [2, 1, 2]
    assert state.history.num_samples.tolist() == [50, 50, 70]  # one that does not say it again keeps what it said


def test_newcomers_have_a_history_of_nothing_and_a_policy_sees_those_that_are_there() -> None:
    shown: list[History] = []

    @policy("looking")
    def looking(problem, *, history):  # type: ignore[no-untyped-def]
        shown.append(history)
        return []

    try:
        base = station("scheduling.policy=looking")
        state = start(base, 0)
        counts = np.array([[3.0, 1.0], [0.0, 9.0]])
        _, arrivals = begun(base, state, seen([0, 4], 5, label_counts=counts))
        state, _ = arrivals.end()
        begun(base, state, seen([1, 4], 6, num_samples=np.array([8.0, 9.0])))
    finally:
        del POLICIES["looking"]
    assert [each.num_devices for each in shown] == [2, 2]
    assert shown[0].label_counts is not None
    assert shown[0].label_counts.tolist() == counts.tolist()
    assert shown[1].num_samples.tolist() == [8.0, 9.0]
    assert state.history.num_devices == 5
    assert state.history.label_counts is not None
    assert state.history.label_counts[4].tolist() == [0.0, 9.0]


def test_times_that_were_measured_are_remembered_rather_than_planned_ones() -> None:
    base = station()
    _, arrivals = begun(base, start(base, 2), seen([0, 1], 2))
    arrivals.add(0, sent(1.0), compute_s=3.0, upload_s=0.25)
    arrivals.add(1, sent(1.0), compute_s=4.0)
    state, record = arrivals.end()
    assert state.history.compute_s.tolist() == [3.0, 4.0]
    assert state.history.upload_s.tolist() == [0.25, record.upload_s[1]]


def test_a_round_in_which_nothing_is_trained_counts_its_selected_as_senders() -> None:
    base = station()
    state = start(base, 2)
    plan = plan_round(base, state, seen([0, 1], 2))
    after, record = untrained(base, state, plan)
    assert after.history.times_sent.tolist() == [1.0, 1.0]
    assert record.sent == []


def test_a_device_whose_gradient_did_not_come_is_out_of_the_round() -> None:
    base = station("learning.method=fedlin")
    plan = plan_round(base, start(base, 3), seen([0, 1, 2], 3))
    assert plan is not None
    rules = local_rules(base, plan, [(2, torch.ones(WEIGHTS)), (0, 3.0 * torch.ones(WEIGHTS))])
    assert list(rules) == [0, 2]
    assert all(rule.drift is not None and rule.drift.tolist() == [2.0] * WEIGHTS for rule in rules.values())
    assert local_rules(base, plan, []) == {}


# What a policy remembers


def test_memory_follows_the_devices_as_they_come_and_go() -> None:
    memory = PolicyMemory()
    assert memory.recall(seen([0, 1], 2)) == {}
    told = {"device_queue": np.array([[1, 1], [5, 5]]), "of_labels": np.array([7, 8])}  # as long as devices are there
    memory = memory.after(seen([0, 2], 3), told)
    found = memory.recall(seen([1, 2, 3], 4))
    assert found["device_queue"].tolist() == [[5, 5]] * 3  # newcomers have the middle of those that are known and here
    assert found["of_labels"].tolist() == [7, 8]
    assert found["device_queue"].dtype == np.int64
    memory = memory.after(seen([1, 2], 4), {"device_queue": np.array([[8, 9], [6, 6]]), "of_labels": np.array([9, 9])})
    assert memory.recall(seen([0, 1, 2], 4))["device_queue"].tolist() == [[1, 1], [8, 9], [6, 6]]
    assert list(memory.recall(seen([3], 4))) == ["of_labels"]  # nobody here is known
    later = memory.after(seen([0, 1], 4), {"device_queue": np.array([[1, 1], [8, 9]]), "device_new": np.array([3, 4])})
    assert later.recall(seen([0, 2], 4))["device_new"].tolist() == [3, 3]  # 2 was known, but not under this name
    assert "of_labels" not in later.recall(seen([0], 4))  # what is not handed over again is forgotten
    assert memory.after(seen([0], 4), {}) is memory


def test_a_whole_cell_gets_its_arrays_as_they_were() -> None:
    everybody = seen([0, 1, 2], 3)
    told = {"device_place": np.array([2.0, 0.0, 1.0]), "table": np.zeros((2, 5)), "one": np.array(True)}
    found = PolicyMemory().after(everybody, told).recall(everybody)
    assert found.keys() == told.keys()
    assert all(np.array_equal(found[name], told[name]) for name in told)


# Arrivals


@pytest.mark.parametrize("method", OF_ANY_MODEL)
def test_memory_does_not_grow_with_the_number_of_updates(method: str) -> None:
    base = station(*settings_of_method(method))
    state = start(base, 4)
    plan, arrivals = begun(base, state, seen([0, 1, 2, 3], 4))
    tensors = []
    gc.freeze()  # what was there before is not looked at, a million objects: only what is added may grow
    try:
        for device in plan.selected.tolist():
            update = sent(1.0)
            alive = weakref.ref(update.delta)
            arrivals.add(device, update)
            del update
            gc.collect()
            assert alive() is None
            tensors.append(sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()))
    finally:
        gc.unfreeze()
    assert len(set(tensors)) == 1  # not even small ones are kept: among large ones they would cut the memory to pieces
    assert arrivals.end()[1].sent == [0, 1, 2, 3]


def test_only_who_was_asked_may_send_and_once() -> None:
    base = station("scheduling.policy=cp")
    _, arrivals = begun(base, start(base, 3), seen([0, 2], 3))
    arrivals.add(2, sent(1.0))
    for device in (2, 1, 7):
        with pytest.raises(ValueError, match=f"device {device} sent twice, or was not asked"):
            arrivals.add(device, sent(1.0))


def test_a_round_in_which_somebody_failed_lasts_to_its_deadline() -> None:
    base = station()
    for senders, lasts_to_the_deadline in (([0, 1], False), ([1], True), ([], True)):
        plan, arrivals = begun(base, start(base, 2), seen([0, 1], 2))
        for device in senders:
            arrivals.add(device, sent(1.0))
        state, record = arrivals.end(faults=[{"node": "9", "why": "silent"}])
        expected = 5.0 if lasts_to_the_deadline else plan.schedule.latency_s
        assert state.clock_s == record.clock_s == expected
        assert record.sent == senders
        assert record.faults == [{"node": "9", "why": "silent"}]
        assert bool(state.weights.any()) == bool(senders)


def test_where_nobody_is_there_the_deadline_passes() -> None:
    base = station("run.rounds=1")
    state = start(base, 2)
    nobody = seen([], 2)
    assert plan_round(base, state, nobody) is None
    after, record = Arrivals(base, state, None, {}).end()
    assert (record.status, record.available, record.clock_s) == ("infeasible", 0, 5.0)
    sent_before = replace(state, history=replace(state.history, rounds_since_sent=np.array([1.0, np.inf])))
    aged, _ = Arrivals(base, sent_before, None, {}).end()
    assert aged.history.rounds_since_sent.tolist() == [2.0, np.inf]
    busy = replace(over_all(None, 2), left_s=np.array([7.0, 0.5]))  # devices that compute across rounds go on
    later, _ = Arrivals(base, replace(state, underway=busy), None, {}).end()
    assert later.underway is not None
    assert later.underway.left_s.tolist() == [2.0, 0.0]
    assert after.status is RunStatus.FINISHED
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_updates_that_are_no_numbers_end_the_run() -> None:
    base = station()
    _, arrivals = begun(base, start(base, 1), seen([0], 1))
    arrivals.add(0, sent(float("nan"), loss=float("nan")))
    state, record = arrivals.end()
    assert state.status is RunStatus.DIVERGED
    assert record.loss == [None]
    assert record.train_loss is None


# State and record


def test_a_state_comes_back_from_its_tensors() -> None:
    base = station("learning.method=scaffold", "scheduling.policy=grouped")

    @policy("remembering")
    def remembering(problem, *, memory):  # type: ignore[no-untyped-def]
        return Choice([0], memory={"device_rows": np.ones((2, 3), dtype=np.int32), "all": np.array([[True]])})

    try:
        base = replace(base, config=override(base.config, ["scheduling.policy=remembering"]))
        _, arrivals = begun(base, start(base, 2), seen([0, 1], 2, label_counts=np.ones((2, 4))))
        arrivals.add(0, sent(1.0, squared_loss=2.0))
        state, _ = arrivals.end()
    finally:
        del POLICIES["remembering"]
    again = from_tensors(state.rounds_done, *to_tensors(state))
    assert (again.rounds_done, again.clock_s, again.status) == (state.rounds_done, state.clock_s, state.status)
    assert torch.equal(again.weights, state.weights)
    assert all(torch.equal(again.method[name], state.method[name]) for name in state.method)
    for name, value in vars(state.history).items():
        came = getattr(again.history, name)
        assert came is value if value is None else np.array_equal(came, value, equal_nan=True), name
    found, kept = (each.memory.recall(seen([0, 1], 2)) for each in (again, state))
    assert found.keys() == kept.keys() == {"device_rows", "all"}
    assert all(np.array_equal(found[name], kept[name]) and found[name].dtype == kept[name].dtype for name in kept)


def test_a_record_says_what_is_wrong_with_it() -> None:
    base = station()
    _, arrivals = begun(base, start(base, 2), seen([0, 1], 2))
    arrivals.add(0, sent(1.0))
    arrivals.add(1, sent(1.0))
    told = arrivals.end()[1].to_json()
    assert RoundRecord.from_json(told | {"from a later version": 1}).to_json() == told
    for change, why in (
        ({"tau": [1.0]}, "has 1 values of tau for 2 devices selected"),
        ({"loss": [1.0, 1.0, 1.0]}, "has 3 values of loss for 2 devices sent"),
        ({"clock_s": "late"}, "has clock_s = late, which is no number"),
        ({"clock_s": True}, "has clock_s = True, which is no number"),
        ({"selected": None}, "has selected = None, which is no list of whole numbers"),
        ({"objective": []}, r"has objective = \[\], which is no number or null"),
        ({"selected": [1, 1]}, "names a device twice in selected"),
        ({"sent": [1, 1]}, "names a device twice in sent"),
        ({"tested": [1, 1], "node_accuracy": [0.5, 0.5]}, "names a device twice in tested"),
        ({"control_bits": -1e300}, r"has control_bits = -1e\+300, which must be finite and not negative"),
        ({"control_bits": math.inf}, "has control_bits = inf"),
        ({"node_accuracy_mean": 0.5}, "has one of node_accuracy_mean and node_accuracy_std"),
        ({"node_loss_mean": 0.5, "node_loss_std": 0.1}, "has node_loss_mean, but nobody in tested"),
        ({"tested": [1], "node_accuracy": [7.5]}, "has an accuracy of 7.5 on nodes, which must be from 0 to 1"),
        (
            {"tested": [1], "node_accuracy": [0.5], "node_accuracy_mean": -0.5, "node_accuracy_std": 0.0},
            "has an accuracy of -0.5 on nodes",
        ),
        (
            {"tested": [1], "node_accuracy": [0.5], "node_accuracy_mean": 0.5, "node_accuracy_std": -3.0},
            "has node_accuracy_std = -3, which must not be negative",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            RoundRecord.from_json(told | change)
    del told["sent"]
    with pytest.raises(ValueError, match="has no sent"):
        RoundRecord.from_json(told)


# What a method ends in


class EndsIn(PlainMethod):
    """A method whose reducer ends in what is given, and counts how often it is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, 0

    def rules(self, state: Any, now: Round, common_gradient: Any) -> list[LocalRule]:
        return equal_rates(now)

    def reducer(self, state: Any, now: Round) -> Any:
        return self

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """Nothing is added."""

    def end(self) -> Any:
        self.asked += 1
        return self.answer


def round_that_ends_in(answer: Any) -> tuple[EndsIn, Arrivals]:
    base, method = station("learning.method=fedavg"), EndsIn(answer)
    base = replace(base, method=method)
    _, arrivals = begun(base, start(base, 2), seen([0, 1], 2))
    arrivals.add(0, sent(1.0))
    return method, arrivals


NEW = torch.ones(WEIGHTS)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "None;"),
        (NEW, "a tensor of float32 and shape (3,);"),
        ((NEW, {}, {}), "a tuple of 3;"),
        ((None, {}), "None for the weights;"),
        ((NEW.numpy(), {}), "a NumPy array of shape (3,) for the weights;"),
        ((NEW.tolist(), {}), "a list of 3 for the weights;"),
        ((NEW[:2], {}), "a tensor of float32 and shape (2,) for the weights;"),
        ((NEW[:0], {}), "a tensor of float32 and shape (0,) for the weights;"),
        ((NEW.sum(), {}), "a tensor of float32 and shape () for the weights;"),
        ((NEW.reshape(1, -1), {}), "a tensor of float32 and shape (1, 3) for the weights;"),
        ((NEW.long(), {}), "a tensor of int64 and shape (3,) for the weights;"),
        ((NEW.to(torch.complex64), {}), "a tensor of complex64 and shape (3,) for the weights;"),
        ((NEW.to_sparse(), {}), "a sparse tensor of float32 and shape (3,) for the weights;"),
        ((NEW.to("meta"), {}), "a meta tensor of float32 and shape (3,) for the weights;"),
        ((NEW, None), "None for the state;"),
        ((NEW, [NEW]), "a list of 1 for the state;"),
        ((NEW, {"x": 3}), "a state with 3 for 'x';"),
        ((NEW, {3: NEW}), "a state with a tensor of float32 and shape (3,) for 3;"),
        ((NEW, {"x": NEW.to_sparse()}), "a state with a sparse tensor of float32 and shape (3,) for 'x';"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_a_reducer_ends_in_is_checked(answer: Any, words: str) -> None:
    _, arrivals = round_that_ends_in(answer)
    with pytest.raises(ValueError, match=re.escape(f"method 'fedavg': the end() of its reducer answered {words}")) as e:
        arrivals.reduce()
    assert "it must answer a pair: the new global weights, a dense tensor of 3 floating-point numbers" in str(e.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_reducer_ends_once(dtype: torch.dtype) -> None:
    method, arrivals = round_that_ends_in((NEW.to(dtype), {"x": NEW}))
    assert arrivals.reduce() is arrivals.reduce() is method.answer[0]
    state, _ = arrivals.end()
    assert state.weights is method.answer[0]
    assert state.method.keys() == {"x"}
    assert method.asked == 1


# What a method is told is not its own


class Writes(EndsIn):
    """Writes into arrays that it is told, where it is asked for something."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__((NEW, {}))
        self.where, self.name = where, name

    def steps(self, tau: Any) -> Any:
        if self.where == "steps":
            tau *= 0.5
        return tau

    def sizes(self, devices: Any, cpu_hz: Any) -> None:
        if self.where == "sizes":
            devices[:], cpu_hz[:] = 0, 1.0

    def write(self, where: str, now: Round) -> None:
        if where == self.where:
            getattr(now, self.name)[:] = 0

    def reference_steps(self, state: Any, now: Round) -> float:
        self.write("reference_steps", now)
        return 1.0

    def rules(self, state: Any, now: Round, common_gradient: Any) -> list[LocalRule]:
        rules = equal_rates(now)
        self.write("rules", now)
        return rules

    def reducer(self, state: Any, now: Round) -> Any:
        self.write("reducer", now)
        return self


@pytest.mark.parametrize("where", ["rules", "reference_steps"])
@pytest.mark.parametrize("name", ["selected", "tau", "cpu_hz"])
def test_a_method_that_writes_into_what_it_is_told_is_refused(where: str, name: str) -> None:
    base = replace(station("learning.method=fedavg"), method=Writes(where, name))
    plan = plan_round(base, start(base, 3), seen([1, 2], 3))
    assert plan is not None
    with pytest.raises(ValueError, match=rf"method 'fedavg': its rules\(\) or .* wrote into now.{name}, which"):
        local_rules(base, plan)
    assert plan.selected.tolist() == [1, 2]
    assert plan.now.tau.tolist() == [0.0, 1.0, 2.0]


class WritesWeights(EndsIn):
    """Writes into the global weights where it is asked for something."""

    def __init__(self, where: str) -> None:
        super().__init__((NEW, {}))
        self.where, self.weights = where, NEW

    def write(self, where: str) -> None:
        if where == self.where:
            self.weights.add_(2.0)

    def rules(self, state: Any, now: Round, common_gradient: Any) -> list[LocalRule]:
        self.weights = now.weights
        self.write("rules")
        return equal_rates(now)

    def reducer(self, state: Any, now: Round) -> Any:
        self.weights = now.weights
        self.write("reducer")
        return self

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        update.delta.zero_()  # it may: nobody else needs it
        self.write("add")

    def end(self) -> Any:
        self.write("end")
        return super().end()


@pytest.mark.parametrize("where", ["rules", "reducer", "add", "end"])
def test_a_method_that_writes_into_the_weights_is_refused(where: str) -> None:
    base = replace(station("learning.method=fedavg"), method=WritesWeights(where))
    state = start(base, 2)

    def one_round() -> None:
        _, arrivals = begun(base, state, seen([0, 1], 2))
        arrivals.add(0, sent(1.0))
        arrivals.end()

    by = "rules() or reference_steps()" if where == "rules" else "reducer"
    with pytest.raises(ValueError, match=re.escape(f"method 'fedavg': its {by} wrote into now.weights, which others")):
        one_round()
    assert state.weights.tolist() == [0.0] * WEIGHTS


class Starts(EndsIn):
    """Answers something else where a round begins."""

    def __init__(self, where: str, answer: Any) -> None:
        super().__init__((NEW, {}))
        self.where, self.first = where, answer

    def start(self, num_weights: int, num_devices: int) -> Any:
        return self.first if self.where == "start" else {}

    def enrol(self, state: Any, tau: Any) -> Any:
        return self.first if self.where == "enrol" else state

    def reducer(self, state: Any, now: Round) -> Any:
        return self.first if self.where == "reducer" else self


@pytest.mark.parametrize(
    ("where", "answer", "words"),
    [
        ("start", None, "its start() answered None; it must answer a dictionary of tensors"),
        ("start", [1], "its start() answered a list of 1; it must"),
        ("start", {"x": 1.0}, "its start() answered a state with 1.0 for 'x'; it must"),
        ("enrol", None, "its enrol() answered None; it must"),
        ("reducer", None, "its reducer() answered None, which has no add(); it must"),
        ("reducer", {1}.add, "which has no add()"),
    ],
)
def test_what_a_method_begins_a_round_with_is_checked(where: str, answer: Any, words: str) -> None:
    base = replace(station("learning.method=fedavg"), method=Starts(where, answer))
    with pytest.raises(ValueError, match=re.escape(words)):
        begun(base, start(base, 2), seen([0, 1], 2))


@pytest.mark.parametrize(
    ("where", "name"),
    [("steps", ""), ("sizes", ""), ("reducer", "selected"), ("reducer", "tau"), ("reducer", "cpu_hz")],
)
def test_what_a_method_writes_elsewhere_nobody_reads(where: str, name: str) -> None:
    base = replace(station("learning.method=fedavg"), method=Writes(where, name))
    reported = seen([1, 2], 3)
    tau = np.array([2.0, 4.0])
    reported = replace(reported, tau=tau)
    plan, arrivals = begun(base, start(base, 3), reported)
    arrivals.add(1, sent(1.0))
    _, record = arrivals.end()
    assert record.selected == [1, 2] == reported.devices.tolist()
    assert record.sent == [1]
    assert tau.tolist() == [2.0, 4.0]
    assert reported.cpu_hz.tolist() == [3e9, 3e9]
    assert plan.now.tau[1:].tolist() == record.tau == ([1.0, 2.0] if where == "steps" else [2.0, 4.0])


class Forgets(EndsIn):
    """Uses the memory of updates for something else."""

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        update.delta.zero_()


def test_what_is_known_of_an_update_is_that_of_the_update_as_it_came() -> None:
    base, kept = station("learning.method=fedavg", "scheduling.policy=divfl"), []
    for method in (EndsIn((NEW, {})), Forgets((NEW, {}))):
        own = replace(base, method=method)
        plan, arrivals = begun(own, start(own, 3), seen([0, 1, 2], 3))
        for device in plan.selected.tolist():
            arrivals.add(device, sent(1.0))
        kept.append(arrivals.end()[0].history)
    assert kept[0].sketch is not None
    assert kept[0].sketch.any()
    assert np.array_equal(kept[0].sketch, kept[1].sketch, equal_nan=True)
    assert np.array_equal(kept[0].update_norm, kept[1].update_norm, equal_nan=True)
