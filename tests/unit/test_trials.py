"""Trials: what names a run, the file that keeps it, and the runner that does what is missing and nothing twice."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.config import Config, Options, override
from flare.experiments import runner
from flare.experiments.runner import Place, finished, length, run_trials
from flare.experiments.trial import Outcome, Trial, read_outcome, write_outcome
from flare.learning.methods import METHODS
from flare.scheduling import POLICIES
from flare.simulation import Simulation
from tests.made_up_outcomes import arrays, made_up

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


def on_cpu(folder: Path, processes: int = 1) -> Place:
    return Place(folder, "cpu", processes)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same(one: Outcome, other: Outcome, rtol: float = 0.0) -> None:
    assert (one.status, one.num_classes) == (other.status, other.num_classes)
    for name, values in arrays(one).items():
        np.testing.assert_allclose(arrays(other)[name], values, rtol=rtol, atol=0.0, err_msg=name)


# --- the name of a run ------------------------------------------------------------------------------------------


def other_value(each: Any, value: Any) -> Any:
    """Some other value that a setting may have."""
    limits = each.metadata["limits"]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        known = limits.choices or TEXTS.get(each.name, ["there", "elsewhere"])
        return next(word for word in reversed(known) if word != value)
    if isinstance(value, Options):
        return Options(value, num_selected=3)
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] + 1)
    return next(v for v in (value + 1, value / 2) if v != value and limits.hold(v))


def one_by_one(config: Config) -> dict[str, Config]:
    """The configuration with one setting changed, for each setting there is."""
    changed = {}
    for section in fields(config):
        settings = getattr(config, section.name)
        if not is_dataclass(settings):
            changed[section.name] = replace(config, **{section.name: settings + 1})
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


# --- the file of a run ------------------------------------------------------------------------------------------


def written(folder: Path, outcome: Outcome) -> Path:
    path = folder / f"{trial().key}.json"
    write_outcome(path, trial(), outcome)
    return path


def test_a_file_keeps_seven_digits_and_what_is_no_number(tmp_path: Path) -> None:
    some = np.array([math.pi, math.nan, 1e-300 / 3.0, -1e300 / 7.0])
    rounds = dict.fromkeys(("clock_s", "train_loss", "objective", "lower_bound", "devices", "tau"), some)
    outcome = replace(made_up([1.0 / 3.0, 2.0 / 3.0], diverged=True), **rounds)
    kept = read_outcome(written(tmp_path, outcome))
    assert kept is not None
    assert_same(outcome, kept, rtol=5e-7)
    assert kept.train_loss[0] == 3.141593
    assert_same(kept, read_outcome(written(tmp_path, kept)) or made_up())  # what was read is written as it was


def test_a_run_without_tests_is_kept_as_such(tmp_path: Path) -> None:
    kept = read_outcome(written(tmp_path, made_up([])))
    assert kept is not None
    assert kept.test_accuracy.shape == (0,)


def without(name: str) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({k: v for k, v in json.loads(content).items() if k != name}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"\0" * len(content),
        lambda content: b"\xff" + content,
        lambda content: b"[1, 2]",
        lambda content: b"null",
        lambda content: content.replace(b'"tau":[', b'"tau":["x",'),
        lambda content: content.replace(b'"num_classes":10', b'"num_classes":null'),
        without("key"),
        without("status"),
        without("lower_bound"),
    ],
)
def test_a_damaged_file_is_as_good_as_none(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = written(tmp_path, made_up())
    assert read_outcome(path) is not None
    path.write_bytes(damage(path.read_bytes()))
    assert read_outcome(path) is None


def test_the_file_of_another_run_is_as_good_as_none(tmp_path: Path) -> None:
    path = written(tmp_path, made_up())
    path.rename(tmp_path / f"{trial('seed=1').key}.json")
    assert not finished(trial("seed=1"), on_cpu(tmp_path))
    assert not finished(trial(), on_cpu(tmp_path))
    assert read_outcome(tmp_path) is None


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
    outcomes = run_trials(GRID, on_cpu(folder))
    assert list(outcomes) == [each.key for each in GRID]
    assert set(files(folder)) == {f"{each.key}.json" for each in GRID}
    return folder


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the runs that are started, by the name of the trial they have."""
    counts: Counter[str] = Counter()

    def count(config: Config) -> Simulation:
        names = [Trial("", "", config, plan_only).key for plan_only in (False, True)]
        counts.update(each.curve for each in GRID if each.key in names)
        return Simulation(config)

    monkeypatch.setattr(runner, "Simulation", count)
    return counts


def test_an_outcome_has_what_the_run_did(done: Path) -> None:
    for each in GRID:
        outcome = read_outcome(done / f"{each.key}.json")
        assert outcome is not None
        rounds = each.config.run.rounds
        assert (outcome.status, outcome.num_classes) == ("finished", 10)
        assert outcome.clock_s.shape == outcome.train_loss.shape == outcome.devices.shape == (rounds,)
        assert (np.diff(outcome.clock_s) > 0.0).all()
        assert (outcome.devices > 0.0).all()
        assert (outcome.tau >= 1.0).all()
        assert list(outcome.test_round) == ([] if each.plan_only else sorted({2.0, float(rounds)}))
        assert np.isnan(outcome.train_loss).all() == each.plan_only


def test_who_sends_does_not_depend_on_what_is_learned(tmp_path: Path) -> None:
    settings = ("seed=2", "scheduling.policy=greedy")
    outcomes = run_trials([trial(*settings), trial(*settings, plan_only=True)], on_cpu(tmp_path)).values()
    trained, planned = outcomes
    for name in ("clock_s", "devices", "tau", "objective", "lower_bound"):
        np.testing.assert_array_equal(arrays(planned)[name], arrays(trained)[name])
    assert len(trained.test_round) == 2


@pytest.mark.parametrize("curve", [each.curve for each in GRID])
def test_a_trial_alone_is_the_trial_in_company(curve: str, done: Path, tmp_path: Path) -> None:
    (own,) = (each for each in GRID if each.curve == curve)
    run_trials([own], on_cpu(tmp_path))
    (name,) = files(tmp_path)
    assert files(tmp_path)[name] == files(done)[name]


def test_what_is_done_is_not_done_again(done: Path, built: Counter[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.iterdir()}
    outcomes = run_trials(GRID, on_cpu(done))
    assert not built
    assert {path: path.stat().st_mtime_ns for path in done.iterdir()} == before
    for key, outcome in run_trials(GRID, on_cpu(done)).items():
        assert_same(outcomes[key], outcome)


def test_equal_trials_are_one_run(built: Counter[str], tmp_path: Path) -> None:
    again = Trial("another panel", "another curve", GRID[0].config)
    assert len(run_trials([GRID[0], again, GRID[0]], on_cpu(tmp_path))) == 1
    assert built == {"fedavg": 1}


def test_a_damaged_run_is_done_again_and_no_other(done: Path, built: Counter[str], tmp_path: Path) -> None:
    for name, content in files(done).items():
        (tmp_path / name).write_bytes(content)
    path = tmp_path / f"{GRID[1].key}.json"
    path.write_bytes(path.read_bytes()[:100])
    run_trials(GRID, on_cpu(tmp_path))
    assert built == {"flare": 1}
    assert files(tmp_path) == files(done)


def test_a_stopped_call_leaves_what_is_finished_and_the_next_does_the_rest(
    done: Path, built: Counter[str], tmp_path: Path
) -> None:
    seen: list[tuple[str, int]] = []
    place = on_cpu(tmp_path)
    outcomes = run_trials(
        GRID,
        place,
        callback=lambda one, rounds, _: seen.append((one.curve, rounds)),
        stopping=lambda: ("short", 3) in seen,
    )
    assert list(outcomes) == [GRID[2].key]  # the others were in lockstep with it: three rounds of four
    assert max(rounds for _, rounds in seen) == 3
    assert [each.curve for each in GRID if finished(each, place)] == ["short"]
    built.clear()
    assert len(run_trials(GRID, place)) == 4
    assert built == {"fedavg": 1, "flare": 1, "planned": 1}
    assert files(tmp_path) == files(done)


def test_a_call_stopped_from_the_start_does_nothing(tmp_path: Path) -> None:
    seen: list[Trial] = []
    assert run_trials(GRID, on_cpu(tmp_path), callback=lambda one, *_: seen.append(one), stopping=lambda: True) == {}
    assert not seen
    assert not files(tmp_path)


def test_a_run_that_diverges_is_kept_and_harms_no_neighbour(done: Path, tmp_path: Path) -> None:
    lost = trial(DIVERGING, curve="lost")
    outcomes = run_trials([lost, *GRID], on_cpu(tmp_path))
    assert outcomes[lost.key].diverged
    assert len(outcomes[lost.key].clock_s) < 4
    assert len(outcomes[lost.key].test_round) < 2
    kept = files(tmp_path)
    assert {name: kept[name] for name in files(done)} == files(done)


def test_two_processes_do_what_one_does(done: Path, tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    outcomes = run_trials(GRID, on_cpu(tmp_path, 2), callback=lambda one, rounds, _: seen.update({one.curve: rounds}))
    assert files(tmp_path) == files(done)
    assert list(outcomes) == [each.key for each in GRID]
    assert seen == {"fedavg": 4, "flare": 4, "short": 3, "planned": 4}


def test_a_fault_in_one_of_two_processes_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fedavvg"):
        run_trials([GRID[0], trial("learning.method=fedavvg")], on_cpu(tmp_path, 2))


def test_a_process_that_is_killed_is_told_in_one_sentence(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    long = [trial("run.rounds=100000", f"seed={seed}") for seed in (0, 1)]

    def kill() -> bool:
        for child in set(multiprocessing.active_children()) - before:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        return False

    with pytest.raises(OSError, match=r"was killed.*run the same command again"):
        run_trials(long, on_cpu(tmp_path, 2), stopping=kill)


def test_processes_tell_of_long_runs_when_short_ones_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, also where who listens is held up until long after the end, as on a loaded machine."""
    quick = [trial("run.rounds=2", f"seed={seed}") for seed in (1, 2)]
    long = trial("run.rounds=200", "run.evaluate_every=200")
    seen: list[int] = []
    ended = threading.Event()

    class Pool(runner.ProcessPoolExecutor):
        def shutdown(self, *given: Any, **named: Any) -> None:
            super().shutdown(*given, **named)
            ended.set()

    def callback(one: Trial, rounds: int, _: bool) -> None:
        if one == long:
            if not seen:
                ended.wait(120.0)
                time.sleep(6.0)
            seen.append(rounds)

    monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)
    run_trials([long, *quick], on_cpu(tmp_path, 2), callback=callback)
    assert seen == list(range(1, 201))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_callback_that_fails_ends_the_call_and_is_told(processes: int, tmp_path: Path) -> None:
    def callback(one: Trial, rounds: int, ended: bool) -> None:
        raise BrokenPipeError("nobody reads this")

    long = [trial("run.rounds=100000", f"seed={seed}") for seed in (0, 1)]
    with pytest.raises(BrokenPipeError, match="nobody reads this"):
        run_trials(long, on_cpu(tmp_path, processes), callback=callback)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        (["run.rounds=9"], 9.0),
        (["run.rounds=9", "run.seconds=6.0", "wireless.deadline_s=2.0"], 3.0),
        (["run.rounds=2", "run.seconds=6.0", "wireless.deadline_s=2.0"], 2.0),
    ],
)
def test_length_is_in_rounds(settings: list[str], rounds: float) -> None:
    assert length(trial(*settings)) == rounds
