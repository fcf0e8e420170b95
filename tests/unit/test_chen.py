"""Chen's packet errors against the integral, its assignment against all others, its limits, and lost packets."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from flare.rng import stream
from flare.scheduling import History, RoundProblem, Schedule, solve
from flare.scheduling.systems.chen import assigned, least_of_exponentials, packet_error, power_share
from tests.cells import changed, paper_cell
from tests.conformance.rounds import made_up_hardware


@pytest.mark.parametrize("ratio", [1e-6, 0.01, 0.3, 1.0, 20.0])
def test_the_packet_error_is_the_mean_over_rayleigh_fading(ratio: float) -> None:
    arrives, _ = quad(lambda h: math.exp(-h - ratio / h), 0.0, math.inf, epsabs=1e-13, epsrel=1e-12, limit=500)
    assert packet_error(np.array(ratio)) == pytest.approx(1.0 - arrives, rel=1e-6, abs=1e-11)
    assert packet_error(np.array(ratio), "none") == pytest.approx(1.0 - math.exp(-ratio))


def test_errors_at_the_ends() -> None:
    assert packet_error(np.array([1e-300, 1e300])).tolist() == [0.0, 1.0]


def best_by_brute_force(worth: np.ndarray, must: np.ndarray) -> tuple[int, float]:
    """How many of `must` can be served at most, and then the greatest worth, over all assignments."""
    devices, blocks = worth.shape
    best = (0, 0.0)
    for places in itertools.product(range(-1, blocks), repeat=devices):
        used = [each for each in places if each >= 0]
        pairs = [(i, k) for i, k in enumerate(places) if k >= 0]
        if len(set(used)) < len(used) or any(worth[pair] == 0.0 for pair in pairs):
            continue
        value = (sum(bool(must[i]) for i, _ in pairs), math.fsum(worth[pair] for pair in pairs))
        best = max(best, value)
    return best


@pytest.mark.parametrize("shape", [(4, 2), (4, 4), (3, 5), (5, 3)])
def test_the_assignment_equals_brute_force(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(shape))
    for turn in range(12):
        worth = rng.exponential(size=shape) * rng.integers(1, 50, (shape[0], 1)) * (rng.random(shape) < 0.7)
        must = rng.random(shape[0]) < (0.3 if turn % 2 else 0.0)
        devices, blocks = assigned(worth, must)
        assert len(set(blocks.tolist())) == len(blocks)
        served, total = best_by_brute_force(worth, must)
        assert int(must[devices].sum()) == served
        assert math.fsum(worth[devices, blocks]) == pytest.approx(total, rel=1e-12)


def test_nothing_is_assigned_where_nothing_arrives() -> None:
    devices, blocks = assigned(np.zeros((3, 2)), np.zeros(3, dtype=bool))
    assert len(devices) == len(blocks) == 0


def test_the_least_of_many_exponentials() -> None:
    drawn = np.array([least_of_exponentials(5, 3, stream(turn, "chen")) for turn in range(4000)])
    # The mean of the j-th least of 5: 1/5, then 1/4 more, then 1/3 more; its variance the squares of these.
    for place, gaps in enumerate(([5], [5, 4], [5, 4, 3])):
        mean, spread = sum(1.0 / each for each in gaps), math.sqrt(sum(1.0 / each**2 for each in gaps))
        assert abs(drawn[:, place].mean() - mean) < 4.0 * spread / math.sqrt(4000)


def test_no_more_energy_is_spent_than_there_is() -> None:
    snr_hz, room_j = np.array([[1e6, 4e6]]), np.array([[0.015]])
    share = power_share(np.array([[1e5]]), 1e5, snr_hz, np.array([[0.1]]), room_j)
    spent_j = 0.1 * share * 1e5 / (1e5 * np.log2(1.0 + share * snr_hz / 1e5))
    np.testing.assert_allclose(spent_j, 0.015, rtol=1e-8)
    assert (share < 1.0).all()
    # In the limit of no power a bit takes ln 2 N_0 / h joule: 1e5 bits x ln 2 x 0.1 / 1e6 = 0.00693.
    plenty = power_share(np.array([[1e5]]), 1e5, np.array([[1e6]]), np.array([[0.1]]), np.array([[0.05]]))
    assert plenty == 1.0  # 0.1 W for 1 / log2(11) = 0.29 s
    assert power_share(np.array([[1e5]]), 1e5, np.array([[1e6]]), np.array([[0.1]]), np.array([[0.0069]])) == 0.0
    assert power_share(np.array([[1e5]]), 1e5, np.array([[1e6]]), np.array([[0.1]]), np.array([[0.0070]])) > 0.0


def chosen(problem: RoundProblem, **options: object) -> Schedule:
    history = History.empty(problem.num_devices, num_samples=np.arange(1.0, 1.0 + problem.num_devices))
    return solve(
        problem, "chen", rng=stream(2, "policy"), history=history, hardware=made_up_hardware(problem), **options
    )


def test_two_devices_by_hand() -> None:
    # No interference, two blocks of 0.5 MHz: x = 10^0.0023 x 0.5e6 / snr.
    cell = RoundProblem(np.ones(2), np.zeros(2), np.array([1e6, 2e6]), 1e5, 1e6, 10.0)
    schedule = chosen(cell, num_blocks=2, interference=0.0, fading="none")
    assert schedule.selected.tolist() == [0, 1]
    assert schedule.bandwidth_hz.tolist() == [5e5, 5e5]
    ratio = 10**0.0023 * np.array([0.5, 0.25])
    np.testing.assert_allclose(schedule.error_rate, 1.0 - np.exp(-ratio), rtol=1e-12)  # type: ignore[arg-type]
    np.testing.assert_allclose(schedule.weights, [1 / 3, 2 / 3], rtol=1e-12)  # type: ignore[arg-type]
    assert schedule.keep_total
    # The round ends with the weaker device: 1e5 bits at 0.5e6 log2(1 + 2) bit/s.
    assert schedule.latency_s == pytest.approx(0.2 / math.log2(3.0))


def test_interference_slows_and_loses_more() -> None:
    cell = RoundProblem(np.ones(1), np.zeros(1), np.array([1e6]), 1e5, 1e6, 10.0)
    schedule = chosen(cell, num_blocks=1, interference=2.0)
    noise = 1.0 + 2.0 * stream(2, "policy").exponential()
    assert schedule.latency_s == pytest.approx(0.1 / math.log2(1.0 + 1.0 / noise))
    assert schedule.error_rate == pytest.approx(packet_error(np.array([10**0.0023 * noise])))


def test_delay_and_energy_limits_hold() -> None:
    cell = paper_cell(3, deadline_s=1.0)
    hardware = made_up_hardware(cell)
    free = chosen(cell, num_blocks=8)
    limit_j = float(np.median(hardware.compute_energy_j))
    bound = chosen(cell, num_blocks=8, max_energy_j=limit_j)
    assert bound.num_selected > 0
    at = bound.selected
    assert bound.power_w is not None
    spent_j = hardware.compute_energy_j[at] + bound.power_w[at] * bound.upload_s[at]
    assert (spent_j <= limit_j * (1.0 + 1e-9)).all()
    assert (bound.compute_s[at] + bound.upload_s[at] <= 1.0).all()
    assert bound.selected.tolist() != free.selected.tolist()
    assert chosen(changed(cell, deadline_s=1e-3), num_blocks=8).num_selected == 0


def test_each_sender_has_one_block_of_the_round() -> None:
    cell = changed(paper_cell(3, deadline_s=2.0), block_hz=5e5)
    schedule = chosen(cell)
    assert schedule.num_selected > 3
    assert set(schedule.bandwidth_hz[schedule.selected].tolist()) == {5e5}
    with pytest.raises(ValueError, match="num_blocks = 7, but the band has 20 blocks"):
        chosen(cell, num_blocks=7)


def test_those_who_must_send_do_and_others_do_not() -> None:
    cell = changed(paper_cell(3, deadline_s=2.0), must=[2, 9], never=[39], max_devices=4)
    selected = chosen(cell, num_blocks=8).selected.tolist()
    assert len(selected) == 4
    assert {2, 9} <= set(selected)
    assert 39 not in selected
    weak = changed(cell, snr_hz=np.where(np.arange(40) == 2, 1e-6, cell.snr_hz))
    assert chosen(weak, num_blocks=8).num_selected == 0


@pytest.mark.parametrize("samples", [[0.0, 10.0, 10.0], [0.0, 0.0, 0.0]])
def test_those_who_must_send_do_also_where_they_hold_nothing(samples: list[float]) -> None:
    problem = RoundProblem([1.0, 2.0, 3.0], [0.1] * 3, [1e8] * 3, 1e6, 1e7, 1.0, must=[0])
    history, has = History.empty(3, num_samples=samples), made_up_hardware(problem)
    assert 0 in solve(problem, "chen", hardware=has, history=history, rng=stream(0, "test")).selected


def test_equal_samples_are_the_plain_mean() -> None:
    cell = paper_cell(3, deadline_s=2.0)
    schedule = solve(cell, "chen", rng=stream(0, "p"), hardware=made_up_hardware(cell), num_blocks=4)
    assert schedule.weights is None
    assert not schedule.keep_total


def test_hardware_is_asked_for() -> None:
    with pytest.raises(ValueError, match="hardware"):
        solve(paper_cell(3), "chen", rng=stream(0, "p"))
