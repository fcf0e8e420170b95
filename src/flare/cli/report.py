"""`flare report`: run folders in, one page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about runs: accuracy over rounds and time, who took part, latency, schedules, settings.

    Runs that differ only in their seed are drawn as one curve with a band. The page opens from disk, without network.
    """
    from flare.report.run_report import write_report  # here, because matplotlib and torch take their time to import
    from flare.research.loading import run_folders_in

    runs = list({run.resolve(): run for folder in folders for run in run_folders_in(folder)}.values())
    write_report(runs, out)
    say(f"The report on {len(runs)} run{'s' if len(runs) > 1 else ''} is in {out}.")
