"""What `flare reproduce` does, apart from its options: imported when it runs, because torch takes time to import."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from flare.atomic import write_whole
from flare.cli.guard import INTERRUPTED
from flare.cli.progress import interruptible
from flare.cli.run_runs import fetch_if_needed
from flare.config import LearningConfig
from flare.experiments import EXPERIMENTS, FIGURES
from flare.experiments.claims import Claim
from flare.experiments.experiment import Scale
from flare.experiments.page import TITLE, page
from flare.experiments.reproduce import Reproduced, claim_as_json, reproduce
from flare.experiments.runner import Callback, Place, finished, length
from flare.experiments.trial import Trial
from flare.learning.engine import compute_device
from flare.reading import read_small

MAX_PROCESSES = 8
_MAX_PAGE_BYTES = 1 << 24


def chosen(names: Sequence[str]) -> list[str]:
    """The experiments that are asked for, each once, in our order."""
    wanted: set[str] = set()
    for name in names:
        if name == "all":
            wanted.update(FIGURES)
        elif name == "beyond":
            wanted.update(set(EXPERIMENTS) - set(FIGURES))
        elif name in EXPERIMENTS:
            wanted.add(name)
        else:
            raise ValueError(f"there is no experiment '{name}'; there are {', '.join(EXPERIMENTS)}, all and beyond")
    return [name for name in EXPERIMENTS if name in wanted]


def scale_of(seeds: int | None, quick: bool) -> Scale:
    """Seeds 0, 1, ..., by default five, two with `--quick`."""
    return Scale(tuple(range(seeds or (2 if quick else 5))), quick)


def place_of(out: Path | None, quick: bool, device: str, processes: int | None) -> Place:
    """Where the runs are kept, and who computes them."""
    folder = out or Path("results-quick" if quick else "results")
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"--device is '{device}'; it must be one of auto, cpu, cuda")
    where = compute_device(LearningConfig(device=device))
    shared = min(MAX_PROCESSES, max(1, (os.cpu_count() or 2) // 2)) if where == "cuda" else 1
    return Place(folder / "trials", where, processes or shared)


def go(names: Sequence[str], scale: Scale, place: Place, *, quiet: bool, as_json: bool) -> None:
    """Carry out the experiments, or what is missing of them, and say what the claims came to."""
    out = place.folder.parent
    if len(names) == len(EXPERIMENTS):
        _refuse_other_page(_page_of(out))
    trials = {trial.key: trial for name in names for trial in EXPERIMENTS[name].trials(scale)}
    for data in sorted({trial.config.data for trial in trials.values()}, key=lambda data: data.name):
        fetch_if_needed(data)
    with interruptible() as stopping, _showing(list(trials.values()), place, quiet=quiet or as_json) as callback:
        made = reproduce(names, scale, place, out, callback=callback, stopping=stopping)
        stopped = stopping()
    if len(made) == len(EXPERIMENTS):
        write_whole(_page_of(out), page(made, out.resolve().name).encode())
        if not as_json:
            print(f"The page of results is {_page_of(out)}.")
    if as_json:
        print(json.dumps([claim_as_json(claim) for one in made for claim in one.claims], indent=2))
    else:
        _print(made, out, quick=scale.quick)
    if stopped:
        print("interrupted; the same command continues with what is missing", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _page_of(out: Path) -> Path:
    """The page of results lies beside their folder."""
    folder = out.resolve()
    return folder.with_name(f"{folder.name}.md")


def _refuse_other_page(path: Path) -> None:
    """Write over no file that is not a page of results."""
    if path.exists() and not read_small(path, _MAX_PAGE_BYTES).startswith(TITLE.encode()):
        raise ValueError(f"{path}: is in the way of the page of results; move it, or give another --out")


def _print(made: Sequence[Reproduced], out: Path, *, quick: bool) -> None:
    claims = [claim for one in made for claim in one.claims]
    if claims:
        Console(highlight=False, width=None if sys.stdout.isatty() else 150).print(claims_table(claims))
        counts = Counter(claim.verdict.value for claim in claims)
        print("; ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".")
    if quick:
        print("Small settings stand in for the paper's: the verdicts say that everything runs, nothing of the paper.")
    if made:
        print(f"Numbers and figures are in {out}.")


def claims_table(claims: Sequence[Claim]) -> Table:
    """A line for each claim."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("claim", "verdict", "effect, 95 % interval", "tests that hold", "measure"):
        table.add_column(heading, overflow="fold")
    for one in claims:
        held = sum(test.verdict.value == "holds" for test in one.tests)
        table.add_row(one.name, one.verdict.value, str(one.effect), f"{held} of {len(one.tests)}", one.measure)
    return table


@contextmanager
def _showing(trials: Sequence[Trial], place: Place, *, quiet: bool) -> Iterator[Callback]:
    """A watcher that shows how many runs and rounds are done."""
    if quiet:
        yield lambda trial, rounds, ended: None
        return
    console = Console(stderr=True)
    done: dict[str, float] = {trial.key: length(trial) for trial in trials if finished(trial, place)}
    total = sum(length(trial) for trial in trials)
    ended = len(done)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, refresh_per_second=2,
    )  # fmt: skip
    task = bar.add_task("", total=total)
    said = time.monotonic()

    def callback(trial: Trial, rounds: int, over: bool) -> None:
        nonlocal ended, said
        before = done.get(trial.key, 0.0)
        done[trial.key] = length(trial) if over else min(0.99 * length(trial), float(rounds))
        ended += over
        words = f"{ended} of {len(trials)} runs"
        bar.update(task, advance=done[trial.key] - before, description=words)
        if not console.is_terminal and time.monotonic() - said > 15.0:
            said = time.monotonic()
            console.print(f"{words}, {100.0 * sum(done.values()) / total:.0f} % of the rounds", highlight=False)

    bar.update(task, completed=sum(done.values()), description=f"{ended} of {len(trials)} runs")
    if console.is_terminal:
        with bar:
            yield callback
    else:
        yield callback
