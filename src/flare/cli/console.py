"""Where commands print: text of others is made harmless, and tables are as wide as they need to be."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from flare.text import printable

MAX_ROWS = 60
"""A longer table is not read in a terminal; --csv has every row."""
_WIDTH = 180  # where there is no terminal: enough for every column


def say(text: str, *, stderr: bool = False) -> None:
    """Print one line. What cannot be seen in it (a path may hold anything) is printed as an escape."""
    print(printable(text), file=sys.stderr if stderr else sys.stdout)


def console(*, stderr: bool = False) -> Console:
    """Standard output or standard error, to draw tables and progress on. [brackets] and :colons: in texts are no more
    than that; for text of others there are `say` and `add_row`."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def add_row(table: Table, *cells: str, style: str | None = None) -> None:
    """Add a row to a table, its texts made printable."""
    table.add_row(*(printable(cell) for cell in cells), style=style)
