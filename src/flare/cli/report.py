"""`flare report`: run folders in, one page out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say
from flare.cli.plugins import Plugins, load_named


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    plugin: Plugins = None,
) -> None:
    """Write one HTML page about runs: accuracy over rounds and time, who took part, latency, schedules, settings.

    Runs that differ only in their seed are drawn as one curve with a band. The page opens from disk, without network.
    """
    from flare.report.run_report import write_report  # here, because matplotlib takes its time to import

    load_named(plugin)
    runs = list({run.resolve(): run for folder in folders for run in run_folders_in(folder)}.values())
    write_report(runs, out)
    say(f"The report on {len(runs)} run{'s' if len(runs) > 1 else ''} is in {out}.")


def run_folders_in(folder: Path) -> list[Path]:
    """The folder itself if it holds a run, otherwise every run folder below it; ValueError where there is none."""
    from flare.records.manifest import FILE, is_run_folder, read_manifest  # here, because it brings torch along

    if is_run_folder(folder):
        return [folder]
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; give the folder of a run (--out of flare run)")
    found = sorted(manifest.parent for manifest in folder.rglob(FILE) if is_run_folder(manifest.parent))
    if not found:
        if os.path.lexists(folder / FILE):
            read_manifest(folder)  # says what is wrong with it
        raise ValueError(f"{folder} is no run folder and contains none; give the folder of a run (--out of flare run)")
    return found
