"""DivFL by hand, against the rule as it is written, and with what was last heard."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.config import Config, override
from flare.rng import stream
from flare.rounds import RoundRecord
from flare.rounds.sketch import NUMBERS, Sketches
from flare.rounds.state import from_tensors, to_tensors
from flare.scheduling import History, Probed, RoundProblem, solve
from flare.scheduling.systems import divfl as divfl_module
from flare.simulation import Member, Simulation, drive
from tests.cells import changed, hand_cell, paper_cell

NAN = float("nan")


def on_a_line(*places: float) -> Probed:
    """Gradients of one weight: devices lie on a line."""
    at = np.array(places)
    return Probed(np.full(at.size, NAN), np.abs(at), np.abs(at[:, None] - at[None, :]))


def choose(problem: RoundProblem, probed: Probed, number: int) -> list[int]:
    return solve(problem, "divfl", rng=stream(0), probed=probed, num_selected=number, gradients="all").selected.tolist()


def test_devices_that_stand_for_the_others_by_hand() -> None:
    # At 0, 1, 2 and 10, 11. Alone, 2 is nearest to all: 2 + 1 + 0 + 8 + 9 = 20 (1: 21, 0: 24, 10: 28). With it, 10
    # leaves 2 + 1 + 0 + 0 + 1 = 4; so does 11, and the first in order of the two is taken. Then 0 or 1 saves 2.
    cell = hand_cell([5.0, 4.0, 3.0, 2.0, 1.0], [0.1] * 5, gamma=1.0)
    line = on_a_line(0.0, 1.0, 2.0, 10.0, 11.0)
    assert choose(cell, line, 1) == [2]
    assert choose(cell, line, 2) == [2, 3]
    assert choose(cell, line, 3) in ([0, 2, 3], [1, 2, 3])
    assert choose(cell, line, 9) == [0, 1, 2, 3, 4]


def test_one_that_does_not_fit_makes_place_for_the_next_best() -> None:
    cell = hand_cell([1.0, 1.0, 1.0], [0.6, 0.6, 0.3], gamma=1.0)
    # Alone, the one at 5 is nearest to all; beside it the one at 0 would leave 4 and does not fit, that at 9 leaves 5.
    assert choose(cell, on_a_line(0.0, 5.0, 9.0), 2) == [1, 2]
    assert choose(changed(cell, must=[0]), on_a_line(0.0, 5.0, 9.0), 2) == [0, 2]


def plainly(problem: RoundProblem, apart: np.ndarray, number: int) -> float:
    """The sum of the distances after the greedy rule as it is written."""
    taken: list[int] = []
    while len(taken) < number:
        left = [
            each
            for each in problem.reachable_in_order.tolist()
            if each not in taken and problem.fits(np.array([*taken, each]))
        ]
        if not left:
            break
        taken.append(min(left, key=lambda each: apart[[*taken, each]][:, problem.reachable].min(axis=0).sum()))
    return float(apart[taken][:, problem.reachable].min(axis=0).sum())


def test_the_quick_rule_is_the_one_that_is_written() -> None:
    for seed in range(12):
        problem = paper_cell(seed, num_devices=25, deadline_s=0.4 if seed % 2 else 2.0)
        if problem.reachable.size == 0:
            continue
        points = stream(seed, "points").standard_normal((25, 4))
        apart = np.linalg.norm(points[:, None] - points[None], axis=2)
        apart = 0.5 * (apart + apart.T)
        heard = np.full(25, NAN)
        heard[problem.reachable] = np.linalg.norm(points, axis=1)[problem.reachable]
        found = choose(problem, Probed(np.full(25, NAN), heard, apart), 6)
        covered = float(apart[found][:, problem.reachable].min(axis=0).sum())
        assert covered == pytest.approx(plainly(problem, apart, 6), rel=1e-12)


def test_by_what_was_last_heard_the_unheard_come_first() -> None:
    cell = hand_cell([1.0] * 5, [0.1] * 5, gamma=1.0)
    sketch = np.array([[0.0, 0.0], [NAN, NAN], [3.0, 4.0], [3.0, 4.5], [NAN, NAN]])
    known = replace(History.empty(5), sketch=sketch)
    assert solve(cell, "divfl", rng=stream(0), history=known, num_selected=2).selected.tolist() == [1, 4]
    # Then 2, which stands for 3 (5 + 0.5); with 3 it would be 5.41, and 0 leaves 5 + 5.41.
    assert solve(cell, "divfl", rng=stream(0), history=known, num_selected=3).selected.tolist() == [1, 2, 4]
    assert solve(cell, "divfl", rng=stream(0), num_selected=3).num_selected == 3  # nothing is known


# The short images


def test_a_great_many_devices_of_which_nothing_is_known_take_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 60_000  # a table of every two of them would take 29 GB
    problem = RoundProblem(np.ones(many), np.zeros(many), np.full(many, 1e9), 1e3, 1e9, 1.0)
    assert solve(problem, "divfl", rng=stream(0)).num_selected == 10
    monkeypatch.setattr(divfl_module, "_MAX_HEARD", 2)
    three = RoundProblem(np.ones(3), np.zeros(3), np.full(3, 1e9), 1e3, 1e9, 1.0)
    known = replace(History.empty(3), sketch=np.eye(3))
    with pytest.raises(ValueError, match=r"compares every two of the 3 devices .* 2 are the limit"):
        solve(three, "divfl", rng=stream(0), history=known)


def test_the_image_of_a_difference_is_the_difference_of_the_images() -> None:
    one, other = torch.from_numpy(stream(1, "vectors").standard_normal((2, 1000)))
    sketch = Sketches(3)
    apart = sketch(one) - sketch(other)
    assert np.allclose(apart, sketch(one - other), rtol=0.0, atol=1e-12)
    assert np.array_equal(Sketches(3)(one), sketch(one))  # in another process, after a run was continued
    assert not np.allclose(apart, Sketches(4)(one - other))
    assert Sketches(3)(one[:7]).shape == (NUMBERS,)


def test_a_short_vector_keeps_its_length_and_a_long_one_nearly() -> None:
    short = torch.from_numpy(stream(2, "short").standard_normal(NUMBERS))
    assert np.linalg.norm(Sketches(0)(short)) == pytest.approx(float(short.norm()), rel=1e-12)
    # The square of an image is right in the mean, and its standard deviation is sqrt(2 / NUMBERS) of it: 200 means.
    long = torch.from_numpy(stream(2, "long").standard_normal(4000))
    ratio = np.array([(Sketches(seed)(long) ** 2).sum() for seed in range(200)]) / float(long.square().sum())
    spread = (2.0 / NUMBERS) ** 0.5
    assert abs(ratio.mean() - 1.0) < 4.0 * spread / 200**0.5
    assert ratio.std() == pytest.approx(spread, rel=0.3)


def test_a_run_keeps_what_it_heard_of_each_device() -> None:
    small = ["wireless.num_devices=6", "wireless.deadline_s=0.3", "learning.model=logistic", "run.rounds=2"]
    config = override(
        Config(), [*small, "scheduling.policy=divfl", "scheduling.options.num_selected=2", "learning.device=cpu"]
    )
    records: list[RoundRecord] = []
    member = Member(Simulation(config))
    drive([member], callback=lambda _, record: records.append(record))
    first, second = records
    assert not set(first.selected) & set(second.selected)  # the unheard come first
    sketch = member.state.history.sketch
    assert sketch is not None
    heard = sorted(first.selected + second.selected)
    assert np.flatnonzero(~np.isnan(sketch).any(axis=1)).tolist() == heard
    for device, norm, rate, steps in zip(second.sent, second.update_norm, second.lr, second.tau, strict=True):
        assert norm is not None
        assert rate is not None
        assert np.linalg.norm(sketch[device]) == pytest.approx(norm / (rate * steps), rel=0.25)
    again = from_tensors(2, *to_tensors(member.state)).history
    assert again.sketch is not None
    assert np.array_equal(again.sketch, sketch, equal_nan=True)
    others = Member(Simulation(override(Config(), [*small, "scheduling.policy=all", "learning.device=cpu"])))
    drive([others])
    assert others.state.history.sketch is None  # where nobody asks for it


@pytest.mark.parametrize(("gradients", "keeps"), [("last", True), ("all", False), ("batch", False)])
def test_sketches_are_made_only_where_they_are_read(gradients: str, keeps: bool) -> None:
    allowed = ["data.share_gradients=true", "learning.model=logistic", "learning.device=cpu"]
    chosen = ["scheduling.policy=divfl", f"scheduling.options.gradients={gradients}"]
    station = Simulation(override(Config(), [*allowed, *chosen])).station
    assert (station.sketches is not None) == keeps
    assert station.sketches is station.sketches  # it draws its shuffle once
