"""What docs/errata.md says under a number, so that a test can hold its figures against what it computes."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "errata.md").read_text()
_ENTRY = re.compile(r"^### (\d+)\. (.+?)$\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
NUMBERS = [int(number) for number, _, _ in _ENTRY.findall(PAGE)]
"""The numbers of the entries, in the order of the page."""


def entry(number: int) -> str:
    """The text of an entry."""
    (body,) = [body for each, _, body in _ENTRY.findall(PAGE) if int(each) == number]
    return str(body)


def says(number: int, *figures: str) -> bool:
    """Whether an entry has every one of the figures, with a plain minus and one blank between words."""
    text = " ".join(entry(number).replace("−", "-").split())
    return all(figure in text for figure in figures)
