"""`flare data`: which data sets there are, fetching them, and who holds which labels.

What is imported inside the functions takes its time, and commands that need no data do not wait for it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from flare.cli.console import MAX_ROWS, add_row, console, say
from flare.cli.guard import guarded
from flare.cli.list import Kind
from flare.cli.list import list_ as list_all
from flare.cli.plugins import Plugins, load_named
from flare.config import DataConfig, Options
from flare.config.declared import changed, read, split_options
from flare.text import printable

if TYPE_CHECKING:
    from flare.data.dataset import Dataset
    from flare.data.origins import Progress as Callback
    from flare.data.partition import Counts

data_app = typer.Typer(
    name="data",
    help="Data sets: which there are, fetching them, and who holds which labels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="A folder with the files, looked into first (default: FLARE_DATA).")
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the data set, such as beta=0.5; may be given again."),
]


class Division(StrEnum):
    """Who holds which samples."""

    IID = "iid"
    SHARDS = "shards"
    DIRICHLET = "dirichlet"
    QUANTITY = "quantity"
    NATURAL = "natural"


def list_(plugin: Plugins = None) -> None:
    """Name every data set, its options, where it comes from, its size on disk and whether it is cached."""
    list_all(Kind.DATA, plugin)


def fetch_(
    name: Annotated[str, typer.Argument(help="Which data set; flare data list names them.", show_default=False)],
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Bring the files of a data set into the cache, each checked by its SHA-256."""
    from flare.data.catalogue import CATALOGUE
    from flare.data.fetch import fetch
    from flare.data.sources import SOURCES

    load_named(plugin)
    SOURCES.find(name)
    if name not in CATALOGUE:
        why = "needs no files" if SOURCES.origin(name).built_in else "loads its files itself"
        say(f"{name} {why}: there is nothing to fetch.")
        return
    with watched() as progress:
        folder = fetch(name, folder=str(data_dir or ""), progress=progress)
    say(f"{name} is in {folder}: {len(CATALOGUE[name].files)} files, each checked by its SHA-256.")


def show(
    name: Annotated[str, typer.Option(help="Which data set; flare data list names them.")] = "digits",
    partition: Annotated[Division, typer.Option(help="Who holds which samples.")] = Division.IID,
    devices: Annotated[int, typer.Option(min=1, max=10_000_000, help="Among how many devices.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything drawn.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Label shards that a device holds (shards).")] = 2,
    alpha: Annotated[float, typer.Option(help="Concentration; small is uneven (dirichlet).")] = 0.5,
    skew: Annotated[float, typer.Option(help="Exponent of the sizes' power law (quantity).")] = 1.0,
    option: DataOptions = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
    csv_: Annotated[bool, typer.Option("--csv", help="Print CSV, every device in a row.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it into a png, svg or pdf file.")] = None,
) -> None:
    """Show who holds which labels: the division that a run with this seed has."""
    from flare.data.partition import label_counts
    from flare.data.sources import SOURCES, load_divided

    load_named(plugin)
    options = read(SOURCES.find(name), split_options(option or []))
    config = DataConfig(
        name=name,
        folder=str(data_dir or ""),
        partition=partition.value,
        shards_per_device=shards,
        dirichlet_alpha=alpha,
        quantity_skew=skew,
        options=changed(Options(), options),
    )
    with watched() as progress:
        dataset, parts = load_divided(config, num_devices=devices, seed=seed, progress=progress)
    counts = label_counts(dataset, parts)
    if plot is not None:
        from flare.report.data_plot import draw_division  # here, because matplotlib takes its time to import

        draw_division(plot, counts, title=f"{name}, {partition.value}: who holds which labels")
    if csv_:
        _print_csv(counts)
        return
    _print_table(dataset, counts)
    if plot is not None:
        say(f"The picture is in {plot}.")


data_app.command("list")(guarded(list_))
data_app.command("fetch")(guarded(fetch_))
data_app.command("show")(guarded(show))


def _print_table(dataset: Dataset, counts: Counts) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title="Training samples of each label")
    for heading in ("device", "samples", *map(str, range(dataset.num_classes))):
        table.add_column(heading, justify="right")
    for device, row in enumerate(counts[:MAX_ROWS]):
        add_row(table, str(device), str(row.sum()), *(str(count) if count else "·" for count in row))
    if len(counts) <= MAX_ROWS:
        table.add_section()
        add_row(table, "all", str(counts.sum()), *map(str, counts.sum(axis=0)))
    console().print(table)
    if len(counts) > MAX_ROWS:
        say(f"... and {len(counts) - MAX_ROWS} devices more; --csv has every one.")
    sizes, labels = counts.sum(axis=1), (counts > 0).sum(axis=1)
    say(
        f"{len(counts)} devices hold {counts.sum()} training samples of {dataset.name}, {sizes.min()} to {sizes.max()} "
        f"each, of {labels.min()} to {labels.max()} labels; {len(dataset.test_y)} samples are for the test."
    )


def _print_csv(counts: Counts) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["device", "samples", *(f"label_{label}" for label in range(counts.shape[1]))])
    writer.writerows([device, row.sum(), *row] for device, row in enumerate(counts))


@contextmanager
def watched() -> Iterator[Callback]:
    """A progress bar on standard error for what is on its way; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def callback(what: str, done_bytes: int, total_bytes: int | None) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bars.update(task, visible=False)
                tasks[what] = bars.add_task(printable(what), total=None)
            bars.update(tasks[what], completed=done_bytes, total=total_bytes)

        yield callback
