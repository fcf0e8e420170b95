"""One look for all figures, and one way to write them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from flare.atomic import write_whole
from flare.colours import BLUE, EDGE, FAINT, GREY, INK, ORANGE, PALE, PAPER
from flare.report import FIGURE_FORMATS
from flare.report.side_by_side import side_by_side

_STYLE = {
    "figure.figsize": (5.6, 3.3),
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.2,
    "legend.frameon": False,
    "svg.hashsalt": "flare",
}
__all__ = [
    "BLUE", "EDGE", "FAINT", "GREY", "INK", "ORANGE", "PALE", "PAPER", "house_style", "write_figure", "write_figures",
]  # fmt: skip
# Metadata to leave out, so that the same figure gives the same file.
_NO_DATE: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def house_style(*more: Mapping[str, Any]) -> AbstractContextManager[None]:
    """The figures' settings, whatever the user's own are, for as long as one is drawn; `more` settings come on top."""
    return matplotlib.style.context(["default", _STYLE, *map(dict, more)])


def write_figure(path: Path, draw: Callable[[], Figure]) -> None:
    """Draw and write a figure as png, svg or pdf by the suffix of `path`. The file appears whole or not at all.

    Raises ValueError for another suffix, OSError where `path` cannot be written.
    """
    kind = path.suffix.lower()
    if kind not in FIGURE_FORMATS:
        raise ValueError(f"cannot draw into '{path.name}': the name must end in {', '.join(FIGURE_FORMATS)}")
    with house_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")  # a name in a script it lacks
        save(draw(), path)


def write_figures(folder: Path, draw: Callable[[], dict[str, Figure]]) -> None:
    """Draw several figures, by name, and write each in every format; as `write_figure` otherwise."""
    with house_style():
        files = [(figure, folder / f"{name}{kind}") for name, figure in draw().items() for kind in FIGURE_FORMATS]
        side_by_side([partial(_lay_out_and_save, figure, path) for figure, path in files])


def _lay_out_and_save(figure: Figure, path: Path) -> None:
    """Write a figure; in a branch that has it from before its axes had places, these are the same as in others."""
    lay_out(figure)
    save(figure, path)


def lay_out(figure: Figure) -> None:
    """Give the axes their places, once for all formats; saving would do it for each, and draw the figure for it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        FigureCanvasAgg(figure)  # it remembers the sizes of texts that were measured
        engine.execute(figure)
        figure.set_layout_engine(None)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as png, svg or pdf by the suffix of `path`, in the style of the moment; its folder is made."""
    image, kind = io.BytesIO(), path.suffix.lower()
    if kind == ".png":
        _save_png(figure, image)
    else:
        figure.savefig(image, format=kind[1:], metadata=_NO_DATE[kind])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, image.getvalue())
    except OSError as error:
        raise type(error)(f"{path}: the picture cannot be written: {error.strerror or error}") from None


def _save_png(figure: Figure, image: io.BytesIO) -> None:
    """A png of 256 colours, a third of the size; chosen so that colours of few pixels, such as a thin line, stay."""
    full = io.BytesIO()
    figure.savefig(full, format="png", pil_kwargs={"compress_level": 0})  # it is read again at once
    pixels = Image.open(full).convert("RGB")
    dpi = matplotlib.rcParams["savefig.dpi"]
    dots = (figure.dpi, figure.dpi) if dpi == "figure" else (dpi, dpi)
    pixels.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(
        image, format="png", optimize=True, dpi=dots
    )
