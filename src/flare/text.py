"""Text from others (names in a table, say): made harmless where it is shown, and what a misspelt name meant."""

from __future__ import annotations

import difflib
import html
import math
import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(
    r"0[xX][\da-fA-F]+"  # an address in memory: NumPy's message names an object by it
    r"|\b(?=[a-fA-F-]*\d)[\da-fA-F][\da-fA-F-]{7,}\b"  # a digest, or a UUID
    r"|\d[\d.e+-]*"
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    r"""The text with everything that is no visible character or space written as an escape, such as \n or \x1b: in a
    terminal it can neither move the cursor, nor change colours, nor turn the direction of writing. A space at which no
    line may break is a space."""
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def one_line(text: str) -> str:
    """The text as one printable line: white space of any kind becomes a space."""
    return printable(" ".join(text.split()))


def cut(text: str, max_characters: int) -> str:
    """The text, or where it is longer its two ends with an ellipsis between them: ends tell names apart."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters // 2]}…{text[len(text) - (max_characters - 1) // 2 :]}"


def without_numbers(text: str) -> str:
    """The text with # for every number: two messages of the same fault differ in no more."""
    return _NUMBER.sub("#", text)


def nearest(name: str, known: Iterable[str], *, min_ratio: float = 0.6) -> str | None:
    """The known name that is written most like this one, by difflib's ratio; None where none reaches `min_ratio`."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=min_ratio)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses a name: "; did you mean 'this'?", or a full stop where none is near."""
    near = nearest(name, known)
    return "." if near is None else f"; did you mean '{near}'?"


def csv_text(text: str) -> str:
    """The text as a cell of a CSV file: printable, and with an apostrophe before what a spreadsheet would take for a
    formula."""
    return f"'{printable(text)}" if text.startswith(_FORMULA_STARTS) else printable(text)


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table as HTML, of texts that cannot do harm in it."""

    def cell(text: str) -> str:
        return html.escape(printable(text))

    head = "".join(f"<th>{cell(each)}</th>" for each in header)
    body = "".join("<tr>" + "".join(f"<td>{cell(each)}</td>" for each in row) + "</tr>\n" for row in rows)
    return (
        f"<table>\n<caption>{cell(caption)}</caption>\n"
        + (f"<thead><tr>{head}</tr></thead>\n" if head else "")
        + f"<tbody>\n{body}</tbody>\n</table>\n"
        + (f"<p>{cell(note)}</p>\n" if note else "")
    )


def json_number(value: float) -> float | None:
    """The number, or None where it is nan or infinite: JSON has neither."""
    return float(value) if math.isfinite(value) else None


def json_text(document: str) -> str:
    r"""A JSON document with its invisible characters written as \uXXXX, which JSON reads as the same."""
    return re.sub(r"[^\n]", lambda one: one[0] if one[0].isprintable() else _json_escape(one[0]), document)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def plural(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
