"""`flare reproduce`: the figures and claims of the paper, and what goes beyond them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="fig3 to fig8, or all of them; rates, gap, ..., or all that goes beyond."
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="How many seeds. (default: 5, with --quick 2)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small settings on embedded data: checks that everything runs, no more.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")] = "auto",
    processes: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Processes that share the work. (default: 1, on a GPU up to 8)")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. (default: results, with --quick results-quick)")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the claims as JSON.")] = False,
) -> None:
    """Reproduce figures of the paper and put its claims to the test. Started again, it does what is missing."""
    from flare.cli import reproducing

    reproducing.go(
        reproducing.chosen(names),
        reproducing.scale_of(seeds, quick),
        reproducing.place_of(out, quick, device, processes),
        quiet=quiet,
        as_json=json_,
    )
