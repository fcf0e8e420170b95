"""Each picture of a report as a file of its own, for a paper: vector fonts, the width of a column, the user's style."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.figure import Figure

from flare.reading import read_small
from flare.records.run import RunNumbers
from flare.report import FIGURE_FORMATS
from flare.report.figures import house_style, save
from flare.report.panels import Panel, Section
from flare.report.run_figures import LEGEND_ROW_IN, columns_for, legend, looks
from flare.report.run_groups import Group
from flare.report.run_report import contents
from flare.text import did_you_mean, one_line

COLUMN_IN = 3.5
"""Width of a column of most journals' pages."""
_MAX_STYLE_BYTES = 1 << 20
_PAPER: dict[str, Any] = {
    "axes.axisbelow": True,
    "figure.figsize": (COLUMN_IN, 2.1),
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "legend.fontsize": 7.0,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # TrueType, which journals ask for, instead of Type 3
    "ps.fonttype": 42,
    "savefig.dpi": 300,
}


MAX_PIXELS = 1e8
"""Of one picture."""


def write_paper_figures(
    runs: Sequence[RunNumbers],
    folder: Path,
    formats: Sequence[str] = ("pdf",),
    style: str = "",
    *,
    first: Sequence[Section] = (),
) -> list[Path]:
    """Write every picture of the report on runs into a folder as NAME.FORMAT, those of the sections `first` too; the
    paths of the files.

    `style` is a file of matplotlib settings (or the name of a style that matplotlib knows); what it sets takes the
    place of ours, its figure.figsize that of a column. The key stands below the axes; where a style sets legend.loc,
    within them, there. A file that is there is replaced, whole or not at all.

    Raises ValueError for an unknown format, a style that cannot be read or drawn with, and a `folder` that is none;
    OSError where it cannot be written.
    """
    unknown = next((kind for kind in formats if f".{kind}" not in FIGURE_FORMATS), None)
    if unknown is not None or not formats:
        known = ", ".join(kind[1:] for kind in FIGURE_FORMATS)
        raise ValueError(f"there is no format {unknown!r:.40} of figures; there are {known}")
    own = read_style(style) if style else {}
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: is no folder; give --figures the name of a folder for the figures")
    groups, sections = contents(runs)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for panel in (panel for section in (*first, *sections) for panel in section.panels if panel.draw is not None):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of fonts and layouts that a style cannot have: the picture shows it
                with house_style(_PAPER, own):
                    figure = _drawn(panel, groups, own)
                    for kind in dict.fromkeys(formats):
                        written.append(folder / f"{panel.name}.{kind}")
                        save(figure, written[-1])
        except Exception as error:  # of whatever kind: what a style sets reaches every corner of matplotlib
            if not style or isinstance(error, OSError):
                raise
            raise ValueError(
                f"--style {style}: {panel.name} cannot be drawn with it: {one_line(str(error))[:300]}"
            ) from None
    return written


def _drawn(panel: Panel, groups: Sequence[Group], own: Mapping[str, Any]) -> Figure:
    """A picture at the size of a column, its key within."""
    assert panel.draw is not None
    figure = panel.draw()
    if panel.keyed and len(groups) > 1:
        drawn = dict(zip((group.label for group in groups), looks(len(groups)), strict=True))
        legend(figure, drawn, inside="legend.loc" in own)
        if "legend.loc" not in own:  # the curves keep their room
            rows = -(-len(drawn) // columns_for(list(drawn), COLUMN_IN))
            figure.set_figheight(float(figure.get_figheight()) + LEGEND_ROW_IN * rows)
    if "figure.figsize" in own:
        figure.set_size_inches(own["figure.figsize"])
    if own.get("axes.grid") is False:
        for axes in figure.axes:
            axes.grid(visible=False)
    return figure


def read_style(style: str) -> dict[str, Any]:
    """The settings of a style file, or of a style that matplotlib knows by name.

    ValueError where the file is not there, is no text, or has a line that matplotlib does not understand.
    """
    if style in matplotlib.style.available:
        return {str(key): value for key, value in matplotlib.style.library[style].items()}
    path = Path(style)
    if not path.exists() and path.suffix != ".mplstyle":
        near = did_you_mean(style, matplotlib.style.available)
        raise ValueError(f"--style {style}: there is no such file, and matplotlib knows no such style{near}")
    text = read_small(path, _MAX_STYLE_BYTES)
    try:
        if b"\0" in text:
            raise ValueError
        text.decode("utf-8")
    except ValueError:
        raise ValueError(
            f"--style {style}: is no text; give a matplotlib style file (KEY: VALUE, a line each)"
        ) from None
    with _Complaints() as complaints, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = matplotlib.rc_params_from_file(str(path.resolve()), use_default_template=False)
    if complaints:
        raise ValueError(f"--style {style}: {complaints[0]}; give a matplotlib style file (KEY: VALUE, a line each)")
    settings: dict[str, Any] = {str(key): value for key, value in found.items()}
    _refuse_infinite(style, settings)
    _refuse_huge(style, settings)
    return {key: value for key, value in settings.items() if not key.startswith(("backend", "interactive", "toolbar"))}


def _refuse_infinite(style: str, settings: Mapping[str, Any]) -> None:
    """ValueError where a number is infinite, or none: matplotlib draws for seconds before it finds out."""
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--style {style}: {name} is {value:g}, and figures cannot be drawn with it; change it")


def _refuse_huge(style: str, settings: Mapping[str, Any]) -> None:
    """ValueError where a picture of that size would take minutes and gigabytes to draw."""
    width, height = settings.get("figure.figsize", (COLUMN_IN, COLUMN_IN))
    dots = [settings.get(name, 0.0) for name in ("figure.dpi", "savefig.dpi")]
    per_inch = max([100.0, *(each for each in dots if isinstance(each, int | float))])
    if not width * height * per_inch**2 <= MAX_PIXELS:
        raise ValueError(
            f"--style {style}: its figures would be {width:g} x {height:g} inches at {per_inch:g} dots an inch, more "
            f"than {MAX_PIXELS:.0e} pixels; make figure.figsize or savefig.dpi smaller"
        )


class _Complaints(logging.Handler):
    """What matplotlib logs while it reads a file, collected instead of shown."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(one_line(record.getMessage())[:300])

    def __enter__(self) -> list[str]:
        logger = logging.getLogger("matplotlib")
        self._propagated, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        return self.said

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("matplotlib")
        logger.removeHandler(self)
        logger.propagate = self._propagated
