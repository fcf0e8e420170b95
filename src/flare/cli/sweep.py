"""`flare sweep`: many runs over a grid of settings, on this machine or on a cluster.

What is imported inside the functions brings torch and matplotlib along, which take their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from flare.cli.console import add_row, console, say, say_json
from flare.cli.guard import INTERRUPTED
from flare.cli.place import On, Processes, RayAddress, place_of
from flare.cli.plugins import Plugins, with_plugins
from flare.cli.run import Json, Quiet, Settings
from flare.extras import how_to_install
from flare.units import human

if TYPE_CHECKING:
    from flare.records.run import RunNumbers
    from flare.sweeps import Place, Task
    from flare.sweeps.grid import Grid


def sweep(
    sweep_file: Annotated[Path, typer.Argument(metavar="SWEEP.toml", help="What is swept; see docs/sweeps.md.")],
    out: Annotated[Path, typer.Option(help="Folder of the runs, of the table and of the report.")],
    settings: Settings = None,
    plugin: Plugins = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Test accuracy to which the time is told. (default: that of run.target_accuracy)"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many runs there are, and how long they may take.")
    ] = False,
    processes: Processes = None,
    on: On = "local",
    ray_address: RayAddress = None,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Carry out all runs of a grid of settings, and tell what each setting does. Started again, it does what is
    missing."""
    from flare.config.toml import split_settings
    from flare.sweeps.grid import begin_sweep, check_grid, grid_of
    from flare.sweeps.sweep_file import read_sweep

    place = place_of(processes, on, ray_address)
    read = read_sweep(sweep_file, split_settings(settings or []))
    grid = grid_of(replace(read, base=with_plugins(read.base, plugin)))
    _fetch(grid)
    if dry_run:
        check_grid(grid)
    elif begin_sweep(grid, out) and not (quiet or json_):
        say(f"{out} holds this sweep; what is missing is done.")
    tasks = grid.tasks(out)
    left = _left(tasks)
    if not (quiet or json_):
        _print_plan(grid, left, place)
    if dry_run:
        return
    stopped = bool(left) and _carry_out(left, place, quiet=quiet or json_)
    wanted = grid.base.run.target_accuracy if target is None else target
    _write(grid, tasks, wanted, out, as_json=json_)
    if stopped:
        say("interrupted; the same command continues with what is missing", stderr=True)
        raise typer.Exit(INTERRUPTED)


def _fetch(grid: Grid) -> None:
    """Bring the data of all runs into the cache, those of each setting once."""
    from flare.cli.run_setup import fetch_if_needed

    for data in {run.config.data: None for run in grid.runs}:
        fetch_if_needed(data)


def _left(tasks: Sequence[Task]) -> list[Task]:
    from flare.sweeps import has_ended

    return [task for task in tasks if not has_ended(task)]


def _print_plan(grid: Grid, left: Sequence[Task], place: Place) -> None:
    """Say how many runs there are, and how long those that are left may take."""
    from flare.sweeps.estimate import estimate_time
    from flare.text import plural

    by = " x ".join(f"{len(factor.levels)} of {factor.name}" for factor in grid.factors)
    done = f"; {len(grid.runs) - len(left):,} are done" if len(left) < len(grid.runs) else ""
    say(f"{plural(len(grid.runs), 'run')}: {by}, with {plural(len(grid.seeds), 'seed')}{done}.")
    if left:
        told = estimate_time(left, place)
        shared = "as many processes as Ray has room for" if place.processes is None and place.on != "local" else ""
        by_whom = shared or (f"{place.num_processes} processes" if place.num_processes > 1 else "this process")
        say(
            f"About {_duration(told.seconds)} by {by_whom}: {plural(told.rounds, 'round')} of "
            f"{plural(told.runs, 'run')} took this machine {human(told.trial_s, 's', 3)}."
        )


def _duration(seconds: float) -> str:
    """A time as people say it."""
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {name}"
    return "a second" if seconds < 1.5 else f"{seconds:.0f} seconds"


def _carry_out(tasks: Sequence[Task], place: Place, *, quiet: bool) -> bool:
    """Carry out the runs; whether they were stopped before their end."""
    from flare.cli.progress import interruptible, showing_total
    from flare.rounds import RoundRecord, RunStatus
    from flare.sweeps import expected_rounds, run_tasks

    rounds_of = {task.key: expected_rounds(task.config) for task in tasks}
    with interruptible() as stopping, showing_total(rounds_of, quiet=quiet) as show:

        def callback(task: Task, record: RoundRecord, status: RunStatus) -> None:
            show(task.key, record.round + 1, status is not RunStatus.RUNNING)

        run_tasks(tasks, place, callback=callback, stopping=stopping)
        return stopping() and bool(_left(tasks))


def _write(grid: Grid, tasks: Sequence[Task], target: float, out: Path, *, as_json: bool) -> None:
    """Write the table and the report, and say what came out."""
    from flare.research import sweep_results as results

    runs = results.read_sweep_runs(tasks)
    columns = results.result_columns(grid, runs, target)
    files = results.write_results(columns, out)
    page = results.write_sweep_report(grid, runs, target, out)
    if as_json:
        say_json(
            [dict(zip(columns, row, strict=True)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
        )
        return
    _print_effects(grid, runs, target)
    say(f"One row a run: {' and '.join(map(str, files))}.")
    if len(files) == 1:
        say(f"A Parquet file needs pyarrow: {how_to_install('research')}.")
    if page is not None:
        say(f"The report is in {page}.")


def _print_effects(grid: Grid, runs: Sequence[RunNumbers | None], target: float) -> None:
    """Print a table for each swept setting."""
    from flare.report.effect_sections import difference_headings, differences_in_words, left_out
    from flare.report.effects import effects_of, end_of
    from flare.report.run_words import percent
    from flare.research.sweep_results import swept_runs

    begun = swept_runs(grid, runs)
    end = end_of(begun)
    target = end or target
    for effect in effects_of(grid.factors, begun, target):
        if not any(level.num_runs for level in effect.levels):
            say(f"Of {effect.factor.name} nothing can be told yet.")
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        reached = [f"time to {100.0 * target:g} %", "reached"] if target else []
        table.add_column(effect.factor.name, overflow="fold")
        for heading in ("final accuracy", *difference_headings(effect), *reached, "runs"):
            table.add_column(heading, justify="right", no_wrap=True)
        for place, level in enumerate(effect.levels):
            times = [human(level.to_target_s, "s", 3), f"{level.num_reached} of {level.num_runs}"] if target else []
            cells = (percent(level.accuracy), *differences_in_words(effect, place), *times, str(level.num_runs))
            add_row(table, level.label, *cells, style="bold" if place == effect.winner else None)
        console().print(table)
    say(
        "Means over seeds and all other swept settings; differences to the best value over pairs of runs that differ "
        "in nothing else, with their 95 % interval over the seeds."
        + (" Times to the target are of the runs that reached it, as finely as they were tested." if target else "")
    )
    if end:
        say(
            f"Runs end at {100.0 * end:g} % (run.target_accuracy), so that they are compared by their time to it: "
            "final accuracies only tell by how much each went past it."
        )
    if missed := left_out(grid.factors, begun):
        say(missed)
