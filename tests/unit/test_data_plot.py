"""The picture of a division shows the counts it is given, and is read as well in grey."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from flare.report import data_plot
from flare.report.data_plot import division_figure, draw_division

COUNTS = np.array([[5, 0, 12], [1, 7, 0]])


def panel(figure, label: str):
    return next(axes for axes in figure.axes if axes.get_label() == label)


def test_bars_are_the_devices_sizes_and_tiles_the_counts() -> None:
    figure = division_figure(COUNTS, title="who")
    assert [bar.get_height() for bar in panel(figure, "sizes").patches] == [17, 8]
    labels = panel(figure, "labels")
    shown = labels.images[0].get_array()
    assert np.array_equal(shown.filled(0), COUNTS.T)
    assert np.array_equal(np.ma.getmaskarray(shown), COUNTS.T == 0)  # what a device lacks is left white
    assert sorted(int(text.get_text()) for text in labels.texts) == [1, 5, 7, 12]
    assert panel(figure, "sizes").get_title(loc="left") == "who"


def test_more_samples_are_darker_in_grey() -> None:
    shades = [to_rgb(data_plot._SHADES(share)) for share in np.linspace(0.0, 1.0, 20)]
    luminance = [0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in shades]
    assert all(later < earlier for earlier, later in itertools.pairwise(luminance))
    assert luminance[0] - luminance[-1] > 0.6
    assert luminance[0] < 0.95  # the least is still told from none


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_picture_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"who{suffix}"
    draw_division(path, COUNTS, title="5 $ a \\frac day")
    assert path.stat().st_size > 1000
    if suffix == ".png":
        with Image.open(path) as picture:
            assert picture.size[0] > 1000


@pytest.mark.parametrize("shape", [(1, 2), (21, 10), (3000, 10), (5, 100)])
def test_any_number_of_devices_and_labels_is_drawn(tmp_path: Path, shape: tuple[int, int]) -> None:
    figure = division_figure(np.ones(shape, dtype=np.intp), title="who")
    assert len(panel(figure, "labels").texts) == (shape[0] * shape[1] if shape[0] <= data_plot.MAX_NUMBERS else 0)


def test_counts_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be \(devices, classes\)"):
        draw_division(tmp_path / "who.png", np.zeros((0, 3), dtype=np.intp), title="who")
