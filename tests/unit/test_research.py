"""`flare.simulate`, `flare.compare` and `flare.load`: the runs of the command line, called from Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flare
from flare import POLICIES
from flare.config import Config, load, override
from flare.data import from_arrays
from flare.rounds import RoundRecord
from flare.simulation import Member, Simulation, drive
from tests.hostile import flare as command
from tests.made_up_runs import settings, write_run
from tests.small_runs import (
    OPTIONS,
    SETTINGS,
    SMALL,
    files_in,
    interrupted_after,
    own_data,
    rounds_in,
    stop_the_clock,
    timeless,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop_the_clock(monkeypatch)
        flare.simulate(SMALL, policy="greedy", out=folder)
    return folder


# --- one run ----------------------------------------------------------------------------------------------------


def test_a_run_in_memory_is_that_of_the_command(
    in_memory: flare.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--set", "scheduling.policy=greedy", "--out", str(tmp_path / "run"), "--quiet"]
    told = command(capsys, "run", *OPTIONS, *out)
    assert told[0] == 0
    loaded = flare.load(tmp_path / "run")
    assert isinstance(loaded, flare.Run)
    assert timeless(loaded.records) == timeless(in_memory.records)
    assert (loaded.config, loaded.status, loaded.folder) == (in_memory.config, "finished", tmp_path / "run")
    assert loaded.numbers.identity == in_memory.numbers.identity
    assert (in_memory.folder, in_memory.status, in_memory.name) == (None, "finished", "flare-greedy-seed0")


def test_nothing_is_written_that_was_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flare.simulate(SMALL)
    flare.compare(["fedavg:cp"], config=SMALL)
    assert not list(tmp_path.iterdir())


def test_settings_come_from_a_config_a_dict_and_a_file(tmp_path: Path) -> None:
    whole = override(Config(), [*SETTINGS, "run.rounds=1"])
    (tmp_path / "cell.toml").write_text("[run]\nrounds = 2\n")
    assert flare.simulate(whole).config == whole
    assert flare.simulate(SMALL | {"run.rounds": 1}).config == whole
    run = flare.simulate(tmp_path / "cell.toml", module="logistic")
    assert run.config == override(load(tmp_path / "cell.toml"), ["learning.model=logistic"])
    assert run.num_rounds == 2


def test_a_policy_is_given_as_the_function_that_was_registered(in_memory: flare.Run) -> None:
    @flare.policy("most-steps")
    def most_steps(problem: flare.RoundProblem) -> Any:
        """The devices with most steps first."""
        return flare.admit(problem, np.argsort(-problem.tau))

    try:
        by_function = flare.simulate(SMALL | {"run.rounds": 2}, policy=most_steps)
        by_name = flare.simulate(SMALL | {"run.rounds": 2}, policy="most-steps")
    finally:
        del POLICIES["most-steps"]
    assert by_function.policy == "most-steps"
    assert timeless(by_function.records) == timeless(by_name.records)
    with pytest.raises(ValueError, match=r"most_steps, which is not registered.*@flare.policy"):
        flare.simulate(SMALL, policy=most_steps)


def test_own_data_and_model_are_those_of_a_simulation() -> None:
    config = override(Config(), SETTINGS)
    held = [np.arange(device, 200, 8) for device in range(8)]
    run = flare.simulate(config, **own_data(), held=held)
    dataset = from_arrays(*own_data()["dataset"])
    member = Member(Simulation(config, dataset=dataset, held=held, module=lambda shape, classes: nn.Linear(5, 3)))
    seen: list[RoundRecord] = []
    drive([member], callback=lambda _, record: seen.append(record))
    assert timeless(run.records) == timeless(seen)
    assert run.numbers.model == "own model Linear, 18 weights"
    other = flare.simulate(config, **own_data())  # divided by the settings
    assert timeless(other.records) != timeless(seen)


def test_whoever_looks_through_the_package_finds_nothing_that_cannot_be_had() -> None:
    import_nothing = "import sys; sys.modules['flwr'] = None; import flare, inspect; inspect.getmembers(flare)"
    done = subprocess.run([sys.executable, "-c", import_nothing], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_run_trains_also_where_gradients_are_turned_off(mode: Callable[[], Any], in_memory: flare.Run) -> None:
    with mode():
        run = flare.simulate(SMALL, policy="greedy")
        made_in_it = own_data()["module"]()
    assert timeless(run.records) == timeless(in_memory.records)
    flare.simulate(SMALL | {"run.rounds": 1}, dataset=own_data()["dataset"], module=made_in_it)


# --- out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 3, 4])
def test_an_interrupted_run_goes_on_where_it_stopped(
    tmp_path: Path, whole: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_clock(monkeypatch)
    arguments: dict[str, Any] = {"config": SMALL, "policy": "greedy", "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt, match=r"kept in .*run: the same call of flare.simulate goes on"):
        flare.simulate(**arguments, callback=interrupted_after(after))
    left = flare.load(tmp_path / "run")
    assert isinstance(left, flare.Run)
    assert (left.status, left.num_rounds) == ("interrupted", after)
    rounds: list[int] = []
    run = flare.simulate(**arguments, callback=lambda record: rounds.append(record.round))
    assert rounds == list(range(after, 6))
    assert run.status == "finished"
    there, here = files_in(whole), files_in(tmp_path / "run")
    assert there["rounds.jsonl"] == here["rounds.jsonl"]
    newest = max(name for name in there if name.startswith("checkpoints"))
    assert there[newest] == here[newest]


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    flare.simulate(SMALL, out=tmp_path / "run")
    files = [each for each in (tmp_path / "run").rglob("*") if each.is_file()]
    before = [(each.stat().st_mtime_ns, each.read_bytes()) for each in files]
    again = flare.simulate(SMALL, out=str(tmp_path / "run"), callback=interrupted_after(1))
    assert again.status == "finished"
    assert [(each.stat().st_mtime_ns, each.read_bytes()) for each in files] == before


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    flare.simulate(SMALL, out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"other settings \(its scheduling.policy is 'exact', here 'greedy'\)"):
        flare.simulate(SMALL, policy="greedy", out=tmp_path / "run")
    with pytest.raises(ValueError, match="cannot be continued here: its data is digits, and here it is own data"):
        flare.simulate(SMALL, **own_data(), out=tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="not empty and not a run folder"):
        flare.simulate(SMALL, out=tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_run_of_own_data_goes_on_with_them(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        flare.simulate(SMALL, **own_data(), out=tmp_path / "run", callback=interrupted_after(3))
    run = flare.simulate(SMALL, **own_data(), out=tmp_path / "run")
    assert timeless(run.records) == timeless(flare.simulate(SMALL, **own_data()).records)


def test_interrupted_in_memory_says_that_nothing_was_kept() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"nothing was kept: with flare\.simulate"):
        flare.simulate(SMALL, callback=interrupted_after(2))


# --- several ----------------------------------------------------------------------------------------------------


def test_a_comparison_is_that_of_the_command(
    compared: tuple[flare.Runs, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = ["--entry", "flare:greedy", "--entry", "fedavg:cp", "--seeds", "2"]
    assert command(capsys, "compare", *OPTIONS, *entries, "--out", str(tmp_path / "all"), "--quiet")[0] == 0
    theirs = flare.load(tmp_path / "all")
    assert isinstance(theirs, flare.Runs)
    assert theirs.names == compared[0].names[:4]
    for run in theirs:
        assert timeless(run.records) == timeless(compared[0][run.name].records)


def test_every_run_of_a_comparison_is_what_it_is_alone(compared: tuple[flare.Runs, Path]) -> None:
    runs, _ = compared
    assert runs.names[4:] == ["large-γ-λ-seed0", "large-γ-λ-seed1"]
    alone = flare.simulate(SMALL | {"seed": 1, "scheduling.gamma": 100.0}, policy="greedy")
    assert timeless(alone.records) == timeless(runs["large-γ-λ-seed1"].records)
    in_memory = flare.compare([("flare", "greedy")], [1, 0], config=SMALL)
    assert in_memory.names == ["flare-greedy-seed1", "flare-greedy-seed0"]
    for run in in_memory:
        assert timeless(run.records) == timeless(runs[run.name].records)


def test_a_comparison_is_loaded_in_its_order_with_its_labels(compared: tuple[flare.Runs, Path]) -> None:
    runs, base = compared
    loaded = flare.load(base)
    assert isinstance(loaded, flare.Runs)
    assert loaded.names == runs.names
    assert [group.label for group in loaded.groups] == [group.label for group in runs.groups]
    assert [group.label for group in runs.groups][-1] == "large γ / λ"
    assert len(loaded[1:3]) == 2
    with pytest.raises(KeyError, match=r"'fedavg:cp' is a group of runs.*take one: .*fedavg-cp-seed0"):
        runs["fedavg:cp"]
    assert repr(runs.groups[1]) == "<Group fedavg:cp: seeds 0, 1>"
    with pytest.raises(KeyError, match="did you mean 'fedavg-cp-seed0'"):
        loaded["fedavg-cq-seed0"]


def test_a_comparison_that_was_interrupted_goes_on(tmp_path: Path, compared: tuple[flare.Runs, Path]) -> None:
    arguments: dict[str, Any] = {"entries": ["flare:greedy", "fedavg:cp"], "seeds": 2, "config": SMALL}
    with pytest.raises(KeyboardInterrupt, match=r"the same call of flare\.compare"):
        flare.compare(**arguments, out=tmp_path / "all", callback=interrupted_after(7))
    runs = flare.compare(**arguments, out=tmp_path / "all")
    for run in runs:
        assert rounds_in(tmp_path / "all" / run.name) == rounds_in(compared[1] / run.name)
    with pytest.raises(ValueError, match="a comparison of other runs"):
        flare.compare(["flare:greedy"], config=SMALL, out=tmp_path / "all")


def test_own_models_of_several_seeds_share_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    driving = sys.modules["flare.simulation.drive"]
    groups: list[int] = []
    made = driving.lanes_of  # type: ignore[attr-defined]

    def counted(*given: Any, **named: Any) -> Any:
        found = made(*given, **named)
        groups.append(len(found))
        return found

    monkeypatch.setattr(driving, "lanes_of", counted)
    runs = flare.compare(["flare:greedy", "fedavg:cp"], 2, config=SMALL, **own_data())
    assert groups == [1]
    alone = flare.simulate(SMALL | {"seed": 1}, policy="cp", method="fedavg", **own_data())
    assert timeless(runs["fedavg-cp-seed1"].records) == timeless(alone.records)


def test_load_finds_the_runs_of_a_reproduction(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / "out" / "trials" / name, settings(seed=ord(name)), rounds=3)
    runs = flare.load(tmp_path / "out")
    assert isinstance(runs, flare.Runs)
    assert runs.names == ["trials/a", "trials/b"]
    assert [run.seed for run in runs] == [97, 98]


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": {"run.round": 3}}, "unknown key run.round; the nearest known key is run.rounds"),
        ({"config": {"wireless": {"bandwith_hz": 3}}}, "unknown key wireless.bandwith_hz"),
        ({"config": {"runs": {"rounds": 3}}}, "unknown key runs"),
        ({"config": {"run": 3}}, "run is a section"),
        ({"config": {3: 4}}, "a setting is named 3"),
        ({"config": {"run.rounds": "many"}}, "run.rounds is the text"),
        ({"config": 3}, "config is a int"),
        ({"config": "there/is/none.toml"}, "none.toml"),
        ({"policy": "gredy"}, "did you mean 'greedy'"),
        ({"method": "fedavgg"}, "did you mean 'fedavg'"),
        ({"method": len}, "method is len, which is not registered"),
        ({"dataset": 3}, "dataset is a int"),
        ({"dataset": "digitz"}, "digits"),
        ({"held": [[1]]}, "give dataset too"),
        ({"module": 3}, "module is a int"),
        ({"module": nn.Linear(3, 2)}, "the model cannot take two samples"),
        ({"module": lambda: nn.Identity()}, "it must answer"),
        ({"module": "mlpp"}, "did you mean 'mlp'"),
        ({"out": 3}, "out is a int"),
    ],
)
def test_bad_arguments_are_answered_in_words(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"config": SMALL, "out": tmp_path / "run"} | arguments
    with pytest.raises((ValueError, OSError), match=words):
        flare.simulate(**given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("held", [[[0]] * 7, [[0]] * 7 + [[200]], [[0]] * 7 + [[-1]], [[0]] * 7 + [[0.5]], [[]] * 8])
def test_held_samples_are_checked(held: Any) -> None:
    with pytest.raises(ValueError, match=r"held: device 7|held names|holds no training samples"):
        flare.simulate(SMALL, **own_data(), held=held)


@pytest.mark.parametrize(
    ("entries", "seeds", "words"),
    [
        ("flare:greedy", 1, "entries is no list"),
        ([], 1, "nothing to compare"),
        (["flare"], 1, "not of the form METHOD:POLICY"),
        ([3], 1, "3 is no entry"),
        ([("flare", "greedy", "x")], 1, "is no entry"),
        (["flare:greedy", ("flare", "greedy")], 1, "two entries are called 'flare:greedy'"),
        ([{"learning.local_lr": 0.1}], 1, "needs a label"),
        ([{"label": "a", "lerning.local_lr": 0.1}], 1, "unknown section lerning"),
        ([{"label": "a", "seed": 1}], 1, "give seeds="),
        ([{"label": "a/b"}, {"label": "a b"}], 1, "two entries are called 'a b'"),
        (["flare:greedy"], 0, "seeds is 0"),
        (["flare:greedy"], [1, 1], "seeds is"),
        (["flare:greedy"], "12", "seeds is '12'"),
        (["flare:greedy"], [0.5], "seeds is"),
    ],
)
def test_bad_entries_are_answered_in_words(entries: Any, seeds: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        flare.compare(entries, seeds, config=SMALL, out=tmp_path / "all")
    assert not list(tmp_path.iterdir())


def test_entries_with_settings_are_written_as_on_the_command_line() -> None:
    typed = "fedavg:cp,learning.local_lr=0.1,run.rounds=2"
    runs = flare.compare(["flare:greedy", typed], 1, config=SMALL, progress=False)
    assert [(run.config.learning.local_lr, run.config.run.rounds) for run in runs][1] == (0.1, 2)
    assert [group.label for group in runs.groups][-1] == typed
    with pytest.raises(ValueError, match=r"learning\.local_lrr"):
        flare.compare(["fedavg:cp,learning.local_lrr=0.1"], 1, config=SMALL)


def test_a_damaged_folder_is_said_to_be(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings(), rounds=4)
    path = folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 7').replace(b'"round":2', b'"round":7'))
    for where in (folder, tmp_path):
        with pytest.raises(ValueError, match=r"rounds\.jsonl"):
            flare.load(where)
    with pytest.raises(ValueError, match="there is no folder"):
        flare.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is no run folder and contains none"):
        flare.load(tmp_path / "empty")
    with pytest.raises(ValueError, match="a folder is given as a int"):
        flare.load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [5, {0: [0]}, "ab", (row for row in [[0]])])
def test_who_holds_what_is_a_list(held: object) -> None:
    with pytest.raises(ValueError, match=r"held is a .*; it must be a list with, for each device"):
        flare.simulate(SMALL, **own_data(), held=held)  # type: ignore[arg-type]
