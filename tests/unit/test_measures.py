"""Numbers of a run by hand, and the curves drawn from several."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flare.experiments import drawing, measures
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
    run = replace(made_up(), train_loss=losses, test_loss=np.array([9.0, 5.0, 4.0, 3.0, 2.0, 1.0]))
    assert measures.final_train_loss(run) == pytest.approx((4.0 + 3.0 + 1.0) / 3.0)  # the last four of forty rounds
    assert measures.final_test_loss(run) == 3.0


def test_rounds_in_which_nobody_sends_count_as_no_devices_and_as_no_steps() -> None:
    run = replace(made_up(), devices=np.array([4.0, 0.0, 2.0]), tau=np.array([3.0, math.nan, 6.0]))
    assert measures.mean_devices(run) == 2.0
    assert measures.mean_tau(run) == 4.5


def test_the_gap_is_over_the_rounds_that_have_one() -> None:
    run = replace(made_up(), objective=np.array([2.2, math.nan, 3.0, 2.0]), lower_bound=np.array([2.0, 2.0, 2.0, 2.0]))
    assert measures.mean_gap(run) == pytest.approx((0.1 + 0.5 + 0.0) / 3.0)
    assert measures.mean_gap(replace(run, lower_bound=np.array([math.nan, 2.0, 2.0, math.nan]))) == pytest.approx(0.5)


def test_accuracy_against_rounds_goes_on_as_a_guess_after_diverging() -> None:
    curve = drawing.accuracy_by_rounds([made_up([0.4, 0.6, 0.8]), made_up([0.4], diverged=True)])
    np.testing.assert_array_equal(curve.x, [2.0, 4.0, 6.0])
    np.testing.assert_allclose(curve.mean, [0.4, 0.35, 0.45])


def test_accuracy_against_seconds_lies_at_the_mean_time_of_the_seeds() -> None:
    slow, fast = made_up([0.2, 0.4, 0.6]), made_up([0.4, 0.6, 0.8])
    fast = replace(fast, clock_s=fast.clock_s / 2.0)
    curve = drawing.accuracy_by_seconds([slow, fast])
    np.testing.assert_allclose(curve.x, [0.75, 1.5, 2.25])  # tests after every other round, of 0.5 and 0.25 s
    np.testing.assert_allclose(curve.mean, [0.3, 0.5, 0.7])
    assert curve.tests is not None
    np.testing.assert_array_equal(curve.tests, curve.x)


def test_a_seed_that_diverged_does_not_shorten_the_curve_against_seconds() -> None:
    short = replace(made_up([0.4], diverged=True), clock_s=np.array([0.5, 1.0, 1.5]))
    curve = drawing.accuracy_by_seconds([made_up(0.8), short])
    assert curve.x[-1] == 6.0
    assert curve.mean[-1] == pytest.approx((0.8 + 0.1) / 2.0)


def test_training_loss_is_averaged_over_neighbours_where_rounds_are_many() -> None:
    run = replace(made_up(), train_loss=np.arange(1.0, 401.0), clock_s=2.0 * np.arange(1.0, 401.0))
    curve = drawing.train_loss_by_rounds([run, run])
    assert len(curve.x) == 100
    np.testing.assert_allclose(curve.x, 4.0 * np.arange(100) + 2.5)
    np.testing.assert_allclose(curve.mean, curve.x)  # the loss of round r is r
    np.testing.assert_allclose(drawing.train_loss_by_seconds([run, run]).x, 2.0 * curve.x)


def test_the_best_by_given_times_takes_the_newest_test_at_each() -> None:
    run = replace(made_up([0.3, 0.9, 0.5]), clock_s=np.array([1.0, 2.0, 3.0]), test_round=np.array([1.0, 2.0, 3.0]))
    assert measures.best_by(run, np.array([1.5, 3.5])) == 0.5  # the second test was over by 3.5 s: 0.3 and 0.5 are seen
    assert measures.best_by(run, np.array([2.0])) == 0.9
    assert measures.best_by(run, np.array([0.5])) == 1.0 / run.num_classes
