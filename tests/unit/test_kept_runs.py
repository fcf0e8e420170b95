"""Runs of experiments that are kept in one file: the same conclusions without the folders, and no damage believed."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.config import Config, override
from flare.experiments import kept_runs
from flare.experiments.kept_runs import KeptRun, path_of, read_kept, write_kept
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Trial
from tests.made_up_outcomes import made_up

NAME = "fig3"


def trial(seed: int, curve: str = "flare:exact") -> Trial:
    return Trial("a panel", curve, override(Config(), [f"seed={seed}"]))


TRIALS = [trial(seed) for seed in range(3)]
OUTCOMES = {
    TRIALS[0].key: made_up([0.25, 0.5]),
    TRIALS[1].key: replace(made_up(diverged=True), mean_gap=math.nan, train_loss=np.full(12, math.nan)),
    TRIALS[2].key: replace(made_up([]), loss_round=np.empty(0), loss_s=np.empty(0), train_loss=np.empty(0)),
}


def assert_same(one: Outcome, other: Outcome) -> None:
    for name, value in vars(one).items():
        np.testing.assert_array_equal(getattr(other, name), value, err_msg=name)


def keep(out: Path, trials: Sequence[Trial] = TRIALS, outcomes: Mapping[str, Outcome] = OUTCOMES) -> None:
    write_kept(NAME, out, trials, outcomes, quick=False)


def kept_in(out: Path) -> list[KeptRun]:
    return read_kept(NAME, out, quick=False)


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    keep(tmp_path)
    found = kept_in(tmp_path)
    assert [run.key for run in found] == [each.key for each in TRIALS]
    for each, run in zip(TRIALS, found, strict=True):
        assert (run.panel, run.curve, run.seed) == (each.panel, each.curve, each.seed)
        assert_same(run.outcome, OUTCOMES[each.key])
    before = path_of(NAME, tmp_path).read_bytes()
    keep(tmp_path)
    assert path_of(NAME, tmp_path).read_bytes() == before


def test_where_nothing_is_kept_there_is_nothing(tmp_path: Path) -> None:
    assert kept_in(tmp_path) == []
    keep(tmp_path, outcomes={})
    assert not list(tmp_path.iterdir())


def test_runs_of_other_seeds_stay(tmp_path: Path) -> None:
    keep(tmp_path)
    keep(tmp_path, TRIALS[1:2])
    assert [run.seed for run in kept_in(tmp_path)] == [0, 1, 2]


def test_a_run_in_several_places_has_a_line_for_each(tmp_path: Path) -> None:
    there = replace(TRIALS[0], panel="another panel")
    assert there.key == TRIALS[0].key
    keep(tmp_path, [*TRIALS, there])
    assert [(run.panel, run.key) for run in kept_in(tmp_path)] == [(t.panel, t.key) for t in [*TRIALS, there]]


def test_a_run_of_other_settings_takes_the_place_of_the_one_that_stood_there(tmp_path: Path) -> None:
    keep(tmp_path)
    other = replace(TRIALS[1], config=override(TRIALS[1].config, ["run.rounds=7"]))
    keep(tmp_path, [other], {other.key: made_up(0.75)})
    assert [run.key for run in kept_in(tmp_path)] == [other.key, TRIALS[0].key, TRIALS[2].key]
    assert {path.name for path in tmp_path.iterdir()} == {"fig3-runs.jsonl.gz", "fig3-before-1-runs.jsonl.gz"}
    _, before = unpacked(path_of("fig3-before-1", tmp_path))
    assert KeptRun.from_line(before).key == TRIALS[1].key  # nothing is lost
    keep(tmp_path, [TRIALS[1]])
    assert KeptRun.from_line(unpacked(path_of("fig3-before-2", tmp_path))[1]).key == other.key


def test_runs_with_small_settings_and_others_are_not_mixed(tmp_path: Path) -> None:
    keep(tmp_path)
    before = path_of(NAME, tmp_path).read_bytes()
    for use in (
        lambda: read_kept(NAME, tmp_path, quick=True),
        lambda: write_kept(NAME, tmp_path, TRIALS, OUTCOMES, quick=True),
    ):
        with pytest.raises(
            ValueError, match=r"the paper's settings, and those of --quick are asked for.* another --out"
        ):
            use()
    assert path_of(NAME, tmp_path).read_bytes() == before


def unpacked(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def packed(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))


def checked(told: dict[str, Any]) -> str:
    """A line with the check that goes with it."""
    del told["check"]
    return json.dumps(told | {"check": kept_runs._check_of(told)})


def edited(line: str, **fields: object) -> str:
    """A line that somebody has changed by hand."""
    return json.dumps(json.loads(line) | fields)


def changed(**fields: object) -> Callable[[Path], None]:
    """A run of the file with other fields; `...` takes one away."""

    def change(path: Path) -> None:
        head, first, *rest = unpacked(path)
        told = {name: value for name, value in (json.loads(first) | fields).items() if value is not Ellipsis}
        packed(path, [head, checked(told), *rest])

    return change


def twin_of(line: str) -> str:
    """A run in another place that claims to be the same one, and is not."""
    return checked(json.loads(line) | {"panel": "another panel", "total_energy_j": 7.0})


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no gzip": lambda path: path.write_bytes(b"not packed"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "a flipped bit": lambda path: path.write_bytes(flipped(path.read_bytes(), len(path.read_bytes()) - 5)),
    "more after it": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "nothing": lambda path: path.write_bytes(b""),
    "no line": lambda path: path.write_bytes(gzip.compress(b"")),
    "another experiment's": lambda path: packed(path, [unpacked(path)[0].replace(NAME, "fig4"), *unpacked(path)[1:]]),
    "a later format": lambda path: packed(path, [unpacked(path)[0].replace("1", "2"), *unpacked(path)[1:]]),
    "the same run with other numbers": lambda path: packed(path, [*unpacked(path), twin_of(unpacked(path)[1])]),
    "no text": lambda path: path.write_bytes(gzip.compress(b"\xff\xfe")),
    "no object": lambda path: packed(path, [unpacked(path)[0], "[1, 2]"]),
    "half a line": lambda path: packed(path, [unpacked(path)[0], unpacked(path)[1][:-9]]),
    "nested": lambda path: packed(path, [unpacked(path)[0], "[" * 100_000]),
    "an edited number": lambda path: packed(path, [unpacked(path)[0], edited(unpacked(path)[1], end_s=7.0)]),
    "the key of another run": lambda path: packed(
        path, [unpacked(path)[0], edited(unpacked(path)[1], key=json.loads(unpacked(path)[2])["key"])]
    ),
    "another field": changed(more=1),
    "an accuracy beyond 1": changed(test_accuracy=[0.25, 1.5]),
    "an accuracy below 0": changed(test_accuracy=[-0.25, 0.5]),
    "a loss below 0": changed(end_train_loss=-1e308),
    "more rounds than there can be": changed(num_rounds=10**400),
    "more classes than there can be": changed(num_classes=10**400),
    "half a round": changed(test_round=[1.5, 2.0]),
    "a field less": changed(end_s=...),
    "no check": lambda path: packed(
        path, [unpacked(path)[0], json.dumps({k: v for k, v in json.loads(unpacked(path)[1]).items() if k != "check"})]
    ),
    "a text for a number": changed(end_s="12"),
    "a truth for a number": changed(end_s=True),
    "an endless number": changed(end_s=math.inf),
    "a huge number": changed(end_s=10**400),
    "less than no round": changed(num_rounds=-1),
    "a number for a list": changed(test_s=1.0),
    "a test of no round": changed(test_round=[0.0, 4.0]),
    "a test beyond the end": changed(test_round=[2.0, 13.0]),
    "a test whose round is unknown": changed(test_round=[None, 4.0]),
    "a clock that goes back": changed(test_s=[2.0, 1.0]),
    "losses out of order": changed(loss_round=[2.0, 1.0, *range(3, 13)]),
    "lists of unequal length": changed(test_s=[1.0]),
    "a key that is none": changed(key="../../etc"),
    "a run that goes on": changed(status="running"),
    "no class": changed(num_classes=0),
    "half a seed": changed(seed=0.5),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_cannot_be_used_is_named_and_left(what: str, tmp_path: Path) -> None:
    keep(tmp_path)
    path = path_of(NAME, tmp_path)
    DAMAGE[what](path)
    before = path.read_bytes()
    for use in (lambda: kept_in(tmp_path), lambda: keep(tmp_path)):
        with pytest.raises(ValueError, match=r"fig3-runs\.jsonl\.gz.* move it away"):
            use()
    assert path.read_bytes() == before


def test_what_unpacks_to_more_than_there_may_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_runs, "_MAX_BYTES", 10_000)
    path_of(NAME, tmp_path).write_bytes(gzip.compress(bytes(10_001)))
    with pytest.raises(ValueError, match="more than 10000 bytes"):
        kept_in(tmp_path)


def test_no_pipe_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(path_of(NAME, tmp_path))
    with pytest.raises(ValueError, match="named pipe"):
        kept_in(tmp_path)


def test_pandas_reads_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    keep(tmp_path)
    table = pandas.read_json(path_of(NAME, tmp_path), lines=True)
    assert list(table["seed"].dropna()) == [0, 1, 2]
    assert table["test_accuracy"][1] == [0.25, 0.5]


def test_where_nothing_is_new_the_file_is_not_written_again(tmp_path: Path) -> None:
    keep(tmp_path)
    path = path_of(NAME, tmp_path)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    before = path.read_bytes()
    for trials in (TRIALS, TRIALS[:2], TRIALS[2:]):  # at once, or one stage of an experiment after the other
        keep(tmp_path, trials)
        assert path.read_bytes() == before
