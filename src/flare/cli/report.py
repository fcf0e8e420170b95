"""`flare report`: run folders in, one page out, and each figure as a file for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say
from flare.cli.plugins import Plugins, load_named


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file to write. (default: report.html)")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write each figure into this folder, for a paper.")
    ] = None,
    format_: Annotated[
        list[str] | None, typer.Option("--format", help="pdf, svg or png; may be given again. (default: pdf)")
    ] = None,
    style: Annotated[str, typer.Option("--style", help="A matplotlib style file for the figures.")] = "",
    plugin: Plugins = None,
) -> None:
    """Write one HTML page about runs: accuracy over rounds and time, who took part, latency, schedules, settings.

    Runs that differ only in their seed are drawn as one curve with a band, and groups are compared seed by seed. The
    page opens from disk, without network. With --figures each figure is a file, and there is a page only with --out.
    """
    if figures is None and (format_ or style):
        raise ValueError("--format and --style are for the figures: give --figures FOLDER too")
    from flare.report.paper_figures import write_paper_figures  # here, because matplotlib takes its time to import
    from flare.report.run_report import read_runs, refuse_other_names, write_page
    from flare.research.loading import run_folders_in
    from flare.research.sweep_results import sweep_in

    load_named(plugin)
    page = out if out is not None or figures is not None else Path("report.html")
    if page is not None:
        refuse_other_names(page)
    runs = read_runs([run for folder in folders for run in run_folders_in(folder)])
    first, opening = sweep_in(folders[0], runs) if len(folders) == 1 else ([], None)
    number = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    if figures is not None:
        written = write_paper_figures(runs, figures, format_ or ["pdf"], style, first=first)
        say(f"{len(written)} figures of {number} are in {figures}.")
    if page is not None:
        write_page(runs, page, first=first, opening=opening)
        say(f"The report on {number} is in {page}.")
