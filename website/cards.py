"""Tables of the site whose rows are too long to be read side by side: each row becomes a card.

A card has a line for each cell, after the name of its column. How cards look is said in website/pages.py. Roles say
that it still is a table, to those who have it read aloud.
"""

from __future__ import annotations

import html
import re
from typing import Any

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
HEAD = re.compile(r"<th(?:\s[^>]*)?>(.*?)</th>", re.DOTALL)
CELL = re.compile(r"<td(?:\s[^>]*)?>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
MANY_WORDS = 60
"""What a row may have on average and still be one."""


def with_cards(page: str) -> str:
    """The text of a page with its wordy tables as cards."""
    return TABLE.sub(lambda found: _as_cards(found[0]), page)


def _as_cards(table: str) -> str:
    head, *rows = ROW.findall(table)
    cells = [CELL.findall(row) for row in rows]
    words = sum(len(TAG.sub("", cell).split()) for row in cells for cell in row)
    if words <= MANY_WORDS * len(rows):
        return table
    names = HEAD.findall(head)
    heads = "".join(f'<th role="columnheader">{name}</th>' for name in names)
    body = "".join(f'<tr role="row">{_card(names, row)}</tr>' for row in cells)
    return (
        f'<table class="cards" role="table"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table>'
    )


def _card(names: list[str], cells: list[str]) -> str:
    labels = [html.escape(html.unescape(TAG.sub("", name))) for name in names]
    return "".join(
        f'<td role="cell" data-label="{label}"><div>{cell}</div></td>'
        for label, cell in zip(labels, cells, strict=True)
    )


def on_page_content(html: str, **_: Any) -> str:
    """The text of a page as mkdocs shows it."""
    return with_cards(html)
