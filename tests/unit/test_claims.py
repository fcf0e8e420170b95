"""Claims on values with known answers: the interval by hand, where it lies, and what several tests come to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.experiments.claims import Comparison, Effect, Verdict, above, claim, effect_of, paired, within

HOLDS, FAILS, UNDECIDED = Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED
VALUES = st.lists(st.tuples(*2 * [st.integers(-1000, 1000)]), min_size=1, max_size=6)


def t_quantile_of_three() -> float:
    """The 97.5 % quantile of Student's t with two degrees of freedom, which has a closed form."""
    return math.sqrt(2.0) * 0.95 / math.sqrt(1.0 - 0.95**2)


def test_interval_of_three_pairs_by_hand() -> None:
    effect = paired([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])  # differences 1, 2, 3: s = 1
    half = t_quantile_of_three() / math.sqrt(3.0)
    assert half == pytest.approx(2.484, abs=5e-4)
    assert (effect.mean, effect.count) == (2.0, 3)
    assert (effect.low, effect.high) == pytest.approx((2.0 - half, 2.0 + half), rel=1e-12)


def test_two_pairs_have_no_interval_and_decide_nothing() -> None:
    effect = effect_of([1.0, 1.0])
    assert (effect.mean, effect.low, effect.high) == (1.0, -math.inf, math.inf)
    assert above("", effect).verdict is UNDECIDED
    assert str(effect) == "+1 (2 seeds: no interval)"


def test_scale_applies_to_mean_and_interval() -> None:
    plain, points = (paired([0.5, 0.7, 0.6], [0.4, 0.4, 0.4], scale) for scale in (1.0, 100.0))
    for name in ("mean", "low", "high"):
        assert getattr(points, name) == pytest.approx(100.0 * getattr(plain, name), rel=1e-12)


def test_seeds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 values against 3"):
        paired([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([3.0, 4.0, 5.0], HOLDS),  # half 2.484: 1.5 to 6.5
        ([1.0, 2.0, 3.0], UNDECIDED),  # -0.48 to 4.48
        ([-1.0, 0.0, 1.0], UNDECIDED),
        ([-3.0, -2.0, -1.0], UNDECIDED),
        ([-5.0, -4.0, -3.0], FAILS),
        ([1e-9, 1e-9, 1e-9], HOLDS),  # seeds that agree leave no doubt
        ([0.0, 0.0, 0.0], UNDECIDED),  # a tie is no proof of anything
        ([1000.0], UNDECIDED),  # nor is one seed, whatever it shows
        ([-1000.0], UNDECIDED),
    ],
)
def test_verdict_is_where_the_interval_lies(differences: list[float], verdict: Verdict) -> None:
    assert above("", effect_of(differences)).verdict is verdict


def test_verdict_against_another_level() -> None:
    effect = effect_of([3.0, 4.0, 5.0])  # 1.5 to 6.5
    verdicts = [above("", effect, level).verdict for level in (1.4, 1.6, 6.4, 6.6)]
    assert verdicts == [HOLDS, UNDECIDED, UNDECIDED, FAILS]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 0.9], HOLDS),
        ([0.0, 0.0, 0.0], HOLDS),  # both ends belong to the range
        ([2.0, 2.0, 2.0], HOLDS),
        ([2.1, 2.1, 2.1], FAILS),
        ([-0.1, -0.1, -0.1], FAILS),
        ([1.9, 2.0, 2.1], UNDECIDED),  # astride one end
        ([-9.0, 1.0, 11.0], UNDECIDED),  # wider than the range
        ([1.0], UNDECIDED),
    ],
)
def test_within_a_range(values: list[float], verdict: Verdict) -> None:
    assert within("", effect_of(values), 0.0, 2.0).verdict is verdict


@given(VALUES)
def test_what_holds_one_way_round_fails_the_other(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    forth, back = above("", paired(ours, theirs)).verdict, above("", paired(theirs, ours)).verdict
    assert back is {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}[forth]


@given(VALUES, st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=6))
def test_what_a_seed_does_to_both_sides_does_not_count(pairs: list[tuple[int, int]], luck: list[int]) -> None:
    ours, theirs = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    shift = np.array(luck[: len(pairs)], dtype=float)
    assert paired((ours + shift).tolist(), (theirs + shift).tolist()) == paired(ours, theirs)


def constant(value: float) -> Effect:
    return effect_of([value] * 3)


def test_a_claim_is_as_good_as_its_worst_test() -> None:
    good, better = above("good", constant(2.0)), above("better", constant(5.0))
    open_, bad, worse = above("open", effect_of([-1, 0, 1])), above("bad", constant(-1.0)), above("bad", constant(-3.0))

    def joint(*tests: Comparison) -> tuple[Verdict, float]:
        one = claim("name", "says", tests, measure="points")
        return one.verdict, one.effect.mean

    assert joint(better, good) == (HOLDS, 2.0)
    assert joint(better, open_, good) == (UNDECIDED, 0.0)
    assert joint(bad, worse, better, open_) == (FAILS, -3.0)


def test_the_effect_shown_for_a_range_is_the_one_furthest_outside() -> None:
    tests = [within("", constant(value), 0.0, 1.0) for value in (0.5, 3.0, 8.0)]
    assert claim("name", "says", tests, measure="points").effect.mean == 8.0


def test_a_claim_without_tests_is_refused() -> None:
    with pytest.raises(ValueError, match="lonely"):
        claim("lonely", "says", [], measure="points")


def test_seeds_that_are_no_numbers_decide_nothing() -> None:
    effect = effect_of([math.nan, math.nan])
    assert effect.count == 0
    assert above("", effect).verdict is UNDECIDED
    assert within("", effect, -1.0, 1.0).verdict is UNDECIDED


def test_an_effect_in_words() -> None:
    assert str(effect_of([1.0, 2.0, 3.0])) == "+2 [-0.484, +4.48]"
    assert str(effect_of([-1.25])) == "-1.25 (1 seed: no interval)"
