"""The section of a report that compares groups seed by seed: a ranking at equal rounds, one at equal simulated time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from flare.records.run import time_in_words
from flare.report import run_figures as draw
from flare.report.curves import MIN_SEEDS, summarise
from flare.report.page import table
from flare.report.paired import By, Ranking, Standing, common_target, lateness
from flare.report.panels import Panel, Section, nothing, spoken
from flare.report.run_groups import Group, runs_of
from flare.report.run_words import percent, points
from flare.text import cut, json_number

ABOUT = (
    "Runs with the same seed saw the same cell, the same data on the same devices and the same draws, so they are "
    "compared in pairs: the difference is the mean over seeds of a group's test accuracy less that of the best, in "
    "percentage points, with its 95 % interval (Student's t over these differences). Won: in how many seeds the group "
    "is ahead of the best. The best was picked by these very seeds, and each interval stands for itself: among many "
    "groups some differences look larger than they are."
)
_NAMES = {By.ROUNDS: "rounds", By.TIME: "time"}


def comparison(groups: Sequence[Group], ranked: Sequence[Ranking]) -> Section:
    """Rankings of all groups, each with the differences to its best one."""
    few = f" With fewer than {MIN_SEEDS} pairs there is no interval." if _few_somewhere(ranked) else ""
    panels = [_panel(groups, ranking) for ranking in ranked if _paired(ranking)]
    if not panels:
        panels = [nothing("Differences to the best: no two runs here are a pair.")]
    tables = "".join(f"<div>{ranking_table(ranking)}</div>\n" for ranking in ranked)
    return Section("Compared seed by seed", ABOUT + few, panels, f'<div class="panels">\n{tables}</div>\n')


def _paired(ranking: Ranking) -> list[Standing]:
    return [each for each in ranking.standings if each.difference is not None and each.difference.mean.count]


def _few_somewhere(ranked: Sequence[Ranking]) -> bool:
    pairs = [each.difference.mean.count for one in ranked for each in one.standings if each.difference is not None]
    return any(number < MIN_SEEDS for number in pairs)


def _panel(groups: Sequence[Group], ranking: Ranking) -> Panel:
    """The differences with their intervals."""
    shown = _paired(ranking)
    rows = [(100.0 * each.difference.mean.mean, 100.0 * each.difference.mean.half) for each in shown if each.difference]
    places = [next(i for i, group in enumerate(groups) if group is each.group) for each in shown]
    best = ranking.standings[0].group.label
    return Panel(
        f"difference-{_NAMES[ranking.by]}",
        f"Difference to the best after {ranking.by.words(ranking.at)}",
        f"To {best}, over paired seeds. Bar: 95 % interval; one that reaches 0 leaves open who is ahead.",
        spoken([each.group for each in shown], [mean for mean, _ in rows], lambda mean: f"{mean:+.2f} points"),
        lambda: draw.differences(
            f"test accuracy (points) less that of\n{draw.printed(cut(best, 48))}",
            [each.group.label for each in shown],
            rows,
            [draw.looks(len(groups))[place] for place in places],
        ),
    )


def _equal(ranking: Ranking) -> str:
    """What the groups have had equally much of."""
    return "rounds" if ranking.by is By.ROUNDS else time_in_words(runs_of([each.group for each in ranking.standings]))


def ranking_table(ranking: Ranking) -> str:
    """A ranking as HTML, with what to know of it."""
    title = f"Ranked at equal {_equal(ranking)}"
    if not ranking.standings:
        return f'<h3>{title}</h3>\n<p class="note">There is none that the tests of all runs reach.</p>\n'
    header = ["method:policy", "test accuracy", "difference, points", "won"]
    rows = [[escape(each.group.label), percent(each.accuracy), *against_best(each)] for each in ranking.standings]
    said = "".join(f'<p class="note">{escape(remark)}.</p>\n' for remark in remarks_of(ranking))
    words = f"{title}: by test accuracy after {ranking.by.words(ranking.at)}"
    return f"<h3>{words}</h3>\n{table(words, header, rows, best=0)}{said}"


def remarks_of(ranking: Ranking) -> list[str]:
    """All that is to be known of a ranking before it is trusted."""
    return [*ranking.remarks, *(remark for each in ranking.standings for remark in each.remarks)]


def against_best(one: Standing) -> tuple[str, str]:
    """The cells of a table: how far a group is from the best, and in how many seeds it is ahead of it."""
    if one.difference is None:
        return "best", ""
    count = one.difference.mean.count
    return points(one.difference.mean), f"{one.difference.won} of {count}" if count else "–"


def as_json(ranking: Ranking) -> dict[str, object]:
    """A ranking for programs: accuracies and differences are shares, not per cent; null where there is no number."""
    return {
        "by": _equal(ranking),
        "after": json_number(ranking.at),
        "unit": "rounds" if ranking.by is By.ROUNDS else "s",
        "groups": [_standing_as_json(each) for each in ranking.standings],
        "remarks": list(ranking.remarks),
    }


def to_target_as_json(groups: Sequence[Group]) -> list[dict[str, object]]:
    """When groups reach the test accuracy at which all runs end, in their order, for programs; `later_s` is by how much
    later than the first over the seeds that pair."""
    target = common_target(groups)
    rows: list[dict[str, object]] = []
    for group, apart in zip(groups, lateness(groups, target), strict=True):
        line = summarise(group)
        mean, half = (math.nan, math.nan) if apart is None else (apart.mean.mean, apart.mean.half)
        rows.append(
            {
                "name": group.label,
                "target": target,
                "time_s": json_number(line.to_target_s.mean),
                "half_width_s": json_number(line.to_target_s.half),
                "reached": line.num_reached,
                "seeds": len(group.runs),
                "later_s": json_number(mean),
                "low_s": json_number(mean - half),
                "high_s": json_number(mean + half),
                "pairs": None if apart is None else apart.mean.count,
            }
        )
    return rows


def _standing_as_json(one: Standing) -> dict[str, object]:
    apart = one.difference
    mean, half = (math.nan, math.nan) if apart is None else (apart.mean.mean, apart.mean.half)
    return {
        "name": one.group.label,
        "full_name": one.group.full_name,
        "seeds": [run.config.seed for run in one.group.runs],
        "test_accuracy": json_number(one.accuracy.mean),
        "half_width": json_number(one.accuracy.half),
        "best": apart is None,
        "difference": json_number(mean),
        "low": json_number(mean - half),
        "high": json_number(mean + half),
        "pairs": None if apart is None else apart.mean.count,
        "won": None if apart is None else apart.won,
        "lost": None if apart is None else apart.lost,
        "remarks": list(one.remarks),
    }
