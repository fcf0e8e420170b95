"""Hu's policy by hand: who is ready, who has a good channel, whose labels make the group alike, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flare.scheduling import History, RoundProblem, Schedule, solve
from flare.scheduling.systems.hu import nearest_group
from tests.cells import hand_cell

HALVES = [[4, 0], [3, 1], [0, 4], [1, 3]]  # together half and half


def choose(
    problem: RoundProblem, labels: list[list[float]] | None, *, age: list[float] | None = None, **options: object
) -> Schedule:
    samples = None if labels is None else np.sum(labels, axis=1)
    known = History.empty(problem.num_devices, num_samples=samples, label_counts=labels)
    if age is not None:
        known = replace(known, age=np.array(age))
    return solve(problem, "hu", history=known, **options)


def same_cell(shares: list[float]) -> RoundProblem:
    """Devices that need these shares of the band; those that need less have the better channel."""
    return hand_cell([1.0] * len(shares), shares, gamma=1.0)


def test_a_group_is_grown_towards_the_labels_of_all_by_hand() -> None:
    labels = np.array(HALVES, dtype=float)
    # Shares of the first class are 1, 3/4, 0 and 1/4. Alone, devices 1 and 3 are nearest to 1/2: the earlier one. With
    # it, device 3 makes exactly half and half; then devices 0 (8/12) and 2 (4/12) are equally near.
    assert nearest_group(np.array([0, 1, 2, 3]), labels, 2).tolist() == [1, 3]
    assert nearest_group(np.array([0, 1, 2, 3]), labels, 3).tolist() == [1, 3, 0]
    assert nearest_group(np.array([3, 2, 1, 0]), labels, 3).tolist() == [3, 1, 2]
    assert nearest_group(np.array([0, 1, 2, 3]), labels, 2, first=1).tolist() == [0, 2]
    assert nearest_group(np.array([0, 1]), labels, 5).tolist() == [0, 1]


def test_labels_decide_among_the_best_channels_alone() -> None:
    cell = same_cell([0.1, 0.11, 0.12, 0.13])
    assert choose(cell, HALVES, num_selected=2).selected.tolist() == [1, 3]  # four candidates, twice two
    assert choose(cell, HALVES, num_selected=2, num_candidates=3).selected.tolist() == [1, 2]  # 3/8 and 5/8
    assert choose(cell, HALVES, num_selected=2, num_candidates=2).selected.tolist() == [0, 1]


def test_the_band_is_divided_evenly_and_only_ready_devices_are_called() -> None:
    cell = same_cell([0.3, 0.4, 0.45, 0.6])  # the last cannot send on half of the band
    schedule = choose(cell, HALVES, num_selected=2)
    assert schedule.selected.tolist() == [1, 2]
    np.testing.assert_allclose(schedule.bandwidth_hz[[1, 2]], cell.total_bandwidth_hz / 2.0, rtol=1e-12)


def test_where_few_can_send_fewer_are_called_on_more_of_the_band() -> None:
    assert choose(same_cell([0.4, 0.45, 0.6, 0.9]), HALVES, num_selected=4).num_selected == 2
    assert choose(same_cell([0.9, 0.95, 0.96, 0.97]), HALVES, num_selected=4).num_selected == 1
    assert choose(same_cell([1.9, 1.95, 1.96, 1.97]), HALVES, num_selected=4).num_selected == 0


def test_updates_count_by_samples_and_age() -> None:
    cell = same_cell([0.1, 0.1])
    schedule = choose(cell, [[4, 0], [0, 12]], age=[0.0, 2.0], num_selected=2, age_discount=0.5)
    assert schedule.weights.tolist() == [4.0 / 7.0, 3.0 / 7.0]  # 4 and 12/4
    schedule = choose(cell, [[4, 0], [0, 4]], age=[0.0, 3000.0], num_selected=2, age_discount=2.0)
    assert schedule.weights.tolist() == [0.0, 1.0]
    assert choose(cell, [[4, 0], [0, 4]], num_selected=2).weights.tolist() == [0.5, 0.5]


def test_without_labels_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy 'hu' goes by how many samples of each label"):
        choose(same_cell([0.1, 0.13, 0.12, 0.11]), None, num_selected=2)


def test_fewer_candidates_than_devices_to_send_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_selected = 3 devices of num_candidates = 2; raise num_candidates"):
        choose(same_cell([0.1] * 4), HALVES, num_selected=3, num_candidates=2)
