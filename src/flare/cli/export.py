"""`flare export`: run folders in, tables for other programs out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say
from flare.cli.plugins import Plugins, load_named


def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or one that contains some.", show_default=False)],
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="OUT", help="A folder, for rounds.csv and devices.csv.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="OUT", help="A folder, for rounds.parquet and devices.parquet.")
    ] = None,
    mat: Annotated[
        Path | None, typer.Option("--mat", metavar="OUT.mat", help="A file for MATLAB, with rounds and devices.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are already there.")] = False,
    plugin: Plugins = None,
) -> None:
    """Write two tables about runs: one row a round, and one row a round and device, also of those left out.

    Both begin with run, label, method, policy and seed, so that one table holds one run or many. Why a device was left
    out is worked out again: for runs of your own method, give the plugin that it is in.
    """
    from flare.research import load  # here, because torch takes its time to import
    from flare.research.export import files_of, tables_of, write

    wanted = {"csv": csv, "parquet": parquet, "mat": mat}
    given = {kind: out for kind, out in wanted.items() if out is not None}
    if not given:
        raise ValueError("nothing is asked for; give --csv OUT, --parquet OUT or --mat OUT.mat")
    for kind, out in given.items():
        files_of(kind, out, force=force)  # refuses before anything is read or written
    load_named(plugin)
    with warnings.catch_warnings(record=True) as untold:
        warnings.simplefilter("always")
        tables = tables_of(load(folder))
    for each in untold:
        say(f"warning: {each.message}", stderr=True)
    for kind, out in given.items():
        files = write(tables, kind, out, force=force)
        say(f"The tables are in {' and '.join(map(str, files))}.")
