"""A comparison of runs in words: what was run, what came out best, and what to know before trusting it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from flare.config import AUTO, WALL, DataConfig, LearningConfig
from flare.data import SOURCES
from flare.records.run import RunNumbers
from flare.report.curves import MIN_SEEDS, Estimate, Summary, summarise
from flare.report.group_labels import differing
from flare.report.paired import By, Ranking, common_target, lateness
from flare.report.run_groups import Group
from flare.rounds.privacy import shared
from flare.scheduling.registry import TOLD
from flare.text import plural
from flare.units import human

_TESTS_TOLD = "the accuracy and loss of the model on their own data"


def title(groups: Sequence[Group]) -> str:
    """The page in one line."""
    data = " and ".join(sorted({group.runs[0].data for group in groups}))
    names = ", ".join(group.label for group in groups) if len(groups) <= 6 else f"{len(groups)} settings"
    return f"{names} on {data}"


def headline(groups: Sequence[Group], lines: Sequence[Summary], ranked: Sequence[Ranking], lead: str = "") -> str:
    """What came out best and what was run, as HTML; groups and their lines best first. `lead` is a text that stands in
    the place of the former."""
    if lead:
        first = escape(lead)
    elif all(run.diverged for group in groups for run in group.runs):
        first = "Every run diverged."
    elif all(math.isnan(line.final.mean) for line in lines):
        first = "No run has a final test accuracy yet."
    elif len(groups) == 1:
        reached = f"<b>{percent(lines[0].final)}</b> ({_mean_of(lines[0].final)})"
        whose = " on the nodes' own data" if any(run.tested_by_nodes for run in groups[0].runs) else ""
        first = f"<b>{escape(groups[0].label)}</b> ends at a test accuracy{whose} of {reached}."
    else:
        first = " ".join(_best_of(ranking) for ranking in ranked if ranking.standings)
        first = " ".join(each for each in (_first_there(groups, lines), first) if each)
        first = first or "The tests of the runs reach no common round and no common time: nothing is ranked."
    what = " ".join([_what_was_run(groups, lines), what_was_told(groups), *control_traffic(groups)])
    return f'<p class="lead">{first}</p>\n<p>{escape(what)}</p>'


def _first_there(groups: Sequence[Group], lines: Sequence[Summary]) -> str:
    """Who is first at the test accuracy at which all runs end, as HTML; nothing where they do not, or nobody is."""
    target, best = common_target(groups), lines[0]
    if not target or not best.num_reached:
        return ""
    missed = len(groups[0].runs) - best.num_reached
    apart = lateness(groups, target)[1] if len(groups) > 1 else None
    if apart is not None and apart.mean.count and not apart.mean.mean and not missed:
        return f"Runs end at {100.0 * target:g} % test accuracy, and nobody is there before all others."
    told = (
        f"Runs end at {100.0 * target:g} % test accuracy. <b>{escape(groups[0].label)}</b> is there first, after "
        f"<b>{human(best.to_target_s.mean, 's', 3)}</b> on average"
        + (f" (with {plural(missed, 'seed')} it never is)." if missed else ".")
    )
    if apart is None or not apart.mean.count:
        return told
    next_to = f"Next is {escape(groups[1].label)}, later by {seconds_apart(apart.mean)}{_verdict(apart.mean)}."
    return f"{told} {next_to} What follows is of accuracies before that."


def _mean_of(value: Estimate) -> str:
    if value.count < MIN_SEEDS:
        return "one seed" if value.count == 1 else f"mean of {value.count} seeds; an interval takes {MIN_SEEDS}"
    return f"mean of {value.count} seeds and its 95 % interval"


def _best_of(ranking: Ranking) -> str:
    """Who is best in a ranking and by how much, as HTML."""
    best, second = ranking.standings[0], ranking.standings[1]
    first = (
        f"After {ranking.by.words(ranking.at)} <b>{escape(best.group.label)}</b> has the best test accuracy, "
        f"<b>{percent(best.accuracy)}</b>."
    )
    if second.difference is None or not second.accuracy.count:
        return first
    apart, name = second.difference, escape(second.group.label)
    if not apart.mean.count:
        return (
            f"{first} Next is {name} with {percent(second.accuracy)}; none of its seeds pairs with those of the best."
        )
    won = f"{apart.won} of {plural(apart.mean.count, 'seed')}"
    return f"{first} Next is {name}, {points(apart.mean)} points from it; it wins {won}{_verdict(apart.mean)}."


def _verdict(apart: Estimate) -> str:
    if math.isnan(apart.half):
        return f" (an interval takes {MIN_SEEDS} seeds)"
    return "" if abs(apart.mean) > apart.half else ", and the seeds do not tell the two apart"


def points(apart: Estimate) -> str:
    """A difference in percentage points with its 95 % interval, as a person writes it."""
    if not apart.count:
        return "–"
    mean = f"{100.0 * apart.mean:+.1f}"
    if not math.isnan(apart.half):
        mean += f" [{100.0 * (apart.mean - apart.half):+.1f}, {100.0 * (apart.mean + apart.half):+.1f}]"
    return mean.replace("-", "−")


def seconds_apart(apart: Estimate) -> str:
    """A difference of times with its 95 % interval, as a person writes it."""
    if not apart.count:
        return "–"
    mean, half = apart.mean, apart.half
    scale, unit = (1e3, "ms") if abs(mean) + (0.0 if math.isnan(half) else half) < 1.0 else (1.0, "s")
    told = f"{scale * mean:+.3g} {unit}"
    if not math.isnan(half):
        told += f" [{scale * (mean - half):+.3g}, {scale * (mean + half):+.3g}]"
    return told.replace("-", "−")


TIMED = ("time to {target}", "later by", "reached")
"""What `times_to_target` tells, where all runs end at the same test accuracy."""


def timed_headings(groups: Sequence[Group]) -> list[str]:
    """The headings of `times_to_target`; none where runs do not all end at the same test accuracy."""
    target = common_target(groups)
    return [each.format(target=f"{100.0 * target:g} %") for each in TIMED] if target else []


def times_to_target(groups: Sequence[Group], lines: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Of each group the time to the test accuracy at which runs end, with half its 95 % interval; by how much later it
    is than the first group, over the seeds that pair; and how many of its runs reach it. Nothing of each where runs do
    not all end at the same accuracy."""
    target = common_target(groups)
    if not target:
        return [()] * len(groups)
    later = lateness(groups, target)
    return [
        (
            _time_with_half(line.to_target_s),
            "first" if apart is None and line.num_reached else "–" if apart is None else seconds_apart(apart.mean),
            f"{line.num_reached} of {len(group.runs)}",
        )
        for group, line, apart in zip(groups, lines, later, strict=True)
    ]


def _time_with_half(time_s: Estimate) -> str:
    half = f" ±\N{NO-BREAK SPACE}{human(time_s.half, 's', 3)}" if math.isfinite(time_s.half) else ""
    return f"{human(time_s.mean, 's', 3)}{half}"


def interval_note(groups: Sequence[Group]) -> str:
    """What ± stands for, or why there is none."""
    if any(len(group.runs) >= MIN_SEEDS for group in groups):
        return f"±: 95 % interval of the mean over the seeds (Student's t); it takes {MIN_SEEDS} seeds."
    return f"No intervals: those take {MIN_SEEDS} seeds."


def ordered_by(groups: Sequence[Group], ranked: Sequence[Ranking]) -> str:
    """What the groups are in the order of."""
    target = common_target(groups)
    if target and any(summarise(group).num_reached for group in groups):
        return (
            f"Ordered by simulated time to {100.0 * target:g} % test accuracy, where runs end (final accuracies only "
            "tell by how much each went past it); who misses it with a smaller share of the seeds comes first."
        )
    if target:
        nobody = f"Nobody reaches {100.0 * target:g} % test accuracy, where runs would end. "
        return nobody + _ordered_by_accuracy(ranked)
    return _ordered_by_accuracy(ranked)


def _ordered_by_accuracy(ranked: Sequence[Ranking]) -> str:
    first = ranked[0]
    equal, such = ("rounds", "round") if first.by is By.ROUNDS else ("simulated time", "time")
    if not first.standings:
        return f"Ordered by final accuracy, since there is no {such} that the tests of all runs reach."
    return f"Ordered by test accuracy at equal {equal}, after {first.by.words(first.at)}."


def _what_was_run(groups: Sequence[Group], lines: Sequence[Summary]) -> str:
    """The size of the comparison, and what all its runs have in common."""
    runs = sum(len(group.runs) for group in groups)
    number = plural(runs, "run") if len(groups) == 1 else f"{plural(runs, 'run')} of {len(groups)} settings"
    differ = set(differing([group.settings for group in groups]))
    config, first = groups[0].config, groups[0].runs[0]
    common = {
        "data.name": "" if "own data" in differ else f"data {first.data}",
        "data.partition": f"partition {config.data.partition}" if _divides(first) else "",
        "data.shared_fraction": _shared_words(config.data),
        "wireless.num_devices": plural(config.wireless.num_devices, "device"),
        "learning.model": "" if "own model" in differ else f"model {first.model}",
        "learning.method": f"method {config.learning.method}",
        "learning.attack": _attack_words(config.learning),
        "learning.robust": "" if config.learning.robust == "none" else f"the {config.learning.robust} of the updates",
        "scheduling.policy": f"policy {config.scheduling.policy}",
        "wireless.deadline_s": f"deadline {human(config.wireless.deadline_s, 's')}{_kind_of_deadline(first)}",
    }
    shared = ", ".join(words for key, words in common.items() if words and key not in differ)
    shortest, longest = min(line.rounds[0] for line in lines), max(line.rounds[1] for line in lines)
    rounds = plural(longest, "round") if shortest == longest else f"{shortest} to {plural(longest, 'round')}"
    each, all_ = (" each", "all with ") if runs > 1 else ("", "")
    return f"{number}, {rounds}{each}" + (f"; {all_}{shared}." if shared else ".")


def _divides(run: RunNumbers) -> bool:
    """Whether FLARE divided the data among devices: nodes with data of their own bring them as they are."""
    return not run.on_nodes or run.config.data.name in SOURCES


def _kind_of_deadline(run: RunNumbers) -> str:
    """In which time the deadline of real nodes is."""
    if not run.on_nodes:
        return ""
    return {WALL: " of real time", AUTO: " of real time at first, then as devices need it"}.get(
        run.config.fleet.deadline, " of modelled time"
    )


def accuracy_note(groups: Sequence[Group]) -> list[str]:
    """Whose accuracy is shown, where it is that of nodes."""
    by_nodes = [group.label for group in groups if any(run.tested_by_nodes for run in group.runs)]
    which = "" if len(by_nodes) == len(groups) else f" of {', '.join(by_nodes)}"
    return [f"Accuracy{which}: the mean over nodes of their own tests, as the server made none."] if by_nodes else []


def _attack_words(learning: LearningConfig) -> str:
    """Who attacks and how, where the settings speak of attackers."""
    if learning.attack == "none" and learning.attackers:
        return f"nobody attacking (learning.attackers is {learning.attackers}, but learning.attack is none)"
    if learning.attack == "none":
        return ""
    if not learning.attackers:
        return f"nobody attacking (learning.attack is {learning.attack}, but learning.attackers is 0)"
    return f"{plural(learning.attackers, 'attacker')} ({learning.attack})"


def _shared_words(data: DataConfig) -> str:
    """What devices share, where they do."""
    if not data.shared_fraction:
        return ""
    each = "" if data.shared_part == 1.0 else f", {100.0 * data.shared_part:g} % of it each"
    return f"shared data of {100.0 * data.shared_fraction:g} % of what devices hold{each}"


def what_was_told(groups: Sequence[Group]) -> str:
    """What devices told the base station beside their updates, and in which groups where not in all."""
    told: dict[str, list[str]] = {}
    for group in groups:
        for word in shared(group.config.data):
            told.setdefault(TOLD[word], []).append(group.label)
        if any(np.isfinite(run.of_round["node_accuracy_mean"]).any() for run in group.runs):
            told.setdefault(_TESTS_TOLD, []).append(group.label)
    if not told:
        in_common = any(group.config.data.shared_fraction for group in groups)
        known = "; the samples that all of them share are known to all" if in_common else ""
        return f"Devices told the base station nothing of their data beside updates and numbers of samples{known}."
    each = [what + ("" if len(labels) == len(groups) else f" ({', '.join(labels)})") for what, labels in told.items()]
    return f"Beside updates and numbers of samples, devices told the base station {' and '.join(each)}."


def control_traffic(groups: Sequence[Group]) -> list[str]:
    """What devices sent beside updates, where they did."""
    sent = {group.label: float(np.mean([run.of_round["control_bits"].sum() for run in group.runs])) for group in groups}
    if not any(bits != 0.0 for bits in sent.values()):
        return []
    each = [
        f"{label} {'(not written down)' if math.isnan(bits) else human(bits, 'bit', 3)}"
        for label, bits in sent.items()
        if bits != 0.0
    ]
    return [f"Control traffic of a run (answers to the policy, its trials; counted as sent): {', '.join(each)}."]


def remarks_on(groups: Sequence[Group], lines: Sequence[Summary], left_out: Sequence[RunNumbers]) -> str:
    """What a reader must know before trusting the numbers."""
    remarks = []
    diverged = {group.label: sum(run.diverged for run in group.runs) for group in groups}
    if any(diverged.values()):
        names = ", ".join(f"{label} ({number})" for label, number in diverged.items() if number)
        number = sum(diverged.values())
        counts = "counts" if number == 1 else "count"
        remarks.append(f"{plural(number, 'run')} diverged, and {counts} as guessing from there: {names}.")
    nobody, rounds = sum(line.without_sender for line in lines), sum(line.total_rounds for line in lines)
    if nobody:
        silent = sum(int((run.without_sender & (run.num_selected > 0)).sum()) for group in groups for run in group.runs)
        of_these = f"; in {silent:,} of them nothing came of those that were selected" if silent else ""
        why = next((each for group in groups for run in group.runs for each in run.why_nobody if each), "")
        because = f" The first in which nobody was selected: {why}." if why else ""
        remarks.append(f"In {nobody:,} of {rounds:,} rounds ({nobody / rounds:.1%}) nobody sent{of_these}.{because}")
    clipped = {group.label: int(sum(run.num_clipped.sum() for run in group.runs)) for group in groups}
    if any(clipped.values()):
        sent = sum(int(run.num_sent.sum()) for group in groups for run in group.runs)
        names = ", ".join(f"{label} ({number:,})" for label, number in clipped.items() if number)
        remarks.append(f"{sum(clipped.values()):,} of {sent:,} updates were too long, and were clipped: {names}.")
    unfinished = sum(not run.ended for group in groups for run in group.runs)
    if unfinished:
        remarks.append(f"{plural(unfinished, 'run')} had not come to an end; the tables show which.")
    if left_out:
        folders = ", ".join(str(run.folder) for run in left_out)
        remarks.append(f"Left out, since another folder holds the same configuration and seed: {folders}.")
    return "".join(f'<p class="warn">{escape(remark)}</p>\n' for remark in remarks)


def percent(value: Estimate) -> str:
    """A share with its interval, as a person writes it."""
    if math.isnan(value.mean):
        return "–"
    around = "" if math.isnan(value.half) else f" ± {100.0 * value.half:.1f}"
    return f"{100.0 * value.mean:.1f}{around} %"
