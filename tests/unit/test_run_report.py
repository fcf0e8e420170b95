"""The report on runs: its numbers agree with the records, its page is whole, escaped and refers to nothing outside."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.cli.report import report, run_folders_in
from flare.config import Config
from flare.report.curves import (
    MOST_POINTS,
    accuracy_against_rounds,
    accuracy_against_time,
    accuracy_at,
    against_rounds,
    common_time_s,
    estimate,
    over_seeds,
    summarise,
)
from flare.report.group_labels import differing, labels_of
from flare.report.run_figures import MOST_CURVES, looks
from flare.report.run_groups import Group, Run, group_runs, read_run
from flare.report.run_report import write_report
from tests.run_folders import settings, write_run

VOID = {"meta", "br"}
PICTURES = {
    "accuracy-rounds", "accuracy-time", "train-loss", "test-loss", "participation-devices", "participation-ranked",
    "devices", "steps", "rates", "energy", "latency", "infeasible", "gap", "gap-rounds",
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
    write_report(folders, out)
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


def group(*runs: Run) -> Group:
    groups, left_out = group_runs(runs)
    assert len(groups) == 1
    assert not left_out
    return groups[0]


# --- numbers ----------------------------------------------------------------------------------------------------


def test_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    # s = 1, n = 3; the 97.5 % quantile of Student's t with 2 degrees of freedom is sqrt(2) a / sqrt(1 - a^2), a = 0.95.
    quantile = math.sqrt(2.0) * 0.95 / math.sqrt(1.0 - 0.95**2)
    assert (found.mean, found.count) == (2.0, 3)
    assert math.isclose(found.half, quantile / math.sqrt(3.0), rel_tol=1e-12)


def test_missing_seeds_are_left_out_point_by_point() -> None:
    nan = math.nan
    curve = over_seeds(np.arange(3.0), np.array([[1.0, 5.0, nan], [3.0, nan, nan]]))
    np.testing.assert_array_equal(curve.seeds, [2, 1, 0])
    np.testing.assert_array_equal(curve.mean, [2.0, 5.0, nan])
    # One degree of freedom: t is Cauchy, its quantile tan(0.475 pi); s = sqrt(2), n = 2.
    np.testing.assert_allclose(curve.half, [math.tan(0.475 * math.pi), nan, nan], rtol=1e-9)


def test_runs_that_differ_only_in_seed_are_one_group(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{policy}{seed}", settings(policy, seed=seed), rounds=2 + seed))
        for seed in (1, 0)
        for policy in ("greedy", "exact")
    ]
    groups, left_out = group_runs(runs)
    assert [each.label for each in groups] == ["SPF", "exact"]
    assert [[run.config.seed for run in each.runs] for each in groups] == [[0, 1], [0, 1]]
    assert not left_out


def test_of_two_folders_with_one_seed_the_longer_counts(tmp_path: Path) -> None:
    short, long = (read_run(write_run(tmp_path / f"{rounds}", settings(rounds=9), rounds=rounds)) for rounds in (3, 7))
    for runs in ([short, long], [long, short]):
        groups, left_out = group_runs(runs)
        assert [each.runs for each in groups] == [(long,)]
        assert left_out == [short]
    assert "Left out" in page_of(tmp_path, [short.folder, long.folder]).text


def test_numbers_of_a_run_agree_with_its_records(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings("dm", seed=4), rounds=30, infeasible={2, 7})
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    run = read_run(folder)
    line = summarise(group(run), math.nan)
    tested = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    assert line.final.mean == tested[-1]
    assert line.best.mean == max(tested)
    assert line.rounds == (30, 30)
    assert line.clock_s.mean == records[-1]["clock_s"]
    assert line.infeasible == 2
    assert math.isclose(line.devices, sum(len(record["selected"]) for record in records) / 30.0)
    energy_j = sum(sum(record["compute_energy_j"]) + sum(record["upload_energy_j"]) for record in records)
    assert math.isclose(line.energy_j, energy_j)
    gaps = [record["objective"] / record["lower_bound"] - 1.0 for record in records if record["objective"]]
    assert math.isclose(line.gap, math.fsum(gaps) / 28.0)
    # Computing, upload, waiting and rounds without a sender are all that happens on the clock.
    assert math.isclose(run.round_split_s().sum() * 30.0, records[-1]["clock_s"])
    assert (run.round_split_s() > 0.0).all()
    share = run.participation()
    assert all(share[device] == sum(device in record["selected"] for record in records) / 30.0 for device in range(40))


def test_common_time_is_one_that_every_sound_run_reaches(tmp_path: Path) -> None:
    long = read_run(write_run(tmp_path / "long", settings(), rounds=40))
    short = read_run(write_run(tmp_path / "short", settings("exact"), rounds=15))
    lost = read_run(write_run(tmp_path / "lost", settings("ps"), rounds=40, diverge_at=6))
    groups, _ = group_runs([long, short, lost])
    assert common_time_s(groups) == short.of_round["clock_s"][-1]
    clock_s, accuracy = long.of_round["clock_s"], long.of_round["test_accuracy"]
    halfway_s = (clock_s[9] + clock_s[14]) / 2.0  # tests after rounds 10 and 15
    found = accuracy_at(long, np.array([clock_s[9], halfway_s, clock_s[0]]))
    np.testing.assert_allclose(found, [accuracy[9], (accuracy[9] + accuracy[14]) / 2.0, np.nan], rtol=1e-12)
    assert math.isnan(common_time_s([each for each in groups if each.runs == (lost,)]))


def test_a_diverged_run_has_no_final_accuracy(tmp_path: Path) -> None:
    sound = read_run(write_run(tmp_path / "0", settings(seed=0), rounds=12))
    lost = read_run(write_run(tmp_path / "1", settings(seed=1), rounds=12, diverge_at=8))
    line = summarise(group(sound, lost), math.nan)
    assert line.final.count == 1
    assert line.final.mean == sound.of_round["test_accuracy"][-1]
    assert line.best.count == 2
    assert line.status == "1\N{NO-BREAK SPACE}finished, 1\N{NO-BREAK SPACE}diverged"


def test_curves_are_short_and_keep_their_ends(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{seed}", settings(seed=seed, evaluate_every=1), rounds=rounds))
        for seed, rounds in enumerate((400, 400, 400, 90))
    ]
    all_runs = group(*runs)
    curve = accuracy_against_rounds(all_runs)
    assert len(curve.x) <= MOST_POINTS
    assert (curve.x[0], curve.x[-1]) == (1.0, 400.0)
    assert (curve.seeds[0], curve.seeds[-1]) == (4, 3)
    assert math.isclose(curve.mean[-1], np.mean([run.of_round["test_accuracy"][-1] for run in runs[:3]]))
    loss = against_rounds(group(runs[0]), lambda run: run.of_round["train_loss"])
    assert len(loss.x) <= MOST_POINTS
    # Bins are as equal as can be: with 120 of 400 rounds, of 3 or 4.
    assert abs(loss.mean.mean() - runs[0].of_round["train_loss"].mean()) < 0.02
    assert len(accuracy_against_time(all_runs).x) <= MOST_POINTS
    # Where most seeds have ended there is no curve.
    assert accuracy_against_rounds(group(runs[0], *(replace_seed(runs[3], s) for s in (5, 6, 7)))).x[-1] == 90.0


def replace_seed(run: Run, seed: int) -> Run:
    return replace(run, config=replace(run.config, seed=seed))


# --- labels -----------------------------------------------------------------------------------------------------


def labels(*configs: Config) -> list[str]:
    return labels_of(configs)


def test_labels_are_the_papers_names_and_what_differs() -> None:
    pairs = [("greedy", "flare"), ("greedy", "fedavg"), ("exact", "flare"), ("ps", "fedavg"), ("ps", "flare")]
    assert labels(*(settings(*pair) for pair in pairs)) == ["SPF", "SP", "FLARE + exact", "PS", "FLARE + PS"]
    assert labels(settings("exact", "scaffold")) == ["SCAFFOLD + exact"]
    assert labels(settings()) == ["SPF"]
    assert labels(settings(tau_bar="mes")) == ["FLARE + greedy"]
    assert labels(settings("cm"), settings("lp")) == ["CM", "LP"]
    assert labels(settings(tau_bar="mas"), settings(tau_bar="fmes")) == ["MaS", "FMeS"]
    assert labels(settings(local_lr=0.1), settings(local_lr=0.2)) == ["lr 0.1", "lr 0.2"]
    assert labels(settings(deadline_s=0.4), settings(deadline_s=2.0)) == ["deadline 400 ms", "deadline 2 s"]
    assert labels(settings(max_distance_m=300.0), settings()) == ["max distance 300 m", "max distance 500 m"]


def test_a_label_leaves_out_what_means_nothing_for_its_group() -> None:
    assert labels(settings(tau_bar="mes"), settings(), settings(method="fedavg", tau_bar="mes")) == [
        "FLARE, MeS",
        "SPF, MaS",
        "SP",
    ]
    # ... unless nothing else tells groups apart.
    assert labels(settings(method="fedavg", tau_bar="mes"), settings(method="fedavg")) == ["MeS", "MaS"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "policy": st.sampled_from(["greedy", "ps", "own <b>"]),
                "method": st.sampled_from(["flare", "fedavg", "fedprox"]),
                "tau_bar": st.sampled_from(["mas", "mes"]),
                "prox_mu": st.sampled_from([0.1, 0.2]),
                "gamma": st.sampled_from([1.0, 1.0000001]),
                "rounds": st.sampled_from([10, 20]),
                "model": st.sampled_from(["a" * 60, "a" * 30 + "b" + "a" * 30]),
                "trace": st.sampled_from(["", "there"]),
            }
        ),
        min_size=1,
        max_size=12,
    )
)
def test_no_two_groups_have_one_label(changes: list[dict[str, Any]]) -> None:
    configs = list(dict.fromkeys(settings(**each) for each in changes))
    found = labels_of(configs)
    assert len(set(found)) == len(found)
    assert all(found)
    assert all(differing([config, config]) == [] for config in configs)


def test_curves_differ_without_colour() -> None:
    for number in range(1, MOST_CURVES + 1):
        told_apart = {(look.dash, look.marker) for look in looks(number)}
        assert len(told_apart) == number
    many = looks(30)
    assert sum(bool(look.marker) for look in many) == MOST_CURVES - 1


# --- page -------------------------------------------------------------------------------------------------------


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
    best = summarise(next(each for each in groups if each.label == "SPF"), math.nan)
    shown = f"{100.0 * best.final.mean:.1f} ± {100.0 * best.final.half:.1f} %"
    assert f"SPF has the best final test accuracy: {shown} (mean of 3 seeds" in page.text
    assert "9 runs of 3 settings, 25 rounds each; all with data digits, partition shards, 40 devices" in page.text
    assert "In 3 of 225 rounds (1.3%) nobody could send." in page.text
    assert "SPF" in page.alt["accuracy-rounds"]
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


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("apart", [True, False], ids=["groups", "seeds"])
def test_awkward_runs_are_reported(tmp_path: Path, name: str, apart: bool) -> None:
    folders = [
        write_run(tmp_path / f"{place}", settings(gamma=1.0 + place) if apart else settings(seed=place), **given_)
        for place, given_ in enumerate(AWKWARD[name])
    ]
    page = page_of(tmp_path, folders)
    assert ("diverged" in page.text) == ("diverged" in name)
    assert ("No run here has a final test accuracy" in page.text) == (
        name in ("no test", "no round", "diverged at once", "nobody ever sends")
    )
    assert ("had not come to an end" in page.text) == any("status" in each for each in AWKWARD[name])


@pytest.mark.parametrize(("groups", "devices"), [(2, 1), (12, 40), (30, 1000)])
def test_many_groups_and_devices(tmp_path: Path, groups: int, devices: int) -> None:
    folders = [
        write_run(tmp_path / f"{i}", settings(num_devices=devices, local_lr=0.01 * (i + 1)), rounds=4)
        for i in range(groups)
    ]
    page = page_of(tmp_path, folders)
    assert (f"{groups - MOST_CURVES + 1} others" in page.text) == (groups > MOST_CURVES)
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
        write_report([sound, tmp_path / "empty"], out)
    with pytest.raises(ValueError, match="nothing to report"):
        write_report([], out)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        write_report([sound], sound / "config.toml")
    damaged = write_run(tmp_path / "damaged", settings(), rounds=2)
    lines = (damaged / "rounds.jsonl").read_text().splitlines()
    for change, message in (({"tau": [1] * 99}, "99 values of tau"), ({"tau": None}, "no list of tau")):
        (damaged / "rounds.jsonl").write_text(json.dumps(json.loads(lines[0]) | change) + "\n")
        with pytest.raises(ValueError, match=f"damaged: round 1 of its records has {message}"):
            write_report([damaged], out)
    assert not out.exists()


def test_a_failure_keeps_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = write_run(tmp_path / "run", settings(), rounds=2), tmp_path / "there" / "report.html"
    write_report([folder], out)
    old = out.read_bytes()
    write_report([folder, folder], out)
    assert out.read_bytes() == old  # the same runs give the same page, and a folder given twice counts once

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_report([write_run(tmp_path / "other", settings("cm"), rounds=2)], out)
    assert out.read_bytes() == old
    assert [each.name for each in out.parent.iterdir()] == ["report.html"]


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
