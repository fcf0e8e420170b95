"""`flare report`: run folders in, one page out that opens from disk, prints, and needs no network and no script."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from flare.atomic import write_whole
from flare.config import OTA, Config, to_toml
from flare.records.run import RunNumbers, read_run, time_in_words
from flare.report.comparison import comparison
from flare.report.curves import Summary, summarise
from flare.report.group_labels import PAPER_NAMES, differing, paper_name
from flare.report.page import document, table
from flare.report.paired import Ranking, common_target, in_order, ranked_groups
from flare.report.panels import Section, section_html
from flare.report.run_groups import Group, group_runs, runs_of
from flare.report.run_sections import all_sections
from flare.report.run_words import (
    accuracy_note,
    headline,
    interval_note,
    ordered_by,
    percent,
    remarks_on,
    timed_headings,
    times_to_target,
    title,
)
from flare.text import plural
from flare.units import human

MAX_PICTURED = 40
"""Groups of a sweep of which the page has pictures: of more, nobody looks at them."""


def refuse_other_names(out: Path) -> None:
    """ValueError where `out` is not the name of an HTML file."""
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise ValueError(f"cannot write the report to {out}; give the name of a file that ends in .html")


def read_runs(folders: Sequence[Path]) -> list[RunNumbers]:
    """The runs in folders, one that is given twice once; ValueError where there is none, or one is damaged."""
    if not folders:
        raise ValueError("there is nothing to report: give at least one run folder")
    return [read_run(folder) for folder in {folder.resolve(): folder for folder in folders}.values()]


@dataclass(frozen=True)
class Opening:
    """How a page begins that is of more than a comparison: its title, and what came out, as texts."""

    title: str
    lead: str


def write_page(
    runs: Sequence[RunNumbers], out: Path, *, first: Sequence[Section] = (), opening: Opening | None = None
) -> None:
    """Write the report of runs into a file, which appears whole or not at all; OSError where it cannot be written.

    `first` are sections that come before all others; with them, of more than `MAX_PICTURED` groups there is only the
    table. `opening` stands in the place of what is best of the comparison.
    """
    page = report_page(runs, first=first, opening=opening)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(out, page.encode("utf-8"))
    except OSError as error:
        raise type(error)(f"{out}: the report cannot be written: {error.strerror or error}") from None


def report_page(runs: Sequence[RunNumbers], *, first: Sequence[Section] = (), opening: Opening | None = None) -> str:
    """The page, as text; see `write_page`."""
    grouped, left_out = group_runs(runs)
    groups, ranked = in_order(grouped)
    begins = opening or Opening(title(groups), "")
    pictured = _sections(groups, ranked) if not first or len(groups) <= MAX_PICTURED else []
    lines = [summarise(group) for group in groups]
    body = "\n".join(
        [
            f"<header>\n<h1>{escape(begins.title)}</h1>",
            headline(groups, lines, ranked, begins.lead),
            remarks_on(groups, lines, left_out),
            "</header>\n<main>",
            *(section_html(each, groups) for each in first),
            _final_table(groups, lines, ranked),
            *(section_html(each, groups) for each in pictured),
            _configurations(groups if len(groups) <= MAX_PICTURED or not first else groups[:1]),
            _provenance(groups),
            "</main>",
        ]
    )
    return document(begins.title, body)


def contents(runs: Sequence[RunNumbers]) -> tuple[list[Group], list[Section]]:
    """The groups of a report, best first, and its sections of pictures."""
    groups, ranked = ranked_groups(runs)
    return groups, _sections(groups, ranked)


def _sections(groups: Sequence[Group], ranked: Sequence[Ranking]) -> list[Section]:
    compared = [] if len(groups) < 2 else [comparison(groups, ranked)]
    return [*compared, *all_sections(groups)]


# --- tables -----------------------------------------------------------------------------------------------------


def _final_table(groups: Sequence[Group], lines: Sequence[Summary], ranked: Sequence[Ranking]) -> str:
    header = [
        "method:policy", "seeds", *timed_headings(groups), "final accuracy", "best accuracy", "rounds",
        time_in_words(runs_of(groups)), "devices a round", "fairness", "mean τ", "mean gap", "energy a run",
        "sent a run", "no sender", "status",
    ]  # fmt: skip
    rows = []
    for group, line, timed in zip(groups, lines, times_to_target(groups, lines), strict=True):
        counted = "" if line.final.count in (0, len(group.runs)) else f"{line.final.count} of "
        rounds = f"{line.rounds[1]:,}" if line.rounds[0] == line.rounds[1] else f"{line.rounds[0]:,}–{line.rounds[1]:,}"
        rows.append(
            [
                escape(group.full_name), f"{counted}{len(group.runs)}",
                *timed, f"<b>{percent(line.final)}</b>",
                percent(line.best), rounds, human(line.clock_s.mean, "s", 3),
                _number(line.devices), _number(line.fairness, 2), _number(line.tau), _gap(line.gap),
                human(line.energy_j, "J", 3), _sent(group, line), f"{line.without_sender:,}",
                _status(line.status),
            ]
        )  # fmt: skip
    best = (
        0
        if len(groups) > 1
        and not math.isnan(lines[0].final.mean)
        and (lines[0].num_reached or not common_target(groups))
        else -1
    )
    notes = [ordered_by(groups, ranked)] if len(groups) > 1 else []
    notes += [*accuracy_note(groups), interval_note(groups), "Fairness: Jain's index of how often devices sent."]
    notes.append("Gap: of the schedule's objective to its proven bound.")
    return (
        f"<section>\n<h2>Results</h2>\n{table('Results', header, rows, text=(len(header) - 1,), best=best)}"
        f'<p class="note">{escape(" ".join(notes))}</p>\n{_names(groups)}</section>\n'
    )


def _names(groups: Sequence[Group]) -> str:
    """What the paper's names in brackets mean, where there are some."""
    named = dict.fromkeys(name for group in groups if (name := paper_name(group.settings)))
    if not named:
        return ""
    meant = "".join(f"<dt>{name}</dt><dd>{escape(PAPER_NAMES[name])}</dd>" for name in named)
    return f'<p class="note">In brackets, what the paper calls it:</p>\n<dl class="note">{meant}</dl>\n'


def _sent(group: Group, line: Summary) -> str:
    """What all devices sent; over the air that is no bits."""
    return "analog" if group.config.uplink.air == OTA else human(line.sent_bits, "bit", 3)


def _status(status: str) -> str:
    shown = escape(status)
    return f'<span class="bad">{shown}</span>' if "diverged" in status else shown


def _gap(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{100.0 * value:.0f} %" if value >= 0.1 else f"{100.0 * value:.2g} %"


def _number(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _configurations(groups: Sequence[Group]) -> str:
    keys = differing([group.settings for group in groups])
    parts = ["<section>\n<h2>Configuration</h2>\n"]
    if keys:
        settings = [group.settings for group in groups]
        rows = [[f"<code>{key}</code>", *(escape(_value(each.get(key, ""))) for each in settings)] for key in keys]
        header = ["setting", *(escape(group.label) for group in groups)]
        parts.append(f"<details open><summary>What differs</summary>{table('What differs', header, rows)}</details>\n")
    for group in groups:
        seeds = ", ".join(str(run.config.seed) for run in group.runs)
        parts.append(
            f"<details><summary>{escape(group.label)}: the whole file</summary>\n"
            f"<p>Seeds: {seeds}. Marked: what differs between groups.</p>\n"
            f"<pre>{_marked(group.config, set(keys))}</pre></details>\n"
        )
    return "".join(parts) + "</section>\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}"
        if isinstance(value, float)
        else ", ".join(map(str, value))
        if isinstance(value, tuple)
        else str(value)
    )


def _marked(config: Config, keys: set[str]) -> str:
    """The file of a configuration with the given settings marked and the comments pale."""
    section, lines = "", []
    for line in to_toml(config).splitlines():
        section = f"{line[1:-1]}." if line.startswith("[") else section
        if line.startswith("#"):
            lines.append(f"<i>{escape(line)}</i>")
        elif line and keys & {section + line.split(" = ")[0], section[:-1]}:  # a table of options is marked whole
            lines.append(f"<mark>{escape(line)}</mark>")
        else:
            lines.append(escape(line))
    return "\n".join(lines)


def _provenance(groups: Sequence[Group]) -> str:
    """Who made the runs: each surroundings once, then every folder."""
    runs = [(group, run) for group in groups for run in group.runs]
    made_by = [tuple(_shown(run.manifest.get(fact)) for fact in ("flare", "commit", "hardware")) for _, run in runs]
    places = {facts: str(place) for place, facts in enumerate(dict.fromkeys(made_by), start=1)}
    origins = [
        [place, escape(flare), f"<code>{escape(commit)}</code>", escape(hardware), str(made_by.count(facts))]
        for facts, place in places.items()
        for flare, commit, hardware in [facts]
    ]
    folders = [
        [
            f"<code>{escape(str(run.folder))}</code>",
            escape(group.label),
            str(run.config.seed),
            f"{run.num_rounds:,}",
            escape(run.status),
            escape(_shown(run.manifest.get("created"))),
            places[facts],
        ]
        for (group, run), facts in zip(runs, made_by, strict=True)
    ]
    header = ["folder", "group", "seed", "rounds", "status", "created", "made by"]
    return (
        "<section>\n<h2>Versions, and how to reproduce</h2>\n"
        "<p>The same configuration on the same machine gives the same run. Take the <code>config.toml</code> of a "
        "folder, or save one of the files above under that name, with the seed you want:</p>\n"
        "<pre>flare run config.toml</pre>\n"
        + _changes(runs)
        + table("Versions", ["made by", "flare", "commit", "hardware", "runs"], origins, text=(1, 2, 3))
        + f"<details{' open' * (len(folders) <= 10)}><summary>{plural(len(folders), 'run folder')}</summary>"
        + table("Run folders", header, folders, text=(1, 4, 5))
        + "</details>\n</section>\n"
    )


def _changes(runs: Sequence[tuple[Group, RunNumbers]]) -> str:
    """Which runs went on with other code than they began with."""
    changed = [run for _, run in runs if run.manifest.get("changed_plugins")]
    if not changed:
        return ""
    named = ", ".join(f"<code>{escape(str(run.folder))}</code>" for run in changed[:10])
    more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
    return (
        f"<p>Not so {named}{more}: a plugin was changed while it was under way (--allow-changed-plugin), and its "
        "rounds are by different code. The manifest says which, and after which round.</p>\n"
    )


def _shown(value: Any) -> str:
    """An entry of a manifest in one line."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_shown(each)}" for key, each in value.items())
    return value if isinstance(value, str) else json.dumps(value)
