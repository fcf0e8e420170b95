"""`flare list`: which policies, methods, models and data sets there are, their options, and where they come from."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from flare.cli.console import add_row, console, say_json
from flare.cli.plugins import Plugins, load_named


class Kind(StrEnum):
    """What can be listed."""

    POLICIES = "policies"
    METHODS = "methods"
    MODELS = "models"
    DATA = "data"


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    plugin: Plugins = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name all policies, methods, models or data sets: a line about each, its options, where it comes from."""
    from flare.sweeps.parts import DATA, METHOD, MODEL, POLICY, shown_default  # here: torch takes its time to import

    load_named(plugin)
    part = {Kind.POLICIES: POLICY, Kind.METHODS: METHOD, Kind.MODELS: MODEL, Kind.DATA: DATA}[kind]
    registry = part.registry
    if json_:
        say_json([_as_json(thing, str(registry.origin(name))) for name, thing in registry.items()])
        return
    table = Table("name", "what", "options", "from", box=box.SIMPLE_HEAD)
    for name, thing in registry.items():
        options = ", ".join(f"{one.name}={shown_default(one)}" for one in thing.options.values())
        add_row(table, name, thing.summary or "–", options or "–", str(registry.origin(name)))
    console().print(table)


def _as_json(thing: Any, origin: str) -> dict[str, Any]:
    return {
        "name": thing.name,
        "summary": thing.summary,
        "options": [
            {"name": one.name, "default": _plain(one.default), "doc": one.doc, "must_be": one.in_words()}
            for one in thing.options.values()
        ],
        "from": origin,
    }


def _plain(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return repr(value)
    return value
