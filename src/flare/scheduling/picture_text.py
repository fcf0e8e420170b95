"""Sizes of text in the picture of a round, and where labels find room."""

from __future__ import annotations

import textwrap
from typing import Any, Literal

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties

from flare.colours import GREY

MAX_BARS = 30
"""Devices shown one by one in the panels of times and of the band; the rest is one block."""
MAX_NAME = 18
"""Characters of a name in a picture."""
POINTS_PER_IN = 72.0
TITLE_ROOM = 1.15
"""How much wider than its axes a title may be: to both sides there is some room."""
CHARACTER_EM = 0.56
"""Width of an average character of the font, in font sizes."""
LINE: dict[str, Any] = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0.0, "shrinkB": 0.0}
"""The line from a name to what it names."""

FontSetting = Literal["axes.titlesize", "axes.labelsize"]
Box = tuple[float, float, float, float]  # left, bottom, right, top


def ink() -> str:
    """The colour of text, for lines and marks that must be seen on whatever ground it is seen on."""
    return str(rcParams["text.color"])


def extent_pt(axes: Axes) -> tuple[float, float]:
    """Width and height of axes in points; where a figure lays its axes out when it is drawn, what they will have left
    at least."""
    figure = axes.get_figure(root=True)
    engine, sure = None if figure is None else figure.get_layout_engine(), 1.0
    if figure is not None and engine is not None:
        engine.execute(figure)
        sure = 0.9  # what is drawn later, here and in other axes, may take some more
    box = axes.get_window_extent()
    per_dot = sure * POINTS_PER_IN / (figure.dpi if figure is not None else POINTS_PER_IN)
    return float(box.width * per_dot), float(box.height * per_dot)


def size_pt(setting: FontSetting) -> float:
    """A font size of the style of the moment, such as that of `axes.titlesize`."""
    return float(FontProperties(size=rcParams[setting]).get_size_in_points())


def wrapped(text: str, setting: FontSetting, wide_pt: float) -> str:
    """A text in lines that are about so wide, at a font size of the style of the moment."""
    characters = max(12, int(wide_pt / (CHARACTER_EM * size_pt(setting))))
    return "\n".join(textwrap.fill(line, characters) for line in text.split("\n"))


def pt(size: float) -> float:
    """A size of text that was chosen beside text of 9 points, beside text of `font.size` points."""
    return size * float(rcParams["font.size"]) / 9.0


def overlaps(box: Box, other: Box) -> bool:
    """Whether two boxes have more than an edge in common."""
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def spread(wanted: list[float], apart: float, low: float, high: float) -> list[float]:
    """Ascending places as near to the ascending `wanted` ones as they can be `apart` from each other, in low to high.

    Neighbours that are too close form a group, which lies in the middle of what its members want; groups that meet
    are one. Where there is not room enough for all, they stand closer.
    """
    if len(wanted) > 1:
        apart = min(apart, (high - low) / (len(wanted) - 1))
    groups: list[tuple[float, int]] = []  # sum of what the members want, less their place in the group; number
    for want in wanted:
        total, number = want, 1
        while groups and groups[-1][0] / groups[-1][1] + groups[-1][1] * apart > total / number:
            before, many = groups.pop()
            total, number = before + total - number * many * apart, many + number
        groups.append((total, number))
    placed: list[float] = []
    for total, number in groups:
        start = total / number
        placed += [start + at * apart for at in range(number)]
    over = [min(place, high - (len(placed) - 1 - at) * apart) for at, place in enumerate(placed)]
    return [max(place, low + at * apart) for at, place in enumerate(over)]
