"""Tables of the site whose rows are too long to be read side by side: each row becomes a card.

A card has a line for each cell, after the name of its column. How cards look is said in website/pages.py.
"""

from __future__ import annotations

import re
from typing import Any

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
MANY_WORDS = 60
"""What a row may have on average and still be one."""


def with_cards(html: str) -> str:
    """The text of a page with its wordy tables as cards."""
    return TABLE.sub(lambda found: _as_cards(found[0]), html)


def _as_cards(table: str) -> str:
    head, *rows = table.split("<tr>")[1:]
    if sum(len(row.split()) for row in rows) <= MANY_WORDS * len(rows):
        return table
    names = HEAD.findall(head)
    cards = [
        "".join(f'<td data-label="{name}"><div>{cell}</div></td>' for name, cell in zip(names, cells, strict=True))
        for cells in map(CELL.findall, rows)
    ]
    body = "".join(f"<tr>{card}</tr>" for card in cards)
    return f'<table class="cards"><thead><tr>{head.partition("</tr>")[0]}</tr></thead><tbody>{body}</tbody></table>'


def on_page_content(html: str, **_: Any) -> str:
    """The text of a page as mkdocs shows it."""
    return with_cards(html)
