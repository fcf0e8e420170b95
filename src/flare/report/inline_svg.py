"""Figures inside a page: drawn by matplotlib, coloured by the page's style sheet, in the light and in the dark."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flare.report.figures import BLUE, FAINT, GREY, INK, ORANGE, PALE, PAPER, house_style, lay_out

GREEN, VERMILION, PURPLE, SKY, BROWN = "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A4B1E"
# Colour of a figure -> (variable of the style sheet, its value on a dark page).
_THEME = {
    INK: ("ink", "#E8E8E8"),
    GREY: ("grey", "#A0A4A8"),
    FAINT: ("faint", "#44494F"),
    PAPER: ("paper", "#1F2328"),
    PALE: ("pale", "#2B4A5C"),
    BLUE: ("blue", "#4AA3DF"),
    ORANGE: ("orange", "#F0B429"),
    GREEN: ("green", "#2CC79A"),
    VERMILION: ("vermilion", "#FF8A4C"),
    PURPLE: ("purple", "#E29BC4"),
    SKY: ("sky", "#8CCBF2"),
    BROWN: ("brown", "#C49A6C"),
}
LIGHT = "".join(f"--{name}:{colour};" for colour, (name, _) in _THEME.items())
DARK = "".join(f"--{name}:{dark};" for name, dark in _THEME.values())
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "image.composite_image": False,
    "ytick.color": GREY,
    "axes.axisbelow": True,
}


def css_colour(colour: str) -> str:
    """A colour of the figures as the style sheet knows it."""
    return f"var(--{_THEME[colour][0]})"


def inline_svg(name: str, alt: str, draw: Callable[[], Figure]) -> str:
    """Draw a figure as an `<svg>` element with no background, named `name`, that says `alt` to those who cannot see it.

    Nothing in it refers outside the page; its ids begin with its name, so that figures do not meet.
    """
    image = io.StringIO()
    with house_style(), matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # a name in a script it lacks
        figure = draw()
        lay_out(figure)
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None})
    text = image.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    opening = f'<svg id="{name}" role="img" aria-label="{html.escape(alt)}" {box[0] if box else ""}>'
    return opening + _themed(_compact(_named(body, name))).strip()


def _named(body: str, name: str) -> str:
    """Ids that something refers to begin with the figure's name; the others go."""
    used = set(re.findall(r"(?:url\(|xlink:href=\")#([^)\"]+)", body))
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    return re.sub(r"url\(#", f"url(#{name}-", body).replace('xlink:href="#', f'href="#{name}-').replace("xlink:", "")


def _compact(body: str) -> str:
    """Coordinates to a hundredth of a point, no comments, no empty groups."""
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' (d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]).replace("\n", ""), body)
    return re.sub(r"\n\s*", "\n", body)


def _themed(body: str) -> str:
    for colour in _THEME:
        body = body.replace(colour.lower(), css_colour(colour))
    return body
