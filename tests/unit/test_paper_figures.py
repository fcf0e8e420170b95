"""Figures for a paper: a file each, with fonts inside, at the size of a column, in the user's style."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from flare.records.run import RunNumbers, read_run
from flare.report import paper_figures
from flare.report.figures import FAINT, save
from flare.report.panels import Section
from flare.report.paper_figures import COLUMN_IN, contents, read_style, write_paper_figures
from flare.report.run_groups import Group
from tests.hostile import flare, paths
from tests.made_up_runs import settings, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups of one short run."""
    base = tmp_path_factory.mktemp("runs")
    for policy in ("greedy", "exact"):
        write_run(base / policy, settings(policy, num_devices=4, evaluate_every=2), rounds=5)
    return base


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[RunNumbers]:
    return [read_run(folder / policy) for policy in ("greedy", "exact")]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first two sections are drawn, which is quicker."""

    def first_two(runs: Sequence[RunNumbers]) -> tuple[list[Group], list[Section]]:
        groups, sections = contents(runs)
        return groups, sections[:2]

    monkeypatch.setattr(paper_figures, "contents", first_two)


FEW = ["accuracy-rounds", "accuracy-time", "difference-rounds", "difference-time"]


def test_every_picture_of_the_page_is_written(
    runs: list[RunNumbers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_figures, "save", lambda figure, path: path.write_text("drawn"))
    written = write_paper_figures(runs, tmp_path, ["pdf", "svg", "pdf"])
    _, sections = contents(runs)
    names = [panel.name for section in sections for panel in section.panels if panel.draw is not None]
    assert len(names) > 14
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("pdf", "svg")]
    assert all(path.exists() for path in written)


@pytest.mark.usefixtures("few")
def test_figures_are_pdf_with_true_type_fonts(runs: list[RunNumbers], tmp_path: Path) -> None:
    written = write_paper_figures(runs, tmp_path / "figures")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [f"{name}.pdf" for name in FEW]
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/CIDFontType2" in content  # TrueType, embedded
        assert b"/Type3" not in content
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
        assert float(box[0]) == pytest.approx(72.0 * COLUMN_IN)


@pytest.mark.usefixtures("few")
def test_formats_are_written_side_by_side_and_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "figures"
    to.mkdir()
    (to / "thesis.txt").write_text("years of work")
    (to / "accuracy-time.png").write_text("old")
    page = tmp_path / "page.html"
    command = ["report", str(folder), "--figures", str(to), "--format", "png", "--format", "svg", "--out", str(page)]
    code, said, _ = flare(capsys, *command)
    assert code == 0
    assert f"8 figures of 2 runs are in {to}." in said
    assert f"The report on 2 runs is in {page}." in said
    assert [path.stem for path in sorted(to.glob("*.png"))] == FEW
    assert [path.stem for path in sorted(to.glob("*.svg"))] == FEW
    assert (to / "thesis.txt").read_text() == "years of work"
    with Image.open(to / "accuracy-time.png") as image:
        assert image.size[0] == round(300 * COLUMN_IN)
        assert image.info["dpi"][0] == pytest.approx(300.0, abs=1.0)


@pytest.mark.usefixtures("few")
def test_figures_alone_write_no_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert flare(capsys, "report", str(folder / "exact"), "--figures", "here", "--format", "svg")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.usefixtures("few")
def test_the_users_style_is_used(runs: list[RunNumbers], tmp_path: Path) -> None:
    style = tmp_path / "mine.mplstyle"
    style.write_text(
        "# of a journal\nfigure.figsize: 2.0, 1.5\naxes.prop_cycle: cycler('color', ['123456', 'abcdef'])\n"
        "svg.fonttype: none\nfont.size: 5\nbackend: TkAgg\n"
    )
    write_paper_figures(runs, tmp_path, ["svg"], str(style))
    text = (tmp_path / "accuracy-rounds.svg").read_text()
    assert 'width="144pt"' in text
    assert 'height="108pt"' in text
    assert "#123456" in text
    assert "#abcdef" in text
    assert "#0072b2" not in text  # ours
    plain = tmp_path / "plain"
    write_paper_figures(runs, plain, ["svg"])
    assert "#0072b2" in (plain / "accuracy-rounds.svg").read_text()


def test_a_style_sets_the_grid_the_size_the_place_of_the_key_and_the_colours_of_every_figure(
    runs: list[RunNumbers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(paper_figures, "save", lambda figure, path: drawn.update({path.stem: figure}))
    style = tmp_path / "mine.mplstyle"
    style.write_text(
        "figure.figsize: 3.4, 2.2\naxes.grid: False\nlegend.loc: lower right\nlegend.fontsize: 6\n"
        "axes.prop_cycle: cycler('color', ['123456', 'abcdef', 'fedcba'])\n"
    )
    write_paper_figures(runs, tmp_path, ["svg"], str(style))
    assert len(drawn) > 14
    assert {tuple(figure.get_size_inches()) for figure in drawn.values()} == {(3.4, 2.2)}
    lines = [line for figure in drawn.values() for axes in figure.axes for line in axes.get_xgridlines()]
    assert not any(line.get_visible() for line in lines)
    key = drawn["accuracy-rounds"].axes[0].get_legend()
    assert not drawn["accuracy-rounds"].legends
    assert key is not None
    assert (key._loc, {text.get_fontsize() for text in key.get_texts()}) == (4, {6.0})  # 4: lower right
    (times,) = drawn["latency"].legends
    assert {text.get_fontsize() for text in times.get_texts()} == {6.0}
    bars = {to_hex(bar.get_facecolor()) for bars in drawn["latency"].axes[0].containers for bar in bars}
    assert {"#123456", "#abcdef"} <= bars <= {"#123456", "#abcdef", "#fedcba", FAINT.lower()}


def test_the_grid_of_a_style_has_its_colour(
    runs: list[RunNumbers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(paper_figures, "save", lambda figure, path: drawn.update({path.stem: figure}))
    (tmp_path / "mine.mplstyle").write_text("grid.color: 00ff00\n")
    write_paper_figures(runs, tmp_path, ["svg"], str(tmp_path / "mine.mplstyle"))
    assert {line.get_color() for line in drawn["latency"].axes[0].get_xgridlines()} == {"#00ff00"}
    write_paper_figures(runs, tmp_path, ["svg"])
    assert {line.get_color() for line in drawn["latency"].axes[0].get_xgridlines()} == {FAINT}


def test_a_style_that_matplotlib_knows_goes_by_its_name() -> None:
    assert read_style("ggplot")["axes.facecolor"] == "#E5E5E5"
    with pytest.raises(ValueError, match=r"no such file, and matplotlib knows no such style; did you mean 'ggplot'\?"):
        read_style("ggplott")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"axes.sizzle: 3\n", "axes.sizzle"),
        (b"font.size: enormous\n", "font.size"),
        (b"not a setting\n", "colon"),
        (b"\xff\xfe\x00 1", "is no text"),
        (b"font.size: \xff", "is no text"),
    ],
)
def test_an_odd_style_is_one_clear_error(
    text: bytes, words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    style = tmp_path / "odd.mplstyle"
    style.write_bytes(text)
    code, _, said = flare(capsys, "report", str(folder), "--figures", str(tmp_path / "out"), "--style", str(style))
    assert code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert words in said
    assert "odd.mplstyle" in said
    assert not (tmp_path / "out").exists()


def test_what_is_no_style_file_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in paths(tmp_path, ".mplstyle").items():
        out = tmp_path / "out"
        code, _, said = flare(capsys, "report", str(folder), "--figures", str(out), "--style", str(path), limit_s=10)
        assert (code, said.count("\n")) == (2, 1), name
        assert not out.exists(), name


def test_wrong_options_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for options, words in (
        (["--format", "pdf"], "give --figures"),
        (["--style", "ggplot"], "give --figures"),
        (["--figures", str(tmp_path / "f"), "--format", "bmp"], "'bmp' of figures; there are"),
        (["--figures", str(file)], "is no folder"),
        (["--figures", str(tmp_path / "f"), "--out", str(tmp_path / "page.pdf")], "ends in .html"),
    ):
        code, _, said = flare(capsys, "report", str(folder), *options)
        assert code == 2
        assert words in " ".join(said.split())
    assert file.read_text() == "mine"
    assert not (tmp_path / "f").exists()


def test_a_png_keeps_colours_of_few_pixels(tmp_path: Path) -> None:
    """A line that others all but cover is of the same colour as its entry in the legend."""
    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    for place in range(40):
        axes.fill_between([0, 1], place, place + 1, color=(0.3 + place / 60, 0.5, 1.0 - place / 60), alpha=0.4)
        axes.plot([0, 1], [place, 40 - place], color="#0072B2")
    axes.plot([0.5], [20.5], "D", color="#009E73", markersize=5)
    save(figure, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    assert (np.abs(pixels - [0x00, 0x9E, 0x73]).max(axis=2) <= 24).sum() >= 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("figure.figsize: 300, 300\nsavefig.dpi: 600\n", "its figures would be 300 x 300 inches at 600 dots an inch"),
        ("lines.linewidth: inf\n", "cannot be drawn with it"),
        ("path.effects: []\n", "cannot be drawn with it"),
    ],
)
def test_a_style_that_cannot_be_drawn_with_is_one_clear_error(
    text: str, words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    style = tmp_path / "odd.mplstyle"
    style.write_text(text)
    arguments = ["--figures", str(tmp_path / "out"), "--format", "png", "--style", str(style)]
    code, _, said = flare(capsys, "report", str(folder), *arguments)
    assert code == 2
    assert said.startswith(f"error: --style {style}: ")
    assert words in said
