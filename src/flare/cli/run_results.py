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
from flare.records.run import Run
from flare.report.curves import Estimate, common_time_s, summarise
from flare.report.run_groups import group_runs
from flare.scheduling.nobody import why_nobody
from flare.simulation import Simulation
from flare.sweeps.entries import run_name


def outcome(run: Run) -> dict[str, Any]:
    """How a run ended, for JSON."""
    accuracy, loss = (run.of_round[name][run.evaluated] for name in ("test_accuracy", "test_loss"))
    return {
        "folder": str(run.folder),
        "method": run.config.learning.method,
        "policy": run.config.scheduling.policy,
        "seed": run.config.seed,
        "status": run.status if run.ended else "interrupted",
        "rounds": run.num_rounds,
        "clock_s": float(run.of_round["clock_s"][-1]) if run.num_rounds else 0.0,
        "test_accuracy": float(accuracy[-1]) if len(accuracy) else None,
        "best_accuracy": float(accuracy.max()) if len(accuracy) else None,
        "test_loss": float(loss[-1]) if len(loss) and math.isfinite(loss[-1]) else None,
        "why_nobody_sent": _why_nobody_sent(run.config) if run.num_rounds and not len(run.selected) else None,
    }


def _why_nobody_sent(config: Config) -> str:
    """Why a run had no update in any round, told of its first."""
    simulation = Simulation(config)
    return why_nobody(simulation.plan(simulation.start()).problem, config.scheduling.policy)


def print_outcome(one: dict[str, Any]) -> None:
    """Say how a run ended."""
    tested = "" if one["test_accuracy"] is None else f", test accuracy {100 * one['test_accuracy']:.2f} %"
    rounds = f"{one['rounds']} round{'' if one['rounds'] == 1 else 's'}"
    say(f"{one['status']} after {rounds} and {one['clock_s']:.1f} simulated seconds{tested}.")
    print_nobody(one)
    say(f"The run is in {one['folder']}; draw it with: flare report {one['folder']}")


def print_nobody(one: dict[str, Any]) -> None:
    """Say of a run in which nobody ever sent that it was so, and why."""
    if one["why_nobody_sent"] is not None:
        name = run_name(one["method"], one["policy"], one["seed"])
        say(f"Nobody sent in any round of {name}, so nothing was learned: {one['why_nobody_sent']}.")


def end(runs: Sequence[Run], again: str) -> None:
    """Leave with the exit code of an interruption where a run was interrupted; `again` continues it."""
    if not all(run.ended for run in runs):
        say(f"interrupted; continue with: {again}", stderr=True)
        raise typer.Exit(INTERRUPTED)


def print_table(runs: Sequence[Run], page: Path) -> None:
    """Print what became of the runs, those of different seeds in one line, and where the report is."""
    groups, _ = group_runs(runs)
    common_s = common_time_s(groups)
    lines = [(group.label, summarise(group, common_s)) for group in groups]
    lines.sort(key=lambda line: -line[1].final.mean if line[1].final.count else 1.0)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    common = "–" if math.isnan(common_s) else f"after {common_s:.0f} s"
    for heading in ("", "accuracy", "best", common, "time", "devices", "mean tau", "gap", "status"):
        table.add_column(heading, justify="left" if heading in ("", "status") else "right", no_wrap=True)
    for label, line in lines:
        add_row(
            table,
            label,
            *(_percent(one) for one in (line.final, line.best, line.at_common)),
            f"{line.clock_s.mean:.0f} s",
            f"{line.devices:.1f}",
            "–" if math.isnan(line.tau) else f"{line.tau:.2f}",
            "–" if math.isnan(line.gap) else f"{100.0 * line.gap:.0f} %",
            line.status,
        )
    console().print(table)
    say("Accuracy on the test samples at the end, at best and at a common simulated time; ± is a 95 % interval.")
    say(f"The report is in {page}.")


def _percent(value: Estimate) -> str:
    if not value.count:
        return "–"
    return f"{100.0 * value.mean:.1f}" + ("" if math.isnan(value.half) else f" ± {100.0 * value.half:.1f}") + " %"
