"""The kinds of panel in a report: curves and ranges of all groups, with title, caption and alternative text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from matplotlib.figure import Figure

from flare.records.run import Run
from flare.report import run_figures as draw
from flare.report.curves import Curve
from flare.report.inline_svg import inline_svg
from flare.report.page import figure, key
from flare.report.run_groups import Group
from flare.types import Floats


def section(title: str, text: str, panels: Sequence[str], legend: str = "") -> str:
    """A section of the page."""
    words = f"<p>{escape(text)}</p>\n" if text else ""
    inside = f'{words}{legend}<div class="panels">\n{"".join(panels)}</div>\n'
    return f'<section class="pictures">\n<h2>{escape(title)}</h2>\n{inside}</section>\n'


def panel(name: str, title: str, caption: str, alt: str, drawing: Callable[[], Figure]) -> str:
    """A picture; `alt` says what is in it to those who cannot see it."""
    return figure(inline_svg(name, f"{title}. {alt}", drawing), title, caption)


def nothing(text: str) -> str:
    """A remark in the place of a picture."""
    return f'<p class="note">{escape(text)}</p>\n'


def labels_of(groups: Sequence[Group]) -> list[str]:
    """What the groups are called."""
    return [group.label for group in groups]


def key_to(groups: Sequence[Group]) -> str:
    """The key to the curves of groups."""
    """What the groups are called."""
    return key(labels_of(groups), draw.looks(len(groups)))


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
) -> str:
    """Curves of all groups; a remark where there is nothing to draw. An axis that ends in (%) is a share."""
    if not any(len(curve.x) for curve in curves):
        return nothing(f"{title}: nothing was recorded.")
    percent = axes[1].endswith("(%)")
    ends = [float(curve.mean[-1]) if len(curve.x) else math.nan for curve in curves]
    alt = spoken(groups, ends, _written_as_share if percent else _written, "Curves, which end at: ")
    looks = draw.looks(len(groups))
    label = axes[1].removesuffix(" (%)")
    return panel(name, title, caption, alt, lambda: draw.lines(axes[0], label, curves, looks, percent=percent))


def range_panel(
    name: str,
    title: str,
    caption: str,
    x_label: str,
    groups: Sequence[Group],
    values: Callable[[Run], Floats],
    lines_at: Sequence[float] = (),
) -> str:
    """Ranges of something in all groups; a remark where there is nothing to draw. "(%)" as in `line_panel`."""
    rows = [np.concatenate([values(run) for run in group.runs]).astype(float) for group in groups]
    means = [float(row[np.isfinite(row)].mean()) if np.isfinite(row).any() else math.nan for row in rows]
    if not np.isfinite(means).any():
        return nothing(f"{title}: nothing was recorded.")
    percent = x_label.endswith("(%)")
    alt = spoken(groups, means, _written_as_share if percent else _written, "Ranges; the means are: ")
    looks, label = draw.looks(len(groups)), x_label.removesuffix(" (%)")
    return panel(
        name,
        title,
        caption,
        alt,
        lambda: draw.ranges(label, labels_of(groups), rows, looks, lines_at=lines_at, percent=percent),
    )
