"""Trials: what names a run, the folder that keeps it, and the runner that does what is missing and nothing twice."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.cli.report import report
from flare.config import Config, Options, override
from flare.experiments import EXPERIMENTS
from flare.experiments.claims import Claim
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.kept_runs import path_of, write_kept
from flare.experiments.outcome import Outcome
from flare.experiments.reproduce import reproduce, to_be_run
from flare.experiments.trial import Trial, _Told, read_outcome, run_trials, task_of
from flare.learning.methods import METHODS
from flare.records import RunFolder, run_keeper
from flare.records.checkpoint import Snapshot
from flare.records.run import read_run
from flare.rounds import RoundRecord
from flare.scheduling import POLICIES
from flare.simulation import Simulation
from flare.sweeps import Place, Task, anywhere, begin, expected_rounds, run_tasks
from flare.sweeps import task as tasks
from flare.sweeps.order import Fault, Order, work
from flare.sweeps.runner import Workers
from tests.made_up_outcomes import made_up

SMALL = (
    "wireless.num_devices=8",
    "wireless.deadline_s=1.0",
    "wireless.batch_size=10",
    "learning.model=logistic",
    "run.payload=wireless",
    "run.rounds=4",
    "run.evaluate_every=2",
)
DIVERGING = "learning.local_lr=3e38"
TEXTS = {"policy": list(POLICIES), "method": list(METHODS), "name": ["digits", "iris"], "model": ["logistic", "mlp"]}


def trial(*settings: str, curve: str = "curve", plan_only: bool = False) -> Trial:
    return Trial("panel", curve, override(Config(), [*SMALL, *settings]), plan_only)


ON_CPU, ON_TWO = Place("cpu"), Place("cpu", 2)


def rounds(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of all runs in a folder, less the time that they took on this machine."""
    return {
        path.name: [record | {"wall_s": None} for record in RunFolder.open(path).records()] for path in folder.iterdir()
    }


def assert_same(one: Outcome, other: Outcome, rtol: float = 0.0) -> None:
    assert one.status == other.status
    for name, value in vars(one).items():
        if name != "status":
            np.testing.assert_allclose(getattr(other, name), value, rtol=rtol, atol=0.0, err_msg=name)


# --- the name of a run ------------------------------------------------------------------------------------------


def other_value(each: Any, value: Any) -> Any:
    """Some other value that a setting may have."""
    limits = each.metadata["limits"]
    if (kind := each.metadata["kind"]) is not None:  # a number, or a word that stands for one
        return kind(limits.at_most)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        known = limits.choices or TEXTS.get(each.name, ["there", "elsewhere"])
        return next(word for word in reversed(known) if word != value)
    if isinstance(value, Options):
        return Options(value, num_selected=3)
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] + 1)
    return next(v for v in (value + 1, value / 2, limits.at_most) if v != value and limits.hold(v))


def one_by_one(config: Config) -> dict[str, Config]:
    """The configuration with one setting changed, for each setting there is."""
    changed = {}
    for section in fields(config):
        settings = getattr(config, section.name)
        if not is_dataclass(settings):
            changed[section.name] = replace(
                config, **{section.name: settings + (1 if isinstance(settings, int) else ("mine.py",))}
            )
            continue
        for each in fields(settings):
            value = other_value(each, getattr(settings, each.name))
            inner = replace(settings, **{each.name: value})
            changed[f"{section.name}.{each.name}"] = replace(config, **{section.name: inner})
    return changed


def test_every_setting_is_in_the_name_save_where_and_how_it_is_computed() -> None:
    base = override(Config(), ["wireless.num_devices=1", "wireless.tau_law=groups", "wireless.tau_values=[3]"])
    keys = {name: Trial("", "", config).key for name, config in one_by_one(base).items()}
    same = {name for name, key in keys.items() if key == Trial("", "", base).key}
    assert same == {"learning.engine", "learning.device"}
    others = [key for name, key in keys.items() if name not in same]
    assert len(others) > 40
    assert len(set(others)) == len(others)


def test_the_name_does_not_depend_on_the_place_in_an_experiment() -> None:
    one = trial("wireless.power_dbm=21.0")
    assert one.key == Trial("elsewhere", "otherwise", override(one.config, ["wireless.power_dbm=21"])).key
    assert one.key != trial("wireless.power_dbm=21.0", plan_only=True).key
    assert one.seed == 0
    assert trial("seed=4").seed == 4


# --- the folder of a run ----------------------------------------------------------------------------------------


@pytest.fixture
def kept(done: Path, tmp_path: Path) -> Path:
    """A copy of the folder of a finished trial, the first of the grid."""
    return shutil.copytree(done / GRID[0].key, tmp_path / GRID[0].key)


@pytest.mark.usefixtures("undrawn")
def test_the_folder_of_a_trial_is_a_run_folder(done: Path, tmp_path: Path) -> None:
    for each in GRID:
        run = read_run(done / each.key)
        assert anywhere(run.config) == each.config
        assert run.trained is not each.plan_only
        assert not list((done / each.key / "checkpoints").iterdir())  # they would fill a disk
    report([done], tmp_path / "report.html")
    assert "4 settings" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rounds.jsonl", lambda content: content[: len(content) // 2] + b"\n"),
        ("rounds.jsonl", lambda content: b"\0" * len(content) + b"\n"),
        ("rounds.jsonl", lambda content: b"[1, 2]\n" + content),
        ("rounds.jsonl", lambda content: content.replace(b'"tau":[', b'"tau":["x",')),
        ("config.toml", lambda content: b""),
        ("config.toml", lambda content: content.replace(b"seed = 0", b"seed = 1")),
        ("config.toml", lambda content: b"\xff" + content),
        ("manifest.json", lambda content: content[:-3]),
        ("manifest.json", lambda content: content.replace(b'"num_classes": 10', b'"num_classes": null')),
        ("manifest.json", lambda content: content.replace(b'"status": "finished"', b'"status": "running"')),
    ],
)
def test_a_damaged_folder_is_as_good_as_none(name: str, damage: Callable[[bytes], bytes], kept: Path) -> None:
    assert read_outcome(kept, GRID[0]) is not None
    before = (kept / name).read_bytes()
    (kept / name).write_bytes(damage(before))
    assert (kept / name).read_bytes() != before
    assert read_outcome(kept, GRID[0]) is None


def test_the_folder_of_another_run_is_as_good_as_none(done: Path, kept: Path) -> None:
    assert read_outcome(kept, GRID[1]) is None
    assert read_outcome(kept, replace(GRID[0], plan_only=True)) is None
    assert read_outcome(kept.parent, GRID[0]) is None


# --- the runner -------------------------------------------------------------------------------------------------

GRID = [
    trial("learning.method=fedavg", curve="fedavg"),
    trial("learning.method=flare", "data.partition=shards", curve="flare"),
    trial("seed=3", "run.rounds=3", curve="short"),
    trial("scheduling.policy=cp", plan_only=True, curve="planned"),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grid, run inline."""
    folder = tmp_path_factory.mktemp("grid") / "made" / "where" / "missing"
    outcomes = run_trials(GRID, folder, ON_CPU)
    assert list(outcomes) == [each.key for each in GRID]
    assert {path.name for path in folder.iterdir()} == {each.key for each in GRID}
    return folder


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the runs that are started, by the name of the trial they have."""
    counts: Counter[str] = Counter()

    def count(config: Config, **own: Any) -> Simulation:
        names = [Trial("", "", config, plan_only).key for plan_only in (False, True)]
        counts.update(each.curve for each in GRID if each.key in names)
        return Simulation(config, **own)

    monkeypatch.setattr(tasks, "Simulation", count)
    return counts


def test_an_outcome_has_what_the_run_did(done: Path) -> None:
    for each in GRID:
        outcome = read_outcome(done / each.key, each)
        assert outcome is not None
        rounds = each.config.run.rounds
        assert (outcome.status, outcome.num_classes) == ("finished", 10)
        assert outcome.num_rounds == rounds
        assert outcome.end_s > 0.0
        assert outcome.mean_devices > 0.0
        assert outcome.mean_tau >= 1.0
        assert list(outcome.test_round) == ([] if each.plan_only else sorted({2.0, float(rounds)}))
        assert (np.diff(outcome.test_s) > 0.0).all()
        assert list(outcome.loss_round) == ([] if each.plan_only else [1.0 + at for at in range(rounds)])
        assert (np.diff(outcome.loss_s) > 0.0).all()
        if not each.plan_only:
            assert outcome.test_s[-1] == outcome.loss_s[-1] == outcome.end_s
            assert outcome.train_loss[-1] == outcome.end_train_loss


def test_who_sends_does_not_depend_on_what_is_learned(tmp_path: Path) -> None:
    settings = ("seed=2", "scheduling.policy=greedy")
    outcomes = run_trials([trial(*settings), trial(*settings, plan_only=True)], tmp_path, ON_CPU).values()
    trained, planned = outcomes
    for name in ("num_rounds", "end_s", "mean_devices", "mean_tau", "mean_gap"):
        np.testing.assert_array_equal(getattr(planned, name), getattr(trained, name))
    assert len(trained.test_round) == 2


@pytest.mark.parametrize("curve", [each.curve for each in GRID])
def test_a_trial_alone_is_the_trial_in_company(curve: str, done: Path, tmp_path: Path) -> None:
    (own,) = (each for each in GRID if each.curve == curve)
    run_trials([own], tmp_path, ON_CPU)
    assert rounds(tmp_path) == {own.key: rounds(done)[own.key]}


@pytest.mark.parametrize("place", [ON_CPU, ON_TWO], ids=["here", "two processes"])
def test_the_records_of_runs_that_were_watched_are_not_read_again(
    place: Place, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> None:
        assert not folder.exists()
        raise FileNotFoundError(folder)

    with monkeypatch.context() as patch:
        patch.setattr("flare.experiments.trial.read_run", refused)
        outcomes = run_trials(GRID, tmp_path, place)
    for each in GRID:
        read = read_outcome(done / each.key, each)
        assert read is not None
        assert_same(outcomes[each.key], read)


def test_rounds_that_were_told_and_then_done_again_are_read_from_the_folder(done: Path) -> None:
    folder = done / GRID[0].key
    records = [RoundRecord.from_json(told) for told in RunFolder.open(folder).records()]
    for told in (records, [*records[:-1], replace(records[-1], wall_s=99.0)], records[:-1]):
        seen = _Told(folder)
        for record in told:
            seen.add(record)
        assert (seen.run() is None) == (told is not records)


def test_what_is_done_is_not_done_again(done: Path, built: Counter[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    seen: list[tuple[str, int, bool]] = []
    outcomes = run_trials(GRID, done, ON_CPU, callback=lambda one, *told: seen.append((one.curve, *told)))
    assert not built
    assert seen == [(each.curve, each.config.run.rounds, True) for each in GRID]
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*")} == before
    for key, outcome in run_trials(GRID, done, ON_CPU).items():
        assert_same(outcomes[key], outcome)


class OneAfterTheOther:
    """Workers that carry out an order at once, in this process, and say so."""

    place, patience_s, killed, room = ON_TWO, 0.0, (), 1

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def submit(self, order: Order) -> Future[Fault | None]:
        self._say("work")
        done: Future[Fault | None] = Future()
        done.set_result(work(order))
        return done

    def kill(self) -> None:
        pass


def test_trials_and_those_chosen_by_them_have_the_same_workers_and_are_read_while_these_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def hired(tasks: Sequence[Task], place: Place) -> AbstractContextManager[Workers]:
        said.append("hired")
        return nullcontext(OneAfterTheOther(said.append))

    def reading(folder: Path, own: Trial, *told: Any) -> Outcome | None:
        outcome = read_outcome(folder, own, *told)
        said.extend([] if outcome is None else [own.curve])
        return outcome

    def then(first: Results) -> list[Trial]:
        assert first.curves("panel") == ["1", "2"]
        return [trial("seed=3", curve="3"), trial("seed=4", curve="4")]

    chosen_by = [trial("seed=1", curve="1"), trial("seed=2", curve="2")]
    own = Experiment("own", "title", lambda scale: chosen_by, lambda results: [], lambda results: {}, then)
    monkeypatch.setitem(EXPERIMENTS, "own", own)
    monkeypatch.setattr("flare.sweeps.runner._workers", hired)
    monkeypatch.setattr("flare.experiments.trial.read_outcome", reading)
    (made,) = reproduce(["own"], Scale((0,)), ON_TWO, tmp_path)
    assert made.results.curves("panel") == ["3", "4"]
    assert said == ["hired", "work", "1", "work", "2", "work", "3", "work", "4"]
    said.clear()
    reproduce(["own"], Scale((0,)), ON_TWO, tmp_path)
    assert said == []  # nobody is hired where nothing is missing, as a cluster may be gone; what is kept is not read
    path_of("own", tmp_path).unlink()
    reproduce(["own"], Scale((0,)), ON_TWO, tmp_path)
    assert said == ["1", "2", "3", "4"]  # from the folders


def made_of(name: str, first: Sequence[Trial], then: Sequence[Trial] | None = None) -> Experiment:
    """An experiment of these trials, which claims and draws nothing."""
    more = None if then is None else lambda results: list(then)
    return Experiment(name, "title", lambda scale: list(first), lambda results: [], lambda results: {}, more)


def test_what_is_to_be_run_is_what_no_file_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, then = [trial("seed=1"), trial("seed=2")], [trial("seed=3"), trial("seed=4")]
    monkeypatch.setitem(EXPERIMENTS, "own", made_of("own", first, then))
    monkeypatch.setitem(EXPERIMENTS, "other", made_of("other", then[1:]))
    names, scale, outcomes = ["own", "other"], Scale((0,)), {each.key: made_up() for each in (*first, *then)}

    def left() -> list[int]:
        return [each.seed for each in to_be_run(names, scale, tmp_path)]

    assert left() == [1, 2, 4]  # what comes after the first ones is not known yet
    write_kept("own", tmp_path, first[:1], outcomes, quick=False)
    assert left() == [2, 4]
    write_kept("own", tmp_path, first, outcomes, quick=False)
    assert left() == [3, 4, 4]
    write_kept("other", tmp_path, then[1:], outcomes, quick=False)
    assert left() == [3]
    write_kept("own", tmp_path, then, outcomes, quick=False)
    assert left() == []


def test_small_settings_do_not_write_over_numbers_of_the_papers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "own", made_of("own", []))
    reproduce(["own"], Scale((0,)), ON_CPU, tmp_path)
    before = (tmp_path / "own.json").read_bytes()
    with pytest.raises(ValueError, match=r"own.json: holds numbers of the paper's settings.* give another --out"):
        reproduce(["own"], Scale((0,), quick=True), ON_CPU, tmp_path)
    assert (tmp_path / "own.json").read_bytes() == before
    (tmp_path / "own.json").write_text(json.dumps(json.loads(before) | {"quick": True}))
    with pytest.raises(ValueError, match=r"own.json: holds numbers of small settings"):
        reproduce(["own"], Scale((0,)), ON_CPU, tmp_path)
    (tmp_path / "own.json").write_text("{")  # what is no such file is made anew
    reproduce(["own"], Scale((0,)), ON_CPU, tmp_path)
    assert (tmp_path / "own.json").read_bytes() == before


def test_files_that_contradict_each_other_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = trial("seed=1")
    for name, accuracy in (("one", 0.5), ("other", 0.9)):
        monkeypatch.setitem(EXPERIMENTS, name, made_of(name, [shared]))
        write_kept(name, tmp_path, [shared], {shared.key: made_up(accuracy)}, quick=False)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for names in (["one", "other"], ["other", "one"]):
        with pytest.raises(ValueError, match=r"-runs.jsonl.gz and .*-runs.jsonl.gz contradict each other.*move"):
            reproduce(names, Scale((0,)), ON_CPU, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_experiments_are_written_side_by_side_also_before_one_whose_claims_cannot_be_decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def undecided(results: Results) -> list[Claim]:
        raise ZeroDivisionError("no claim")

    monkeypatch.setattr("flare.report.side_by_side.num_cores", lambda: 4)
    for name, claims in {"one": lambda results: [], "two": lambda results: [], "three": undecided}.items():
        own = Experiment(name, "title", lambda scale: [GRID[0]], claims, lambda results: {})
        monkeypatch.setitem(EXPERIMENTS, name, own)
    with pytest.raises(ZeroDivisionError, match="no claim"):
        reproduce(["one", "two", "three"], Scale((0,)), ON_CPU, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["one.json", "two.json"]


def test_equal_trials_are_one_run(built: Counter[str], tmp_path: Path) -> None:
    again = Trial("another panel", "another curve", GRID[0].config)
    assert len(run_trials([GRID[0], again, GRID[0]], tmp_path, ON_CPU)) == 1
    assert built == {"fedavg": 1}


@pytest.mark.parametrize("name", ["rounds.jsonl", "config.toml"])
def test_a_damaged_run_is_done_again_and_no_other(name: str, done: Path, built: Counter[str], tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "here")
    path = tmp_path / "here" / GRID[1].key / name
    path.write_bytes(path.read_bytes()[:100] + b"\n")
    run_trials(GRID, tmp_path / "here", ON_CPU)
    assert built == {"flare": 1}
    assert rounds(tmp_path / "here") == rounds(done)


def of_no_classes(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"num_classes"', b'"num_glasses"'))


def with_a_comment(folder: Path) -> None:
    path = folder / "config.toml"
    path.write_bytes(path.read_bytes() + b"# a comment\n")


def cut_short(folder: Path) -> None:
    os.truncate(folder / "rounds.jsonl", 10)


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"{")


DAMAGES = [of_no_classes, with_a_comment, cut_short, without_manifest, shutil.rmtree]


def test_a_run_that_is_over_and_does_not_say_all_is_done_again(done: Path, built: Counter[str], tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "here")
    of_no_classes(tmp_path / "here" / GRID[1].key)
    assert len(run_trials(GRID, tmp_path / "here", ON_CPU)) == len(GRID)
    assert built == {"flare": 1}
    assert rounds(tmp_path / "here") == rounds(done)


@pytest.fixture
def damaging(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None], int], None]:
    """Has something done to the folder of one of the runs so many times, just when it has ended."""

    def arrange(damage: Callable[[Path], None], times: int) -> None:
        left = [damage] * times

        def damaged(tasks: Sequence[Task], place: Place, **named: Any) -> None:
            run_tasks(tasks, place, **named | {"callback": lambda task, record, status: None})
            for task in tasks:
                if task.key == GRID[1].key and left:
                    left.pop()(task.folder)

        monkeypatch.setattr("flare.experiments.trial.run_tasks", damaged)

    return arrange


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_is_damaged_when_it_has_ended_is_done_again(
    damage: Callable[[Path], None],
    damaging: Callable[[Callable[[Path], None], int], None],
    done: Path,
    built: Counter[str],
    tmp_path: Path,
) -> None:
    damaging(damage, 1)
    outcomes = run_trials(GRID, tmp_path, ON_CPU)
    assert list(outcomes) == [each.key for each in GRID]
    assert built == {"fedavg": 1, "flare": 2, "short": 1, "planned": 1}
    shutil.rmtree(tmp_path / f"{GRID[1].key}.aside-1", ignore_errors=True)  # what had no manifest
    assert rounds(tmp_path) == rounds(done)
    read = read_outcome(tmp_path / GRID[1].key, GRID[1])
    assert read is not None
    assert_same(outcomes[GRID[1].key], read)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_is_damaged_again_and_again_is_named_and_the_others_are_kept(
    damage: Callable[[Path], None], damaging: Callable[[Callable[[Path], None], int], None], tmp_path: Path
) -> None:
    damaging(damage, 2)
    with pytest.raises(ValueError, match=rf"the run in \S*{GRID[1].key} was carried out, and .* cannot be used"):
        run_trials(GRID, tmp_path, ON_CPU)
    assert [each.curve for each in GRID if read_outcome(tmp_path / each.key, each)] == ["fedavg", "short", "planned"]


def test_a_run_that_was_left_though_nobody_said_so_is_continued(
    done: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As by workers that no longer see the file which says that they are to go on."""
    seen: list[int] = []
    calls: list[int] = []

    def leaving(tasks: Sequence[Task], place: Place, **named: Any) -> None:
        calls.append(len(tasks))
        run_tasks(tasks, place, **named | {"stopping": lambda: len(calls) == 1 and 2 in seen})

    monkeypatch.setattr("flare.experiments.trial.run_tasks", leaving)
    outcomes = run_trials(GRID[:1], tmp_path, ON_CPU, callback=lambda one, rounds, _: seen.append(rounds))
    assert list(outcomes) == [GRID[0].key]
    assert calls == [1, 1]
    assert seen == [1, 2, 3, 4]
    assert rounds(tmp_path) == {GRID[0].key: rounds(done)[GRID[0].key]}


def test_the_end_of_a_run_that_is_done_again_is_seen_once(tmp_path: Path) -> None:
    ends: list[str] = []

    def damage_first(one: Trial, rounds: int, ended: bool) -> None:
        ends.extend([one.curve] if ended else [])
        if ended and one is GRID[1]:
            with_a_comment(tmp_path / one.key)

    assert len(run_trials(GRID, tmp_path, ON_CPU, callback=damage_first)) == len(GRID)
    assert sorted(ends) == sorted(each.curve for each in GRID)


@pytest.mark.parametrize("manifest", [None, b"", b"{}", b"\0" * 300])
def test_a_run_without_a_manifest_is_set_aside_and_done_again(
    manifest: bytes | None, done: Path, built: Counter[str], tmp_path: Path
) -> None:
    shutil.copytree(done, tmp_path / "here")
    path = tmp_path / "here" / GRID[1].key
    if manifest is None:
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_bytes(manifest)
    kept = (path / "rounds.jsonl").read_bytes()
    run_trials(GRID, tmp_path / "here", ON_CPU)
    assert built == {"flare": 1}
    aside = path.with_name(f"{path.name}.aside-1")
    assert (aside / "rounds.jsonl").read_bytes() == kept
    shutil.rmtree(aside)
    assert rounds(tmp_path / "here") == rounds(done)


def test_nothing_is_written_through_a_link_in_the_place_of_the_trials(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trials").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="trials is a link, through which nothing is written; remove it"):
        reproduce(["fig3"], Scale((0,), quick=True), ON_CPU, tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot hold the figures: it or a part of its path is a file"):
        reproduce(["fig3"], Scale((0,), quick=True), ON_CPU, tmp_path / "file")


def test_what_is_no_run_is_never_written_over(done: Path, tmp_path: Path) -> None:
    (tmp_path / GRID[0].key).mkdir()
    (tmp_path / GRID[0].key / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=f"{GRID[0].key} is not empty and not a run folder"):
        run_trials(GRID, tmp_path, ON_CPU)
    assert (tmp_path / GRID[0].key / "thesis.txt").read_text() == "years of work"


def test_a_stopped_call_leaves_what_is_done_and_the_next_does_the_rest(
    done: Path, built: Counter[str], tmp_path: Path
) -> None:
    seen: list[tuple[str, int]] = []

    def callback(one: Trial, rounds: int, _ended: bool) -> None:
        seen.append((one.curve, rounds))

    outcomes = run_trials(GRID, tmp_path, ON_CPU, callback=callback, stopping=lambda: ("short", 3) in seen)
    assert list(outcomes) == [GRID[2].key]  # the others were in lockstep with it: three rounds of four
    assert max(rounds for _, rounds in seen) == 3
    built.clear()
    seen.clear()
    assert len(run_trials(GRID, tmp_path, ON_CPU, callback=callback)) == 4
    assert built == {"fedavg": 1, "flare": 1, "planned": 1}
    assert [(curve, rounds) for curve, rounds in seen if curve in ("fedavg", "flare")] == [("fedavg", 4), ("flare", 4)]
    assert rounds(tmp_path) == rounds(done)


class _Killed(BaseException):
    """Stands for kill -9: nothing is written on the way out."""


def test_a_killed_call_goes_on_from_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_keeper, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(run_keeper, "_WRITING_SHARE", math.inf)
    often = [replace(each, config=override(each.config, ["run.checkpoint_every=1"])) for each in GRID[:2]]
    seen: list[int] = []

    def killed(one: Trial, rounds: int, _ended: bool) -> None:
        seen.append(rounds)
        if rounds == 3:
            raise _Killed

    with pytest.raises(_Killed):
        run_trials(often, tmp_path / "cut", ON_CPU, callback=killed)
    seen.clear()
    outcomes = run_trials(often, tmp_path / "cut", ON_CPU, callback=lambda one, rounds, _: seen.append(rounds))
    assert sorted(seen) == [3, 4, 4]  # one had its third round done
    assert len(outcomes) == 2
    run_trials(often, tmp_path / "whole", ON_CPU)
    assert rounds(tmp_path / "cut") == rounds(tmp_path / "whole")


def test_checkpoints_that_go_with_the_end_wait_until_the_rounds_since_are_worth_it() -> None:
    now, saved = [0.0], []

    class Slow:
        """A folder in which it takes an eighth of a second to write a checkpoint."""

        def checkpoint(self, snapshot: Snapshot) -> None:
            now[0] += 0.125
            saved.append(snapshot.rounds_done)

    folder: Any = Slow()
    keeper = run_keeper.RunKeeper(folder, checkpoint_every=2, keep_checkpoints=False, clock=lambda: now[0])
    state = Simulation(GRID[0].config).start()
    for done in range(1, 150):
        now[0] += 1.0
        keeper.save(replace(state, rounds_done=done))
    assert saved == [20, 84, 148]  # after 20 s, then when an eighth of a second is a five-hundredth


@pytest.mark.usefixtures("undrawn")
def test_a_trial_that_was_stopped_is_a_run_that_can_be_reported(tmp_path: Path) -> None:
    seen: list[int] = []
    run_trials(
        GRID[:1], tmp_path, ON_CPU, callback=lambda one, rounds, _: seen.append(rounds), stopping=lambda: 2 in seen
    )
    assert read_outcome(tmp_path / GRID[0].key, GRID[0]) is None
    assert read_run(tmp_path / GRID[0].key).num_rounds == 2
    report([tmp_path], tmp_path / "report.html")
    assert "had not come to an end" in (tmp_path / "report.html").read_text()


def test_a_call_stopped_from_the_start_does_nothing(tmp_path: Path) -> None:
    seen: list[Trial] = []
    assert run_trials(GRID, tmp_path, ON_CPU, callback=lambda one, *_: seen.append(one), stopping=lambda: True) == {}
    assert not seen
    assert not list(tmp_path.iterdir())


def test_a_run_that_diverges_is_kept_and_harms_no_neighbour(done: Path, tmp_path: Path) -> None:
    lost = trial(DIVERGING, curve="lost")
    outcomes = run_trials([lost, *GRID], tmp_path, ON_CPU)
    assert outcomes[lost.key].diverged
    assert outcomes[lost.key].num_rounds < 4
    assert len(outcomes[lost.key].test_round) < 2
    kept = rounds(tmp_path)
    assert {name: kept[name] for name in rounds(done)} == rounds(done)


# --- the runner on its own --------------------------------------------------------------------------------------


def test_a_run_that_is_there_is_continued_and_another_is_refused(tmp_path: Path) -> None:
    mine = replace(task_of(GRID[0], tmp_path), expendable=False, keep_checkpoints=True)
    begin([mine])
    with pytest.raises(ValueError, match="already holds a run"):
        begin([mine])
    run_tasks([mine], ON_CPU)
    before = rounds(tmp_path)
    assert len(list((mine.folder / "checkpoints").iterdir())) == 1
    run_tasks([mine], ON_CPU)  # which has ended
    assert rounds(tmp_path) == before
    with pytest.raises(ValueError, match="holds a run of other settings"):
        run_tasks([replace(mine, config=GRID[1].config)], ON_CPU)
    with pytest.raises(ValueError, match="holds a run of other settings"):
        run_tasks([replace(mine, trained=False)], ON_CPU)
    assert rounds(tmp_path) == before


def test_an_ended_run_without_checkpoints_is_left_as_it_is(done: Path, built: Counter[str]) -> None:
    run_tasks([replace(task_of(each, done), expendable=False) for each in GRID], ON_CPU)
    assert not built
    assert all(read_outcome(done / each.key, each) for each in GRID)


@pytest.mark.usefixtures("ready_workers")
def test_two_processes_do_what_one_does_and_tell_of_long_runs_when_short_ones_have_ended(
    done: Path, tmp_path: Path
) -> None:
    """All of it, also where who listens is held up for long, as on a loaded machine: until the run has ended."""
    long = trial("run.rounds=60", "run.evaluate_every=60", curve="long")
    seen: dict[str, list[int]] = {}

    def callback(one: Trial, rounds: int, _: bool) -> None:
        if one == long and "long" not in seen:
            end_s = time.monotonic() + 60.0
            while read_outcome(tmp_path / long.key, long) is None and time.monotonic() < end_s:
                time.sleep(0.02)
        seen.setdefault(one.curve, []).append(rounds)

    outcomes = run_trials([long, *GRID], tmp_path, ON_TWO, callback=callback)
    assert list(outcomes) == [each.key for each in (long, *GRID)]
    kept = rounds(tmp_path)
    assert len(kept.pop(long.key)) == 60
    assert kept == rounds(done)
    assert {curve: told[-1] for curve, told in seen.items()} == {
        "fedavg": 4, "flare": 4, "short": 3, "planned": 4, "long": 60,
    }  # fmt: skip
    assert seen["long"] == list(range(1, 61))


@pytest.mark.usefixtures("ready_workers")
def test_a_fault_in_one_of_two_processes_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fedavvg"):
        run_trials([GRID[0], trial("learning.method=fedavvg")], tmp_path, ON_TWO)


@pytest.mark.usefixtures("ready_workers")
def test_a_process_that_is_killed_again_and_again_is_told_in_one_sentence(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    long = [trial("run.rounds=100000", f"seed={seed}") for seed in (0, 1)]

    def kill() -> bool:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()  # unlike a signal to its number, nothing where it has died in between
        return False

    with pytest.raises(OSError, match=r"was killed 3 times.*with the run \w{20}; .*run the same command again"):
        run_trials(long, tmp_path, ON_TWO, stopping=kill)


@pytest.mark.usefixtures("ready_workers")
@pytest.mark.parametrize("place", [ON_CPU, ON_TWO], ids=["one process", "two"])
def test_a_callback_that_fails_ends_the_call_and_is_told(place: Place, tmp_path: Path) -> None:
    def callback(one: Trial, rounds: int, ended: bool) -> None:
        raise BrokenPipeError("nobody reads this")

    long = [trial("run.rounds=100000", f"seed={seed}") for seed in (0, 1)]
    with pytest.raises(BrokenPipeError, match="nobody reads this"):
        run_trials(long, tmp_path, place, callback=callback)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        (["run.rounds=9"], 9.0),
        (["run.rounds=9", "run.seconds=6.0", "wireless.deadline_s=2.0"], 3.0),
        (["run.rounds=2", "run.seconds=6.0", "wireless.deadline_s=2.0"], 2.0),
    ],
)
def test_length_is_in_rounds(settings: list[str], rounds: float) -> None:
    assert expected_rounds(trial(*settings).config) == rounds
