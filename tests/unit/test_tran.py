"""Energy plus kappa times the time: against a plain minimiser, by hand, and by its conditions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from flare.scheduling import Hardware, RoundProblem, Schedule, solve
from flare.scheduling.cells import round_problem
from flare.scheduling.division import divide
from flare.scheduling.hardware import hardware_for
from flare.wireless.cell import CELLS, Cell


def drawn(seed: int, num_devices: int = 4) -> tuple[RoundProblem, Hardware]:
    wireless = replace(CELLS["paper"], num_devices=num_devices, total_bandwidth_hz=5e5 * num_devices)
    cell = Cell(wireless, seed).draw(0)
    return round_problem(cell), hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, wireless.capacitance)


def cost_of(schedule: Schedule, kappa: float) -> float:
    """E + kappa T, from the schedule's speeds, powers and times."""
    has, at = schedule.hardware, schedule.selected
    assert has is not None
    assert schedule.cpu_hz is not None
    assert schedule.power_w is not None
    computing_j = has.capacitance * has.cycles[at] * schedule.cpu_hz[at] ** 2
    return float((computing_j + schedule.power_w[at] * schedule.upload_s[at]).sum()) + kappa * schedule.latency_s


def least_cost_slowly(problem: RoundProblem, has: Hardware, kappa: float, min_speed: float) -> float:
    """The same by a general minimiser over the logarithms of speeds, bands and T, all written out."""
    number, total_hz = problem.num_devices, problem.total_bandwidth_hz

    def parts(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        speed_hz, band_hz, end_s = np.exp(logs[:number]), np.exp(logs[number:-1]), float(np.exp(logs[-1]))
        send_s = np.maximum(end_s - has.cycles / speed_hz, 1e-6)
        needed = np.minimum(problem.payload_bits / send_s / band_hz, 500.0)
        return speed_hz, band_hz, band_hz / problem.snr_hz * (2.0**needed - 1.0) * send_s * has.power_w, end_s

    def cost(logs: np.ndarray) -> float:
        speed_hz, _, sending_j, end_s = parts(logs)
        return float((has.capacitance * has.cycles * speed_hz**2 + sending_j).sum()) + kappa * end_s

    def room(logs: np.ndarray) -> np.ndarray:
        speed_hz, band_hz, sending_j, end_s = parts(logs)
        send_s = np.maximum(end_s - has.cycles / speed_hz, 1e-6)
        return np.append(-np.log(sending_j / send_s / has.power_w), -math.log(band_hz.sum() / total_hz))

    fastest = np.log(has.cpu_hz)
    start = [
        *fastest,
        *np.full(number, math.log(total_hz / number)),
        math.log(3.0 * problem.min_latency(np.arange(number))),
    ]
    limits = [(high + math.log(min_speed), high) for high in fastest] + [(None, None)] * (number + 1)
    options = {"ftol": 1e-13, "maxiter": 1000}
    constraint = {"type": "ineq", "fun": room}
    return float(minimize(cost, start, method="SLSQP", bounds=limits, constraints=constraint, options=options).fun)


@pytest.mark.parametrize("kappa", [1e-3, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_optimum_of_a_general_minimiser(seed: int, kappa: float) -> None:
    problem, has = drawn(seed)
    schedule = solve(problem, "tran", hardware=has, kappa=kappa, min_speed=0.2)
    assert schedule.selected.tolist() == [0, 1, 2, 3]
    assert cost_of(schedule, kappa) == pytest.approx(least_cost_slowly(problem, has, kappa, 0.2), rel=1e-8)


def test_twin_devices_by_hand() -> None:
    # Two equal devices at a speed f each, half of the band B/2 = 1 Hz, S ln2 = 1, snr 10 Hz, P = 1 W, a = 1/2, c = 1.
    # For f = 1: mu = 2 a f^3 = 1, so that kappa = 2 mu = 2. s solves (b P / snr) phi(1 / s) = mu: phi(u) = 10.
    nats = 2.0
    for _ in range(50):
        nats -= (1.0 + (nats - 1.0) * math.exp(nats) - 10.0) / (nats * math.exp(nats))
    problem = RoundProblem([1.0, 1.0], [0.5, 0.5], [10.0, 10.0], 1.0 / math.log(2.0), 2.0, 1e-3)
    has = Hardware([2.0, 2.0], [1.0, 1.0], [1.0, 1.0], 0.5)
    schedule = solve(problem, "tran", hardware=has, kappa=2.0)
    assert schedule.cpu_hz == pytest.approx([1.0, 1.0])
    assert schedule.upload_s == pytest.approx([1.0 / nats] * 2)
    assert schedule.latency_s == pytest.approx(1.0 + 1.0 / nats)
    assert schedule.power_w == pytest.approx([(math.exp(nats) - 1.0) / 10.0] * 2)
    assert schedule.problem.deadline_s == pytest.approx(schedule.latency_s)  # later than the 1 ms that was asked for


def test_the_dearer_a_second_the_sooner_the_round_ends_and_the_more_it_takes() -> None:
    problem, has = drawn(3, num_devices=20)
    rounds = [solve(problem, "tran", hardware=has, kappa=kappa) for kappa in (1e-2, 1.0, 1e2, 1e4)]
    times_s = [one.latency_s for one in rounds]
    energies_j = [cost_of(one, 0.0) for one in rounds]
    assert times_s == sorted(times_s, reverse=True)
    assert energies_j == sorted(energies_j)
    assert times_s[-1] == pytest.approx(problem.min_latency(np.arange(20)))  # everybody as fast as can be
    assert (rounds[-1].cpu_hz == has.cpu_hz).all()


CELLS_OF_FEW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one": ({"num_devices": 1}, {}),
    "two": ({"num_devices": 2}, {}),
    "three, computing is dear": ({"num_devices": 3, "capacitance": 1e-25}, {}),
    "two, computing is dearest": ({"num_devices": 2, "capacitance": 5e-25}, {}),
    "three, computing is cheap": ({"num_devices": 3, "capacitance": 1e-30}, {}),
    "three with slow processors": ({"num_devices": 3, "cpu_min_hz": 1e8, "cpu_max_hz": 2e8}, {}),
    "two of forty": ({}, {"max_devices": 2}),
    "two with deadlines of their own": ({"num_devices": 2, "capacitance": 1e-26}, {"due_s": np.array([1.03, 2.02])}),
}


@pytest.mark.parametrize("name", CELLS_OF_FEW)
def test_no_plan_is_dearer_than_one_for_another_price_of_time(name: str) -> None:
    """Each can be had at any price. Of a few devices some jump from one limit to another as the round ends later."""
    cell_options, round_options = CELLS_OF_FEW[name]
    wireless = replace(CELLS["paper"], fading="rayleigh", **cell_options)
    prices = np.geomspace(1e-4, 10.0, 16).tolist()
    for seed in (*range(5), 15):
        for draw in (0, 1):
            cell = Cell(wireless, seed).draw(draw)
            has = hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, wireless.capacitance)
            problem = replace(round_problem(cell), **round_options)
            plans = [solve(problem, "tran", hardware=has, kappa=kappa) for kappa in prices]
            everybody = max(plan.num_selected for plan in plans)
            for kappa, own in zip(prices, plans, strict=True):
                assert own.num_selected == everybody
                assert cost_of(own, kappa) <= (1.0 + 1e-9) * min(cost_of(plan, kappa) for plan in plans)


def least_cost_on_bands(problem: RoundProblem, has: Hardware, kappa: float, band_hz: np.ndarray) -> float:
    """The least of E + kappa T where each device has its band: over T, and for each T over each speed alone."""
    power_w, at_full_s = has.power_w, problem.payload_bits / band_hz / np.log2(1.0 + problem.snr_hz / band_hz)

    def energy_j(send_s: float, device: int, end_s: float) -> float:
        nats = problem.payload_bits[device] * math.log(2.0) / send_s / band_hz[device]
        sent_w = power_w[device] * band_hz[device] / problem.snr_hz[device] * math.expm1(nats)
        return float(has.capacitance * has.cycles[device] ** 3 / (end_s - send_s) ** 2 + sent_w * send_s)

    def cost(log_end: float) -> float:
        end_s, total_j = math.exp(log_end), 0.0
        for device in range(problem.num_devices):
            latest_s = end_s - has.cycles[device] / has.cpu_hz[device]
            least_s = min(max(at_full_s[device], end_s - has.cycles[device] / (0.1 * has.cpu_hz[device])), latest_s)
            found = minimize_scalar(
                energy_j, bounds=(least_s, latest_s), args=(device, end_s), method="bounded", options={"xatol": 1e-12}
            )
            total_j += min(found.fun, energy_j(least_s, device, end_s), energy_j(latest_s, device, end_s))
        return total_j + kappa * end_s

    soonest = math.log(float((at_full_s + has.cycles / has.cpu_hz).max()))
    late = minimize_scalar(cost, bounds=(soonest, soonest + 8.0), method="bounded", options={"xatol": 1e-12})
    return min(cost(soonest), float(late.fun))


@pytest.mark.parametrize("kappa", [0.01, 1.0, 10.0])
def test_in_whole_blocks_times_and_speeds_are_the_best_for_the_bands(kappa: float) -> None:
    for seed in range(4):
        cell = Cell(replace(CELLS["paper"], num_devices=5, fading="rayleigh", block_hz=180e3), seed).draw(0)
        has, problem = hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, 1e-28), round_problem(cell)
        schedule = solve(problem, "tran", hardware=has, kappa=kappa)
        assert schedule.selected.tolist() == [0, 1, 2, 3, 4]
        least = least_cost_on_bands(problem, has, kappa, schedule.bandwidth_hz)
        assert cost_of(schedule, kappa) == pytest.approx(least, rel=1e-6)


def test_where_a_second_is_dear_whole_blocks_are_those_of_the_earliest_end() -> None:
    """Rounded from the optimum in any parts, somebody would lack a block, and all would wait."""
    for seed in range(4):
        cell = Cell(replace(CELLS["paper"], num_devices=7, fading="rayleigh", block_hz=180e3), seed).draw(0)
        has, problem = hardware_for(cell.compute_s, cell.cpu_hz, cell.power_w, 1e-30), round_problem(cell)
        soonest_s = divide(problem, np.arange(7)).latency_s
        assert solve(problem, "tran", hardware=has, kappa=1e4).latency_s == pytest.approx(soonest_s, rel=1e-6)


def test_everybody_is_done_at_the_end_and_the_band_is_used_up() -> None:
    problem, has = drawn(4, num_devices=20)
    schedule = solve(problem, "tran", hardware=has)
    assert schedule.num_selected == 20
    assert schedule.finish_spread <= 1e-9
    assert schedule.band_residual <= 1e-9


@pytest.mark.parametrize("num_devices", [1, 2, 5])
def test_deadlines_of_their_own_at_the_earliest_end_leave_one_plan(num_devices: int) -> None:
    for seed in range(5):
        problem, has = drawn(seed, num_devices=num_devices)
        soonest_s = problem.min_latency(np.arange(num_devices))
        due = replace(problem, due_s=np.full(num_devices, soonest_s))
        for kappa in (1e-3, 1e3):
            schedule = solve(due, "tran", hardware=has, kappa=kappa)
            assert schedule.num_selected == num_devices
            assert schedule.latency_s == pytest.approx(soonest_s, rel=1e-9)


def test_who_takes_part_goes_by_processors_where_devices_are_alike_otherwise() -> None:
    """Not by the order in which they are listed."""
    problem = RoundProblem([3.0, 3.0], [0.1, 0.1], [1e7, 1e7], 1e6, 1e7, 1.0, max_devices=1)
    speeds = []
    for order in ([0, 1], [1, 0]):
        cpu_hz, power_w = np.array([4e9, 1e9])[order], np.array([0.1, 0.5])[order]
        schedule = solve(problem, "tran", hardware=Hardware(cpu_hz, power_w, 0.1 * cpu_hz, 1e-28))
        speeds.append(cpu_hz[schedule.selected].tolist())
    assert speeds[0] == speeds[1]


def test_own_deadlines_limits_and_blocks_are_kept() -> None:
    problem, has = drawn(5, num_devices=12)
    free = solve(problem, "tran", hardware=has)
    due_s = np.full(12, 100.0)
    due_s[3] = 0.8 * free.latency_s
    due = solve(replace(problem, due_s=due_s), "tran", hardware=has)
    assert due.num_selected == 12
    assert (due.compute_s + due.upload_s)[3] == pytest.approx(due_s[3])
    assert due.latency_s > due_s[3]
    few = solve(replace(problem, max_devices=5, must=[0, 7], never=[2]), "tran", hardware=has)
    assert few.num_selected == 5
    assert {0, 7} <= set(few.selected.tolist())
    blocks = solve(replace(problem, block_hz=problem.total_bandwidth_hz / 40.0), "tran", hardware=has)
    assert blocks.num_selected == 12
    assert cost_of(free, 1.0) < cost_of(blocks, 1.0) < 1.1 * cost_of(free, 1.0)
