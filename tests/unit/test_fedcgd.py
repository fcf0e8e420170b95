"""FedCGD by hand, against all groups of small cells, and refused where labels are not shared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import History, RoundProblem, solve
from flare.scheduling.systems.fedcgd import best_group
from flare.types import Floats
from tests.cells import changed, hand_cell, network_cell, paper_cell
from tests.hostile import flare
from tests.oracles import allowed_sets


def choose(problem: RoundProblem, counts: list[list[float]], **options: object) -> list[int]:
    known = History.empty(len(counts), label_counts=counts)
    return solve(problem, "fedcgd", history=known, **options).selected.tolist()


def divergence(counts: Floats, everybody: Floats, kappa: float) -> float:
    """f of a group that holds so many samples of each label, shape (labels,), as written; infinite without samples."""
    number = math.fsum(counts)
    if number <= 0.0:
        return math.inf
    apart = np.abs(counts / number - everybody / math.fsum(everybody))
    return math.fsum(apart) + kappa / math.sqrt(number)


def test_the_divergence_by_hand() -> None:
    # Labels half and half. One label alone: |1 - 1/2| + |0 - 1/2| = 1; three to one: 1/4 + 1/4; kappa / sqrt(samples).
    everybody = np.array([50.0, 50.0])
    groups = {(4.0, 0.0): 1.0 + 1.0, (12.0, 4.0): 0.5 + 0.5, (8.0, 8.0): 0.5, (0.0, 0.0): math.inf}
    for held, value in groups.items():
        assert divergence(np.array(held), everybody, 2.0) == pytest.approx(value)


def test_two_of_one_label_each_are_a_better_group_than_those_with_both() -> None:
    # P = (0.6, 0.4); two fit. Device 2 alone is nearest, (0.8, 0.2); with 1 it is (0.4, 0.6), off by 0.4, and with 0 in
    # its place (0.5, 0.5), off by 0.2.
    cell = hand_cell([1.0] * 3, [0.4] * 3, gamma=1.0)
    assert choose(cell, [[10.0, 0.0], [0.0, 10.0], [8.0, 2.0]], kappa=1.0) == [0, 1]


def test_a_group_may_be_worse_with_one_more_and_better_with_two() -> None:
    # Device 0 is like everybody, (0.5, 0.5); 1 and 2 together are too, and bring samples.
    cell = hand_cell([1.0] * 3, [0.3] * 3, gamma=1.0)
    counts = [[5.0, 5.0], [20.0, 0.0], [0.0, 20.0]]
    assert choose(cell, counts, kappa=1.0) == [0, 1, 2]
    assert choose(changed(cell, max_devices=2), counts, kappa=1.0) == [1, 2]
    assert choose(changed(cell, max_devices=1), counts, kappa=1.0) == [0]


def test_those_who_must_send_are_balanced_by_the_others() -> None:
    cell = changed(hand_cell([1.0] * 4, [0.4] * 4, gamma=1.0), must=[0])
    assert choose(cell, [[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [5.0, 4.0]]) == [0, 2]


def test_devices_without_samples_are_no_help() -> None:
    cell = hand_cell([1.0] * 3, [0.3] * 3, gamma=1.0)
    assert choose(cell, [[0.0, 0.0], [5.0, 5.0], [0.0, 0.0]]) == [1]
    assert len(choose(cell, [[0.0, 0.0]] * 3)) >= 1


def skewed(kind: str, seed: int, devices: int, labels: int) -> np.ndarray:
    draw = stream(seed, "labels", kind)
    if kind == "many labels":
        return np.floor(draw.exponential(20.0, (devices, labels)))
    counts = np.zeros((devices, labels))
    for row in counts:
        held = draw.choice(labels, 1 if kind == "one label" else 2, replace=False)
        row[held] = draw.integers(5, 60, held.size)
    return counts


@pytest.mark.parametrize("kind", ["many labels", "one label", "two labels"])
def test_it_finds_the_best_of_all_groups_of_small_cells(kind: str) -> None:
    found = 0
    for seed in range(8):
        asked = {"must": [1] if seed % 3 == 1 else [], "never": [2], "max_devices": 4 if seed % 2 else None}
        problem = network_cell(seed, num_devices=9, **asked)
        groups = [np.array(each, dtype=np.intp) for each in allowed_sets(problem)]
        if len(groups) < 2:
            continue
        counts = skewed(kind, seed, 9, 10 if seed % 2 else 3)
        everybody = counts.sum(axis=0)
        least = min(divergence(counts[each].sum(axis=0), everybody, 1.0) for each in groups)
        group = best_group(problem, counts, 1.0)
        assert problem.fits(group)
        assert divergence(counts[group].sum(axis=0), everybody, 1.0) == pytest.approx(least, rel=1e-12)
        found += 1
    assert found >= 4


def test_a_large_cell_is_searched_within_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = paper_cell(0, num_devices=60, deadline_s=0.8)
    counts = skewed("two labels", 0, 60, 10)
    full = divergence(counts[best_group(problem, counts, 1.0)].sum(axis=0), counts.sum(axis=0), 1.0)
    monkeypatch.setattr("flare.scheduling.systems.fedcgd.MAX_ENTRIES", 20_000)
    short = best_group(problem, counts, 1.0)
    assert problem.fits(short)
    assert divergence(counts[short].sum(axis=0), counts.sum(axis=0), 1.0) >= full > 0.0


def test_without_labels_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"policy 'fedcgd' goes by how many samples of each label .*share_labels"):
        solve(paper_cell(0), "fedcgd")
    code, _, said = flare(capsys, "run", "--set", "scheduling.policy=fedcgd", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--set data.share_labels=true" in " ".join(said.split())
    assert not (tmp_path / "run").exists()
