"""OCEAN: its queues by hand, its budget over a run, and what it does with computing, limits and the end of the run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flare.config import Config, override
from flare.rounds.base_station import policy_options
from flare.scheduling import Hardware, RoundProblem, Schedule, solve
from flare.scheduling.cells import round_problem
from flare.scheduling.hardware import hardware_for
from flare.wireless.cell import CELLS, Cell

WIRELESS = replace(CELLS["paper"], num_devices=8, total_bandwidth_hz=4e6, deadline_s=1.0)
BUDGET_J, HORIZON = 0.12, 15


def rounds(seed: int, number: int) -> list[tuple[RoundProblem, Hardware]]:
    cell = Cell(WIRELESS, seed)
    drawn = [cell.draw(index) for index in range(number)]
    return [
        (round_problem(one), hardware_for(one.compute_s, one.cpu_hz, one.power_w, WIRELESS.capacitance))
        for one in drawn
    ]


def run(seed: int, number: int = HORIZON, **options: Any) -> list[Schedule]:
    schedules: list[Schedule] = []
    for problem, has in rounds(seed, number):
        memory = schedules[-1].memory if schedules else None
        given = {"horizon": HORIZON, "energy_budget_j": BUDGET_J, **options}
        schedules.append(solve(problem, "xu", hardware=has, memory=memory, **given))
    return schedules


def sent_j(schedule: Schedule) -> np.ndarray:
    """What each device radiates, from the power and time of the schedule."""
    energy_j = np.zeros(schedule.problem.num_devices)
    if schedule.num_selected:
        assert schedule.power_w is not None
        at = schedule.selected
        energy_j[at] = schedule.power_w[at] * schedule.upload_s[at]
    return energy_j


def test_a_queue_by_hand() -> None:
    # One device on the whole band of 1 Hz with 1 s to send S ln2 = 1 nat at snr 10: share (e - 1) / 10 of 1 W, so that
    # E = 0.17183 J a round. H / T = 0.1 J. Queue: 0, then 0.0718.., 0.1436...: it sends while queue x E <= V eta.
    problem = RoundProblem([1.0], [1.0], [10.0], 1.0 / math.log(2.0), 1.0, 2.0)
    has = Hardware([1.0], [1.0], [1.0], 0.0)
    energy_j = (math.e - 1.0) / 10.0
    queue_j, memory, sent = 0.0, None, []
    for _ in range(6):
        options = {"horizon": 10, "energy_budget_j": 1.0, "v_j2": 0.02, "rising": False}
        schedule = solve(problem, "xu", hardware=has, memory=memory, **options)
        expected = queue_j * energy_j < 0.02
        assert bool(schedule.num_selected) == expected
        assert sent_j(schedule)[0] == pytest.approx(energy_j * expected)
        queue_j = max(queue_j + energy_j * expected - 0.1, 0.0)
        memory = schedule.memory
        assert memory["device_queue_j"][0] == pytest.approx(queue_j)
        sent.append(expected)
    assert sent == [True, True, False, True, True, False]  # 0, 0.072, 0.144, 0.044, 0.116, 0.187 J x E, against 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_the_budget_is_exceeded_by_no_more_than_the_queue_and_the_queue_is_bounded(seed: int) -> None:
    v_j2 = 1e-4
    schedules = run(seed, v_j2=v_j2)
    energy_j = np.array([sent_j(one) for one in schedules])
    spent_j = energy_j.sum(axis=0)
    queue_j = schedules[-1].memory["device_queue_j"]
    np.testing.assert_allclose(spent_j, schedules[-1].memory["device_spent_j"], rtol=1e-9)
    assert (spent_j <= BUDGET_J + queue_j + 1e-12).all()  # guaranteed
    for device in range(WIRELESS.num_devices):
        used_j = energy_j[energy_j[:, device] > 0.0, device]
        if used_j.size:
            bound_j = 2.0 * v_j2 / used_j.min() + used_j.max()
            assert queue_j[device] <= bound_j
    assert max(queue_j) > 0.0  # the budget does bind
    freely = np.array([sent_j(one) for one in run(seed, v_j2=1e9)]).sum(axis=0)
    assert freely.max() > 2.0 * spent_j.max()


def test_a_strict_budget_is_never_exceeded() -> None:
    for budget_j in (0.02, 0.1):
        spent_j = sum(sent_j(one) for one in run(3, energy_budget_j=budget_j, v_j2=1e9, strict=True))
        assert spent_j.max() > 0.5 * budget_j
        assert (spent_j <= budget_j * (1.0 + 1e-9)).all()


def test_nobody_costs_more_than_it_is_worth_and_power_is_what_the_deadline_takes() -> None:
    before_j = np.zeros(WIRELESS.num_devices)
    for index, one in enumerate(run(4, v_j2=1e-4), start=1):
        worth = 1e-4 * 2.0 * index / (HORIZON + 1.0)
        assert (before_j * sent_j(one) <= worth * (1.0 + 1e-9)).all()
        if one.num_selected:
            np.testing.assert_allclose((one.compute_s + one.upload_s)[one.selected], one.problem.deadline_s, rtol=1e-9)
        before_j = one.memory["device_queue_j"]


@pytest.mark.parametrize(
    ("v_j2", "budget_j", "senders"), [(1e300, 1e-6, 40), (1e308, 1e-300, 0), (5e-324, 1e300, 0), (10.0, 5e-324, 0)]
)
def test_options_without_measure_end_in_a_schedule(v_j2: float, budget_j: float, senders: int) -> None:
    """V beyond all energies was no number any more, and sets were listed for ever."""
    cell = Cell(replace(CELLS["paper"], payload_bits=1e3, deadline_s=1.0), 0).draw(0)
    has = hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, 1e-28)
    schedule = solve(round_problem(cell), "xu", hardware=has, v_j2=v_j2, energy_budget_j=budget_j)
    assert schedule.num_selected == senders


def test_later_rounds_have_more_senders_where_eta_rises() -> None:
    def more_at_the_end(schedules: list[Schedule]) -> int:
        numbers = [one.num_selected for one in schedules]
        return sum(numbers[-5:]) - sum(numbers[:5])

    assert more_at_the_end(run(5)) > more_at_the_end(run(5, rising=False))


def test_after_the_horizon_the_allowance_goes_on() -> None:
    schedules = run(6, number=2 * HORIZON)
    spent_j = sum(sent_j(one) for one in schedules[HORIZON:])
    assert (spent_j <= BUDGET_J + schedules[-1].memory["device_queue_j"] + 1e-12).all()
    assert max(one.num_selected for one in schedules[HORIZON:]) > 0


def test_computing_counts_where_it_is_asked_for() -> None:
    (problem, has), *_ = rounds(7, 1)
    schedule = solve(problem, "xu", hardware=has, count_computing=True)
    told_j = schedule.memory["device_spent_j"]
    np.testing.assert_allclose(told_j[schedule.selected], (sent_j(schedule) + has.compute_energy_j)[schedule.selected])


def test_in_whole_blocks_nobody_stays_without_whom_the_others_are_worth_more() -> None:
    """The set is chosen with bands in any parts; rounded, one device may take most of what all bring."""
    wireless = replace(CELLS["paper"], num_devices=5, total_bandwidth_hz=1.2e6, fading="rayleigh", deadline_s=8.0)
    worth, left_out = 1e-3, 0
    options = {"horizon": 20, "energy_budget_j": 0.05, "rising": False, "v_j2": worth}
    for seed in range(60):
        cell = Cell(wireless, seed).draw(0)
        has = hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, wireless.capacitance)
        problem = replace(round_problem(cell), block_hz=2e5)
        queue_j = np.random.default_rng(seed).exponential(0.2, 5)
        past = {"round": np.asarray(3), "device_queue_j": queue_j, "device_spent_j": np.zeros(5)}

        def value_of(schedule: Schedule, queue_j: np.ndarray = queue_j) -> float:
            return float((worth - queue_j * sent_j(schedule))[schedule.selected].sum())

        schedule = solve(problem, "xu", hardware=has, memory=past, **options)
        for device in schedule.selected:
            rest = [int(other) for other in schedule.selected if other != device]
            others = replace(problem, must=rest, never=[each for each in range(5) if each not in rest])
            without = solve(others, "xu", hardware=has, memory=past, **options)
            assert without.selected.tolist() == sorted(rest)
            assert value_of(without) <= value_of(schedule) + 1e-12
        in_parts = solve(replace(problem, block_hz=None), "xu", hardware=has, memory=past, **options)
        left_out += in_parts.num_selected - schedule.num_selected
    assert left_out > 0


def test_who_must_send_does_whatever_its_queue() -> None:
    (problem, has), *_ = rounds(8, 1)
    memory = {"round": np.asarray(3), "device_queue_j": np.full(8, 1e6), "device_spent_j": np.full(8, 1.0)}
    assert solve(problem, "xu", hardware=has, memory=memory).num_selected == 0
    for strict in (False, True):
        forced = solve(replace(problem, must=[2]), "xu", hardware=has, memory=memory, strict=strict)
        assert forced.selected.tolist() == [2]


def test_in_a_run_budgets_are_planned_over_its_rounds() -> None:
    settings = ["scheduling.policy=xu", "run.rounds=7"]
    assert policy_options(override(Config(), settings)) == {"horizon": 7}
    own = override(Config(), [*settings, "scheduling.options.horizon=30"])
    assert policy_options(own) == {"horizon": 30}
    # a run that ends by the clock has time for 2 / 0.5 rounds, or for all where that is more; the last one may be late
    for seconds, deadline_s, planned in ((2.0, 0.5, 4), (2.2, 0.5, 5), (2.1, 0.7, 3), (1e9, 0.5, 7), (5e-324, 0.5, 1)):
        timed = [*settings, f"wireless.deadline_s={deadline_s}", f"run.seconds={seconds}"]
        assert policy_options(override(Config(), timed)) == {"horizon": planned}
    guarded = [*settings, "wireless.deadline_s=0.5", "wireless.guard=0.2", "run.seconds=2"]  # a round takes 0.4 s
    assert policy_options(override(Config(), guarded)) == {"horizon": 5}
    assert policy_options(override(Config(), ["scheduling.policy=cp", "run.rounds=7"])) == {}
    (problem, has), *_ = rounds(3, 1)
    alone, told = (solve(problem, "xu", hardware=has, **given) for given in ({}, {"horizon": 100}))
    np.testing.assert_array_equal(alone.bandwidth_hz, told.bandwidth_hz)
