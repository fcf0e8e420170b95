"""`flare studio`: the cell, the runs and new ones in a browser. `flare serve`: the scheduler for programs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say
from flare.cli.plugins import Plugins, load_named
from flare.extras import imported

Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any. (default: the first free from 8765 on)")
]
Host = Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")]
Token = Annotated[
    str | None,
    typer.Option(envvar="FLARE_TOKEN", help="What requests have to know, 16 characters or more.", show_default=False),
]
MAX_WORKERS = 64


def studio(
    folder: Annotated[Path, typer.Argument(help="Where the runs are, and new ones go.")] = Path("."),
    port: Port = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    host: Host = "127.0.0.1",
    token: Token = None,
    plugin: Plugins = None,
) -> None:
    """Show the cell, the runs of a folder and new ones in a browser. Ctrl-C ends it; no run loses anything."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; make it, or give another")
    _serve(folder, port, host, token, plugin, browser=not no_browser)


def serve(
    port: Port = None,
    host: Host = "127.0.0.1",
    token: Token = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=MAX_WORKERS, help="Processes that answer. (default: one a core, at most 8)")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Answer other programs: POST /api/schedule takes devices as JSON and gives what `flare schedule --json` prints."""
    processes = min(os.cpu_count() or 1, 8) if workers is None else workers
    if plugin and processes > 1:
        processes = 1
        say("warning: with --plugin one process answers, which has executed it", stderr=True)
    _serve(Path("."), port, host, token, plugin, workers=processes, service=True)


def _serve(
    folder: Path,
    port: int | None,
    host: str,
    token: str | None,
    plugin: list[Path] | None,
    *,
    browser: bool = False,
    workers: int = 1,
    service: bool = False,
) -> None:
    imported("fastapi", "the studio", extra="studio")
    imported("uvicorn", "the studio", extra="studio")
    from flare.studio import serving
    from flare.studio.settings import Studio

    asked = Studio(folder.resolve(), host, port or 0, token, service)
    load_named(plugin)
    listening = serving.bound_socket(host, port)
    made = replace(asked, port=listening.getsockname()[1])
    address = serving.address_of(made)

    def ready() -> None:
        what = (
            f"The service answers at {address} (its page says how to ask)" if service else f"The studio is at {address}"
        )
        say(f"{what}; Ctrl-C ends it.")
        sys.stdout.flush()  # who reads it through a pipe waits for this line
        if browser:
            serving.open_browser(address)

    with listening, suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        serving.serve(made, listening, ready=ready, workers=workers)
