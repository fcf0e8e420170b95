"""What `flare run` and `flare compare` say of runs when they are over: in a sentence, as JSON, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from flare.cli.console import add_row, console, say
from flare.cli.guard import INTERRUPTED
from flare.config import Config
from flare.records.run import RunNumbers
from flare.report.comparison import against_best, as_json, remarks_of, to_target_as_json
from flare.report.curves import MIN_SEEDS, summarise
from flare.report.paired import By, Ranking, common_target, ranked_groups, why_no_place
from flare.report.run_groups import Group
from flare.report.run_words import interval_note, ordered_by, percent, timed_headings, times_to_target
from flare.rounds.why_nobody import why_nobody_sends
from flare.simulation import Simulation
from flare.sweeps.entries import run_name
from flare.text import json_number
from flare.units import human


def outcome(run: RunNumbers) -> dict[str, Any]:
    """How a run ended, for JSON."""
    accuracy, loss = (run.of_round[name][run.evaluated] for name in ("test_accuracy", "test_loss"))
    best, last_loss = (float(accuracy.max()), float(loss[-1])) if len(accuracy) else (math.nan, math.nan)
    return {
        "folder": str(run.folder),
        "method": run.config.learning.method,
        "policy": run.config.scheduling.policy,
        "seed": run.config.seed,
        "status": run.status if run.ended else "interrupted",  # the command is over: none of its runs is running
        "rounds": run.num_rounds,
        "clock_s": run.clock_s,
        "test_accuracy": json_number(run.accuracy),
        "best_accuracy": json_number(best),
        "test_loss": json_number(last_loss),
        "why_nobody_sent": _why_nobody_sent(run.config) if run.num_rounds and not len(run.selected) else None,
    }


def _why_nobody_sent(config: Config) -> str:
    """Why a run had no update in any round, told of its first."""
    simulation = Simulation(config)
    return why_nobody_sends(simulation.station, simulation.plan(simulation.start()))


def print_outcome(one: dict[str, Any]) -> None:
    """Say how a run ended."""
    tested = "" if one["test_accuracy"] is None else f", test accuracy {100 * one['test_accuracy']:.2f} %"
    rounds = f"{one['rounds']} round{'' if one['rounds'] == 1 else 's'}"
    say(f"{one['status']} after {rounds} and {human(one['clock_s'], 's', 4)} of simulated time{tested}.")
    print_nobody(one)
    say(f"The run is in {one['folder']}; draw it with: flare report {one['folder']}")


def print_nobody(one: dict[str, Any]) -> None:
    """Say of a run in which nobody ever sent that it was so, and why."""
    if one["why_nobody_sent"] is not None:
        name = run_name(one["method"], one["policy"], one["seed"])
        say(f"Nobody sent in any round of {name}, so nothing was learned: {one['why_nobody_sent']}.")


def end(runs: Sequence[RunNumbers], again: str) -> None:
    """Leave with the exit code of an interruption where a run was interrupted; `again` continues it."""
    if not all(run.ended for run in runs):
        say(f"interrupted; continue with: {again}", stderr=True)
        raise typer.Exit(INTERRUPTED)


def print_table(runs: Sequence[RunNumbers], page: Path) -> None:
    """Print what became of the runs, those of different seeds in one line, and where the report is."""
    groups, ranked = ranked_groups(runs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = ("accuracy", "best", "time", "devices", "mean tau", "gap")
    for heading in ("method:policy", *timed_headings(groups), *numbers, "status"):
        table.add_column(heading, justify="left" if heading in ("method:policy", "status") else "right", no_wrap=True)
    lines = [summarise(group) for group in groups]
    for group, line, timed in zip(groups, lines, times_to_target(groups, lines), strict=True):
        add_row(
            table,
            group.full_name,
            *timed,
            *(percent(one) for one in (line.final, line.best)),
            human(line.clock_s.mean, "s", 3),
            f"{line.devices:.1f}",
            "–" if math.isnan(line.tau) else f"{line.tau:.2f}",
            "–" if math.isnan(line.gap) else f"{100.0 * line.gap:.0f} %",
            line.status,
        )
    console().print(table)
    say(f"Accuracy on the test samples at the end and at best. {interval_note(groups)}")
    if any(group.full_name != group.label for group in groups):
        say("In brackets: what the paper calls it; the report explains it.")
    if len(groups) > 1:
        say(ordered_by(groups, ranked))
        _print_differences(groups, ranked)
    say(f"The report is in {page}.")


def _print_differences(groups: Sequence[Group], ranked: Sequence[Ranking]) -> None:
    """Print how far each group is from the best, seed by seed, and what to know of it."""
    known = [ranking for ranking in ranked if ranking.standings]
    if not known:
        say("The tests of the runs reach no common round and no common time: nothing is compared seed by seed.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("difference to the best", no_wrap=True)
    for ranking in known:
        table.add_column(f"after {ranking.by.words(ranking.at)}", justify="right", no_wrap=True)
        table.add_column("won", justify="right", no_wrap=True)
    standings = [{id(each.group): each for each in ranking.standings} for ranking in known]
    for group in groups:
        cells = [cell for by_group in standings for cell in against_best(by_group[id(group)])]
        add_row(table, group.label, *cells)
    console().print(table)
    say(
        "Points of test accuracy, mean over paired seeds [95 % interval]; won: in how many seeds it is ahead of the "
        f"best. An interval takes {MIN_SEEDS} seeds."
    )
    for ranking in ranked:
        if not ranking.standings:
            what = "rounds: there is no round" if ranking.by is By.ROUNDS else "simulated time: there is no time"
            why = why_no_place(groups, ranking.by)
            say(
                f"Not compared after equal {what} that the tests of all runs reach"
                f"{f' ({why})' if why else ''}; {_to_compare(groups)}."
            )
    for remark in dict.fromkeys(each for one in known for each in remarks_of(one)):
        say(f"{remark}.")


def _to_compare(groups: Sequence[Group]) -> str:
    """What gives runs tests that all of them reach."""
    if any(run.config.run.evaluate_every > 1 for group in groups for run in group.runs):
        return "test more often, by run.evaluate_every"
    return "let all run for the same simulated time, by run.seconds, with enough run.rounds"


def comparison_as_json(runs: Sequence[RunNumbers]) -> dict[str, Any]:
    """The outcomes of all runs, and the rankings of their groups, for JSON."""
    groups, ranked = ranked_groups(runs)
    told = {"runs": [outcome(run) for run in runs], "rankings": [as_json(ranking) for ranking in ranked]}
    return told | ({"to_target": to_target_as_json(groups)} if common_target(groups) else {})
