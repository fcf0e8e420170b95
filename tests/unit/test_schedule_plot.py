"""The picture of a round: what is drawn agrees with the schedule, and the file is whole or absent."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from flare.report.schedule_plot import MAX_BARS, draw_schedule, schedule_figure
from flare.rng import stream
from flare.scheduling import RoundProblem, Schedule, Status, solve
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
    return schedule_figure(schedule, names=names_of(problem), distance_m=distance_m)


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


def words(figure: Figure, *labels: str) -> str:
    """All text of the figure, or of the named panels."""
    holders: list[Artist] = [panel(figure, label) for label in labels] or [figure]
    return " ".join(text.get_text() for holder in holders for text in holder.findobj(matplotlib.text.Text))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_writes_each_format(tmp_path: Path, suffix: str) -> None:
    problem, distance_m = cell()
    path = tmp_path / f"round{suffix}"
    draw_schedule(path, solve(problem), names=names_of(problem), distance_m=distance_m)
    assert path.read_bytes().startswith(MAGIC[suffix.lower()])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_same_round_gives_same_bytes(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = cell()
    schedule = solve(problem)
    draw_schedule(tmp_path / f"a{suffix}", schedule, names=names_of(problem))
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 20.0)  # a user's own settings change nothing
    draw_schedule(tmp_path / f"b{suffix}", schedule, names=names_of(problem))
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_leaves_no_global_state(tmp_path: Path) -> None:
    problem, _ = cell()
    before = dict(matplotlib.rcParams)
    draw_schedule(tmp_path / "round.svg", solve(problem), names=names_of(problem))
    assert dict(matplotlib.rcParams) == before


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
        assert upload.get_width() == pytest.approx(problem.payload_bits / rate_bps)
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
    assert "deadline 10 ks →" in words(figure, "times")


def test_marks_in_the_cell() -> None:
    problem, distance_m = cell(deadline_s=0.13)
    schedule = solve(problem)
    figure = figure_of(problem, schedule, distance_m)
    unable = problem.num_devices - problem.reachable.size
    assert unable > 0
    assert count(figure, "unable") == unable
    assert count(figure, "sends") == schedule.num_selected
    assert count(figure, "not-chosen") == problem.reachable.size - schedule.num_selected


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
    figure = schedule_figure(schedule, names=names_of(problem), distance_m=distance_m, angle_rad=angle_rad)
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
    bounded = Schedule(schedule.selected, schedule.bandwidth_hz, schedule.latency_s, 2.0, 1.6, Status.FEASIBLE, "mine")
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
    assert count(figure, "unable") == 40
    assert count(figure, "sends") == 0
    draw_schedule(tmp_path / "nobody.png", schedule, names=names_of(problem))
    assert (tmp_path / "nobody.png").exists()


def test_nobody_found_though_some_could() -> None:
    problem, _ = cell()
    empty = Schedule(np.zeros(0, dtype=np.intp), np.zeros(40), math.nan, math.inf, math.nan, Status.INFEASIBLE, "blind")
    assert f"though {problem.reachable.size} could" in words(figure_of(problem, empty))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_odd_names(tmp_path: Path, suffix: str) -> None:
    problem, _ = cell(len(ODD_NAMES), 30.0)
    schedule = solve(problem, "all")
    assert schedule.num_selected == len(ODD_NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_schedule(tmp_path / f"odd{suffix}", schedule, names=ODD_NAMES)
    figure = schedule_figure(schedule, names=ODD_NAMES)
    named = [t for t in figure.findobj(matplotlib.text.Text) if "$" in t.get_text()]
    assert len(named) >= 2 * 2  # two such names, in the cell and on the axis at least
    assert not any(t.get_parse_math() for t in named)


def test_other_suffix_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    problem, _ = cell()
    with pytest.raises(ValueError, match=r"round\.jpg.*\.png, \.svg, \.pdf"):
        draw_schedule(tmp_path / "round.jpg", solve(problem), names=names_of(problem))
    assert not list(tmp_path.iterdir())


def test_missing_folder_and_taken_name_raise_and_leave_nothing(tmp_path: Path) -> None:
    problem, _ = cell()
    schedule, names = solve(problem), names_of(problem)
    with pytest.raises(FileNotFoundError):
        draw_schedule(tmp_path / "absent" / "round.svg", schedule, names=names)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        draw_schedule(tmp_path / "file" / "round.svg", schedule, names=names)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(IsADirectoryError):
        draw_schedule(tmp_path / "folder.svg", schedule, names=names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.svg"]


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
        schedule_figure(schedule, names=names[1:])
    with pytest.raises(ValueError, match="angle_rad has 1 entries"):
        schedule_figure(schedule, names=names, angle_rad=np.zeros(1))
    distance_m[3] = -1.0
    with pytest.raises(ValueError, match="distance_m of device 3 is negative"):
        schedule_figure(schedule, names=names, distance_m=distance_m)
    distance_m[2] = np.nan
    with pytest.raises(ValueError, match="distance_m of device 2 is not finite"):
        schedule_figure(schedule, names=names, distance_m=distance_m)


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
