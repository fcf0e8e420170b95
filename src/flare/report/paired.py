"""Groups compared seed by seed: how far each is from the best, after equal rounds and after equal simulated time.

Runs with the same seed see the same cell, the same data on the same devices and the same draws. What they have in
common cancels in their difference, so that a difference which is small against the scatter of the seeds still shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from flare.records.run import RunNumbers
from flare.report.curves import (
    Axis,
    Estimate,
    Summary,
    accuracy_at,
    common_place,
    estimate,
    rounds_of_tests,
    summarise,
    time_to_accuracy_s,
    times_of_tests,
)
from flare.report.run_groups import Group, group_runs
from flare.types import Floats
from flare.units import human

_NOT_DRAWN = (
    "power_dbm", "noise_dbm_per_mhz", "total_bandwidth_hz", "deadline_s", "guard", "payload_bits",
    "cycles_per_sample", "batch_size", "capacitance", "block_hz", "downlink", "downlink_power_dbm",
    "downlink_codec", "downlink_options",
)  # fmt: skip
"""Settings of the cell that leave all that is drawn as it is: runs that differ in these alone still pair."""
_NOTHING_SHARED: dict[str, Any] = {"shared_fraction": 0.0, "shared_part": 1.0, "warm_up_epochs": 0}
_NOTHING = Estimate(math.nan, math.nan, 0)


class By(StrEnum):
    """What runs have had equally much of when their accuracies are compared."""

    ROUNDS = "rounds"
    TIME = "time"

    @property
    def axis(self) -> Axis:
        """Where the tests of a run lie."""
        return rounds_of_tests if self is By.ROUNDS else times_of_tests

    def words(self, at: float) -> str:
        """So many rounds, or so much time."""
        return f"{at:,.4g} round{'' if at == 1.0 else 's'}" if self is By.ROUNDS else human(at, "s", 3)


@dataclass(frozen=True)
class Difference:
    """Of paired values: the mean difference with its 95 % t-interval, and in how many pairs ours is above, below."""

    mean: Estimate
    won: int
    lost: int


@dataclass(frozen=True, eq=False)
class Standing:
    """A group in a ranking.

    accuracy     mean over its seeds at the place of the ranking; a run that diverged counts as guessing
    difference   to the best group, over the seeds that pair; None for the best itself
    remarks      which seeds do not pair with those of the best, and why
    """

    group: Group
    accuracy: Estimate
    difference: Difference | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ranking:
    """Groups by test accuracy after `at` rounds, or seconds of their clock, best first; nobody where `at` is nan."""

    by: By
    at: float
    standings: tuple[Standing, ...]
    remarks: tuple[str, ...] = ()


def seedwise(ours: Sequence[float], theirs: Sequence[float], scale: float = 1.0) -> Floats:
    """How much more `ours` are than `theirs`, pair by pair, times `scale`; ValueError where they do not pair."""
    if len(ours) != len(theirs):
        raise ValueError(f"seeds do not pair: {len(ours)} values against {len(theirs)}")
    difference: Floats = scale * (np.array(ours, dtype=np.float64) - np.array(theirs, dtype=np.float64))
    return difference


def difference_of(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The difference of paired values; equal ones are neither won nor lost."""
    apart = seedwise(ours, theirs)
    return Difference(
        estimate(apart.tolist()) if len(apart) else _NOTHING, int((apart > 0.0).sum()), int((apart < 0.0).sum())
    )


def ranked_groups(runs: Sequence[RunNumbers]) -> tuple[list[Group], list[Ranking]]:
    """The groups of runs in their order, and their rankings."""
    return in_order(group_runs(runs)[0])


def in_order(groups: Sequence[Group]) -> tuple[list[Group], list[Ranking]]:
    """The groups as they rank at equal rounds, or at equal simulated time where all runs end by `run.seconds`, and the
    rankings at both, the one that orders them first.

    Where all runs end at the same test accuracy, groups are ordered by their time to it. Where there is no such round
    or time, they are ordered by final accuracy.
    """
    ranked = [rank(groups, by) for by in By]
    if all(run.config.run.seconds for group in groups for run in group.runs):
        ranked.reverse()
    if ranked[0].standings:
        ordered = [each.group for each in ranked[0].standings]
    else:
        ordered = sorted(groups, key=lambda group: -_final_or_best(summarise(group)))
    if common_target(groups):  # those who are as late stay in that order
        ordered.sort(key=lambda group: _lateness(summarise(group), len(group.runs)))
    return ordered, ranked


def common_target(groups: Sequence[Group]) -> float:
    """The test accuracy at which all runs end (`run.target_accuracy`); 0 where there is none, or not the same."""
    targets = {group.config.run.target_accuracy for group in groups}
    return targets.pop() if len(targets) == 1 else 0.0


def lateness(groups: Sequence[Group], target: float) -> list[Difference | None]:
    """By how many seconds each group reaches a test accuracy later than the first one of them, over the seeds that pair
    and reach it in both, as a difference that is `lost` where it was earlier; None for the first itself."""
    first = {run.config.seed: run for run in groups[0].runs}
    told: list[Difference | None] = [None]
    for group in groups[1:]:
        pairs = [(run, first[run.config.seed]) for run in group.runs if run.config.seed in first]
        times_s = [
            (time_to_accuracy_s(run, target), time_to_accuracy_s(rival, target))
            for run, rival in pairs
            if not why_no_pair(run, rival)
        ]
        known = [each for each in times_s if all(map(math.isfinite, each))]
        told.append(difference_of([mine for mine, _ in known], [theirs for _, theirs in known]))
    return told


def _lateness(summary: Summary, num_runs: int) -> tuple[float, float]:
    """The less, the earlier; who misses the target with a smaller share of its seeds comes first."""
    missed = 1.0 - summary.num_reached / num_runs
    return missed, summary.to_target_s.mean if summary.num_reached else math.inf


def _final_or_best(summary: Summary) -> float:
    """Final accuracy; those without come last, of them the best ever seen first."""
    if not math.isnan(summary.final.mean):
        return summary.final.mean
    return -2.0 if math.isnan(summary.best.mean) else summary.best.mean - 1.0


def rank(groups: Sequence[Group], by: By) -> Ranking:
    """The groups ranked by their mean accuracy at the last place that the tests of all runs reach.

    Every group is compared with the best over the seeds that both have and that saw the same cell and data.
    """
    at = common_place(groups, by.axis)
    if math.isnan(at):
        return Ranking(by, at, ())
    means = {id(group): estimate([accuracy_then(run, by, at) for run in group.runs]) for group in groups}
    ordered = sorted(groups, key=lambda group: -means[id(group)].mean if means[id(group)].count else math.inf)
    best = ordered[0]
    standings = [Standing(best, means[id(best)], None)]
    standings += [_against(best, group, means[id(group)], by, at) for group in ordered[1:]]
    return Ranking(by, at, tuple(standings), _limits(groups, by, at))


def accuracy_then(run: RunNumbers, by: By, at: float) -> float:
    """Test accuracy of a run after `at` rounds or seconds; a run that has diverged by then guesses; nan where
    unknown."""
    found = float(accuracy_at(run, np.array([at]), by.axis)[0])
    return run.guess if run.diverged and math.isnan(found) else found


def why_no_pair(one: RunNumbers, other: RunNumbers) -> str:
    """Why two runs with the same seed are still no pair; empty where they are one."""
    if "flower" in (one.manifest.get("driver"), other.manifest.get("driver")):
        return "real devices are never the same twice"
    if _drawn(one) != _drawn(other):
        return "their cells differ"
    told = [tuple(run.identity.get(part) for part in ("samples", "division")) for run in (one, other)]
    if None in told[0] + told[1]:  # folders that do not tell go by their settings
        data = [replace(run.config.data, folder="") for run in (one, other)]
        return "" if data[0] == data[1] else "their data differ"
    if told[0] == told[1] or _divided_alike(one, other):
        return ""
    return "their data, or who holds which, differ"


def _divided_alike(one: RunNumbers, other: RunNumbers) -> bool:
    """Whether two runs hold the same samples but for those that the devices of one share: these were taken out of, and
    given to, the same devices of the same data."""
    shared = [run.config.data.shared_fraction for run in (one, other)]
    if shared[0] == shared[1] or one.identity.get("samples") != other.identity.get("samples"):
        return False
    kinds = [run.identity.get("data", "") for run in (one, other)]
    if kinds[0] != kinds[1] or kinds[0].startswith("own data"):  # who held which before is not known of those
        return False
    plain = [replace(run.config.data, folder="", **_NOTHING_SHARED) for run in (one, other)]
    return plain[0] == plain[1]


def _drawn(run: RunNumbers) -> dict[str, object]:
    """The settings that decide what is drawn of a cell."""
    return {name: value for name, value in vars(run.config.wireless).items() if name not in _NOT_DRAWN}


def why_no_place(groups: Sequence[Group], by: By) -> str:
    """Which two groups have no test at a place that both reach, in words; empty where all have."""
    tested = [(group, run) for group in groups for run in group.runs if len(run.evaluated) and not run.diverged]
    if not tested or not math.isnan(common_place(groups, by.axis)):
        return ""
    first, ends = min(tested, key=lambda each: float(by.axis(each[1])[-1]))
    last, begins = max(tested, key=lambda each: float(by.axis(each[1])[0]))
    end, begin = by.words(float(by.axis(ends)[-1])), by.words(float(by.axis(begins)[0]))
    one, other = f"{first.label} with seed {ends.config.seed}", f"{last.label} with seed {begins.config.seed}"
    return f"the last test of {one} is after {end}, the first of {other} after {begin}"


def _against(best: Group, group: Group, accuracy: Estimate, by: By, at: float) -> Standing:
    """A group beside the best one, over the seeds that pair."""
    theirs = {run.config.seed: run for run in best.runs}
    pairs: list[tuple[float, float]] = []
    unpaired: dict[str, list[int]] = {}
    for run in group.runs:
        rival = theirs.get(run.config.seed)
        if rival is None:
            continue
        why = why_no_pair(run, rival)
        values = (accuracy_then(run, by, at), accuracy_then(rival, by, at))
        if not why and not all(map(math.isfinite, values)):
            why = "there is no test"
        if why:
            unpaired.setdefault(why, []).append(run.config.seed)
        else:
            pairs.append(values)
    ours = {run.config.seed for run in group.runs}
    remarks = [f"{group.label}: no pair with {_seeds(seeds)} ({why})" for why, seeds in unpaired.items()]
    for one, other, seeds in ((group, best, ours - theirs.keys()), (best, group, theirs.keys() - ours)):
        if seeds:
            remarks.append(f"{one.label} was run with {_seeds(sorted(seeds))}, {other.label} was not")
    difference = difference_of([mine for mine, _ in pairs], [best_ for _, best_ in pairs])
    return Standing(group, accuracy, difference, tuple(remarks))


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds[:8])) + (f" and {len(seeds) - 8} more" if len(seeds) > 8 else "")
    return f"seed{'s' if len(seeds) > 1 else ''} {listed}"


def _limits(groups: Sequence[Group], by: By, at: float) -> tuple[str, ...]:
    """Which runs end so early that the others are compared before their end, and which diverged."""
    runs = [(group, run) for group in groups for run in group.runs]
    ends = [float(by.axis(run)[-1]) if len(run.evaluated) and not run.diverged else math.nan for _, run in runs]
    remarks = []
    if np.nanmax(ends) > (1.0 if by is By.ROUNDS else 1.5) * at:  # every run has a clock of its own
        group, run = runs[int(np.nanargmin(ends))]
        remarks.append(
            f"Compared after {by.words(at)}, where {group.label} with seed {run.config.seed} ends; others go on to "
            f"{by.words(float(np.nanmax(ends)))}"
        )
    if any(run.diverged for _, run in runs):
        remarks.append("A run that diverged counts as guessing from where it ended")
    return tuple(remarks)
