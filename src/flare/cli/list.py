"""`flare list`: which policies, methods, models, data sets, codecs and air schemes there are, with their options."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from flare.cli.console import add_row, console, say, say_json
from flare.cli.plugins import Plugins, load_named
from flare.config.toml import shown_default
from flare.registry import Origin, Registry
from flare.units import human


class Kind(StrEnum):
    """What can be listed."""

    POLICIES = "policies"
    METHODS = "methods"
    MODELS = "models"
    DATA = "data"
    CODECS = "codecs"
    AIR_SCHEMES = "air-schemes"


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    plugin: Plugins = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Name all things of a kind, such as policies: a line about each, its options, where it comes from."""
    load_named(plugin)
    registry = _registry(kind)
    if json_:
        say_json([_as_json(thing, str(registry.origin(name))) for name, thing in registry.items()])
        return
    of_data = kind is Kind.DATA
    table = Table("name", "what", "options", "from", *(["size", "cached"] if of_data else []), box=box.SIMPLE_HEAD)
    for name, thing in registry.items():
        options = ", ".join(f"{one.name}={shown_default(one)}" for one in thing.options.values())
        where = _files(name, registry.origin(name)) if of_data else [str(registry.origin(name))]
        add_row(table, name, thing.summary or "–", options or "–", *where)
    console().print(table)
    if of_data:
        from flare.data.fetch import cache_folder

        say(f"The cache is {cache_folder()}; FLARE_CACHE names another.")


def _registry(kind: Kind) -> Registry[Any]:
    """Where things of a kind are registered. Some bring torch along, which takes its time to import."""
    if kind is Kind.POLICIES:
        from flare.scheduling import POLICIES

        return POLICIES
    if kind is Kind.DATA:
        from flare.data.sources import SOURCES

        return SOURCES
    if kind is Kind.METHODS:
        from flare.learning.methods import METHODS

        return METHODS
    if kind is Kind.CODECS:
        from flare.uplink import CODECS

        return CODECS
    if kind is Kind.AIR_SCHEMES:
        from flare.uplink.air import AIR_SCHEMES

        return AIR_SCHEMES
    from flare.learning.models import MODELS

    return MODELS


def _files(name: str, origin: Origin) -> list[str]:
    """Where the files of a data set come from, their size, and whether they are in the cache."""
    from flare.data.catalogue import CATALOGUE
    from flare.data.fetch import cache_state

    if name not in CATALOGUE:
        return [str(origin), "–", "needs no files" if origin.built_in else "–"]
    known = CATALOGUE[name]
    origins = ", ".join(dict.fromkeys(one.title for one in known.origins))
    return [origins, human(sum(file.size_bytes for file in known.files), "B", 3), cache_state(name)]


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
