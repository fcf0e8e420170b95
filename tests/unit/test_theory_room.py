"""How much room a bound leaves, as the experiment `bounds` reports it."""

from __future__ import annotations

import numpy as np
import pytest

from flare.experiments import bounds
from flare.experiments.experiment import Results, Scale
from flare.theory import Form
from flare.theory.measure import quadratic_study
from flare.theory.pair import pair_study
from flare.theory.speedup import SpeedUp


def test_the_room_of_lemma_1_on_the_pair_by_hand() -> None:
    # As w -> 1 the model stays (measured 0) and ||grad F|| -> 1, where the paper allows rho = 1/2: with p = c = 0.1 and
    # G^2 = H^2 = 2 the printed bound over c / 2 goes to -(1 - c / rho^2 - 2.4 H^2 p^2) + 2.4 p^2 G^2 = -0.504, which is
    # the room: a share, however little F still changes. Earlier rounds have more.
    study = pair_study()
    assert bounds.least_room(study, "lemma_1", Form.PRINTED) == pytest.approx(-0.504, rel=1e-6)
    # Theorem 2 after 400 rounds: (4 / (c R) + 2.4 p^2 G^2) / q with q = 0.552, over the mean of w^2 with
    # w = 1 + 0.9^r, which is 1 + (20 + 1 / 0.19) / 400 but for 0.9^400.
    bound, mean = (4.0 / (0.1 * 400) + 0.048) / 0.552, 1.0 + (20.0 + 1.0 / 0.19) / 400
    assert bounds.rooms(study, "theorem_2", Form.PRINTED)[-1] == pytest.approx(bound / mean - 1.0, rel=1e-9)


@pytest.mark.parametrize("theorem", ["theorem_1", "theorem_2"])
def test_the_room_of_the_theorems_is_a_share_of_what_is_measured(theorem: str) -> None:
    study = quadratic_study(0, rounds=8)
    looseness = getattr(study, theorem).looseness(Form.PROVEN)
    assert bounds.least_room(study, theorem, Form.PROVEN) == pytest.approx(looseness.min() - 1.0, rel=1e-12)


def test_the_room_of_lemma_1_stays_in_size_where_f_hardly_changes_or_rises() -> None:
    # A picture of shares of the measured change once had points at 1e306, and dashes to draw for ever.
    study = quadratic_study(0, rounds=40, num_selected=3)
    assert study.lemma_1.measured.max() > 0.0
    room = bounds.rooms(study, "lemma_1", Form.PROVEN)
    assert (room > 0.0).all()
    assert room.max() < 1e4


def test_no_bound_is_no_room() -> None:
    study = quadratic_study(0, rounds=3, step=0.7)
    assert np.isnan(bounds.least_room(study, "lemma_1", Form.PROVEN))


def test_no_row_says_what_another_says() -> None:
    claims = {claim.name: claim for claim in bounds.claims(Results([], {}, Scale((0,), quick=True)))}
    assert "bounds-theorem-1-corrected" not in claims  # errata 5 and 6 are not about Theorem 1
    assert {"bounds-theorem-1-printed", "bounds-theorem-1-proven", "bounds-lemma-1-corrected"} < set(claims)
    assert "(c/2)" in claims["bounds-lemma-1-printed"].measure
    assert "M of 32 devices drawn uniformly in each round" in claims["bounds-speedup-equal-devices"].says


def test_the_form_that_a_selection_breaks_is_put_to_all_devices_only() -> None:
    for theorem in ("lemma_1", "theorem_2"):
        assert bounds.problems_of(theorem, Form.CORRECTED) == ("quadratic, all devices", "synthetic, all devices")
        assert bounds.problems_of(theorem, Form.PRINTED) == bounds.problems_of(theorem, Form.PROVEN) == bounds.PROBLEMS
    part = bounds.study("quadratic, a part of them", 0, 3)
    assert np.isnan(bounds.rooms(part, "lemma_1", Form.CORRECTED)).all()  # nothing is left out that could be told


@pytest.mark.parametrize(
    ("slope", "half", "verdict"),
    [(-0.73, 0.03, "holds"), (-0.46, 0.005, "holds"), (-0.46, 0.02, "not decided"), (-0.3, 0.01, "fails")],
)
def test_corollary_1_is_an_upper_bound_that_a_steeper_fall_does_not_break(
    slope: float, half: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, errors = np.array([1, 2]), np.ones((2, 2))
    found = SpeedUp(counts, errors, errors, np.full(2, slope), slope, slope - half, slope + half)
    monkeypatch.setattr(bounds, "speedup", lambda *_: found)
    monkeypatch.setattr(bounds, "UNITS", {})
    made = bounds.claims(Results([], {}, Scale((0,))))
    assert [claim.verdict.value for claim in made] == [verdict] * 3


def test_the_effect_shown_of_a_broken_bound_is_that_of_the_run_that_breaks_it_most_on_average() -> None:
    once, always = bounds.never_broken("once", [-2.0, 5.0]), bounds.never_broken("always", [-0.9, -0.9])
    assert once.room > 0.0 > always.room
    assert once.verdict is always.verdict is bounds.Verdict.FAILS
