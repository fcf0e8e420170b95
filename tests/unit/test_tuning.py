"""Tuning: what is searched, what trials come to, when they are hopeless, and what a folder keeps of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.config import Config, Options, with_settings
from flare.config.options import NO_OPTIONS
from flare.records.lines import sealed
from flare.records.run import RunNumbers, run_of
from flare.report.panels import panel_html
from flare.rounds import RoundRecord
from flare.sweeps import Place, Task, run_tasks
from flare.tuning import Choice, Range, State, Trial, figures, make_tuning, read_search, space_of
from flare.tuning import space as space_module
from flare.tuning.goals import Aim, Goal, Outcome, Score, Standing, accuracy_by, at_least, outcome_of, score_of
from flare.tuning.judge import Judgement
from flare.tuning.sampler import MIN_COMPLETE, START_UP, ask, importances
from flare.tuning.sections import judged_rows, lead, search_in_words, tuning_sections, verdict
from flare.tuning.space import Space
from flare.tuning.study import Tuning, begin_tuning, refuse_foreign, seal_of
from flare.tuning.trial import best_of, read_trials, write_trials
from tests.small_runs import SMALL

START = with_settings(Config(), SMALL)
TIME = Aim(Goal.TIME, 0.5, 10.0)


@pytest.fixture(scope="module")
def usual() -> Space:
    """The default, without the rounds that try each of its values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_module, "check_config", lambda config: None)
        return space_of(START, {})


def names(space: Space) -> list[str]:
    return [each.name for each in space.searched]


def found(space: Space, name: str) -> Choice | Range:
    return next(each for each in space.searched if each.name == name)


# --- what is searched -------------------------------------------------------------------------------------------


def test_all_that_the_guide_names_is_searched_around_the_start(usual: Space) -> None:
    assert set(names(usual)) == {
        "learning.method", "scheduling.policy", "uplink.codec", "learning.local_lr", "learning.global_lr",
        "scheduling.gamma", "wireless.deadline_s", "learning.options.tau_bar", "uplink.bits",
    }  # fmt: skip
    assert found(usual, "learning.local_lr") == Range("learning.local_lr", 0.005, 0.5, log=True)
    assert found(usual, "wireless.deadline_s") == Range("wireless.deadline_s", 0.01, 0.04, log=True)
    assert found(usual, "uplink.bits") == Range("uplink.bits", 2, 8, whole=True)
    start = usual.start_params()
    assert start == {
        "learning.method": "flare", "scheduling.policy": "exact", "uplink.codec": "none", "learning.local_lr": 0.05,
        "learning.global_lr": 1.0, "scheduling.gamma": 10.0, "wireless.deadline_s": 0.02,
        "learning.options.tau_bar": "mas",
    }  # fmt: skip
    assert usual.config(start) == START
    assert usual.config(start | {"learning.options.tau_bar": "mes"}).learning.options == Options(tau_bar="mes")


def test_options_are_searched_only_with_the_parts_that_have_them(usual: Space) -> None:
    def asked(**parts: str) -> set[str]:
        by_name = {"method": "learning.method", "policy": "scheduling.policy", "codec": "uplink.codec"}
        usual_parts = {"method": "flare", "policy": "exact", "codec": "none"}
        return {
            each.name for each in usual.asked({by_name[key]: value for key, value in (usual_parts | parts).items()})
        }

    always = {"learning.local_lr", "learning.global_lr", "wireless.deadline_s"}
    assert asked() == always | {"scheduling.gamma", "learning.options.tau_bar"}
    assert asked(method="fedavg") == always | {"scheduling.gamma"}
    assert asked(policy="cp") == always | {"learning.options.tau_bar"}
    assert asked(codec="qsgd", method="fedavg", policy="dm") == always | {"uplink.bits"}
    assert asked(codec="topk", method="fedavg", policy="dm") == always


def test_a_part_takes_those_options_along_that_it_has() -> None:
    start = with_settings(START, {"learning.method": "fedprox", "learning.options.prox_mu": 0.3, "uplink.codec": "qsgd",
                                  "uplink.bits": 4, "uplink.options.block": 64})  # fmt: skip
    space = Space(start, ())
    other = space.config({"learning.method": "flare", "uplink.codec": "topk"})
    assert (other.learning.options, other.uplink.bits, other.uplink.options) == (NO_OPTIONS, "default", NO_OPTIONS)
    same = space.config({"learning.method": "fedprox", "uplink.codec": "qsgd", "uplink.bits": 6})
    assert (dict(same.learning.options), same.uplink.bits) == ({"prox_mu": 0.3}, 6)
    assert same.uplink.options == space.config({"uplink.codec": "ternary"}).uplink.options == Options(block=64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning.local_lr=0.01..0.3", Range("learning.local_lr", 0.01, 0.3, log=True)),
        ("learning.local_lr=0.1..0.3", Range("learning.local_lr", 0.1, 0.3)),
        ("learning.local_lr=0.01..0.3:linear", Range("learning.local_lr", 0.01, 0.3)),
        ("wireless.deadline_s=20ms..40ms:log", Range("wireless.deadline_s", 0.02, 0.04, log=True)),
        ("uplink.bits=3..5", Range("uplink.bits", 3.0, 5.0, whole=True)),
        ("learning.method=fedavg,fedprox", Choice("learning.method", ("fedavg", "fedprox"))),
        ("learning.options.prox_mu=0.01..1", Range("learning.options.prox_mu", 0.01, 1.0, log=True)),
        ("learning.options.prox_mu=1..4", Range("learning.options.prox_mu", 1.0, 4.0)),
        ("scheduling.options.max_devices=2..4", Range("scheduling.options.max_devices", 2.0, 4.0, whole=True)),
        ("wireless.deadline_s=20ms,0.03", Choice("wireless.deadline_s", (0.02, 0.03))),
    ],
)
def test_ranges_and_choices_as_they_are_written(text: str, expected: Choice | Range) -> None:
    space = space_of(START, read_search([text]), ["all"])
    assert space.searched == (expected,)
    assert ("whole numbers" in space.searched[0].words()) == getattr(expected, "whole", False)


@pytest.mark.parametrize(
    ("search", "left_out", "words"),
    [
        (["learning.lr=0.1..0.2"], [], "nearest known key is learning.local_lr"),
        (["learning.method=fedagv"], [], "did you mean 'fedavg'"),
        (["learning.local_lr=0.3..0.1"], [], "not the lower one first"),
        (["learning.local_lr=a..b"], [], "learning.local_lr"),
        (["learning.local_lr=-1..1"], [], "greater than 0"),
        (["scheduling.gamma=0..10:log"], [], "above 0 on the scale log"),
        (["learning.local_lr=0.1..0.2:cubic"], [], "the scale is 'cubic'"),
        (["uplink.bits=2..99"], [], "at most 16"),
        (["learning.method=flare,flare"], [], "twice"),
        (["learning.local_lr="], [], "not of the form"),
        (["learning.local_lr", "learning.local_lr=1..2"], [], "given twice"),
        (["run.rounds=10..20"], [], "what trials have in common"),
        (["learning.local_lr"], ["learning.local_lr"], "--search and in --no-search"),
        ([], ["learning.localrate"], "did you mean 'learning.local_lr'"),
        ([], ["all"], "nothing is searched"),
        ([".plugins=a,b"], ["all"], "'.plugins' is no name of a setting"),
        (["learning.options.mu=0.1..1"], ["all"], "has no option 'mu'"),
        (["wireless.power_dbm"], [], "no range of its own"),
    ],
)
def test_what_cannot_be_searched_is_refused(search: list[str], left_out: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        space_of(START, read_search(search), left_out)


def test_what_changes_nothing_is_not_searched_unless_it_is_asked_for() -> None:
    assert START.uplink.codec == "none"
    assert "uplink.bits" in names(space_of(START, {}))  # the codec may become one with bits
    assert "uplink.bits" not in names(space_of(START, {}, ["uplink.codec"]))
    assert "uplink.bits" in names(space_of(with_settings(START, {"uplink.codec": "qsgd"}), {}, ["uplink.codec"]))
    assert "scheduling.gamma" not in names(
        space_of(with_settings(START, {"scheduling.policy": "cp"}), {}, ["scheduling.policy"])
    )


def test_choices_that_no_run_can_have_are_left_out_unless_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over_the_air = space_of(with_settings(START, {"uplink.air": "ota"}), {}, ["learning.method", "scheduling.policy"])
    assert not {"uplink.codec", "uplink.bits"} & set(names(over_the_air))

    def check(config: Config) -> None:
        if config.learning.method == "scaffold" or config.scheduling.policy != "exact":
            raise ValueError("it cannot be")

    monkeypatch.setattr(space_module, "check_config", check)
    space = space_of(START, {})
    assert found(space, "learning.method").tried() == ("flare", "fedavg", "fedprox", "fednova")
    assert "scheduling.policy" not in names(space)  # with one value left there is nothing to search
    with pytest.raises(ValueError, match=r"--search learning\.method=scaffold: it cannot be"):
        space_of(START, {"learning.method": ["flare", "scaffold"]})


def test_a_start_outside_of_the_ranges_is_no_trial() -> None:
    space = space_of(START, {"learning.local_lr": (0.1, 0.2)}, ["all"])
    assert space.start_params() is None
    assert space.values_at_start() == {"learning.local_lr": 0.05}
    first = ask(space, [], [0], seed=0).params[0]
    assert 0.1 <= float(first["learning.local_lr"]) <= 0.2


# --- what trials come to ----------------------------------------------------------------------------------------


def outcome(seed: int = 0, **facts: Any) -> Outcome:
    usual = {"status": "finished", "rounds": 20, "clock_s": 10.0, "time_s": math.nan, "energy_j": 5.0, "accuracy": 0.4,
             "best": 0.4}  # fmt: skip
    return Outcome(seed, **(usual | facts))


def reached(seed: int, time_s: float, energy_j: float = 1.0) -> Outcome:
    return outcome(seed, status="reached", time_s=time_s, clock_s=time_s, energy_j=energy_j, accuracy=0.5, best=0.5)


@pytest.fixture(scope="module")
def record() -> RoundRecord:
    seen: list[RoundRecord] = []
    config = with_settings(START, {"run.rounds": 1})
    run_tasks([Task("run", config, None)], Place("cpu"), callback=lambda task, record, status: seen.append(record))
    return seen[0]


def run_with(record: RoundRecord, accuracies: list[float | None], status: str = "finished") -> RunNumbers:
    """A run whose rounds take a second each, and one joule each device."""
    ones = [1.0] * len(record.selected)
    records = [
        replace(record, round=index, clock_s=1.0 + index, test_accuracy=accuracy, compute_energy_j=ones,
                upload_energy_j=[0.0] * len(ones))
        for index, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    return run_of(records, START, {"status": status, "num_classes": 10}, None)


SEAL = "5ea1" * 4
ACCURACIES = [None, 0.2, None, 0.45, None, 0.55, None, 0.5]


def test_what_a_run_comes_to(record: RoundRecord) -> None:
    run, devices = run_with(record, ACCURACIES), len(record.selected)
    told = outcome_of(run, TIME)
    assert (told.time_s, told.energy_j, told.best, told.accuracy) == (6.0, 6.0 * devices, 0.55, 0.5)
    early = outcome_of(run, Aim(Goal.TIME, 0.5, 5.0))  # reached, but not within the time
    assert not early.reached
    assert (early.best, early.energy_j) == (0.45, 8.0 * devices)
    assert early.accuracy == 0.45  # of the test after four seconds, not of that after six
    assert outcome_of(run, Aim(Goal.ACCURACY, 0.0, 1.5)).accuracy == 0.5  # no test by then
    assert [accuracy_by(run, time_s) for time_s in (2.0, 5.9, 6.0)] == [0.2, 0.45, 0.55]
    assert math.isnan(accuracy_by(run, 1.9))
    lost = run_with(record, ACCURACIES[:4], "diverged")
    assert outcome_of(lost, TIME).diverged
    assert (accuracy_by(lost, 3.0), accuracy_by(lost, 4.0)) == (0.2, 0.0)


def test_scores_go_by_the_target_first() -> None:
    fast = score_of([reached(0, 2.0), reached(1, 4.0)], TIME)
    slow = score_of([reached(0, 9.0), reached(1, 9.0)], TIME)
    near = score_of([reached(0, 1.0), outcome(1, best=0.49)], TIME)
    far = score_of([outcome(0, best=0.3), outcome(1, best=0.2)], TIME)
    lost = score_of([outcome(0, status="diverged", best=0.45), outcome(1, status="diverged", best=0.45)], TIME)
    impossible = Score(Standing.IMPOSSIBLE, 0.0)
    ordered = [fast, slow, near, far, lost, impossible]
    assert sorted(ordered) == ordered
    assert sorted(each.told for each in ordered) == [each.told for each in ordered]
    assert fast.number == 3.0
    assert math.isclose(near.number, 0.005)
    assert math.isclose(lost.number, 0.5)  # as a run that is never right
    assert score_of([reached(0, 2.0, 7.0)], replace(TIME, goal=Goal.ENERGY)).number == 7.0
    by_accuracy = Aim(Goal.ACCURACY, 0.0, 10.0)
    assert score_of([outcome(accuracy=0.75), outcome(accuracy=0.25)], by_accuracy).number == 0.5
    assert score_of([outcome(accuracy=0.1, status="diverged")], by_accuracy).number == 1.0


def test_what_a_trial_comes_to_at_least_while_it_goes_on() -> None:
    going = [reached(0, 2.0, 3.0), outcome(1, status="stopped", clock_s=6.0, energy_j=5.0)]
    assert at_least(going, TIME) == 4.0
    assert at_least(going, replace(TIME, goal=Goal.ENERGY)) == 4.0
    assert at_least([*going, outcome(2)], TIME) == math.inf  # ended without the target
    assert at_least(going, Aim(Goal.ACCURACY, 0.0, 10.0)) == 0.0


# --- which trials come next -------------------------------------------------------------------------------------

RATE = {"learning.local_lr": (0.001, 1.0)}


def told_trials(space: Space, number: int, best_lr: float = 0.1) -> list[Trial]:
    """Trials in batches of four, the better the nearer their rate is to the best; the fourth of each is pruned."""
    told: list[Trial] = []
    while len(told) < number:
        numbers = range(len(told), len(told) + 4)
        for index, params in zip(numbers, ask(space, told, numbers, seed=5).params, strict=True):
            apart = abs(math.log10(float(params["learning.local_lr"]) / best_lr))
            state = State.PRUNED if index % 4 == 3 else State.COMPLETE
            score = Score(Standing.REACHED, apart) if state is State.COMPLETE else Score(Standing.MISSED, 1.0)
            made = (reached(0, apart),) if state is State.COMPLETE else (outcome(status="stopped"),)
            told.append(Trial(index, params, state, score, made, {0: 0.9 - 0.1 * apart}, why="slow" * (index % 4 == 3)))
    return told


@pytest.fixture(scope="module")
def told() -> list[Trial]:
    return told_trials(space_of(START, RATE | {"wireless.deadline_s": (0.01, 0.04)}, ["all"]), 40)


def test_the_search_begins_at_the_start_and_closes_in_on_what_is_good(told: list[Trial]) -> None:
    assert told[0].params == {"learning.local_lr": 0.05, "wireless.deadline_s": 0.02}
    apart = [abs(math.log10(float(trial.params["learning.local_lr"]) / 0.1)) for trial in told]
    assert np.mean(apart[-16:]) < 0.5 * np.mean(apart[1 : START_UP + 1])
    for trial in told[1:]:
        text = repr(trial.params["learning.local_lr"])
        assert len(text.strip("0.").replace(".", "").split("e")[0]) <= 4, text


def test_the_same_trials_give_the_same_next_ones_and_another_seed_others(told: list[Trial], tmp_path: Path) -> None:
    space = space_of(START, RATE | {"wireless.deadline_s": (0.01, 0.04)}, ["all"])
    write_trials(tmp_path, told, SEAL)
    again = read_trials(tmp_path, SEAL)
    assert repr(again) == repr(told)  # nan is not equal to itself
    numbers = range(40, 44)
    assert ask(space, again, numbers, seed=5).params == ask(space, told, numbers, seed=5).params
    assert ask(space, again, numbers, seed=6).params != ask(space, told, numbers, seed=5).params


def test_who_is_below_the_median_at_the_same_time_falls_behind(told: list[Trial]) -> None:
    space = space_of(START, RATE | {"wireless.deadline_s": (0.01, 0.04)}, ["all"])
    median = np.median([trial.at_pauses[0] for trial in told if trial.state is State.COMPLETE])
    asked = ask(space, told, range(40, 43), seed=5)
    assert asked.falls_behind(0, {0: median - 0.01}, 0)
    assert not asked.falls_behind(1, {0: median + 0.01}, 0)
    assert not asked.falls_behind(2, {}, 0)  # not tested yet
    few = ask(space, told[: MIN_COMPLETE - 1], range(MIN_COMPLETE - 1, MIN_COMPLETE), seed=5)
    assert not few.falls_behind(0, {0: 0.0}, 0)


def test_what_mattered_is_what_the_scores_depend_on(told: list[Trial]) -> None:
    space = space_of(START, RATE | {"wireless.deadline_s": (0.01, 0.04)}, ["all"])
    shares = importances(space, told, seed=0)
    assert next(iter(shares)) == "learning.local_lr"
    assert shares["learning.local_lr"] > 0.7
    assert math.isclose(sum(shares.values()), 1.0)
    assert importances(space, told[:5], seed=0) == {}


def test_the_best_is_the_first_of_the_best_score_and_no_pruned_one() -> None:
    scores = [Score(Standing.MISSED, 0.0), Score(Standing.REACHED, 3.0), Score(Standing.REACHED, 3.0)]
    trials = [Trial(number, {}, State.COMPLETE, score) for number, score in enumerate(scores)]
    best = best_of([*trials, Trial(3, {}, State.PRUNED, Score(Standing.REACHED, 0.0))])
    assert best is trials[1]
    assert best_of([]) is None


@pytest.mark.parametrize("damage", ['{"number": 0}\n', "not json\n", "[]\n", "\xff"])
def test_a_damaged_file_of_trials_is_an_error(tmp_path: Path, damage: str) -> None:
    (tmp_path / "trials.jsonl").write_text(damage)
    with pytest.raises(ValueError, match="is damaged"):
        read_trials(tmp_path, SEAL)


def test_an_edited_file_of_trials_is_an_error(told: list[Trial], tmp_path: Path) -> None:
    write_trials(tmp_path, told[:3], SEAL)
    file = tmp_path / "trials.jsonl"
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    edited = [whole.replace('"same_as":-1', '"same_as":7', 1), whole.replace('"why":""', '"why":"x"', 1)]
    for text in (*edited, lines[0] + lines[2], json.dumps({"number": 0}) + "\n"):
        assert text != whole
        file.write_text(text)
        with pytest.raises(ValueError, match=r"line \d is damaged, or of another tuning .*put the file back"):
            read_trials(tmp_path, SEAL)


def test_the_trials_of_another_tuning_are_an_error(told: list[Trial], tmp_path: Path) -> None:
    one, more, other = (tuning_of(trials=trials, target=target) for trials, target in ((9, 0.8), (12, 0.8), (9, 0.6)))
    write_trials(tmp_path, told, seal_of(one))
    assert len(read_trials(tmp_path, seal_of(more))) == len(told)
    with pytest.raises(ValueError, match="line 1 is damaged, or of another tuning"):
        read_trials(tmp_path, seal_of(other))


@pytest.mark.parametrize(
    "changes",
    [
        {"outcomes": [{**asdict(reached(0, 1.0)), "time_s": 10**400}]},
        {"score": [0, None]},
        {"score": [0, 10**400]},
        {"score": [0, "nan"]},
    ],
    ids=["time", "none", "huge", "nan"],
)
def test_a_trial_whose_numbers_are_none_is_an_error(
    told: list[Trial], tmp_path: Path, changes: dict[str, object]
) -> None:
    """Also where its line was sealed again."""
    write_trials(tmp_path, told[:1], SEAL)
    line = json.loads((tmp_path / "trials.jsonl").read_text())
    del line["check"]
    (tmp_path / "trials.jsonl").write_bytes(sealed(line | changes, SEAL)[0])
    with pytest.raises(ValueError, match="line 1 is damaged"):
        read_trials(tmp_path, SEAL)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"params": {"learning.global_lr": 1.0}}, "values of learning.global_lr"),
        ({"outcomes": ()}, "the seeds"),
        ({"outcomes": (reached(99, 1.0),)}, "the seeds"),
        ({"same_as": 7}, "the same as trial 7"),
    ],
)
def test_a_trial_of_another_tuning_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    tuning = make_tuning(START, target=0.5, search=RATE, no_search=["all"], seeds=1)
    score, made = Score(Standing.REACHED, 1.0), (reached(START.seed, 1.0),)
    sound = Trial(0, {"learning.local_lr": 0.1}, State.COMPLETE, score, made)
    refuse_foreign(tuning, [sound], tmp_path)
    with pytest.raises(ValueError, match=f"not of this tuning.*{words}"):
        refuse_foreign(tuning, [replace(sound, **changes)], tmp_path)


# --- the tuning and its folder ----------------------------------------------------------------------------------


def tuning_of(**changes: Any) -> Tuning:
    given = {"target": 0.5, "search": RATE, "no_search": ["all"]} | changes
    return make_tuning(with_settings(START, given.pop("start", {})), **given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": 0.0}, "the target is 0"),
        ({"target": 1.5}, "at most 1"),
        ({"target": math.nan}, "the target is nan"),
        ({"goal": "speed"}, "one of time, energy, accuracy"),
        ({"goal": "accuracy", "target": None}, "give it, with --within 20s"),
        ({"goal": "accuracy", "within_s": 1.0}, "a target has no meaning"),
        ({"within_s": -1.0}, "above 0 s"),
        ({"trials": 0}, "the number of trials is 0"),
        ({"seeds": 0}, "the number of seeds is 0"),
        ({"fresh_seeds": True}, "the number of fresh seeds is True"),
        ({"batch": 0}, "trials in a batch is 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tuning_of(**changes)


def test_runs_end_at_the_target_or_when_their_time_is_over() -> None:
    usual = tuning_of(start={"seed": 7})
    assert math.isclose(usual.aim.within_s, 6 * 0.02)
    assert (usual.seeds, usual.fresh) == ((7, 8, 9), (10, 11, 12, 13, 14))
    shorter = usual.run_config(with_settings(START, {"wireless.deadline_s": 0.008}), 8)
    assert (shorter.run.rounds, shorter.run.target_accuracy, shorter.seed) == (15, 0.5, 8)
    timed = tuning_of(within_s=3.0)
    assert timed.run_config(START, 0).run.rounds == 1500
    assert all(0.02 <= each < 3.0 for each in timed.pauses_s)
    assert tuning_of(prune=False).pauses_s == ()
    best = tuning_of(goal="accuracy", target=None, within_s=2.0, start={"run.target_accuracy": 0.3})
    assert best.run_config(START, 0).run.target_accuracy == 0.0


def test_whole_numbers_are_the_same_tuning() -> None:
    one, other = (tuning_of(within_s=within_s) for within_s in (1, 1.0))
    assert seal_of(one) == seal_of(other)
    assert make_tuning(START, target=0.5, no_search="all", search=RATE).space == one.space


def test_a_folder_holds_one_tuning_which_may_grow(told: list[Trial], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not begin_tuning(tuning_of(trials=8), out)
    assert begin_tuning(tuning_of(trials=8), out)
    assert begin_tuning(tuning_of(trials=16), out)
    assert json.loads((out / "tuning.json").read_text())["trials"] == 16
    kept = (out / "tuning.json").read_bytes()
    write_trials(out, told[:12], seal_of(tuning_of()))
    with pytest.raises(ValueError, match="holds 12 trials of this tuning, and the number of trials is 8"):
        begin_tuning(tuning_of(trials=8), out)
    with pytest.raises(ValueError, match="its target is"):  # that it is another tuning comes first
        begin_tuning(tuning_of(trials=8, target=0.6), out)
    others: list[tuple[dict[str, Any], str]] = [
        ({"target": 0.6}, "its target is 0.5, here 0.6: --target"),
        ({"batch": 4}, "--batch"),
        ({"seeds": 2}, "--seeds"),
        ({"prune": False}, "--no-prune"),
        ({"search": {"learning.local_lr": (0.01, 1.0)}}, "searched settings are others"),
        ({"start": {"learning.global_lr": 0.5}}, "its learning.global_lr is the default, here 0.5"),
    ]
    for changes, words in others:
        with pytest.raises(ValueError, match=words):
            begin_tuning(tuning_of(trials=16, **changes), out)
    assert (out / "tuning.json").read_bytes() == kept
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no tuning"):
        begin_tuning(tuning_of(), tmp_path / "full")
    (out / "tuning.json").write_text("{}")
    with pytest.raises(ValueError, match="is not what flare tune writes"):
        begin_tuning(tuning_of(), out)


# --- the winner beside the start --------------------------------------------------------------------------------


def judgement(start: list[Outcome], best: list[Outcome], score: Score | None = None) -> Judgement:
    trial = Trial(3, {"learning.local_lr": 0.1}, State.COMPLETE, score or Score(Standing.REACHED, 1.0), tuple(best))
    return Judgement(TIME, trial, START, tuple(start), tuple(best), (), is_start=False)


def test_winner_and_start_are_compared_in_pairs() -> None:
    start = [reached(seed, time_s) for seed, time_s in enumerate((4.0, 6.0, 8.0))]
    best = [reached(seed, 0.5 * time_s) for seed, time_s in enumerate((4.0, 6.0, 8.0))]
    time, energy, accuracy = judgement(start, best).quantities
    assert (time.start.mean, time.best.mean, time.difference.mean.mean) == (6.0, 3.0, -3.0)
    np.testing.assert_allclose(time.ratio, 0.5)  # in every pair: the interval is a point
    student = 0.95 / math.sqrt(2.0 * 0.975 * 0.025)  # its quantile at 97.5 % and two degrees of freedom
    half = student * 1.0 / math.sqrt(3.0)  # differences -2, -3, -4
    assert math.isclose(time.difference.mean.half, half)
    assert (time.difference.lost, energy.difference.mean.mean, accuracy.difference.mean.mean) == (3, 0.0, 0.0)
    assert verdict(judgement(start, best)) == (
        "With fresh seeds the winner takes 0.5 [0.5, 0.5] times the simulated time of the start."
    )
    assert judged_rows(judgement(start, best))[0][-1] == "3 of 3"
    assert lead(judgement(start, best)).endswith("reaches the target with 3 of 3 fresh seeds, the start with 3 of 3.")


def test_seeds_that_miss_the_target_are_said_and_not_compared_by_time() -> None:
    told = judgement([reached(0, 4.0), outcome(1), outcome(2)], [reached(0, 3.0), reached(1, 5.0), outcome(2)])
    time = told.quantities[0]
    assert time.difference.mean.count == 1
    assert (time.start.mean, time.best.mean, time.ratio[0]) == pytest.approx((4.0, 3.0, 0.75))  # of seed 0 alone
    assert verdict(told).startswith(
        "With the 1 fresh seed of 3 with which both reach the target the winner takes 0.75 times"
    )
    assert judged_rows(told)[-1][:3] == ["target reached", "1 of 3", "2 of 3"]
    none = judgement([outcome(0), outcome(1)], [reached(0, 3.0), reached(1, 3.0)])
    assert "reached by the winner with 2 of 2, by the start with 0 of 2 seeds" in verdict(none)
    assert lead(none) == verdict(none)  # it says so already
    assert (none.quantities[0].start.count, none.quantities[0].best.mean) == (0, 3.0)


def test_a_target_that_no_trial_reaches_is_said() -> None:
    missed = judgement([outcome(0, accuracy=0.3)], [outcome(0, accuracy=0.4)], Score(Standing.MISSED, 0.1))
    said = verdict(missed)
    assert "No trial reached 50 % with every seed within 10 s: the winner is the best by accuracy, 40.0 %" in said
    assert "+10.0 points of accuracy" in said
    assert "0 reached the target" in search_in_words([missed.trial], TIME)


# --- pictures ---------------------------------------------------------------------------------------------------


def test_pictures_show_the_best_so_far_and_every_trial_by_its_value(told: list[Trial]) -> None:
    trials = told[:12]
    values = figures.values_of(trials, TIME)
    assert [math.isnan(value) for value in values] == [trial.state is State.PRUNED for trial in trials]
    line, points, pruned, star = figures.best_so_far(trials, TIME).axes[0].lines
    best = [np.nanmin(values[: number + 1]) for number in range(12)]
    assert line.get_ydata().tolist() == best
    assert points.get_xdata().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert pruned.get_xdata().tolist() == [3, 7, 11]
    assert star.get_ydata() == [best[-1]]
    rate = Range("learning.local_lr", 0.001, 1.0, log=True)
    shown = figures.effect(rate, trials, TIME).axes[0].lines[0]
    assert shown.get_xdata().tolist() == [t.params["learning.local_lr"] for t in trials if t.state is State.COMPLETE]
    missed = [replace(trial, score=Score(Standing.MISSED, 0.1)) for trial in trials]
    assert figures.measured(missed, TIME) == "best test accuracy"
    assert figures.values_of(missed, TIME)[0] == trials[0].accuracy


def test_a_logarithmic_axis_has_several_labels_and_one_point_is_no_picture() -> None:
    rate = Range("learning.local_lr", 0.02, 0.9, log=True)
    trials = [
        Trial(number, {"learning.local_lr": 0.02 * 2**number}, State.COMPLETE, Score(Standing.REACHED, time_s),
              (reached(0, time_s),))
        for number, time_s in enumerate((0.2, 1.0, 4.0, 15.0))
    ]  # fmt: skip
    figure = figures.effect(rate, trials, TIME)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        ticks = zip(axis.get_ticklocs(minor=True), axis.get_ticklabels(minor=True), strict=True)
        ticks = [*ticks, *zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)]
        assert sum(low <= place <= high and bool(label.get_text()) for place, label in ticks) >= 3
    alone = tuning_sections(tuning_of(search={"learning.local_lr": (0.02, 0.9)}), trials[:1], judgement([], []), {})
    assert any("one trial alone" in panel_html(panel) for panel in alone[-1].panels)
