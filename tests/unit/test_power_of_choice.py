"""Power of choice by hand: who is a candidate, and who of them sends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, History, Probed, RoundProblem, solve
from tests.cells import hand_cell

NAN = float("nan")


def choose(problem: RoundProblem, loss: list[float], samples: list[float] | None = None, **options: object) -> set[int]:
    """Everybody that is selected in twenty draws; a single set where the draw does not matter."""
    known = replace(History.empty(len(loss), num_samples=samples), last_loss=np.array(loss))
    answers = [
        solve(problem, "power-of-choice", rng=stream(seed), history=known, **options).selected for seed in range(20)
    ]
    return {int(device) for selected in answers for device in selected}


ALL_FIT = hand_cell([1.0] * 4, [0.2] * 4, gamma=1.0)


def test_the_greatest_last_losses_send_where_all_are_candidates() -> None:
    assert choose(ALL_FIT, [1.0, 4.0, 2.0, 3.0], num_selected=2, num_candidates=4) == {1, 3}


def test_a_device_that_has_not_sent_comes_first() -> None:
    assert choose(ALL_FIT, [NAN, 4.0, 2.0, 3.0], num_selected=2) == {0, 1}  # four candidates, twice two


def test_only_candidates_send_whatever_the_losses_of_others() -> None:
    assert choose(ALL_FIT, [1.0, 2.0, 9.0, 9.0], [5.0, 5.0, 0.0, 0.0], num_selected=1) == {1}


def test_candidates_are_drawn_in_proportion_to_their_samples() -> None:
    known = replace(History.empty(2, num_samples=[3.0, 1.0]), last_loss=np.ones(2))
    cell, options = hand_cell([1.0] * 2, [0.2] * 2, gamma=1.0), {"num_selected": 1, "num_candidates": 1}
    first = [
        solve(cell, "power-of-choice", rng=stream(seed), history=known, **options).selected[0] for seed in range(400)
    ]
    assert abs(np.mean(np.array(first) == 0) - 0.75) < 4.0 * (0.75 * 0.25 / 400) ** 0.5


def test_one_that_does_not_fit_makes_place_for_the_next() -> None:
    cell = hand_cell([1.0] * 3, [0.6, 0.6, 0.3], gamma=1.0)
    assert choose(cell, [3.0, 2.0, 1.0], num_selected=3) == {0, 2}


def test_devices_out_of_reach_are_no_candidates() -> None:
    cell = hand_cell([1.0] * 3, [1.5, 1.5, 0.3], gamma=1.0)
    assert choose(cell, [3.0, 2.0, 1.0], num_selected=1, num_candidates=1) == {2}


def test_asked_candidates_send_by_their_present_loss() -> None:
    probed = Probed(np.array([NAN, 3.0, 1.0, 2.0]), np.full(4, NAN))
    options = {"num_selected": 2, "num_candidates": 3, "losses": "batch", "probed": probed}
    assert choose(ALL_FIT, [9.0, 0.1, 0.2, 0.1], **options) == {1, 3}
    ask = POLICIES["power-of-choice"].probe
    assert ask is not None
    known = History.empty(4, num_samples=[0.0, 5.0, 5.0, 0.0])
    asked = ask(ALL_FIT, history=known, rng=stream(0), losses="batch", num_selected=1, num_candidates=2)
    assert asked is not None
    assert (asked.devices.tolist(), asked.kind, asked.samples) == ([1, 2], "loss", "batch")


def test_fewer_candidates_than_devices_to_send_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_selected = 3 devices of num_candidates = 2; raise num_candidates"):
        choose(ALL_FIT, [1.0] * 4, num_selected=3, num_candidates=2)
