"""Packages that only some users need: imported where they are used, with a word on what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtraError(ImportError, ValueError):
    """A package is not installed that something asks for; from the command line it is bad input."""


def imported(module: str, purpose: str, extra: str = "research") -> Any:
    """The module of that name; where it is not installed, an error that says which extra of FLARE brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtraError(f"{purpose} needs {package}: {how_to_install(extra)}") from None


def how_to_install(extra: str) -> str:
    """The command that brings an extra, and where it is given."""
    return f"pip install -c constraints.txt '.[{extra}]' in the folder of FLARE"
