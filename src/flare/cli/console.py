"""Where commands print: text of others is made harmless, and tables are as wide as they need to be."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from flare.text import json_number, json_text, printable

MAX_ROWS = 60
"""A longer table is not read in a terminal; --csv has every row."""
_WIDTH = 180  # where there is no terminal: enough for every column


def say(text: str, *, stderr: bool = False) -> None:
    """Print one line. What cannot be seen in it (a path may hold anything) is printed as an escape."""
    print(printable(text), file=sys.stderr if stderr else sys.stdout)


def say_json(value: Any) -> None:
    """Print a value as JSON, which has no nan and no infinity: null stands for both."""
    print(json_text(json.dumps(_finite(value), indent=2, ensure_ascii=False)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return json_number(value) if isinstance(value, float) else value


def console(*, stderr: bool = False) -> Console:
    """Standard output or standard error, to draw tables and progress on. [brackets] and :colons: in texts are no more
    than that; for text of others there are `say` and `add_row`."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def add_row(table: Table, *cells: str, style: str | None = None) -> None:
    """Add a row to a table, its texts made printable."""
    table.add_row(*(printable(cell) for cell in cells), style=style)
