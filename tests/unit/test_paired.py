"""Groups compared seed by seed: the interval covers as often as it says, and only what pairs is paired."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.config import override
from flare.records.run import RunNumbers, read_run
from flare.report.comparison import as_json, ranking_table, to_target_as_json
from flare.report.curves import MIN_SEEDS, Estimate, estimate, summarise, time_to_accuracy_s
from flare.report.paired import (
    By,
    Ranking,
    accuracy_then,
    difference_of,
    in_order,
    rank,
    ranked_groups,
    seedwise,
    why_no_pair,
)
from flare.report.run_groups import group_runs
from flare.report.run_words import headline, ordered_by, points, seconds_apart, times_to_target
from flare.rng import stream
from tests.made_up_runs import settings, write_run


def run_of(path: Path, policy: str, seed: int = 0, method: str = "flare", **given: Any) -> RunNumbers:
    """A made-up run; keywords of `write_run`, and settings under `changes`."""
    changes = given.pop("changes", {})
    name = f"{method}-{policy}-{seed}-{len(list(path.iterdir()))}"
    return read_run(write_run(path / name, settings(policy, method, seed, **changes), **given))


def ranked(runs: list[RunNumbers], by: By = By.ROUNDS) -> Ranking:
    return rank(group_runs(runs)[0], by)


# --- the interval -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_interval_covers_the_true_difference_in_95_of_100_experiments(seeds: int) -> None:
    """Normal differences with a known mean; the luck of a seed, which both runs share, is ten times as large."""
    draw, true, experiments = stream(11, "coverage", seeds), -0.7, 3000
    luck = 10.0 * draw.normal(size=(experiments, seeds))
    ours = luck + true + draw.normal(size=(experiments, seeds))
    theirs = luck + draw.normal(size=(experiments, seeds))
    found = [difference_of(a, b).mean for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)]
    covered = np.mean([abs(each.mean - true) <= each.half for each in found])
    assert abs(covered - 0.95) < 4.0 * math.sqrt(0.95 * 0.05 / experiments)
    unpaired = np.mean([estimate(row).half for row in ours[:200].tolist()])
    assert np.mean([each.half for each in found]) < 0.3 * unpaired  # what the pairs are for


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_and_two_seeds_have_a_difference_and_no_interval(seeds: int) -> None:
    found = difference_of([0.5, 0.7][:seeds], [0.4, 0.4][:seeds])
    assert math.isnan(found.mean.half)
    assert found.mean.count == found.won == seeds
    assert points(found.mean) == {1: "+10.0", 2: "+20.0"}[seeds]
    assert seeds < MIN_SEEDS


def test_ties_are_neither_won_nor_lost() -> None:
    found = difference_of([1.0, 2.0, 3.0, 3.0], [1.0, 1.0, 4.0, 5.0])
    assert (found.won, found.lost, found.mean.count, found.mean.mean) == (1, 2, 4, -0.5)
    with pytest.raises(ValueError, match="2 values against 1"):
        seedwise([1.0, 2.0], [1.0])


def test_points_are_written_with_their_interval() -> None:
    assert points(Estimate(-0.0312, 0.0101, 5)) == "−3.1 [−4.1, −2.1]"
    assert points(Estimate(math.nan, math.nan, 0)) == "–"


# --- rankings ---------------------------------------------------------------------------------------------------


def test_differences_are_those_of_the_records(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, p, s, final_accuracy=a) for p, a in (("cp", 0.7), ("exact", 0.9)) for s in range(4)]
    ranking = ranked(runs)
    best, other = ranking.standings
    assert (ranking.by, ranking.at) == (By.ROUNDS, 20.0)
    assert [each.group.label for each in ranking.standings] == ["flare:exact", "flare:cp"]
    last = {(run.config.scheduling.policy, run.config.seed): run.of_round["test_accuracy"][-1] for run in runs}
    apart = [last["cp", seed] - last["exact", seed] for seed in range(4)]
    assert best.difference is None
    assert other.difference is not None
    assert other.difference.mean == estimate(apart)
    assert (other.difference.won, other.difference.lost) == (0, 4)
    assert best.accuracy == estimate([last["exact", seed] for seed in range(4)])


def test_equal_rounds_and_equal_time_may_rank_differently(tmp_path: Path) -> None:
    """Long rounds teach more each, and are fewer in the same time. The deadline is not drawn: the seeds still pair."""
    runs = [
        run_of(tmp_path, "exact", seed, final_accuracy=accuracy, rounds=rounds, changes={"deadline_s": deadline_s})
        for deadline_s, accuracy, rounds in ((2.0, 0.95, 40), (0.4, 0.9, 40))
        for seed in range(3)
    ]
    by_rounds, by_time = (ranked(runs, by) for by in By)
    long, short = "flare:exact, deadline 2 s", "flare:exact, deadline 400 ms"
    assert [each.group.label for each in by_rounds.standings] == [long, short]
    assert [each.group.label for each in by_time.standings] == [short, long]
    for ranking in (by_rounds, by_time):
        assert ranking.standings[1].difference is not None
        assert ranking.standings[1].difference.mean.count == 3
        assert ranking.standings[1].remarks == ()
    assert by_time.at == min(run.of_round["clock_s"][-1] for run in runs)
    groups, _ = ranked_groups(runs)
    assert [each.label for each in groups] == [long, short]  # the order of the page is that of equal rounds


def test_blocks_of_the_band_are_not_drawn(tmp_path: Path) -> None:
    plain, blocks = (run_of(tmp_path, "exact", changes={"block_hz": block_hz}) for block_hz in (0.0, 180e3))
    assert why_no_pair(plain, blocks) == ""


def test_only_seeds_that_both_have_are_paired_and_the_others_are_named(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "exact", seed, final_accuracy=0.9) for seed in (0, 1, 2, 3)]
    runs += [run_of(tmp_path, "cp", seed, final_accuracy=0.7) for seed in (2, 3, 7)]
    (_, other) = ranked(runs).standings
    assert other.difference is not None
    assert other.difference.mean.count == 2
    assert other.accuracy.count == 3
    assert other.remarks == (
        "flare:cp was run with seed 7, flare:exact was not",
        "flare:exact was run with seeds 0, 1, flare:cp was not",
    )


def test_runs_of_different_lengths_are_compared_where_the_shortest_ends(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "exact", s, rounds=40) for s in range(3)]
    runs += [run_of(tmp_path, "cp", s, rounds=40 if s else 10, status="interrupted") for s in range(3)]
    ranking = ranked(runs)
    assert ranking.at == 10.0
    assert ranking.remarks == ("Compared after 10 rounds, where flare:cp with seed 0 ends; others go on to 40 rounds",)
    assert accuracy_then(runs[0], By.ROUNDS, 10.0) == runs[0].of_round["test_accuracy"][9]


@pytest.mark.parametrize("seconds", [(0.0, 0.0), (0.0, 5.0), (5.0, 5.0)])
def test_runs_that_all_end_by_the_clock_rank_by_time(seconds: tuple[float, float], tmp_path: Path) -> None:
    quick = run_of(tmp_path, "exact", rounds=40, final_accuracy=0.8, changes={"deadline_s": 0.2, "seconds": seconds[0]})
    slow = run_of(tmp_path, "all", rounds=10, final_accuracy=0.8, changes={"deadline_s": 0.8, "seconds": seconds[1]})
    groups, rankings = in_order(group_runs([quick, slow])[0])
    by_time = all(seconds)
    assert [each.by for each in rankings] == ([By.TIME, By.ROUNDS] if by_time else [By.ROUNDS, By.TIME])
    assert groups == [each.group for each in rankings[0].standings]
    assert groups[0].runs[0] is (quick if by_time else slow)  # after ten rounds the slow one has come to its end
    assert f"at equal {'simulated time' if by_time else 'rounds'}, after" in ordered_by(groups, rankings)


def test_runs_that_end_at_a_target_are_ordered_by_their_time_to_it(tmp_path: Path) -> None:
    """The later one goes on longer, and ends higher. Who misses it with a seed comes after those who never do."""
    target = {"target_accuracy": 0.6}
    runs = [run_of(tmp_path, "dm", s, rounds=10 + 20 * (s > 0), final_accuracy=0.9, changes=target) for s in range(3)]
    runs += [run_of(tmp_path, "cp", s, rounds=60, final_accuracy=0.8, changes=target) for s in range(3)]
    runs += [run_of(tmp_path, "exact", s, rounds=20, final_accuracy=0.9, changes=target) for s in range(3)]
    groups, rankings = in_order(group_runs(runs)[0])
    lines = [summarise(group) for group in groups]
    assert [line.num_reached for line in lines[:2]] == [3, 3]
    assert 0 < lines[2].num_reached < 3
    assert groups[2].config.scheduling.policy == "dm"
    assert lines[0].to_target_s.mean < lines[1].to_target_s.mean
    assert lines[0].final.mean < lines[1].final.mean
    first_s = [time_to_accuracy_s(run, 0.6) for run in groups[0].runs]
    assert lines[0].to_target_s == estimate(first_s)
    assert ordered_by(groups, rankings).startswith("Ordered by simulated time to 60 % test accuracy")
    assert "is there first" in headline(groups, lines, rankings)
    first, later, _ = times_to_target(groups, lines)
    assert first[1:] == ("first", "3 of 3")
    apart = [time_to_accuracy_s(run, 0.6) - each for run, each in zip(groups[1].runs, first_s, strict=True)]
    assert later[1] == seconds_apart(estimate(apart))
    others = [run_of(tmp_path, "ps", 0, changes={"target_accuracy": 0.7}), *runs[:3]]
    assert "at equal rounds" in ordered_by(*in_order(group_runs(others)[0]))


def test_who_never_reaches_the_target_comes_last_and_ties_are_told(tmp_path: Path) -> None:
    target = {"target_accuracy": 0.6}
    some = [
        run_of(tmp_path, "exact", s, rounds=10 + 20 * (s > 0), final_accuracy=0.9, changes=target) for s in range(3)
    ]
    never = [run_of(tmp_path, "cp", 0, rounds=4, final_accuracy=0.9, changes=target)]  # of fewer seeds
    groups, rankings = in_order(group_runs([*never, *some])[0])
    assert [group.config.scheduling.policy for group in groups] == ["exact", "cp"]
    first, last = to_target_as_json(groups)
    assert (first["reached"], last["reached"], last["time_s"], last["pairs"]) == (2, 0, None, 0)
    nobody = [run_of(tmp_path, p, 1, rounds=r, final_accuracy=0.5, changes=target) for p, r in (("cp", 20), ("dm", 30))]
    ordered, ranked_too = in_order(group_runs(nobody)[0])
    assert ordered == [each.group for each in ranked_too[0].standings]
    said = ordered_by(ordered, ranked_too)
    assert said.startswith("Nobody reaches 60 % test accuracy, where runs would end. Ordered by test accuracy")
    one = run_of(tmp_path, "cp", rounds=30, final_accuracy=0.9, changes=target)
    twin = replace(one, config=override(one.config, ["scheduling.policy=dm"]))
    groups, rankings = in_order(group_runs([one, twin])[0])
    assert "nobody is there before all others" in headline(groups, [summarise(group) for group in groups], rankings)


def test_a_run_that_diverged_counts_as_guessing(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "exact", s, final_accuracy=0.6) for s in range(3)]
    lost = [run_of(tmp_path, "cp", s, final_accuracy=0.95, diverge_at=8 if s else None) for s in range(3)]
    lost = [replace(run, manifest={**run.manifest, "num_classes": 10}) for run in lost]
    ranking = ranked([*runs, *lost])
    assert [each.group.label for each in ranking.standings] == ["flare:exact", "flare:cp"]  # though 0.95 beats 0.6
    assert accuracy_then(lost[1], By.ROUNDS, 20.0) == 0.1
    assert accuracy_then(lost[1], By.ROUNDS, 5.0) == lost[1].of_round["test_accuracy"][4]
    apart = ranking.standings[1].difference
    assert apart is not None
    assert (apart.won, apart.lost, apart.mean.count) == (1, 2, 3)
    assert "A run that diverged counts as guessing from where it ended" in ranking.remarks
    untold = replace(lost[1], manifest={key: value for key, value in lost[1].manifest.items() if key != "num_classes"})
    assert accuracy_then(untold, By.ROUNDS, 20.0) == 0.0


def test_runs_without_a_test_rank_last_and_where_there_is_none_nothing_ranks(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "exact", 0), run_of(tmp_path, "cp", 0, tests=False)]
    best, other = ranked(runs).standings
    assert best.group.label == "flare:exact"
    assert other.accuracy.count == 0
    assert other.remarks == ("flare:cp: no pair with seed 0 (there is no test)",)
    assert ranked(runs[1:]).standings == ()
    assert "none that the tests of all runs reach" in ranking_table(ranked(runs[1:]))
    groups, rankings = in_order(group_runs([run_of(tmp_path, p, 1, tests=False) for p in ("cp", "dm")])[0])
    assert len(groups) == len(rankings) == 2


# --- what pairs -------------------------------------------------------------------------------------------------

SAMPLES = {"data": "digits", "samples": "aa", "division": "11"}


@pytest.mark.parametrize(
    ("changes", "identity", "why"),
    [
        ({}, SAMPLES, ""),
        ({"deadline_s": 2.0, "total_bandwidth_hz": 1e6, "gamma": 1.0, "local_lr": 0.3}, SAMPLES, ""),
        ({"num_devices": 20}, SAMPLES, "their cells differ"),
        ({"fading": "rayleigh"}, SAMPLES, "their cells differ"),
        ({"tau_mean": 4.0}, SAMPLES, "their cells differ"),
        ({}, SAMPLES | {"division": "22"}, "their data, or who holds which, differ"),
        ({}, SAMPLES | {"samples": "bb"}, "their data, or who holds which, differ"),
        ({}, {}, ""),  # goes by the settings
        ({"folder": "/elsewhere"}, {}, ""),
        ({"partition": "shards"}, {}, "their data differ"),
    ],
)
def test_what_pairs(changes: dict[str, Any], identity: dict[str, str], why: str, tmp_path: Path) -> None:
    one = run_of(tmp_path, "exact", rounds=1, identity=SAMPLES)
    other = run_of(tmp_path, "cp", rounds=1, identity=identity, changes=changes)
    assert why_no_pair(one, other) == why_no_pair(other, one) == why


def test_real_devices_do_not_pair(tmp_path: Path) -> None:
    one, other = (run_of(tmp_path, policy, rounds=5) for policy in ("exact", "cp"))
    real = replace(other, manifest={**other.manifest, "driver": "flower"})
    assert why_no_pair(one, real) == "real devices are never the same twice"
    assert ranked([one, real]).standings[1].difference == difference_of([], [])


# --- for programs -----------------------------------------------------------------------------------------------


def test_json_has_every_number_and_no_nan(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, p, s, m, final_accuracy=a)
        for p, m, a in (("cp", "fedavg", 0.7), ("exact", "flare", 0.9))
        for s in range(3)
    ]
    told = json.loads(json.dumps(as_json(ranked(runs)), allow_nan=False))
    assert (told["by"], told["after"], told["unit"]) == ("rounds", 20.0, "rounds")
    best, other = told["groups"]
    assert (best["name"], best["best"], best["difference"]) == ("flare:exact", True, None)
    assert (other["full_name"], other["pairs"], other["won"], other["lost"]) == ("fedavg:cp (CP)", 3, 0, 3)
    assert other["low"] < other["difference"] < other["high"] < 0.0
    alone = json.loads(json.dumps(as_json(ranked([runs[0], runs[3]])), allow_nan=False))["groups"][1]
    assert alone["difference"] is not None
    assert alone["low"] is alone["high"] is alone["half_width"] is None
