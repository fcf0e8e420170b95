"""Numbers of a run by hand, and the curves drawn from several."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flare.experiments import drawing, measures, outcome
from flare.report.curves import fairness_of
from tests.made_up_outcomes import made_up


def test_accuracies_by_hand() -> None:
    run = made_up([0.2, 0.5, 0.4, 0.6, 0.7, 0.65, 0.75])
    assert measures.final_accuracy(run) == pytest.approx((0.4 + 0.6 + 0.7 + 0.65 + 0.75) / 5.0)
    assert measures.best_accuracy(run) == 0.75
    assert measures.mean_accuracy(run) == pytest.approx(3.8 / 7.0)
    assert measures.mean_drop(run) == pytest.approx((0.1 + 0.05) / 6.0)  # six steps from test to test, two of them down


def test_a_short_run_has_the_mean_of_all_its_tests() -> None:
    assert measures.final_accuracy(made_up([0.2, 0.4])) == pytest.approx(0.3)


def test_a_run_that_only_rises_does_not_drop() -> None:
    assert measures.mean_drop(made_up([0.1, 0.2, 0.2, 0.9])) == 0.0


def test_a_run_that_diverged_ends_as_a_guess() -> None:
    run = made_up([0.8, 0.9], diverged=True)
    assert run.diverged
    assert measures.final_accuracy(run) == pytest.approx(0.1)
    assert measures.best_accuracy(run) == 0.9  # it was there once
    assert 0.1 < measures.mean_accuracy(run) < 0.9
    assert measures.mean_drop(run) > 0.0
    for loss in (measures.final_train_loss, measures.final_test_loss):
        assert loss(run) >= math.log(10.0)  # at least that of a guess


def test_a_run_that_diverged_before_its_first_test_is_a_guess() -> None:
    run = made_up([], diverged=True)
    guesses = [getattr(measures, f"{name}_accuracy")(run) for name in ("final", "best", "mean")]
    assert guesses == pytest.approx([0.1] * 3)
    assert measures.mean_drop(run) == 0.0


def test_no_run_is_worse_at_its_best_than_a_guess() -> None:
    assert measures.best_accuracy(made_up([0.05, 0.02])) == 0.1


def test_losses_are_of_the_end() -> None:
    losses = np.arange(40.0, 0.0, -1.0)
    losses[-2] = math.nan  # nobody sent
    assert outcome.mean_of_known(outcome.last_tenth(losses)) == pytest.approx((4.0 + 3.0 + 1.0) / 3.0)  # the last four
    run = replace(made_up(train_loss=2.5), test_loss=np.array([9.0, 5.0, 4.0, 3.0, 2.0, 1.0]))
    assert measures.final_train_loss(run) == 2.5
    assert measures.final_test_loss(run) == 3.0


def test_rounds_that_do_not_tell_are_left_out_of_means() -> None:
    assert outcome.mean_of_known(np.array([3.0, math.nan, 6.0])) == 4.5
    assert math.isnan(outcome.mean_of_known(np.array([math.nan])))


def test_the_gap_is_over_the_rounds_that_have_one() -> None:
    objective = np.array([2.2, math.nan, 3.0, 2.0])
    assert outcome.gap_of(objective, np.full(4, 2.0)) == pytest.approx((0.1 + 0.5 + 0.0) / 3.0)
    assert outcome.gap_of(objective, np.array([math.nan, 2.0, 2.0, math.nan])) == pytest.approx(0.5)
    assert math.isnan(outcome.gap_of(objective, np.full(4, math.nan)))


def test_fairness_by_hand() -> None:
    assert fairness_of(np.array([3.0, 1.0, 0.0, 0.0])) == 16.0 / (4.0 * 10.0)
    assert fairness_of(np.array([2.0, 2.0, 2.0])) == 1.0
    assert math.isnan(fairness_of(np.zeros(2)))


def test_numbers_have_seven_digits_and_are_nan_where_they_are_not_finite() -> None:
    np.testing.assert_array_equal(
        outcome.shortened([1.0 / 3.0, -123456.789, 0.0, 1e-12 / 3.0, math.inf, math.nan]),
        [0.3333333, -123456.8, 0.0, 3.333333e-13, math.nan, math.nan],
    )


def test_accuracy_against_rounds_goes_on_as_a_guess_after_diverging() -> None:
    curve = drawing.accuracy_by_rounds([made_up([0.4, 0.6, 0.8]), made_up([0.4], diverged=True)])
    np.testing.assert_array_equal(curve.x, [2.0, 4.0, 6.0])
    np.testing.assert_allclose(curve.mean, [0.4, 0.35, 0.45])


def test_accuracy_against_seconds_lies_at_the_mean_time_of_the_seeds() -> None:
    slow, fast = made_up([0.2, 0.4, 0.6]), made_up([0.4, 0.6, 0.8])
    fast = replace(fast, test_s=fast.test_s / 2.0)
    curve = drawing.accuracy_by_seconds([slow, fast])
    np.testing.assert_allclose(curve.x, [0.75, 1.5, 2.25])  # tests after every other round, of 0.5 and 0.25 s
    np.testing.assert_allclose(curve.mean, [0.3, 0.5, 0.7])
    assert curve.tests is not None
    np.testing.assert_array_equal(curve.tests, curve.x)


def test_a_seed_that_diverged_does_not_shorten_the_curve_against_seconds() -> None:
    short = replace(made_up([0.4], diverged=True), num_rounds=3, end_s=1.5)
    curve = drawing.accuracy_by_seconds([made_up(0.8), short])
    assert curve.x[-1] == 6.0
    assert curve.mean[-1] == pytest.approx((0.8 + 0.1) / 2.0)


def test_training_loss_is_averaged_over_neighbours_where_rounds_are_many() -> None:
    losses = np.arange(1.0, 401.0)
    losses[4:8] = math.nan  # nobody sent in a whole stretch, and in two rounds of another
    losses[9:11] = math.nan
    middles, means = outcome.stretches(losses)
    np.testing.assert_allclose(middles, 4.0 * np.arange(100) + 2.5)
    np.testing.assert_allclose(means, np.where(np.arange(100) == 1, math.nan, middles))  # the loss of round r is r
    assert [len(each) for each in outcome.stretches(np.full(5, math.nan))] == [0, 0]
    run = replace(made_up(), loss_round=middles, loss_s=2.0 * middles, train_loss=means)
    curve = drawing.train_loss_by_rounds([run, run])
    np.testing.assert_array_equal(curve.x, middles)
    np.testing.assert_array_equal(curve.mean, means)
    np.testing.assert_array_equal(drawing.train_loss_by_seconds([run, run]).x, 2.0 * middles)


def test_training_losses_of_runs_of_unequal_length_are_told_as_far_as_the_shortest_goes() -> None:
    long = replace(made_up(), loss_round=np.array([1.5, 3.5, 5.5]), train_loss=np.array([1.0, 3.0, 5.0]))
    short = replace(made_up(), loss_round=np.array([1.0, 2.0, 3.0]), train_loss=np.array([4.0, 4.0, 4.0]))
    curve = drawing.train_loss_by_rounds([long, short])
    np.testing.assert_array_equal(curve.x, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(curve.mean, [(1.0 + 4.0) / 2.0, (1.5 + 4.0) / 2.0, (2.5 + 4.0) / 2.0])


def test_the_best_by_given_times_takes_the_newest_test_at_each() -> None:
    run = replace(made_up([0.3, 0.9, 0.5]), test_s=np.array([1.0, 2.0, 3.0]))
    assert measures.best_by(run, np.array([1.5, 3.5])) == 0.5  # the second test was over by 3.5 s: 0.3 and 0.5 are seen
    assert measures.best_by(run, np.array([2.0])) == 0.9
    assert measures.best_by(run, np.array([0.5])) == 1.0 / run.num_classes
