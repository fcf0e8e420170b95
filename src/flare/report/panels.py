"""The kinds of panel in a report: curves and ranges of all groups, with title, caption and alternative text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.figure import Figure

from flare.records.run import RunNumbers
from flare.report import run_figures as draw
from flare.report.curves import Curve
from flare.report.inline_svg import inline_svg
from flare.report.page import figure, key
from flare.report.run_groups import Group
from flare.types import Floats


@dataclass(frozen=True, eq=False)
class Panel:
    """A picture: `alt` says what is in it to those who cannot see it, `keyed` whether its curves need the key.

    Where there is nothing to draw, the caption stands in its place as a remark.
    """

    name: str
    title: str
    caption: str
    alt: str = ""
    draw: Callable[[], Figure] | None = None
    keyed: bool = False


@dataclass(frozen=True, eq=False)
class Section:
    """Panels under one title, with what is to be said of all of them; `after` is HTML that follows them."""

    title: str
    text: str
    panels: Sequence[Panel]
    after: str = ""


def section_html(one: Section, groups: Sequence[Group]) -> str:
    """A section of the page."""
    words = f"<p>{escape(one.text)}</p>\n" if one.text else ""
    legend = key(labels_of(groups), draw.looks(len(groups))) if any(panel.keyed for panel in one.panels) else ""
    panels = "".join(map(panel_html, one.panels))
    inside = f'{words}{legend}<div class="panels">\n{panels}</div>\n{one.after}'
    return f'<section class="pictures">\n<h2>{escape(one.title)}</h2>\n{inside}</section>\n'


def panel_html(panel: Panel) -> str:
    """A picture on the page, or the remark in its place."""
    if panel.draw is None:
        return f'<p class="note">{escape(panel.caption)}</p>\n'
    svg = inline_svg(panel.name, f"{panel.title}. {panel.alt}", panel.draw)
    return figure(svg, panel.title, panel.caption)


def nothing(text: str) -> Panel:
    """A remark in the place of a picture."""
    return Panel("", "", text)


def labels_of(groups: Sequence[Group]) -> list[str]:
    """What the groups are called."""
    return [group.label for group in groups]


def spoken(groups: Sequence[Group], values: Sequence[float], write: Callable[[float], str], before: str = "") -> str:
    """Some numbers in words, for the text beside a picture."""
    said = [f"{group.label} {write(v)}" for group, v in zip(groups, values, strict=True) if math.isfinite(v)]
    more = f"; and {len(said) - 12} more" if len(said) > 12 else ""
    return f"{before}{'; '.join(said[:12])}{more}."


def _written(value: float) -> str:
    return f"{value:.3g}"


def _written_as_share(value: float) -> str:
    return f"{100.0 * value:.3g} %"


def line_panel(
    name: str, title: str, caption: str, axes: tuple[str, str], groups: Sequence[Group], curves: Sequence[Curve]
) -> Panel:
    """Curves of all groups; a remark where there is nothing to draw. An axis that ends in (%) is a share."""
    if not any(len(curve.x) for curve in curves):
        return nothing(f"{title}: nothing was recorded.")
    percent = axes[1].endswith("(%)")
    ends = [float(curve.mean[-1]) if len(curve.x) else math.nan for curve in curves]
    alt = spoken(groups, ends, _written_as_share if percent else _written, "Curves, which end at: ")
    label = axes[1].removesuffix(" (%)")
    return Panel(
        name,
        title,
        caption,
        alt,
        lambda: draw.lines(axes[0], label, curves, draw.looks(len(groups)), percent=percent),
        keyed=True,
    )


def range_panel(
    name: str,
    title: str,
    caption: str,
    x_label: str,
    groups: Sequence[Group],
    values: Callable[[RunNumbers], Floats],
    lines_at: Sequence[float] = (),
) -> Panel:
    """Ranges of something in all groups; a remark where there is nothing to draw. "(%)" as in `line_panel`."""
    rows = [np.concatenate([values(run) for run in group.runs]).astype(float) for group in groups]
    means = [float(row[np.isfinite(row)].mean()) if np.isfinite(row).any() else math.nan for row in rows]
    if not np.isfinite(means).any():
        return nothing(f"{title}: nothing was recorded.")
    percent = x_label.endswith("(%)")
    alt = spoken(groups, means, _written_as_share if percent else _written, "Ranges; the means are: ")
    label = x_label.removesuffix(" (%)")
    return Panel(
        name,
        title,
        caption,
        alt,
        lambda: draw.ranges(
            label, labels_of(groups), rows, draw.looks(len(groups)), lines_at=lines_at, percent=percent
        ),
    )
