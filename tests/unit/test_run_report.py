"""The report on runs: its page is whole, escaped and refers to nothing outside."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from flare.cli.report import report
from flare.config import override
from flare.records import RunFolder
from flare.records.run import MAX_FAULT_KINDS, read_run
from flare.report.curves import summarise
from flare.report.group_labels import PAPER_NAMES
from flare.report.panels import Panel
from flare.report.run_figures import MAX_CURVES
from flare.report.run_groups import group_runs
from flare.report.run_report import contents, read_runs, refuse_other_names, report_page, write_page
from flare.research.loading import run_folders_in
from tests.made_up_runs import settings, write_run

VOID = {"meta", "br"}
PICTURES = {
    "accuracy-rounds", "accuracy-time", "train-loss", "test-loss", "participation-devices", "participation-ranked",
    "devices", "steps", "rates", "energy", "latency", "infeasible", "gap", "gap-rounds", "wall-time",
    "difference-rounds", "difference-time",
}  # fmt: skip


class Page(HTMLParser):
    """A page whose elements are closed in order, with its ids, links, text and pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.alt: dict[str, str] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.ids += [given["id"]] if "id" in given else []
        self.references += [value for name, value in given.items() if name in ("href", "src", "xlink:href")]
        if tag == "svg" and given.get("role") == "img":
            self.alt[given["id"]] = given["aria-label"]
        if tag == "th":
            assert given["scope"] in ("col", "row")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def page_of(tmp_path: Path, folders: list[Path]) -> Page:
    out = tmp_path / "report.html"
    write_page(read_runs(folders), out)
    return checked(out.read_text(encoding="utf-8"))


def checked(text: str) -> Page:
    """The page, after the checks that every page must pass."""
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|<script", text.replace("<!DOCTYPE html>", ""))
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in page.references)
    assert len(page.ids) == len(set(page.ids))
    used = re.findall(r'(?:url\(|href=")#([^)"]+)', text)
    assert set(used) <= set(page.ids)
    assert all(alt.strip() for alt in page.alt.values())
    assert ">nan" not in text
    assert page.tags["h1"] == 1
    return page


def test_the_page_has_every_picture_and_the_numbers(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{policy}-{method}-{seed}", settings(policy, method, seed, partition="shards"),
                  rounds=25, final_accuracy=accuracy, infeasible={4} if policy == "ps" else ())
        for policy, method, accuracy in (("ps", "fedavg", 0.7), ("greedy", "flare", 0.95), ("exact", "flare", 0.8))
        for seed in range(3)
    ]  # fmt: skip
    page = page_of(tmp_path, folders)
    assert set(page.alt) == PICTURES
    groups, _ = group_runs([read_run(folder) for folder in folders])
    best = summarise(next(each for each in groups if each.label == "flare:greedy"))
    shown = f"{100.0 * best.final.mean:.1f} ± {100.0 * best.final.half:.1f} %"
    assert f"After 25 rounds flare:greedy has the best test accuracy, {shown}." in page.text
    assert "Ranked at equal rounds: by test accuracy after 25 rounds" in page.text
    assert "Ranked at equal simulated time: by test accuracy after" in page.text
    assert "Ordered by test accuracy at equal rounds, after 25 rounds." in page.text
    assert page.text.count("(SPF)") == page.text.count("(PS)") == 1  # the paper's names once, and explained
    assert all(PAPER_NAMES[name] in page.text for name in ("SPF", "PS"))
    assert not any(PAPER_NAMES[name] in page.text for name in ("SP", "CP", "DM", "CM"))
    assert "9 runs of 3 settings, 25 rounds each; all with data digits, partition shards, 40 devices" in page.text
    assert "In 3 of 225 rounds (1.3%) nobody sent." in page.text
    assert "flare:greedy" in page.alt["accuracy-rounds"]
    assert page.text.count("flare run config.toml") == 1
    assert page.tags["details"] == 5  # what differs, a file for each group, the folders
    assert page.tags["mark"] == 3 * 2  # method and policy
    assert (tmp_path / "report.html").read_bytes().count(b"deadline_s = 0.4") == 3


AWKWARD: dict[str, list[dict[str, Any]]] = {
    "one round": [{"rounds": 1}],
    "no test": [{"rounds": 6, "tests": False}],
    "no round": [{"rounds": 0, "status": "running"}],
    "one of two without rounds": [{"rounds": 0, "status": "running"}, {"rounds": 8}],
    "diverged at once": [{"diverge_at": 0}],
    "diverged, beside a sound run": [{"diverge_at": 9}, {"rounds": 20}],
    "nobody ever sends": [{"rounds": 7, "infeasible": range(7)}],
    "no bound": [{"rounds": 6, "bound": False}],
    "lengths": [{"rounds": 30}, {"rounds": 3}, {"rounds": 11, "status": "interrupted"}],
}


@pytest.mark.parametrize(
    ("name", "apart"), [(name, apart) for name, runs in AWKWARD.items() for apart in {True, len(runs) == 1}]
)
def test_awkward_runs_are_reported(tmp_path: Path, name: str, apart: bool) -> None:
    folders = [
        write_run(tmp_path / f"{place}", settings(gamma=1.0 + place) if apart else settings(seed=place), **given_)
        for place, given_ in enumerate(AWKWARD[name])
    ]
    page = page_of(tmp_path, folders)
    assert ("diverged" in page.text) == ("diverged" in name)
    assert ("±" in page.text) == (name == "lengths" and not apart)  # of one or two seeds there is no interval
    untested = name in ("no test", "no round", "nobody ever sends")
    assert ("No run has a final test accuracy yet" in page.text) == untested
    assert ("Every run diverged" in page.text) == (name == "diverged at once")
    assert ("had not come to an end" in page.text) == any("status" in each for each in AWKWARD[name])


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("attack", "attackers", "words"),
    [
        ("noise", 2, "2 attackers (noise)"),
        ("noise", 0, "nobody attacking (learning.attack is noise, but learning.attackers is 0)"),
        ("none", 2, "nobody attacking (learning.attackers is 2, but learning.attack is none)"),
    ],
)
def test_the_page_says_who_attacks(tmp_path: Path, attack: str, attackers: int, words: str) -> None:
    config = override(settings(), [f"learning.attack={attack}", f"learning.attackers={attackers}"])
    assert words in page_of(tmp_path, [write_run(tmp_path / "run", config, rounds=2)]).text


@pytest.mark.parametrize(("groups", "devices"), [(2, 1), (12, 40), (30, 1000)])
def test_many_groups_and_devices(tmp_path: Path, groups: int, devices: int) -> None:
    folders = [
        write_run(tmp_path / f"{i}", settings(num_devices=devices, local_lr=0.01 * (i + 1)), rounds=4)
        for i in range(groups)
    ]
    page = page_of(tmp_path, folders)
    assert (f"{groups - MAX_CURVES + 1} others" in page.text) == (groups > MAX_CURVES)
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    odd = ['<script>alert("x")</script>', "a&b <i> $x_1$ ]]> -->", "日本語 'quoted\"", "bell \x07 $"]
    folders = [
        write_run(tmp_path / f"run <&> {i}", settings(policy=name, method=name, name=name), rounds=3)
        for i, name in enumerate(odd)
    ]
    page = page_of(tmp_path, folders)
    for name in odd[:3]:
        assert name in page.text
    assert page.tags["script"] == page.tags["i"] - (tmp_path / "report.html").read_text().count("<i>#") == 0
    assert "run <&> 0" in page.text


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings(), rounds=5)
    with (folder / "rounds.jsonl").open("a") as lines:
        lines.write('{"round": 5, "stat')
    assert read_run(folder).num_rounds == 5


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    sound = write_run(tmp_path / "sound", settings(), rounds=2)
    with pytest.raises(ValueError, match="empty is not a run folder"):
        write_page(read_runs([sound, tmp_path / "empty"]), out)
    with pytest.raises(ValueError, match="nothing to report"):
        write_page(read_runs([]), out)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        refuse_other_names(sound / "config.toml")
    damaged, record = tmp_path / "damaged", RunFolder.open(sound).records()[0]
    for change, message in (
        ({"tau": [1] * 99}, "99 values of tau"),
        ({"tau": None}, "tau = None, which is no list of numbers"),
    ):
        with RunFolder.create(damaged, settings(), force=True) as run:
            run.append(record | change)
        with pytest.raises(ValueError, match=f"damaged: round 1 of its records has {message}"):
            write_page(read_runs([damaged]), out)
    assert not out.exists()


def test_a_failure_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = write_run(tmp_path / "run", settings(), rounds=2), tmp_path / "there" / "report.html"
    write_page(read_runs([folder]), out)
    old = out.read_bytes()
    write_page(read_runs([folder, folder]), out)
    assert out.read_bytes() == old  # the same runs give the same page, and a folder given twice counts once

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_page(read_runs([write_run(tmp_path / "other", settings("cm"), rounds=2)]), out)
    assert out.read_bytes() == old
    assert [each.name for each in out.parent.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("undrawn")
def test_the_command_finds_run_folders_and_names_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [write_run(tmp_path / "all" / f"{seed}" / "run", settings(seed=seed), rounds=2) for seed in range(3)]
    assert run_folders_in(tmp_path / "all") == folders
    assert run_folders_in(folders[1]) == [folders[1]]
    out = tmp_path / "page.html"
    report([tmp_path / "all", folders[0]], out)
    assert capsys.readouterr().out == f"The report on 3 runs is in {out}.\n"
    checked(out.read_text(encoding="utf-8"))
    (tmp_path / "empty").mkdir()
    for wrong in ("empty", "absent"):
        with pytest.raises(ValueError, match=wrong):
            report([tmp_path / wrong], out)


@pytest.mark.usefixtures("undrawn")
def test_two_folders_with_one_run_are_said(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{rounds} rounds", settings(), rounds=rounds) for rounds in (3, 7)]
    text = page_of(tmp_path, folders).text
    assert f"Left out, since another folder holds the same configuration and seed: {folders[0]}." in text


def test_a_folder_of_format_1_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = Path(__file__).resolve().parents[1] / "golden" / "before" / "run-format-1"
    report([old], tmp_path / "page.html")
    page = checked((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "1 run, 4 rounds; data digits" in page.text
    assert "interrupted" in page.text


@pytest.mark.usefixtures("undrawn")
def test_the_page_names_the_real_data_and_model(tmp_path: Path) -> None:
    identity = {
        "data": "own data, 90 samples, 3 classes",
        "samples": "0123456789abcdef",
        "model": "own model Residual, 650 weights",
        "layers": "fedcba9876543210",
    }
    folders = [write_run(tmp_path / f"{i}", settings(seed=i), rounds=2, identity=identity) for i in range(2)]
    page = page_of(tmp_path, folders)
    assert "flare:greedy on own data, 90 samples, 3 classes" in page.text
    assert "data own data, 90 samples, 3 classes, partition iid" in page.text
    assert "model own model Residual, 650 weights" in page.text
    assert "data digits" not in page.text
    both = page_of(tmp_path, [*folders, write_run(tmp_path / "digits", settings(), rounds=2)])
    assert "3 runs of 2 settings" in both.text
    assert "own data" in both.text.split("What differs")[1]


def pictures(*folders: Path) -> dict[str, Panel]:
    """The pictures of a report by name, not drawn."""
    _, sections = contents([read_run(folder) for folder in folders])
    return {panel.name: panel for section in sections for panel in section.panels if panel.draw is not None}


def test_faults_are_drawn_by_kind_where_there_are_some(tmp_path: Path) -> None:
    late, refused = ("train", "no answer within 30 s"), ("query", "claims device 99, which is node 4")
    faults = {1: [late, late], 3: [("train", "no answer within 12.5 s"), refused]}
    run = read_run(write_run(tmp_path / "fleet", settings(seed=1), rounds=6, faults=faults))
    kinds = {"train: no answer within # s": [1, 1, 3], "query: claims device #, which is node #": [3]}
    assert {kind: rounds.tolist() for kind, rounds in run.faults.items()} == kinds
    found = pictures(run.folder, write_run(tmp_path / "calm", settings("cp"), rounds=6))
    assert found["faults"].title == "Faults of flare:greedy"
    assert (
        found["faults"].alt == "train: no answer within # s 3 times; query: claims device #, which is node # 1 times."
    )
    assert "faults-2" not in found
    draw = found["faults"].draw
    assert draw is not None
    (axes,) = draw().axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[0, 2, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]]
    assert all(tick.is_integer() for tick in map(float, axes.get_xticks()))


def test_a_fleet_that_fails_in_many_words_is_told_in_few(tmp_path: Path) -> None:
    words = [[("train", f"{chr(97 + a)}{chr(97 + b)} broke")] for a in range(26) for b in range(4)]
    run = read_run(write_run(tmp_path / "run", settings(), rounds=104, tests=False, faults=dict(enumerate(words))))
    assert len(run.faults) == MAX_FAULT_KINDS + 1
    assert sum(map(len, run.faults.values())) == 104
    alt = pictures(run.folder)["faults"].alt
    assert alt.endswith("other faults 99 times.")
    assert alt.count(" times") == 6


def test_real_time_is_drawn_where_it_was_recorded(tmp_path: Path) -> None:
    found = pictures(write_run(tmp_path / "run", settings(), rounds=3, wall_s=0.25))
    assert "flare:greedy 0.25" in found["wall-time"].alt
    assert "faults" not in found
    assert "wall-time" not in pictures(write_run(tmp_path / "old", settings(), rounds=3, wall_s=None))


def drawn_axes(panel: Panel) -> Axes:
    assert panel.draw is not None
    return panel.draw().axes[0]


def test_runs_in_lockstep_have_one_curve_of_real_time(tmp_path: Path) -> None:
    together = [write_run(tmp_path / policy, settings(policy), rounds=3) for policy in ("greedy", "cp")]
    shared = pictures(*together)["wall-time"]
    assert "lockstep: it is the time of all of them together" in shared.caption
    assert not shared.keyed
    assert len({line.get_color() for line in drawn_axes(shared).lines}) == 1
    apart = pictures(*together, write_run(tmp_path / "own", settings("dm"), rounds=3, wall_s=0.7))["wall-time"]
    assert apart.keyed
    assert len({line.get_color() for line in drawn_axes(apart).lines}) == 3


def test_axes_of_gaps_that_are_all_zero_begin_at_zero(tmp_path: Path) -> None:
    found = pictures(write_run(tmp_path / "run", settings("exact"), rounds=5))
    for low, high in (drawn_axes(found["gap"]).get_xlim(), drawn_axes(found["gap-rounds"]).get_ylim()):
        assert -0.001 < low <= 0.0
        assert 0.005 < high < 0.02


@pytest.mark.parametrize(("policy", "waits"), [("greedy", False), ("dm", True)])
def test_waiting_is_named_where_somebody_waits(tmp_path: Path, policy: str, waits: bool) -> None:
    panel = pictures(write_run(tmp_path / "run", settings(policy), rounds=12))["latency"]
    assert panel.draw is not None
    (key,) = panel.draw().legends
    assert ("waiting" in [text.get_text() for text in key.get_texts()]) == waits


def test_captions_say_only_what_is_there(tmp_path: Path) -> None:
    few = pictures(write_run(tmp_path / "few", settings(method="fedavg"), rounds=5))
    assert not [panel.name for panel in few.values() if "At most" in panel.caption]
    assert "τ̄" not in few["steps"].caption
    many = pictures(write_run(tmp_path / "many", settings(), rounds=121))
    assert "At most 120 points" in many["train-loss"].caption
    assert "At most 30 points" in many["gap-rounds"].caption
    assert "τ̄" in many["steps"].caption
    both = drawn_axes(pictures(tmp_path / "few", tmp_path / "many")["steps"])
    (upright,) = [line for line in both.collections if len(np.asarray(line.get_offsets()))]
    assert np.isfinite(np.ma.filled(upright.get_offsets(), np.nan)).all(axis=1).sum() == 1  # FedAvg has no τ̄


def test_accuracy_over_time_begins_where_all_seeds_have_been_tested(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(seed), settings(seed=seed), rounds=12)) for seed in range(3)]
    first_s = [float(run.of_round["clock_s"][run.evaluated[0]]) for run in runs]
    axes = drawn_axes(pictures(*(run.folder for run in runs))["accuracy-time"])
    begins_s = min(float(line.get_xdata()[0]) for line in axes.lines)
    step_s = float(np.diff(axes.lines[0].get_xdata())[0])
    assert max(first_s) <= begins_s <= max(first_s) + step_s
    assert min(first_s) < begins_s


def test_the_paper_names_are_explained_without_others_of_its_names() -> None:
    assert "maximum strategy (MaS)" in PAPER_NAMES["SPF"]


@pytest.mark.usefixtures("undrawn")
def test_a_commit_stays_in_one_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings(), rounds=2)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"commit": "c0ffee" * 6 + "<b>"}))
    text = report_page([read_run(folder)])
    assert f'<td class="text"><code>{"c0ffee" * 6}&lt;b&gt;</code></td>' in text
    assert "td code { white-space: nowrap }" in text
