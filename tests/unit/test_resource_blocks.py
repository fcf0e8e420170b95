"""Whole resource blocks: selection and division are the best that whole blocks allow."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flare import CELLS, Cell, round_problem
from flare.rng import stream
from flare.scheduling import RoundProblem, Status, solve
from flare.scheduling.division import divide
from flare.scheduling.explain import explain
from tests.cells import alone_s, changed, paper_cell
from tests.oracles import brute_force, brute_force_blocks


def few_blocks(seed: int, *, num_devices: int = 4, own_deadlines: bool = False) -> RoundProblem:
    """A round of the paper's cell with 9 to 14 blocks."""
    rng = stream(seed, "blocks")
    cell = changed(paper_cell(seed, num_devices=num_devices, deadline_s=3.0), total_bandwidth_hz=2e6)
    return changed(
        cell,
        payload_bits=rng.uniform(5e5, 3e6, num_devices),
        block_hz=2e6 / rng.uniform(9.0, 15.0),
        due_s=rng.uniform(0.4, 3.0, num_devices) if own_deadlines else None,
    )


@pytest.mark.parametrize("own_deadlines", [False, True])
def test_the_division_is_the_best_over_all_divisions(own_deadlines: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    possible = 0
    for seed in range(40):
        problem = few_blocks(seed, own_deadlines=own_deadlines)
        for devices in ([0], [0, 1], [1, 2, 3], [0, 1, 2, 3]):
            least = brute_force_blocks(problem, devices)
            possible += math.isfinite(least)
            for halvings in (60, 0):  # 0: bisects on numbers of blocks, as where times are too coarse
                monkeypatch.setattr("flare.scheduling.resource_blocks._MAX_HALVINGS", halvings)
                assert_best_division(problem, np.array(devices), least)
    assert possible > 20


def assert_best_division(problem: RoundProblem, devices: np.ndarray, least_s: float) -> None:
    assert problem.min_latency(devices) == pytest.approx(least_s, rel=1e-11)
    if math.isinf(least_s):
        return
    split = divide(problem, devices)
    assert problem.block_hz is not None
    blocks = np.rint(split.bandwidth_hz / problem.block_hz)
    np.testing.assert_allclose(split.bandwidth_hz, blocks * problem.block_hz, rtol=1e-15)
    assert blocks.sum() == problem.num_blocks
    assert split.band_residual == 0.0
    assert split.finish_spread <= 1e-9


def test_the_certificate_tells_a_worse_division() -> None:
    # Two equal devices and ten blocks: 5 and 5 is best. On 6 and 4 the first has a block to spare.
    from flare.scheduling.resource_blocks import _certified

    compute_s, snr_hz, payload = np.zeros(2), np.full(2, 1e8), np.full(2, 1e6)
    due_s = np.full(2, np.inf)

    def spread(blocks: list[float]) -> float:
        return _certified(np.array(blocks), 10, compute_s, snr_hz, payload, due_s, 1e5).finish_spread

    assert spread([5.0, 5.0]) == 0.0
    assert spread([6.0, 4.0]) > 0.1


@pytest.mark.parametrize("seed", range(30))
def test_the_selection_is_the_best_for_whole_blocks(seed: int) -> None:
    problem = changed(few_blocks(seed, num_devices=8, own_deadlines=seed % 2 == 0), deadline_s=1.0)
    schedule = solve(problem)
    assert schedule.objective == pytest.approx(brute_force(problem), rel=1e-12)
    if schedule.num_selected == 0:
        return
    assert schedule.status is Status.OPTIMAL
    # What fits by `needed_hz` is what some division of whole blocks brings in by the deadline, and nothing else.
    for number in range(1, 4):
        devices = list(range(number))
        in_time = brute_force_blocks(problem, devices) <= problem.deadline_s * (1.0 + 1e-12)
        assert problem.fits(np.array(devices)) == in_time


def test_rounding_what_any_bandwidth_gives_misses_the_deadline_or_overflows() -> None:
    late = over = rounds = 0
    for seed in range(30):
        problem = paper_cell(seed, deadline_s=1.0)
        schedule = solve(problem)
        at = schedule.selected
        block_hz, num_blocks = 180e3, 55
        up = np.ceil(schedule.bandwidth_hz[at] / block_hz)
        down = np.maximum(np.floor(schedule.bandwidth_hz[at] / block_hz), 1.0)
        over += up.sum() > num_blocks
        rate = down * block_hz * np.log2(1.0 + problem.snr_hz[at] / (down * block_hz))
        late += bool((problem.compute_s[at] + problem.payload_bits[at] / rate > problem.deadline_s).any())
        in_blocks = solve(changed(problem, block_hz=block_hz))
        assert in_blocks.status is Status.OPTIMAL
        assert in_blocks.bandwidth_hz.sum() <= num_blocks * block_hz * (1.0 + 1e-12)
        assert (explain(in_blocks).finish_s[in_blocks.selected] <= problem.deadline_s * (1.0 + 1e-9)).all()
        rounds += 1
    assert over == rounds
    assert late > rounds / 4


def test_needs_are_whole_blocks_and_a_rounding_error_is_not_a_block() -> None:
    problem = changed(paper_cell(3), block_hz=180e3)
    blocks = problem.needed_hz / 180e3
    np.testing.assert_allclose(blocks, np.rint(blocks), rtol=1e-12)
    exactly = changed(paper_cell(3), block_hz=float(paper_cell(3).needed_hz[0]))
    assert exactly.needed_hz[0] == exactly.block_hz
    assert problem.num_blocks == 55
    assert changed(problem, block_hz=10e6 / 3.0).num_blocks == 3


def test_more_devices_than_blocks_never_end() -> None:
    problem = changed(paper_cell(0, num_devices=4, deadline_s=50.0), block_hz=4e6)
    assert problem.num_blocks == 2
    assert problem.min_latency(np.array([0, 1, 2])) == math.inf
    assert solve(problem).num_selected == 2


def test_an_even_division_is_as_even_as_whole_blocks_allow() -> None:
    problem = changed(paper_cell(5, deadline_s=1.0), block_hz=180e3)
    schedule = solve(problem, "dm")
    blocks = np.rint(schedule.bandwidth_hz[schedule.selected] / 180e3)
    assert blocks.sum() == 55
    assert np.ptp(blocks) <= 1
    assert schedule.latency_s <= 1.0
    assert schedule.num_selected > 2


def test_one_block_is_the_whole_band() -> None:
    problem = changed(paper_cell(1, num_devices=5, deadline_s=1.0), block_hz=10e6)
    schedule = solve(problem)
    assert schedule.num_selected == 1
    assert schedule.latency_s == pytest.approx(alone_s(problem)[schedule.selected[0]], rel=1e-12)


def test_what_the_guide_says_of_rounding_is_so() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "scheduling.md").read_text()
    cell = Cell(CELLS["paper"], seed=1)
    late_down = over_near = late_near = over_up = 0
    worse = []
    for index in range(200):
        problem = round_problem(cell.draw(index))
        schedule = solve(problem)
        at = schedule.selected
        blocks, least = schedule.bandwidth_hz[at] / 180e3, problem.needed_hz[at] / 180e3 * (1.0 - 1e-12)
        over_up += np.ceil(blocks).sum() > 55
        late_down += (np.floor(blocks) < least).any()
        over_near += np.rint(blocks).sum() > 55
        late_near += (np.rint(blocks) < least).any()
        worse.append(solve(changed(problem, block_hz=180e3)).objective / schedule.objective - 1.0)
    assert over_up == 200
    assert f"| down | – | in {late_down / 2:.0f} % of the rounds |" in page
    assert f"| to the nearest | in {over_near / 2:.0f} % | in {late_near / 2:.0f} % |" in page
    assert f"the objective is {100.0 * np.mean(worse):.1f} % above that of any bandwidth on average" in page
