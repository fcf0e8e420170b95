"""`--plugin FILE` in every command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flare.cli.console import say
from flare.config import Config
from flare.plugins import load_plugin

Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file of your own policies, methods, models, data sets, codecs or air schemes; may be given "
        "again.",
        show_default=False,
    ),
]


def load_named(paths: Sequence[str | Path] | None) -> None:
    """Execute plugins; one that registers nothing is said."""
    for path in paths or ():
        if not load_plugin(path).registered:
            say(
                f"warning: plugin {path} registers nothing; decorate what it offers, such as @flare.policy('mine')",
                stderr=True,
            )


def with_plugins(whole: Config, paths: Sequence[Path] | None) -> Config:
    """The settings with the plugins of the command line beside their own, all of them executed."""
    whole = replace(whole, plugins=(*whole.plugins, *map(str, paths or ())))
    load_named(whole.plugins)
    return whole
