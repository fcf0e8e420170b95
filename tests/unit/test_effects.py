"""The effect of swept settings: differences in pairs, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from flare.config import Config, override
from flare.records.run import RunNumbers, run_of
from flare.report.curves import time_to_accuracy_s
from flare.report.effect_sections import differences_in_words, effect_sections, left_out
from flare.report.effects import SweptRun, effects_of
from flare.report.panels import panel_html
from flare.rounds import RoundRecord
from flare.sweeps import Place, Task, run_tasks
from flare.sweeps.sweep_file import Factor
from tests.small_runs import SETTINGS

DEADLINE = Factor(("wireless.deadline_s",), ((0.4,), (1.0,), (4.0,)))
POLICY = Factor(("scheduling.policy", "learning.method"), (("exact", "flare"), ("cp", "fedavg")))
FACTORS = (DEADLINE, POLICY)
SEEDS = (3, 5, 6)


@pytest.fixture(scope="module")
def record() -> RoundRecord:
    seen: list[RoundRecord] = []
    config = override(Config(), [*SETTINGS, "run.rounds=1"])
    run_tasks([Task("run", config, None)], Place("cpu"), callback=lambda task, record, status: seen.append(record))
    return seen[0]


def run(record: RoundRecord, seed: int, accuracies: list[float | None], status: str = "finished") -> RunNumbers:
    records = [
        replace(record, round=index, clock_s=float(10 + index), test_accuracy=accuracy)
        for index, accuracy in enumerate(accuracies)
    ]
    return run_of(records, override(Config(), [f"seed={seed}"]), {"status": status, "num_classes": 4}, None)


def accuracy(deadline: int, policy: int, seed: int) -> float:
    """Grows with the first, a little with the second, and most with the seed."""
    return 0.4 + 0.05 * deadline + 0.01 * policy + 0.03 * seed + 0.004 * deadline * policy * (seed - 4)


@pytest.fixture
def runs(record: RoundRecord) -> list[SweptRun]:
    levels = product(range(3), range(2))
    return [SweptRun(run(record, seed, [None, accuracy(*each, seed)]), each) for each in levels for seed in SEEDS]


def test_differences_are_those_of_pairs_and_their_interval_is_that_of_the_seeds(runs: list[SweptRun]) -> None:
    deadline, policy = effects_of(FACTORS, runs, target=0.0)
    assert [level.label for level in deadline.levels] == ["0.4", "1", "4"]
    assert [level.label for level in policy.levels] == ["exact, flare", "cp, fedavg"]
    assert deadline.best == 2
    assert deadline.levels[2].difference is None
    of_seed = [np.mean([accuracy(0, p, seed) - accuracy(2, p, seed) for p in range(2)]) for seed in SEEDS]
    found = deadline.levels[0].difference
    assert found is not None
    assert (found.count, deadline.levels[0].pairs, deadline.levels[0].won) == (3, 6, 0)
    assert found.mean == pytest.approx(np.mean(of_seed))
    student = 0.95 / math.sqrt(2.0 * 0.975 * 0.025)  # its quantile at 97.5 % and two degrees of freedom
    assert found.half == pytest.approx(student * np.std(of_seed, ddof=1) / math.sqrt(3))
    mean = [np.mean([accuracy(0, p, seed) for p in range(2)]) for seed in SEEDS]
    assert deadline.levels[0].accuracy.mean == pytest.approx(np.mean(mean))
    assert found.half < 0.2 * deadline.levels[0].accuracy.half  # the seeds differ much more than the pairs


def test_pairs_that_are_incomplete_are_left_out(runs: list[SweptRun], record: RoundRecord) -> None:
    untested = [SweptRun(run(record, 3, [None]), (0, 0))]
    deadline, _ = effects_of(FACTORS, [*runs[1:], *untested], target=0.0)
    assert (deadline.levels[0].pairs, deadline.levels[0].num_runs) == (5, 5)
    assert deadline.levels[1].num_runs == 5


def test_runs_that_go_on_are_not_compared_with_those_that_have_ended(runs: list[SweptRun], record: RoundRecord) -> None:
    """In a sweep that was interrupted the last ones have had fewer rounds, or were not begun."""
    on = [replace(each, run=run(record, each.run.config.seed, [None, 0.99], "interrupted")) for each in runs[-6:]]
    found = [*runs[:-6], *on]  # of the last deadline none has ended
    deadline, policy = effects_of(FACTORS, found, target=0.0)
    assert all(math.isnan(level.accuracy.mean) and level.num_runs == 0 for level in deadline.levels)
    assert deadline.winner == -1
    assert [level.num_runs for level in policy.levels] == [6, 6]
    assert policy.levels[1].accuracy.mean == pytest.approx(
        np.mean([accuracy(d, 1, seed) for d in range(2) for seed in SEEDS])
    )
    first, _ = effect_sections(FACTORS, found, target=0.5)
    assert "Of 18 runs that were begun 6 do not count here" in first.text
    assert [differences_in_words(deadline, place) for place in range(3)] == [("–", "–")] * 3
    assert left_out(FACTORS, runs) == ""


def test_a_run_that_diverged_counts_as_guessing(runs: list[SweptRun], record: RoundRecord) -> None:
    lost = [SweptRun(run(record, each.run.config.seed, [0.99], "diverged"), each.levels) for each in runs[-3:]]
    deadline, policy = effects_of(FACTORS, [*runs[:-3], *lost], target=0.0)
    assert deadline.levels[2].num_diverged == 3
    expected = [np.mean([accuracy(2, 0, seed), 0.25]) for seed in SEEDS]
    assert deadline.levels[2].accuracy.mean == pytest.approx(np.mean(expected))
    assert policy.best == 0


def test_the_time_to_a_target_is_that_of_the_first_test_that_reaches_it(record: RoundRecord) -> None:
    made = run(record, 0, [None, 0.3, 0.6, 0.5, 0.7])
    assert time_to_accuracy_s(made, 0.55) == 12.0
    assert time_to_accuracy_s(made, 0.6) == 12.0
    assert time_to_accuracy_s(made, 0.61) == 14.0
    assert math.isnan(time_to_accuracy_s(made, 0.8))
    assert math.isnan(time_to_accuracy_s(made, 0.0))


def ending(record: RoundRecord, seed: int, at_round: int | None) -> RunNumbers:
    """A run that ends at 50 % after so many rounds, more sharply the later; or misses it."""
    tests = [0.1] * 5 if at_round is None else [*([0.1] * at_round), 0.5 + 0.05 * at_round]
    made = run(record, seed, list(tests), "finished" if at_round is None else "reached")
    return replace(made, config=override(made.config, ["run.target_accuracy=0.5"]))


def test_runs_that_end_at_a_target_are_compared_by_their_time_to_it(record: RoundRecord) -> None:
    """The quickest value has the lowest accuracy at its end, and one that misses it with a seed is behind all."""
    rounds_of = {(0, 0): 3, (0, 1): 4, (1, 0): 1, (1, 1): 2, (2, 0): 0, (2, 1): None}
    made = [
        SweptRun(ending(record, seed, rounds if seed == 3 or rounds is not None else 1), levels)
        for levels, rounds in rounds_of.items()
        for seed in SEEDS
    ]
    deadline, policy = effects_of(FACTORS, made, target=0.5)
    assert deadline.by_time
    assert deadline.winner == 1
    assert [level.num_reached for level in deadline.levels] == [6, 6, 5]
    slower, best, misses = deadline.levels
    assert (slower.measure.mean, best.measure.mean, best.difference) == (13.5, 11.5, None)
    assert slower.difference is not None
    assert (slower.difference.mean, slower.won, slower.pairs) == (2.0, 0, 6)
    assert misses.difference is not None
    assert (misses.won, misses.pairs) == (5, 5)  # of the pairs that both reach it
    assert differences_in_words(deadline, 0) == ("+2 s [+2, +2]", "0 of 6")
    assert policy.winner == 0
    first, second = effect_sections(FACTORS, made, target=0.5)
    assert [panel.title for panel in (first.panels[0], *second.panels)] == [
        "Time to 50 % along wireless.deadline_s",
        "Difference to the best value of scheduling.policy with learning.method",
    ]
    assert "differences to the best value, in time to 50 % test accuracy" in first.text
    assert "difference, time" in first.after
    assert all("<svg" in panel_html(panel) for panel in (*first.panels, *second.panels))
    told, _ = effects_of(FACTORS, made, target=0.4)  # whatever is asked for, they end at 50 %
    assert repr(told) == repr(deadline)  # nan is not equal to itself


def test_times_are_compared_over_what_all_values_reach(record: RoundRecord) -> None:
    """Each policy misses another deadline: the first has the lower mean of what it reaches, and is later where both
    reach the target."""
    rounds_of = {(0, 0): 0, (1, 0): 5, (2, 0): None, (0, 1): None, (1, 1): 2, (2, 1): 9}
    made = [SweptRun(ending(record, s, rounds), levels) for levels, rounds in rounds_of.items() for s in SEEDS]
    deadline, policy = effects_of(FACTORS, made, target=0.5)
    assert [level.to_target_s for level in policy.levels] == [12.5, 15.5]
    assert [level.measure.mean for level in policy.levels] == [15.0, 12.0]
    assert (policy.winner, policy.levels[0].won, policy.levels[0].pairs) == (1, 0, 3)
    assert deadline.winner == 1  # reached with both policies
    without = [each for each in made if each.levels[0] != 1]
    two = (Factor(DEADLINE.keys, (DEADLINE.levels[0], DEADLINE.levels[2])), POLICY)
    apart = [replace(each, levels=(each.levels[0] // 2, each.levels[1])) for each in without]
    nobody = effects_of(two, apart, target=0.5)[1]  # there is nothing that both reach
    assert nobody.winner == -1
    assert [differences_in_words(nobody, place) for place in range(2)] == [("–", "–")] * 2


def test_a_setting_with_one_value_has_no_effect(runs: list[SweptRun]) -> None:
    one = Factor(("run.rounds",), ((3,),))
    added = [SweptRun(each.run, (*each.levels, 0)) for each in runs]
    assert [effect.factor for effect in effects_of((*FACTORS, one), added, 0.0)] == [*FACTORS]


def test_sections_show_numbers_as_curves_and_names_as_differences(runs: list[SweptRun]) -> None:
    first, second = effect_sections(FACTORS, runs, target=0.5)
    assert [panel.title for panel in first.panels] == [
        "Final accuracy along wireless.deadline_s",
        "Final accuracy along wireless.deadline_s, by scheduling.policy with learning.method",
    ]
    assert [panel.title for panel in second.panels] == [
        "Difference to the best value of scheduling.policy with learning.method"
    ]
    assert "time to 50 %" in first.after
    pages: list[Any] = [panel_html(panel) for panel in (*first.panels, *second.panels)]
    assert all("<svg" in page for page in pages)
    assert "exact, flare" in pages[1]


def test_sections_without_a_test_say_so(record: RoundRecord) -> None:
    untested = [SweptRun(run(record, 0, [None]), levels) for levels in product(range(3), range(2))]
    for section in effect_sections(FACTORS, untested, target=0.0):
        assert "<svg" not in "".join(map(panel_html, section.panels))
        assert "–" in section.after


def test_values_that_are_alike_are_no_best(record: RoundRecord) -> None:
    levels = list(product(range(3), range(2)))
    alike = [SweptRun(run(record, seed, [None, 0.5 + 0.1 * each[1]]), each) for each in levels for seed in SEEDS]
    deadline, policy = effects_of(FACTORS, alike, target=0.0)
    assert [differences_in_words(deadline, place)[0] for place in range(3)] == ["no difference"] * 3
    assert (deadline.winner, policy.winner) == (-1, 1)
    assert differences_in_words(policy, 1) == ("best", "")
    same = [replace(each, run=run(record, each.run.config.seed, [None, 0.5])) for each in alike]
    _, second = effect_sections(FACTORS, same, target=0.0)
    assert any("no difference between its values" in panel_html(panel) for panel in second.panels)
    two = [
        replace(each, run=run(record, each.run.config.seed, [None, 0.4])) if each.levels[0] == 0 else each
        for each in alike
    ]
    deadline, _ = effects_of(FACTORS, two, target=0.0)
    assert [differences_in_words(deadline, place)[0] for place in (1, 2)] == ["best, tied"] * 2
