"""The picture of a round: what is drawn agrees with the schedule, and the file is whole or absent."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from flare import CELLS, Cell, round_problem
from flare.report.schedule_plot import draw_schedule, house_figure
from flare.rng import stream
from flare.scheduling import RoundProblem, Schedule, Status, solve
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.picture_text import MAX_BARS, Box, overlaps, spread
from flare.types import Floats

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}
ODD_NAMES = [
    "$cost$_a",
    "x_1^2 $",
    r"\frac{1}{2}",
    "Größe µ",
    "日本語",
    "tab\tline\nbell \x07",
    "n" * 200,
    "",
    "<a&b>--",
]


def cell(devices: int = 40, deadline_s: float = 0.4) -> tuple[RoundProblem, Floats]:
    """A cell of the paper's kind, and the distances of its devices."""
    draw = stream(1, "cell")
    distance_m = draw.uniform(100.0, 500.0, devices)
    tau = np.maximum(1.0, np.round(draw.exponential(3.0, devices)))
    compute_s = tau * 110 * 6272 * 40 / draw.uniform(2e9, 4e9, devices)
    snr_hz = 0.1 * distance_m**-3.76 / 3.98e-21
    return RoundProblem(tau, compute_s, snr_hz, 1e7, 1e7 * devices / 40, deadline_s, 10.0), distance_m


def names_of(problem: RoundProblem) -> list[str]:
    return [f"device {i}" for i in range(problem.num_devices)]


def figure_of(problem: RoundProblem, schedule: Schedule, distance_m: Floats | None = None) -> Figure:
    return house_figure(schedule, names=names_of(problem), distance_m=distance_m)


def panel(figure: Figure, label: str) -> Axes:
    return next(axes for axes in figure.axes if axes.get_label() == label)


def marks(figure: Figure, kind: str) -> PathCollection | None:
    found = [c for c in panel(figure, "cell").collections if c.get_gid() == kind and isinstance(c, PathCollection)]
    return found[0] if found else None


def count(figure: Figure, kind: str) -> int:
    found = marks(figure, kind)
    return 0 if found is None else len(np.asarray(found.get_offsets()))


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def box_of(text: Text) -> Box:
    """Where a text lies, without the line that leads to what it names."""
    left, bottom, right, top = Text.get_window_extent(text).extents
    return (left, bottom, right, top)


def words(figure: Figure, *labels: str) -> str:
    """All text of the figure, or of the named panels."""
    return " ".join(map(words_of, [panel(figure, label) for label in labels] or [figure]))


def words_of(holder: Artist) -> str:
    return " ".join(text.get_text() for text in holder.findobj(Text))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_each_format_is_written_the_same_bytes_for_the_same_round_and_no_setting_changed(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, distance_m = cell()
    schedule = solve(problem)
    one, other = tmp_path / f"a{suffix}", tmp_path / f"b{suffix.upper()}"
    before = dict(matplotlib.rcParams)
    draw_schedule(one, schedule, names=names_of(problem), distance_m=distance_m)
    assert dict(matplotlib.rcParams) == before
    assert one.read_bytes().startswith(MAGIC[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [one.name]
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 20.0)  # a user's own settings change nothing
    draw_schedule(other, schedule, names=names_of(problem), distance_m=distance_m)
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(("devices", "deadline_s"), [(1, 10.0), (40, 0.4), (40, 2.0), (1000, 0.45)])
def test_png_is_small(tmp_path: Path, devices: int, deadline_s: float) -> None:
    problem, distance_m = cell(devices, deadline_s)
    path = tmp_path / "round.png"
    draw_schedule(path, solve(problem, "all"), names=names_of(problem), distance_m=distance_m)
    assert path.stat().st_size < 200_000
    with Image.open(path) as image:
        assert image.width > 1000
        assert image.height > 600


@pytest.mark.parametrize("devices", [1, 5, 20, 40, 1000])
@pytest.mark.parametrize("policy", ["exact", "dm", "all"])
def test_bars_and_shares_are_the_schedule(devices: int, policy: str) -> None:
    problem, distance_m = cell(devices, 3.0)
    schedule = solve(problem, policy)
    assert schedule.num_selected > 0
    figure = figure_of(problem, schedule, distance_m)
    shown = min(schedule.num_selected, MAX_BARS)

    times = panel(figure, "times")
    drawn = bars(times)
    assert len(drawn) == 2 * shown
    assert len(times.get_yticklabels()) == shown
    for compute, upload, label in zip(drawn[:shown], drawn[shown:], times.get_yticklabels(), strict=True):
        device = int(label.get_text().removeprefix("device "))
        assert compute.get_x() == 0.0
        assert compute.get_width() == pytest.approx(problem.compute_s[device])
        assert upload.get_x() == pytest.approx(problem.compute_s[device])
        bandwidth_hz = schedule.bandwidth_hz[device]
        rate_bps = bandwidth_hz * math.log2(1.0 + problem.snr_hz[device] / bandwidth_hz)
        assert upload.get_width() == pytest.approx(problem.payload_bits[device] / rate_bps)
        assert compute.get_hatch()
        assert not upload.get_hatch()

    shares = bars(panel(figure, "band"))
    more = schedule.num_selected - shown
    assert len(shares) == shown + (1 if more else 0)
    assert sum(share.get_width() for share in shares) == pytest.approx(problem.total_bandwidth_hz, rel=1e-9)
    edges_hz = [share.get_x() for share in shares] + [problem.total_bandwidth_hz]
    assert edges_hz == pytest.approx([0.0, *np.cumsum([share.get_width() for share in shares])], rel=1e-9)
    if more:
        assert f"{more} more" in words(figure, "times")
        assert f"{more} more" in words(figure, "band")


@pytest.mark.parametrize("deadline_s", [0.4, 5.0])
def test_lines_stand_at_the_end_and_the_deadline(deadline_s: float) -> None:
    problem, _ = cell(deadline_s=deadline_s)
    schedule = solve(problem)
    lines = {line.get_gid(): line for line in panel(figure_of(problem, schedule), "times").lines}
    assert lines["round-end"].get_xdata() == pytest.approx([schedule.latency_s] * 2)
    assert lines["deadline"].get_xdata() == pytest.approx([deadline_s] * 2)
    assert lines["deadline"].get_linestyle() != lines["round-end"].get_linestyle()


def test_far_deadline_is_said_and_the_bars_stay_visible() -> None:
    problem, _ = cell(deadline_s=1e4)
    schedule = solve(problem)
    figure = figure_of(problem, schedule)
    assert panel(figure, "times").get_xlim()[1] < 2.0 * schedule.latency_s
    assert "deadline 10000 s →" in words(figure, "times")


@pytest.mark.parametrize("policy", ["exact", "greedy", "cm"])
def test_marks_and_legend_say_of_each_device_what_the_table_says(policy: str) -> None:
    problem, distance_m = cell(deadline_s=0.15)
    schedule = solve(problem, policy)
    figure = figure_of(problem, schedule, distance_m)
    assert count(figure, "sends") == schedule.num_selected
    why = explain(schedule).why
    for one in LeftOut:
        assert count(figure, one.name) == why.count(one)
        assert (one.counted(why.count(one)) in words(figure, "cell")) == (one in why)
    assert {LeftOut.TOO_SLOW, LeftOut.NO_ROOM} <= set(why)


@pytest.mark.parametrize("devices", [12, 40, 1000])
def test_senders_lie_above_the_rest(devices: int) -> None:
    problem, distance_m = cell(devices)
    figure = figure_of(problem, solve(problem), distance_m)
    sends = marks(figure, "sends")
    assert sends is not None
    others = [one for one in panel(figure, "cell").collections if one.get_gid() in LeftOut.__members__]
    assert others
    assert all(one.get_zorder() < sends.get_zorder() for one in others)


@pytest.mark.parametrize(("seed", "deadline_s"), [(1, 0.4), (1, 1.0), (3, 0.4), (3, 1.0), (6, 0.8)])
def test_names_in_the_cell_lie_apart_and_nearest_to_their_own_sender(seed: int, deadline_s: float) -> None:
    drawn = Cell(replace(CELLS["paper"], deadline_s=deadline_s), seed).draw(0)
    schedule = solve(round_problem(drawn))
    figure = house_figure(schedule, distance_m=drawn.distance_m, angle_rad=drawn.angle_rad)
    axes = panel(figure, "cell")
    figure.draw_without_rendering()
    named = {text.get_text(): text for text in axes.texts if text.get_gid() == "sender-name"}
    assert sorted(map(int, named)) == schedule.selected.tolist()
    boxes = [box_of(text) for text in axes.texts]  # names and distances
    assert not [1 for at, box in enumerate(boxes) for other in boxes[:at] if overlaps(box, other)]
    spots = {str(i): drawn.distance_m[i] * np.exp(1j * drawn.angle_rad[i]) for i in schedule.selected}
    for name, text in named.items():
        x, y = text.get_position()
        nearest = min(spots, key=lambda one: abs(complex(x, y) - spots[one]))
        assert nearest == name or getattr(text, "arrow_patch", None) is not None


@pytest.mark.parametrize(("devices", "policy"), [(3, "exact"), (40, "all"), (1000, "all")])
def test_every_share_of_the_band_has_its_name(devices: int, policy: str) -> None:
    problem, _ = cell(devices, 2.0)
    schedule = solve(problem, policy)
    figure = house_figure(schedule)
    band = panel(figure, "band")
    figure.draw_without_rendering()
    names = [text for text in band.texts if text.get_gid() == "share-name"]
    shown = min(schedule.num_selected, MAX_BARS)
    assert len(names) == shown + (schedule.num_selected > MAX_BARS)
    boxes = [box_of(text) for text in names]
    assert not [1 for at, box in enumerate(boxes) for other in boxes[:at] if overlaps(box, other)]
    written = [text.get_text().split("\n")[0] for text in names]
    assert len(set(written)) == len(written)
    title = band.title if band.get_title() else band._left_title  # the house writes titles on the left
    assert all(box[3] <= title.get_window_extent().y0 for box in boxes)


def three_reasons() -> RoundProblem:
    """Eight devices; the best channels take the band, and the others are left out for three reasons."""
    return RoundProblem(
        tau=[5, 5, 5, 5, 3, 2, 1, 9],
        compute_s=[0.1, 0.1, 0.2, 0.1, 0.1, 0.1, 2.0, 0.1],
        snr_hz=[1e8, 1e8, 1e8, 1e8, 1e8, 2e7, 1e8, 1e2],
        payload_bits=4e6,
        total_bandwidth_hz=2e6,
        deadline_s=1.0,
    )


def lies_within(inner: Artist, outer: Artist) -> bool:
    box, room = inner.get_window_extent(), outer.get_window_extent()
    return bool(room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1)


@pytest.mark.parametrize("in_the_style_of_the_house", [True, False])
def test_the_legend_of_the_cell_lies_within_the_figure(in_the_style_of_the_house: bool) -> None:
    schedule = solve(three_reasons(), "cp")
    figure = house_figure(schedule) if in_the_style_of_the_house else schedule.figure()
    figure.draw_without_rendering()
    key = panel(figure, "cell").get_legend()
    assert key is not None
    assert len(key.get_texts()) == 5
    assert lies_within(key, figure)
    assert all(lies_within(text, figure) for text in figure.texts)
    label = panel(figure, "cell").xaxis.label.get_window_extent()
    assert key.get_window_extent().y1 <= label.y0


def test_where_the_devices_stand_comes_with_the_problem_and_changes_no_answer() -> None:
    drawn = Cell(replace(CELLS["paper"], deadline_s=1.0), 3).draw(0)
    problem = round_problem(drawn)
    bare = RoundProblem(
        drawn.tau, drawn.compute_s, drawn.snr_hz, problem.payload_bits, problem.total_bandwidth_hz, problem.deadline_s
    )
    schedule, without = solve(problem), solve(bare)
    assert schedule.to_dict() == without.to_dict()
    figure = schedule.figure()
    assert panel(figure, "cell").get_xlabel() == "radius: distance from the base station"
    sends = marks(figure, "sends")
    assert sends is not None
    found = np.sort_complex(np.asarray(sends.get_offsets()) @ np.array([1.0, 1j]))
    stands = (drawn.distance_m * np.exp(1j * drawn.angle_rad))[schedule.selected]
    np.testing.assert_allclose(found, np.sort_complex(stands))
    assert "rank of the channel" in panel(without.figure(), "cell").get_xlabel()
    assert "500 m" in words(without.figure(distance_m=drawn.distance_m), "cell")


@pytest.mark.parametrize("deadline_s", [0.3, 0.5, 1.0])
def test_panels_in_small_axes_keep_their_words_apart(deadline_s: float) -> None:
    schedule = solve(round_problem(Cell(replace(CELLS["paper"], deadline_s=deadline_s), 3).draw(0)))
    figure = Figure(figsize=(12.0, 3.2), layout="constrained")
    cell_axes, times, band = figure.subplots(1, 3)
    for name, axes in (("cell", cell_axes), ("times", times), ("band", band)):
        schedule.plot(name, ax=axes)
    figure.draw_without_rendering()
    key = cell_axes.get_legend()
    assert key is not None
    assert key.get_window_extent().y1 <= cell_axes.xaxis.label.get_window_extent().y0
    assert all(lies_within(one, figure) for one in (key, times.title, band.title, cell_axes.title))
    shares = bars(band)
    for name, share in zip([one for one in band.texts if one.get_gid() == "share-name"], shares, strict=True):
        assert lies_within(name, share)
    ticks = [label.get_window_extent() for label in times.get_yticklabels()]
    assert all(lower.y1 - upper.y0 < 0.35 * upper.height for upper, lower in pairwise(ticks))
    rings = [box_of(text) for text in cell_axes.texts if text.get_gid() == "ring"]
    sends = next(one for one in cell_axes.collections if one.get_gid() == "sends")
    for x, y in cell_axes.transData.transform(np.asarray(sends.get_offsets())):
        assert not [1 for box in rings if overlaps(box, (x - 1.0, y - 1.0, x + 1.0, y + 1.0))]


def test_places_are_spread_no_farther_than_they_must_be() -> None:
    assert spread([1.0, 5.0], 1.0, 0.0, 10.0) == [1.0, 5.0]
    assert spread([5.0, 5.0, 5.0], 1.0, 0.0, 10.0) == [4.0, 5.0, 6.0]
    assert spread([9.9, 10.0], 1.0, 0.0, 10.0) == [9.0, 10.0]
    assert spread([0.0, 0.0, 9.0], 2.0, 0.0, 10.0) == [0.0, 2.0, 9.0]
    assert spread([5.0] * 5, 9.0, 0.0, 10.0) == [0.0, 2.5, 5.0, 7.5, 10.0]  # no room: closer
    assert spread([], 1.0, 0.0, 1.0) == []


def test_a_panel_takes_the_style_and_the_axes_of_the_user() -> None:
    problem, distance_m = cell()
    schedule = solve(problem, "all")
    figure = Figure()
    left, right = figure.subplots(1, 2)
    with matplotlib.rc_context({"font.size": 18.0, "text.color": "red"}):
        assert schedule.plot(ax=left) is left
        assert schedule.plot("band", ax=right) is right
        whole = schedule.figure(distance_m=distance_m)
    assert len(bars(left)) == 2 * schedule.num_selected
    assert sum(bar.get_width() for bar in bars(right)) == pytest.approx(problem.total_bandwidth_hz)
    assert {text.get_fontsize() for text in left.texts} == {18.0}
    assert all(line.get_color() == "red" for line in left.lines)
    assert whole.get_figwidth() == pytest.approx(2.0 * house_figure(schedule).get_figwidth())
    with pytest.raises(ValueError, match="there is no panel 'clock'; give one of times, band, cell"):
        schedule.plot("clock")


def test_a_panel_makes_its_own_axes_and_says_that_nobody_sends() -> None:
    from matplotlib import pyplot

    problem, _ = cell(deadline_s=0.05)
    schedule = solve(problem)
    try:
        for name in ("times", "band", "cell"):
            axes = schedule.plot(name)
            assert axes.get_figure() is pyplot.gcf()
            assert "nobody sends" in words_of(axes).lower() or name == "cell"
    finally:
        pyplot.close("all")


def test_marker_areas_are_proportional_to_bandwidth_and_radii_are_distances() -> None:
    problem, distance_m = cell()
    schedule = solve(problem)
    sends = marks(figure_of(problem, schedule, distance_m), "sends")
    assert sends is not None
    spot = np.asarray(sends.get_offsets())
    radius_m = np.hypot(spot[:, 0], spot[:, 1])
    device = [int(np.argmin(np.abs(distance_m - r))) for r in radius_m]
    assert sorted(device) == schedule.selected.tolist()
    np.testing.assert_allclose(radius_m, distance_m[device])
    area_per_hz = sends.get_sizes() / schedule.bandwidth_hz[device]
    np.testing.assert_allclose(area_per_hz, area_per_hz[0])


def test_angles_are_used_where_given() -> None:
    problem, distance_m = cell(3, 10.0)
    angle_rad = np.array([0.0, 2.0, -1.0])
    schedule = solve(problem, "all")
    figure = house_figure(schedule, names=names_of(problem), distance_m=distance_m, angle_rad=angle_rad)
    sends = marks(figure, "sends")
    assert sends is not None
    drawn_rad = [math.atan2(y, x) for x, y in np.asarray(sends.get_offsets())]
    np.testing.assert_allclose(sorted(drawn_rad), sorted(angle_rad[schedule.selected]), atol=1e-12)
    assert "arbitrary" not in panel(figure, "cell").get_xlabel()


def test_without_distances_the_strongest_channel_is_inmost_and_the_label_says_so() -> None:
    problem, _ = cell(12, 10.0)
    schedule = solve(problem, "all")
    assert schedule.num_selected == 12
    figure = figure_of(problem, schedule)
    sends = marks(figure, "sends")
    assert sends is not None
    widest_first = [int(t.get_text().removeprefix("device ")) for t in panel(figure, "times").get_yticklabels()]
    radius = np.hypot(*np.asarray(sends.get_offsets()).T)
    assert [widest_first[i] for i in np.argsort(radius)] == np.argsort(-problem.snr_hz).tolist()
    assert "rank of the channel" in panel(figure, "cell").get_xlabel()


def test_title_says_policy_count_objective_gap_and_latency() -> None:
    problem, _ = cell()
    schedule = solve(problem)
    text = words(figure_of(problem, schedule))
    for part in ("exact", f"{schedule.num_selected} of 40", f"{schedule.objective:.4g}", "optimal", "400 ms"):
        assert part in text
    bounded = Schedule(
        problem, schedule.selected, schedule.bandwidth_hz, schedule.latency_s, 2.0, 1.6, Status.FEASIBLE, "mine"
    )
    assert "gap 25 %" in words(figure_of(problem, bounded))
    assert "gap" not in words(figure_of(problem, solve(problem, "dm")))


def test_nobody_selected_is_said_in_words(tmp_path: Path) -> None:
    problem, distance_m = cell(deadline_s=0.05)
    schedule = solve(problem)
    assert schedule.status is Status.INFEASIBLE
    figure = figure_of(problem, schedule, distance_m)
    assert "Nobody sends" in words(figure, "times")
    assert "nobody sends" in words(figure, "band")
    assert "not even with the whole band" in words(figure)
    assert sum(count(figure, one.name) for one in (LeftOut.TOO_SLOW, LeftOut.TOO_WEAK)) == 40
    assert count(figure, "sends") == 0
    draw_schedule(tmp_path / "nobody.png", schedule, names=names_of(problem))
    assert (tmp_path / "nobody.png").exists()


def test_nobody_found_though_some_could() -> None:
    problem, _ = cell()
    empty = Schedule(
        problem, np.zeros(0, dtype=np.intp), np.zeros(40), math.nan, math.inf, math.nan, Status.INFEASIBLE, "blind"
    )
    figure = figure_of(problem, empty)
    assert f"though {problem.reachable.size} could" in words(figure)
    assert count(figure, "ALONE") == problem.reachable.size


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_odd_names(tmp_path: Path, suffix: str) -> None:
    problem, _ = cell(len(ODD_NAMES), 30.0)
    schedule = solve(problem, "all")
    assert schedule.num_selected == len(ODD_NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_schedule(tmp_path / f"odd{suffix}", schedule, names=ODD_NAMES)
    figure = house_figure(schedule, names=ODD_NAMES)
    named = [t for t in figure.findobj(Text) if "$" in t.get_text()]
    assert len(named) >= 2 * 2  # two such names, in the cell and on the axis at least
    assert not any(t.get_parse_math() for t in named)


def test_other_suffix_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    problem, _ = cell()
    with pytest.raises(ValueError, match=r"round\.jpg.*\.png, \.svg, \.pdf"):
        draw_schedule(tmp_path / "round.jpg", solve(problem), names=names_of(problem))
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_made_and_a_taken_name_raises_and_leaves_nothing(tmp_path: Path) -> None:
    problem, _ = cell()
    schedule, names = solve(problem), names_of(problem)
    draw_schedule(tmp_path / "absent" / "deeper" / "round.svg", schedule, names=names)
    assert (tmp_path / "absent" / "deeper" / "round.svg").stat().st_size > 0
    (tmp_path / "file").write_text("")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        draw_schedule(tmp_path / "file" / "round.svg", schedule, names=names)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(IsADirectoryError):
        draw_schedule(tmp_path / "folder.svg", schedule, names=names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["absent", "file", "folder.svg"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_unwritable_folder(tmp_path: Path) -> None:
    problem, _ = cell()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            draw_schedule(tmp_path / "round.svg", solve(problem), names=names_of(problem))
        assert not list(tmp_path.iterdir())
    finally:
        tmp_path.chmod(0o700)


def test_failure_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = cell()
    path = tmp_path / "round.svg"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        draw_schedule(path, solve(problem), names=names_of(problem))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_arguments_that_do_not_fit_are_named() -> None:
    problem, distance_m = cell()
    schedule, names = solve(problem), names_of(problem)
    with pytest.raises(ValueError, match="names has 39 entries"):
        house_figure(schedule, names=names[1:])
    with pytest.raises(ValueError, match="angle_rad has 1 entries"):
        house_figure(schedule, names=names, angle_rad=np.zeros(1))
    distance_m[3] = -1.0
    with pytest.raises(ValueError, match="distance_m of device 3 is negative"):
        house_figure(schedule, names=names, distance_m=distance_m)
    distance_m[2] = np.nan
    with pytest.raises(ValueError, match="distance_m of device 2 is not finite"):
        house_figure(schedule, names=names, distance_m=distance_m)


@pytest.mark.parametrize(
    ("farthest_m", "rings"),
    [
        (495.0, ["100 m", "200 m", "300 m", "400 m", "500 m"]),
        (500.0, ["100 m", "200 m", "300 m", "400 m", "500 m"]),
        (1100.0, ["500 m", "1000 m", "1500 m"]),
        (7.0, ["2 m", "4 m", "6 m", "8 m"]),
        (0.0, ["0.2 m", "0.4 m", "0.6 m", "0.8 m", "1 m"]),
    ],
)
def test_rings_are_round_and_enclose_the_cell(farthest_m: float, rings: list[str]) -> None:
    problem, _ = cell(1, 10.0)
    text = words(figure_of(problem, solve(problem), np.array([farthest_m])), "cell")
    assert [ring for ring in rings if ring in text] == rings
