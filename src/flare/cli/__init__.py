"""The command line: `flare schedule` and what comes after it. One file a command."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Annotated, Any

import click
import typer
import typer.main

from flare import __version__
from flare.cli.console import say
from flare.cli.data import data_app
from flare.cli.export import export
from flare.cli.guard import INTERRUPTED, guarded
from flare.cli.list import list_
from flare.cli.report import report
from flare.cli.reproduce import reproduce
from flare.cli.run import compare, config, run
from flare.cli.schedule import schedule
from flare.cli.studio import serve, studio
from flare.cli.sweep import sweep
from flare.cli.testbed import bed
from flare.cli.tune import tune
from flare.text import one_line

app = typer.Typer(
    name="flare",
    help="Federated learning over wireless networks whose devices differ in data, speed and channel.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for command in (schedule, studio, run, compare, sweep, tune, reproduce, report, export, config, serve):
    app.command()(guarded(command))
app.command("testbed")(guarded(bed))
app.command("list")(guarded(list_))
app.add_typer(data_app)


_HELP_WANTED = getattr(click.exceptions, "NoArgsIsHelpError", ())  # before click 8.2 no error at all


def main() -> None:
    """Run the command line and leave with its exit code; what was typed wrong is one line on standard error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started this
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as the process
    try:
        code = _commands()(prog_name="flare", standalone_mode=False)
    except _HELP_WANTED as wanted:
        wanted.show()
        code = wanted.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"{context.command_path} --help says more" if context else "flare --help says more"
        say(one_line(f"error: {error.format_message()} ({where})"), stderr=True)
        code = error.exit_code
    except click.Abort:
        code = INTERRUPTED
    sys.exit(code)


@cache
def _commands() -> Any:
    """What typer makes of `app`, once for however many commands are run in this process: it takes longer than most."""
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"flare {__version__}")
        raise typer.Exit


_GREETING = f"""flare {__version__}: federated learning over wireless networks whose devices differ.

Three commands to begin with:

  flare studio                                        see a cell, move a device, watch runs: in your browser
  flare schedule --cell paper --deadline 1s --seed 3  who sends this round, on how much bandwidth
  flare run --set run.rounds=20 --out out/first       train a model over the paper's cell

flare --help lists all commands."""


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Federated learning over wireless networks whose devices differ in data, speed and channel."""
    if context.invoked_subcommand is None:
        for line in _GREETING.splitlines():
            say(line)
