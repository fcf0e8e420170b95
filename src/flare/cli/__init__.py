"""The command line: `flare schedule` and what comes after it. One file a command."""

from __future__ import annotations

from typing import Annotated

import typer

from flare import __version__
from flare.cli.data import data_app
from flare.cli.guard import guarded
from flare.cli.report import report
from flare.cli.reproduce import reproduce
from flare.cli.run import compare, config, run
from flare.cli.schedule import schedule

app = typer.Typer(
    name="flare",
    help="Federated learning over wireless networks whose devices differ in data, speed and channel.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (schedule, run, compare, reproduce, report, config):
    app.command()(guarded(command))
app.add_typer(data_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flare {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Federated learning over wireless networks whose devices differ in data, speed and channel."""
