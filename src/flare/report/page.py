"""The pieces of a self-contained page: its style, a figure, a table, the key to the curves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from flare.report.inline_svg import DARK, LIGHT, css_colour
from flare.report.run_figures import Look

_STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
_COLOURS = f":root{{{LIGHT}}}@media screen and (prefers-color-scheme:dark){{:root{{{DARK}}}}}"
# Outlines of matplotlib's markers in a box from -1 to 1.
_OUTLINES = {
    "o": "M-1,0A1,1,0,1,0,1,0A1,1,0,1,0-1,0z", "s": "M-.9-.9H.9V.9H-.9z", "D": "M0-1.2L1.2,0L0,1.2L-1.2,0z",
    "^": "M0-1L1,1H-1z", "v": "M0,1L1-1H-1z", "<": "M-1,0L1-1V1z", ">": "M1,0L-1-1V1z",
    "P": "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35z",
    "X": "M-1-.5L-.5-1L0-.5L.5-1L1-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0z",
    "*": "M0-1.2L.3-.4L1.1-.4L.5.1L.7.9L0,.45L-.7.9L-.5.1L-1.1-.4L-.3-.4z",
}  # fmt: skip


def document(title: str, body: str) -> str:
    """The whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_COLOURS}\n{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def figure(svg: str, title: str, caption: str) -> str:
    """A picture with its title and what to see in it."""
    return f"<figure>{svg}\n<figcaption><b>{escape(title)}.</b> {escape(caption)}</figcaption></figure>\n"


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: Sequence[int] = (), best: int = -1
) -> str:
    """A table of HTML cells whose first column names the rows; `text` are the columns set to the left."""

    def cell(kind: str, column: int, content: str) -> str:
        return f"<{kind}" + (' class="text"' if column in text else "") + f">{content}</{kind.split()[0]}>"

    head = "".join(cell('th scope="col"', column, name) for column, name in enumerate(header))
    lines = []
    for place, row in enumerate(rows):
        cells = cell('th scope="row"', 0, row[0])
        cells += "".join(cell("td", column, content) for column, content in enumerate(row[1:], start=1))
        lines.append(('<tr class="best">' if place == best else "<tr>") + f"{cells}</tr>\n")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">\n<table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody></table></div>\n"
    )


def key(labels: Sequence[str], drawn: Sequence[Look]) -> str:
    """What each curve stands for; the groups in the background are one entry."""
    named = [(label, look) for label, look in zip(labels, drawn, strict=True) if look.marker]
    others = len(labels) - len(named)
    items = [f"<li>{_sample(look)}{escape(label)}</li>" for label, look in named]
    if others:
        items.append(f"<li>{_sample(drawn[-1])}{others} others, each in the table</li>")
    return f'<ul class="key" aria-label="Key to the curves">{"".join(items)}</ul>'


def _sample(look: Look) -> str:
    colour = css_colour(look.colour)
    dash = f' stroke-dasharray="{",".join(f"{2.0 * each:g}" for each in look.dash)}"' if look.dash else ""
    drawn = f'<path d="M0 7H44" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    if look.marker:
        drawn += f'<path d="{_OUTLINES[look.marker]}" transform="translate(22 7)scale(3.6)" fill="{colour}"/>'
    return f'<svg viewBox="0 0 44 14" aria-hidden="true">{drawn}</svg>'
