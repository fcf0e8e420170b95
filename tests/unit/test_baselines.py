from __future__ import annotations

import math

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, RoundProblem, Status, solve, tune_num_selected
from tests.cells import changed, crossing_cell, hand_cell, paper_cell
from tests.conformance.rounds import needed_history

COUNTED = [name for name, one in POLICIES.items() if "num_selected" in one.options]


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("number", [0, -1])
def test_a_number_of_devices_under_one_is_refused(name: str, number: int) -> None:
    with pytest.raises(ValueError, match=rf"'num_selected' of policy '{name}' is {number}; it must be .*, at least 1"):
        solve(paper_cell(0), name, rng=stream(0), num_selected=number)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("number", [2.0, 1.5, "3", "abc", True, [1]])
def test_a_number_of_devices_that_is_none_is_refused(name: str, number: object) -> None:
    with pytest.raises(ValueError, match=rf"option 'num_selected' of policy '{name}' is .*; it must be a whole number"):
        solve(paper_cell(0), name, rng=stream(0), num_selected=number)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("number", [1, 2, 7, 40, 1000])
def test_no_more_devices_than_asked_for_are_taken(name: str, number: int) -> None:
    everybody_fits = paper_cell(0, deadline_s=20.0)
    known = needed_history(name, everybody_fits)
    taken = solve(everybody_fits, name, rng=stream(0), history=known, num_selected=number).num_selected
    assert taken <= min(number, 40) if name == "luo" else taken == min(number, 40)  # it may draw one device twice


@pytest.mark.parametrize("window", [0.5, 0.0, -1.0, math.nan])
def test_a_window_shorter_than_a_round_is_refused(window: float) -> None:
    with pytest.raises(ValueError, match=r"option 'window' of .* is .*; it must be a number, at least 1"):
        solve(paper_cell(0), "proportional-fair", rng=stream(0), window=window)


def test_ps_fills_up_to_its_number_with_those_that_fit() -> None:
    # Each needs 0.3 of the band: three fit, whoever is drawn.
    cell = hand_cell([1.0] * 8, [0.3] * 8, gamma=1.0)
    assert solve(cell, "ps", rng=stream(0), num_selected=8).num_selected == 3
    assert solve(cell, "ps", rng=stream(0), num_selected=2).num_selected == 2


def test_ps_passes_over_devices_out_of_reach_and_random_does_not() -> None:
    cell = hand_cell([1.0] * 10, [1.5] * 9 + [0.5], gamma=1.0)
    assert all(solve(cell, "ps", rng=stream(seed), num_selected=1).num_selected == 1 for seed in range(20))
    drawn = [solve(cell, "random", rng=stream(seed), num_selected=1) for seed in range(40)]
    assert {one.status for one in drawn} == {Status.FEASIBLE, Status.INFEASIBLE}
    assert all(math.isnan(one.lower_bound) for one in drawn if one.status is Status.INFEASIBLE)


@pytest.mark.parametrize("name", ["ps", "random"])
def test_every_device_is_drawn_equally_often(name: str) -> None:
    cell = paper_cell(0, num_devices=8, deadline_s=20.0)
    drawn = [solve(cell, name, rng=stream(1, "policy", r), num_selected=2).selected for r in range(1200)]
    counts = np.bincount(np.concatenate(drawn), minlength=8)
    # Expected 300 each, standard deviation sqrt(1200 x 1/4 x 3/4) = 15.
    assert np.abs(counts - 300).max() < 5 * 15


def test_cp_takes_the_best_channels_until_the_deadline() -> None:
    problem = paper_cell(1)
    chosen = solve(problem, "cp").selected
    best_first = np.argsort(-problem.snr_hz)
    best_first = best_first[np.isin(best_first, problem.reachable)]
    assert set(chosen) == set(best_first[: len(chosen)])
    assert not problem.fits(best_first[: len(chosen) + 1])


def test_cm_takes_the_largest_set_of_fastest_devices() -> None:
    problem = paper_cell(1)
    chosen = solve(problem, "cm").selected
    fastest = np.argsort(problem.compute_s)
    fastest = fastest[np.isin(fastest, problem.reachable)]
    assert set(chosen) == set(fastest[: len(chosen)])
    assert problem.fits(chosen)
    assert not problem.fits(fastest[: len(chosen) + 1])


def literal_dm(problem: RoundProblem) -> list[int]:
    """Add the device that delays the evenly shared round least, as long as the deadline holds."""
    chosen: list[int] = []
    free = [int(i) for i in problem.canonical_order if i in problem.reachable]

    def latency(devices: list[int]) -> float:
        share = problem.total_bandwidth_hz / len(devices)
        rate = share * np.log2(1.0 + problem.snr_hz[devices] / share)
        return float((problem.compute_s[devices] + problem.payload_bits[devices] / rate).max())

    def own_finish(device: int) -> float:  # tells devices apart that do not end the round
        share = problem.total_bandwidth_hz / (len(chosen) + 1)
        rate = share * np.log2(1.0 + problem.snr_hz[device] / share)
        return float(problem.compute_s[device] + problem.payload_bits[device] / rate)

    while free:
        best = min(free, key=own_finish)
        if latency([*chosen, best]) > problem.deadline_s:
            break
        chosen.append(best)
        free.remove(best)
    return sorted(chosen)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("deadline_s", [0.2, 0.5, 1.5])
def test_dm_is_its_literal_version(seed: int, deadline_s: float) -> None:
    problem = paper_cell(seed, deadline_s=deadline_s)
    assert solve(problem, "dm").selected.tolist() == literal_dm(problem)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stretch", [1.3, 1.7, 2.5])
def test_dm_is_its_literal_version_where_an_early_choice_may_end_the_round(seed: int, stretch: float) -> None:
    # A weak channel that computes fast finishes first on a large share and last on a small one.
    problem = crossing_cell(seed, stretch=stretch)
    assert solve(problem, "dm").selected.tolist() == literal_dm(problem)


def test_all_takes_the_largest_number_that_fits() -> None:
    problem = paper_cell(2, deadline_s=0.8)
    number = solve(problem, "all").num_selected
    cheapest = np.argsort(problem.needed_hz)
    assert problem.fits(cheapest[:number])
    assert not problem.fits(cheapest[: number + 1])


def test_proportional_fair_prefers_a_channel_that_is_good_for_itself() -> None:
    cell = changed(hand_cell([1.0] * 3, [0.1] * 3, gamma=1.0), snr_hz=[1e8, 1e9, 1e10])
    before = solve(cell, "proportional-fair", rng=stream(0), num_selected=1)
    np.testing.assert_array_equal(before.memory["device_average_snr_hz"], cell.snr_hz)
    risen = changed(cell, snr_hz=[2e8, 1e9, 0.9e10])  # the weakest doubles, the strongest falls
    after = solve(risen, "proportional-fair", rng=stream(1), num_selected=1, memory=before.memory, window=4.0)
    assert after.selected.tolist() == [0]
    np.testing.assert_allclose(
        after.memory["device_average_snr_hz"], [1.25e8, 1e9, 0.975e10], rtol=1e-15
    )  # a quarter of the way


def test_tuning_picks_the_number_of_the_least_mean_objective() -> None:
    rounds = [paper_cell(seed, num_devices=12, deadline_s=0.6) for seed in range(6)]

    def rng(turn: int) -> np.random.Generator:
        return stream(3, "policy", turn)

    means = [
        np.mean([solve(one, "ps", rng=rng(turn), num_selected=number).objective for turn, one in enumerate(rounds)])
        for number in range(1, 13)
    ]
    assert tune_num_selected(rounds, rng) == 1 + int(np.argmin(means))
    assert np.argmin(means) > 0


def test_tuning_counts_a_round_with_nobody_as_the_worst_single_device() -> None:
    # Round 0: nobody can meet the deadline, whatever the number. Round 1 decides.
    rounds = [hand_cell([2.0, 2.0], [1.5, 1.5], gamma=10.0), hand_cell([2.0, 2.0], [0.5, 0.5], gamma=10.0)]
    assert tune_num_selected(rounds, lambda turn: stream(0, turn)) == 2


def test_tuning_by_a_score_goes_through_every_number_of_devices() -> None:
    asked: list[int] = []

    def score(number: int) -> float:
        asked.append(number)
        return (number - 5.2) ** 2

    assert tune_num_selected([paper_cell(0, num_devices=9)], lambda turn: stream(0, turn), score=score) == 5
    assert asked == list(range(1, 10))


def test_tuning_without_rounds_and_score_is_refused() -> None:
    with pytest.raises(ValueError, match="problems is empty"):
        tune_num_selected([], lambda turn: stream(0, turn))


def test_tuning_by_a_score_without_rounds_is_refused_since_there_are_no_numbers_to_try() -> None:
    with pytest.raises(ValueError, match="problems is empty"):
        tune_num_selected([], lambda turn: stream(0, turn), score=lambda number: (number - 5.2) ** 2)
