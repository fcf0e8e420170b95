"""Ren's probabilities by hand and against perturbations, and an estimate that is unbiased over all draws."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import History, Probed, RoundProblem, solve
from flare.scheduling.systems.ren import des_raj_weights, probabilities
from tests.cells import changed, hand_cell, paper_cell
from tests.conformance.rounds import made_up_history


def objective(likely: np.ndarray, importance: np.ndarray, upload_s: np.ndarray, rho: float) -> float:
    return float(rho * (importance**2 / likely).sum() + (1.0 - rho) * (likely * upload_s).sum())


def test_probabilities_by_hand() -> None:
    # With lambda = 0, pi = p ||g|| sqrt(0.5 / (0.5 T)) = p ||g|| / sqrt(T): 0.5 / 1 and 1 / 2, whose sum is 1.
    np.testing.assert_allclose(probabilities(np.array([0.5, 1.0]), np.array([1.0, 4.0]), 0.5), [0.5, 0.5], rtol=1e-12)
    # Time does not count.
    np.testing.assert_allclose(
        probabilities(np.array([1.0, 3.0, 0.0]), np.array([9.0, 1.0, 1.0]), 1.0), [0.25, 0.75, 0]
    )


def test_nobody_of_importance_is_nobody_likely() -> None:
    assert probabilities(np.zeros(3), np.ones(3), 0.5).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rho", [1e-6, 0.3, 0.99])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_no_other_probabilities_are_better(rho: float, scale: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        importance, upload_s = rng.exponential(size=6) * scale, rng.exponential(size=6)
        best = probabilities(importance, upload_s, rho)
        assert math.isclose(best.sum(), 1.0, rel_tol=1e-12)
        least = objective(best, importance, upload_s, rho)
        for step in (1e-3, 0.1, 1.0):
            other = best * np.exp(step * rng.normal(size=6))
            assert objective(other / other.sum(), importance, upload_s, rho) >= least * (1.0 - 1e-12)


def test_relative_probabilities_do_not_depend_on_units() -> None:
    importance, upload_s = np.array([0.2, 0.5, 0.1]), np.array([1.0, 2.0, 0.5])
    plain = probabilities(importance, upload_s, 0.4, relative=True)
    np.testing.assert_allclose(plain, probabilities(1e3 * importance, 1e-3 * upload_s, 0.4, relative=True), rtol=1e-10)
    # The same as the paper's with both terms divided: (sum p ||g||)^2 = 0.64 and the mean of T, 3.5 / 3.
    by_hand = probabilities(importance / 0.8, upload_s / (3.5 / 3.0), 0.4)
    np.testing.assert_allclose(plain, by_hand, rtol=1e-10)


@pytest.mark.parametrize("drawn", [1, 2, 3, 4])
def test_the_estimate_is_unbiased(drawn: int) -> None:
    # All ordered draws of 4 devices, each with its probability: the weights must be p on average.
    share, likely = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.1, 0.35, 0.15])
    mean, total = np.zeros(4), 0.0
    for order in itertools.permutations(range(4), drawn):
        chance, left = 1.0, 1.0
        for device in order:
            chance *= likely[device] / left
            left -= likely[device]
        at = list(order)
        mean[at] += chance * des_raj_weights(share[at], likely[at])
        total += chance
    assert math.isclose(total, 1.0, rel_tol=1e-12)
    np.testing.assert_allclose(mean, share, rtol=1e-12)


def test_two_draws_by_hand() -> None:
    # e_1 = p_1 g_1 / 0.4; e_2 = p_1 g_1 + p_2 g_2 / (0.3 / 0.6); their mean.
    weights = des_raj_weights(np.array([0.1, 0.2]), np.array([0.4, 0.3]))
    np.testing.assert_allclose(weights, [(0.1 + 0.25) / 2.0, 0.4 / 2.0], rtol=1e-14)


def test_one_device_counts_as_seldom_as_it_is_likely() -> None:
    # Equal channels and known norms 1 and 3, samples 1 and 1: pi = 1/4 and 3/4, p / pi = 2 and 2/3.
    cell = RoundProblem(np.ones(2), np.zeros(2), np.full(2, 1e7), 1e4, 1e6, 10.0)
    told = changed_history(cell, update_norm=np.array([1.0, 3.0]), num_samples=np.array([5.0, 5.0]))
    seen = {}
    for turn in range(40):
        schedule = solve(cell, "ren", rng=stream(turn, "policy"), history=told, num_selected=1)
        (device,), weights = schedule.selected.tolist(), schedule.weights
        assert weights is not None
        seen.setdefault(device, weights[0])
        assert weights[0] == seen[device]
    assert seen == pytest.approx({0: 2.0, 1: 2.0 / 3.0}, rel=1e-10)


def test_norms_that_devices_were_asked_for_take_the_place_of_the_last_ones() -> None:
    cell = RoundProblem(np.ones(2), np.zeros(2), np.full(2, 1e7), 1e4, 1e6, 10.0)
    last = changed_history(cell, update_norm=np.array([3.0, 1.0]), num_samples=np.array([5.0, 5.0]))
    present = replace(Probed.nothing(2), norm=np.array([1.0, 3.0]))
    asked = {"norms": "all", "probed": present, "num_selected": 1, "history": last}
    counts = {
        schedule.selected.item(): schedule.weights
        for schedule in (solve(cell, "ren", rng=stream(turn, "policy"), **asked) for turn in range(40))
    }
    np.testing.assert_allclose([counts[0], counts[1]], [[2.0], [2.0 / 3.0]], rtol=1e-10)


def changed_history(cell: RoundProblem, **rows: np.ndarray) -> History:
    history = History.empty(cell.num_devices)
    return History(**({name: getattr(history, name) for name in vars(history)} | rows))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ren", "luo"])
def test_a_device_whose_last_update_was_nothing_is_heard_again(name: str) -> None:
    """As likely as the one with the least update."""
    cell = RoundProblem(np.ones(3), np.zeros(3), np.full(3, 1e7), 1e4, 1e6, 10.0)
    told = changed_history(cell, update_norm=np.array([3.0, 1.0, 0.0]), num_samples=np.full(3, 5.0))
    drawn = [solve(cell, name, rng=stream(turn, "policy"), history=told, num_selected=1) for turn in range(400)]
    times = np.bincount([int(schedule.selected[0]) for schedule in drawn], minlength=3)
    assert times[0] > times[1]
    assert abs(times[1] - times[2]) <= 5.0 * math.sqrt(times[1] + times[2])
    assert times[2] > 40
    nothing = changed_history(cell, update_norm=np.zeros(3), num_samples=np.full(3, 5.0))
    assert solve(cell, name, rng=stream(0, "policy"), history=nothing, num_selected=1).num_selected == 1


@pytest.mark.parametrize(
    ("name", "options"), [("ren", {}), ("ren", {"relative": False}), ("luo", {}), ("luo", {"beta_over_alpha": 1e300})]
)
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_norms_may_have_any_size(name: str, options: dict[str, Any], size: float) -> None:
    cell = paper_cell(4)
    told = changed_history(cell, update_norm=np.full(cell.num_devices, size))
    schedule = solve(cell, name, rng=stream(0, "policy"), history=told, num_selected=5, **options)
    assert 0 < schedule.num_selected <= 5


def test_the_round_waits_for_everybody_drawn() -> None:
    cell = paper_cell(4)
    waits = solve(cell, "ren", rng=stream(0, "policy"), history=made_up_history(cell, 0), num_selected=15)
    assert waits.num_selected == 15
    assert cell.deadline_s < waits.latency_s <= waits.problem.deadline_s
    leaves = solve(cell, "ren", rng=stream(0, "policy"), history=made_up_history(cell, 0), num_selected=15, wait=False)
    assert 0 < leaves.num_selected < 15
    assert leaves.latency_s <= cell.deadline_s == leaves.problem.deadline_s
    # Where all fit, there is nothing to wait for.
    long = changed(cell, deadline_s=50.0)
    assert solve(long, "ren", rng=stream(0, "policy")).problem.deadline_s == 50.0


def test_devices_that_must_send_count_their_share() -> None:
    cell = changed(paper_cell(4), must=[3, 7])
    told = made_up_history(cell, 0)
    schedule = solve(cell, "ren", rng=stream(0, "policy"), history=told, num_selected=5)
    assert schedule.num_selected == 5
    assert schedule.weights is not None
    by_device = dict(zip(schedule.selected.tolist(), schedule.weights.tolist(), strict=True))
    share = told.num_samples / told.num_samples.sum()
    assert [by_device[3], by_device[7]] == pytest.approx([share[3], share[7]])


FIVE = hand_cell(tau=np.ones(5), share=[0.1, 0.15, 0.2, 0.25, 0.3], gamma=10.0)


@pytest.mark.parametrize("name", ["ren", "luo"])
@pytest.mark.parametrize("must", [[0], [0, 2], [0, 1, 2]])
def test_where_as_many_must_send_as_are_wanted_the_estimate_stays_unbiased(name: str, must: list[int]) -> None:
    """Over many draws every device counts its share, also those that are not among the ones that must send."""
    cell = changed(FIVE, must=must)
    told = made_up_history(cell, 0)
    share = told.num_samples / told.num_samples.sum()
    draws, total, square = 400, np.zeros(5), np.zeros(5)
    for turn in range(draws):
        schedule = solve(cell, name, rng=stream(turn, "policy"), history=told, num_selected=1)
        assert schedule.weights is not None
        assert schedule.num_selected == len(must) + 1
        weight = np.zeros(5)
        weight[schedule.selected] = schedule.weights
        total, square = total + weight, square + weight**2
    mean = total / draws
    error = np.sqrt(np.maximum(square / draws - mean**2, 0.0) / draws)
    assert (np.abs(mean - share) <= 5.0 * error + 1e-12).all()
    np.testing.assert_allclose(mean[must], share[must], rtol=1e-9)


@pytest.mark.parametrize("name", ["ren", "luo"])
@pytest.mark.parametrize("no_place", [{"max_devices": 2}, {"never": [1, 3, 4]}])
def test_where_nobody_else_may_send_the_mean_of_those_that_must_is_taken(name: str, no_place: dict[str, Any]) -> None:
    cell = changed(FIVE, must=[0, 2], **no_place)
    told = made_up_history(cell, 0)
    schedule = solve(cell, name, rng=stream(0, "policy"), history=told)
    assert schedule.selected.tolist() == [0, 2]
    assert schedule.weights is not None
    held = told.num_samples[[0, 2]]
    np.testing.assert_allclose(schedule.weights, held / held.sum(), rtol=1e-12)
