"""The picture of a round as a file, in the look of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from flare.report.figures import house_style, write_figure
from flare.scheduling import picture
from flare.scheduling.schedule import Schedule
from flare.types import Floats


def draw_schedule(
    path: Path,
    schedule: Schedule,
    *,
    names: Sequence[str] | None = None,
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
) -> None:
    """Draw a round into `path`, as png, svg or pdf by its suffix. The file appears whole or not at all.

    The other arguments are those of `Schedule.figure`. Raises ValueError for another suffix and for arguments that do
    not fit the round, OSError where `path` cannot be written.
    """
    write_figure(path, lambda: house_figure(schedule, names=names, distance_m=distance_m, angle_rad=angle_rad))


def house_figure(
    schedule: Schedule,
    *,
    names: Sequence[str] | None = None,
    distance_m: Floats | None = None,
    angle_rad: Floats | None = None,
) -> Figure:
    """The figure that `draw_schedule` writes: `Schedule.figure` in the look of all figures."""
    with house_style():
        figure = picture.schedule_figure(schedule, names=names, distance_m=distance_m, angle_rad=angle_rad)
        figure.set_facecolor("white")
    return figure
