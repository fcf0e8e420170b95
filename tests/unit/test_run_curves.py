"""The numbers and names of a report: what is drawn agrees with the records, and groups are told apart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.config import Config, override
from flare.config.code_parts import CODE_PARTS, code_key
from flare.records import RunFolder
from flare.records.manifest import read_manifest, refuse_other
from flare.records.run import RunNumbers, read_run
from flare.report.curves import (
    MAX_POINTS,
    Curve,
    accuracy_against_rounds,
    accuracy_against_time,
    accuracy_at,
    against_rounds,
    along,
    common_place,
    estimate,
    over_seeds,
    rounds_of_tests,
    summarise,
    times_of_tests,
)
from flare.report.group_labels import PAPER_NAMES, differing, labels_of, paper_name
from flare.report.run_figures import MAX_CURVES, ROUND, lines, looks
from flare.report.run_groups import Group, group_runs, settings_table
from flare.rounds import RoundRecord
from flare.types import Floats
from tests.made_up_runs import settings, write_run

FORMAT_1 = Path(__file__).resolve().parents[1] / "golden" / "before" / "run-format-1"


def group(*runs: RunNumbers) -> Group:
    groups, left_out = group_runs(runs)
    assert len(groups) == 1
    assert not left_out
    return groups[0]


def test_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    # s = 1, n = 3; the 97.5 % quantile of Student's t with 2 degrees of freedom is sqrt(2) a / sqrt(1 - a^2), a = 0.95.
    quantile = math.sqrt(2.0) * 0.95 / math.sqrt(1.0 - 0.95**2)
    assert (found.mean, found.count) == (2.0, 3)
    assert math.isclose(found.half, quantile / math.sqrt(3.0), rel_tol=1e-12)


def test_missing_seeds_are_left_out_point_by_point() -> None:
    nan = math.nan
    curve = over_seeds(np.arange(4.0), np.array([[1.0, 1.0, 5.0, nan], [2.0, 3.0, nan, nan], [3.0, nan, nan, nan]]))
    np.testing.assert_array_equal(curve.seeds, [3, 2, 1, 0])
    np.testing.assert_array_equal(curve.mean, [2.0, 2.0, 5.0, nan])
    # s = 1, n = 3, the quantile as above; with two seeds and with one there is no interval.
    half = math.sqrt(2.0) * 0.95 / math.sqrt(1.0 - 0.95**2) / math.sqrt(3.0)
    np.testing.assert_allclose(curve.half, [half, nan, nan, nan], rtol=1e-9)


def test_runs_that_differ_only_in_seed_are_one_group(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{policy}{seed}", settings(policy, seed=seed), rounds=2 + seed))
        for seed in (1, 0)
        for policy in ("greedy", "exact")
    ]
    groups, left_out = group_runs(runs)
    assert [each.label for each in groups] == ["flare:greedy", "flare:exact"]
    assert [[run.config.seed for run in each.runs] for each in groups] == [[0, 1], [0, 1]]
    assert not left_out


def test_of_two_folders_with_one_seed_the_longer_counts(tmp_path: Path) -> None:
    short, long = (read_run(write_run(tmp_path / f"{rounds}", settings(rounds=9), rounds=rounds)) for rounds in (3, 7))
    for runs in ([short, long], [long, short]):
        groups, left_out = group_runs(runs)
        assert [each.runs for each in groups] == [(long,)]
        assert left_out == [short]


def test_numbers_of_a_run_agree_with_its_records(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings("dm", seed=4), rounds=30, infeasible={2, 7})
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    run = read_run(folder)
    line = summarise(group(run))
    tested = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    assert line.final.mean == tested[-1]
    assert line.best.mean == max(tested)
    assert line.rounds == (30, 30)
    assert line.clock_s.mean == records[-1]["clock_s"]
    assert line.without_sender == 2
    assert math.isclose(line.devices, sum(len(record["selected"]) for record in records) / 30.0)
    energy_j = sum(sum(record["compute_energy_j"]) + sum(record["upload_energy_j"]) for record in records)
    assert math.isclose(line.energy_j, energy_j)
    gaps = [record["objective"] / record["lower_bound"] - 1.0 for record in records if record["objective"]]
    assert math.isclose(line.gap, math.fsum(gaps) / 28.0)
    # Computing, upload, waiting and rounds without a sender are all that happens on the clock.
    assert math.isclose(run.round_split_s().sum() * 30.0, records[-1]["clock_s"])
    assert run.round_split_s()[:2].tolist() == [0.0, 0.0]  # nobody is asked, no broadcast
    assert (run.round_split_s()[2:] > 0.0).all()
    share = run.participation()
    assert all(share[device] == sum(device in record["selected"] for record in records) / 30.0 for device in range(40))


def test_a_common_place_is_one_that_every_sound_run_reaches(tmp_path: Path) -> None:
    long = read_run(write_run(tmp_path / "long", settings(), rounds=40))
    short = read_run(write_run(tmp_path / "short", settings("exact"), rounds=15))
    lost = read_run(write_run(tmp_path / "lost", settings("ps"), rounds=40, diverge_at=6))
    groups, _ = group_runs([long, short, lost])
    assert common_place(groups, times_of_tests) == short.of_round["clock_s"][-1]
    assert common_place(groups, rounds_of_tests) == 15.0
    clock_s, accuracy = long.of_round["clock_s"], long.of_round["test_accuracy"]
    halfway_s = (clock_s[9] + clock_s[14]) / 2.0  # tests after rounds 10 and 15
    found = accuracy_at(long, np.array([clock_s[9], halfway_s, clock_s[0]]))
    np.testing.assert_allclose(found, [accuracy[9], (accuracy[9] + accuracy[14]) / 2.0, np.nan], rtol=1e-12)
    assert math.isnan(common_place([each for each in groups if each.runs == (lost,)], times_of_tests))


def test_a_run_that_diverged_guesses_from_where_it_ended(tmp_path: Path) -> None:
    sound = read_run(write_run(tmp_path / "0", settings(seed=0, evaluate_every=1), rounds=12))
    lost = read_run(write_run(tmp_path / "1", settings(seed=1, evaluate_every=1), rounds=12, diverge_at=8))
    lost = replace(lost, manifest={**lost.manifest, "num_classes": 10})
    line, both = summarise(group(sound, lost)), group(sound, lost)
    end = (sound.of_round["test_accuracy"][-1] + 0.1) / 2.0
    assert line.final.count == 2
    assert math.isclose(line.final.mean, end)

    def accuracy(run: RunNumbers) -> Floats:
        return run.accuracies

    for curve in (
        accuracy_against_rounds(both),
        against_rounds(both, accuracy, is_accuracy=True),
        accuracy_against_time(both),
        along(both, lambda run: run.round_energy_j().cumsum(), accuracy, is_accuracy=True),
    ):
        assert math.isclose(curve.mean[-1], end)
        assert (curve.seeds[0], curve.seeds[-1]) == (2, 2)
    assert against_rounds(both, accuracy).seeds[-1] == 1  # any other quantity ends
    assert line.status == "1\N{NO-BREAK SPACE}finished, 1\N{NO-BREAK SPACE}diverged"


def test_curves_are_short_and_keep_their_ends(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{seed}", settings(seed=seed, evaluate_every=1), rounds=rounds))
        for seed, rounds in enumerate((400, 400, 400, 90))
    ]
    all_runs = group(*runs)
    curve = accuracy_against_rounds(all_runs)
    assert len(curve.x) <= MAX_POINTS
    assert (curve.x[0], curve.x[-1]) == (1.0, 400.0)
    assert (curve.seeds[0], curve.seeds[-1]) == (4, 3)
    assert math.isclose(curve.mean[-1], np.mean([run.of_round["test_accuracy"][-1] for run in runs[:3]]))
    loss = against_rounds(group(runs[0]), lambda run: run.of_round["train_loss"])
    assert len(loss.x) <= MAX_POINTS
    # 400 rounds are 40 bins of 4 and 80 of 3.
    losses = runs[0].of_round["train_loss"]
    assert (loss.x[0], loss.x[-1]) == (2.5, 399.0)
    np.testing.assert_allclose(loss.mean[[0, -1]], [losses[:4].mean(), losses[-3:].mean()], rtol=1e-12)
    assert len(accuracy_against_time(all_runs).x) <= MAX_POINTS
    # Where most seeds have ended there is no curve.
    assert accuracy_against_rounds(group(runs[0], *(replace_seed(runs[3], s) for s in (5, 6, 7)))).x[-1] == 90.0


def replace_seed(run: RunNumbers, seed: int) -> RunNumbers:
    return replace(run, config=replace(run.config, seed=seed))


# --- labels -----------------------------------------------------------------------------------------------------


def labels(*configs: Config) -> list[str]:
    return labels_of([settings_table(config) for config in configs])


def test_labels_are_method_and_policy_as_given_and_what_differs() -> None:
    pairs = [("greedy", "flare"), ("greedy", "fedavg"), ("exact", "flare"), ("ps", "fedavg"), ("mine", "own one")]
    given_names = ["flare:greedy", "fedavg:greedy", "flare:exact", "fedavg:ps", "own one:mine"]
    assert labels(*(settings(*pair) for pair in pairs)) == given_names
    assert [labels(settings(*pair))[0] for pair in pairs] == given_names  # the same name, whoever else is there
    assert labels(settings(tau_bar="mas"), settings(tau_bar="fmes")) == [
        "flare:greedy, tau_bar mas",
        "flare:greedy, tau_bar fmes",
    ]
    for changes, words in (
        ({"local_lr": 0.1}, "lr 0.1"),
        ({"deadline_s": 2.0}, "deadline 2 s"),
        ({"max_distance_m": 300.0}, "max distance 300 m"),
    ):
        assert labels(settings(**changes), settings())[0] == f"flare:greedy, {words}"


def test_the_papers_names_apply_to_its_own_pairs_alone() -> None:
    pairs = {("flare", "greedy"): "SPF", ("fedavg", "greedy"): "SP", ("fedavg", "ps"): "PS", ("fedavg", "cp"): "CP"}
    pairs |= {("fedavg", "dm"): "DM", ("fedavg", "cm"): "CM"}
    for method in ("flare", "fedavg", "scaffold"):
        for policy in ("greedy", "exact", "ps", "cp", "dm", "cm"):
            found = paper_name(settings_table(settings(policy, method)))
            assert found == pairs.get((method, policy), "")
            assert not found or found in PAPER_NAMES
    assert paper_name(settings_table(settings(tau_bar="mes"))) == ""  # the paper's SPF takes MaS


def test_a_label_has_the_options_in_which_groups_of_one_method_differ() -> None:
    assert labels(settings(tau_bar="mes"), settings(), settings(method="fedavg")) == [
        "flare:greedy, tau_bar mes",
        "flare:greedy, tau_bar mas",
        "fedavg:greedy",
    ]
    assert labels(settings(), settings(method="fedprox")) == ["flare:greedy", "fedprox:greedy"]
    assert labels(settings(method="fedprox"), settings(method="fedprox", prox_mu=0.5)) == [
        "fedprox:greedy, μ 0.1",
        "fedprox:greedy, μ 0.5",
    ]


def test_a_label_leaves_out_what_means_nothing_for_its_group() -> None:
    shards, other = settings(partition="shards", shards_per_device=3), settings("cm", shards_per_device=2)
    assert labels(shards, other) == ["flare:greedy, shards, shards per device 3", "flare:cm, iid"]
    # ... unless nothing else tells groups apart.
    assert labels(settings(shards_per_device=3), settings()) == [
        "flare:greedy, shards per device 3",
        "flare:greedy, shards per device 2",
    ]


def test_what_sets_one_group_apart_is_told_of_it_however_many_there_are() -> None:
    entries = {
        "fedavg:exact, uncoded, 10 % shared data": ["data.shared_fraction=0.1"],
        "fedpaq:exact, qsgd, 4 bits, no shared data": ["uplink.codec=qsgd", "uplink.bits=4"],
        "fedavg:random, num_selected=4, uncoded, no shared data": ["scheduling.options.num_selected=4"],
        "flare:exact, uncoded, no shared data": [],
    }
    configs = []
    for label, changes in entries.items():
        method, policy = label.partition(",")[0].split(":")
        configs.append(override(Config(), [f"learning.method={method}", f"scheduling.policy={policy}", *changes]))
    assert labels(*configs) == list(entries)
    # What nearly all have is no news.
    others = [settings(policy) for policy in ("greedy", "cm", "cp", "dm", "ps", "lp", "all", "random", "grouped")]
    assert labels(*configs, *others)[:4] == [
        "fedavg:exact, 10 % shared data",
        "fedpaq:exact, qsgd, 4 bits",
        "fedavg:random, num_selected=4",
        "flare:exact",
    ]


def test_the_code_of_a_policy_is_told_only_where_two_have_one_name() -> None:
    mine, other = ({"own policy": code} for code in ("abc123", "def456"))
    ours, built_in = settings_table(settings("mine")), settings_table(settings("exact")) | {"own policy": ""}
    assert labels_of([ours | mine, built_in]) == ["flare:mine", "flare:exact"]
    assert labels_of([ours | mine, ours | other, built_in]) == [
        "flare:mine, abc123",
        "flare:mine, def456",
        "flare:exact",
    ]


def test_groups_whose_settings_have_other_names_are_told_apart() -> None:
    """A method of a plugin may bring settings that other methods do not have."""
    tables = [settings_table(settings()), settings_table(settings()) | {"learning.options.beta": 0.5}]
    assert differing(tables) == ["learning.options.beta"]
    assert labels_of(tables) == ["flare:greedy", "flare:greedy, beta 0.5"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "policy": st.sampled_from(["greedy", "ps", "own <b>"]),
                "method": st.sampled_from(["flare", "fedavg", "fedprox"]),
                "dirichlet_alpha": st.sampled_from([0.1, 0.2]),
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
    found = labels(*configs)
    assert len(set(found)) == len(found)
    assert all(found)
    assert all(differing([settings_table(config)] * 2) == [] for config in configs)


def test_curves_differ_without_colour() -> None:
    for number in range(1, MAX_CURVES + 1):
        told_apart = {(look.dash, look.marker) for look in looks(number)}
        assert len(told_apart) == number
    many = looks(30)
    assert sum(bool(look.marker) for look in many) == MAX_CURVES - 1


def test_a_panel_shows_every_mean_and_no_band_dwarfs_them() -> None:
    x = np.arange(3.0)
    for means, top in (([0.5, 1.2, 2.2], 2.2 + 0.34 * 1.7), ([0.2, 0.6, 0.95], 1.01)):  # gaps may pass 100 %
        curve = Curve(x, np.array(means), np.full(3, 40.0), np.full(3, 2))
        low, high = lines("round", "share", [curve], looks(1), percent=True).axes[0].get_ylim()
        assert low <= means[0]
        assert means[-1] <= high <= top + 1e-9


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 7, 12, 40, 1000])
def test_ticks_are_whole_rounds(rounds: int) -> None:
    x = np.arange(1.0, rounds + 1.0)
    axes = lines(ROUND, "loss", [Curve(x, x, np.full(rounds, np.nan), np.full(rounds, 1))], looks(1)).axes[0]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(float(tick).is_integer() for tick in ticks)


def test_few_tests_are_marked_where_they_are_and_many_are_not(tmp_path: Path) -> None:
    few = group(*(read_run(write_run(tmp_path / f"{s}", settings(seed=s), rounds=20)) for s in range(3)))
    by_rounds, by_time = accuracy_against_rounds(few), accuracy_against_time(few)
    assert by_rounds.tests is not None
    assert by_time.tests is not None
    np.testing.assert_array_equal(by_rounds.tests, [5.0, 10.0, 15.0, 20.0])
    clocks = np.array([run.of_round["clock_s"][[4, 9, 14, 19]] for run in few.runs]).mean(axis=0)
    np.testing.assert_allclose(by_time.tests, clocks[(by_time.x[0] <= clocks) & (clocks <= by_time.x[-1])], rtol=1e-12)
    marked = lines(ROUND, "accuracy", [by_rounds], looks(1)).axes[0].lines[-1]
    np.testing.assert_array_equal(marked.get_xdata(), by_rounds.tests)
    np.testing.assert_array_equal(marked.get_ydata(), by_rounds.mean)
    many = group(read_run(write_run(tmp_path / "many", settings(evaluate_every=1), rounds=90)))
    assert accuracy_against_rounds(many).tests is None


# --- what a run is made of --------------------------------------------------------------------------------------


def own(samples: str, held: str, weights: str = "650", model: str = "ab") -> dict[str, str]:
    return {
        "data": "own data, 1437 samples, 10 classes",
        "samples": samples,
        "division": held,
        "model": f"own model Sequential, {weights} weights",
        "layers": f"{weights}ab",
        "start": model,
    }


def made_of(tmp_path: Path, *identities: dict[str, str]) -> list[Group]:
    """The groups of runs that differ in nothing but their seeds and in what they are made of."""
    runs = [
        read_run(write_run(tmp_path / f"{seed}", settings(seed=seed), rounds=2, identity=identity))
        for seed, identity in enumerate(identities)
    ]
    return group_runs(runs)[0]


def test_seeds_of_own_data_are_a_group_and_named_as_they_are(tmp_path: Path) -> None:
    (found,) = made_of(tmp_path, own("aaaa", "1"), own("aaaa", "2", model="cd"))
    assert [run.data for run in found.runs] == ["own data, 1437 samples, 10 classes"] * 2
    assert found.runs[0].model == "own model Sequential, 650 weights"
    assert found.label == "flare:greedy"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (own("aaaa", "1"), own("bbbb", "1"), ["aaaa", "bbbb"]),
        (own("aaaa", "1"), own("aaaa", "1", weights="12"), ["650 weights", "12 weights"]),
        (own("aaaa", "1"), {}, ["own data", ""]),
        ({"policy": "mine", "policy code": "12ab"}, {"policy": "mine", "policy code": "34cd"}, ["12ab", "34cd"]),
        ({"data": "digits", "samples": "aa"}, {"data": "digits", "samples": "bb"}, ["(1)", "(2)"]),
        (own("aaaa", "1") | {"layers": "77"}, own("aaaa", "1") | {"layers": "88"}, ["77", "88"]),
    ],
    ids=["samples", "model", "named data", "code", "changed files", "layers of the same size"],
)  # fmt: skip
def test_runs_of_something_else_are_no_seeds_of_a_group(
    one: dict[str, str], other: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    groups = made_of(tmp_path, one, other)
    assert len(groups) == 2
    assert groups[0].label != groups[1].label
    assert all(word in each.label for word, each in zip(words, groups, strict=True))


def test_synthetic_data_are_drawn_with_the_seed(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / f"{seed}", settings(seed=seed, name="synthetic"), rounds=2, identity=identity))
        for seed, identity in enumerate([{"data": "synthetic", "samples": f"{seed}"} for seed in (0, 1)])
    ]
    assert len(group(*runs).runs) == 2


def test_a_run_of_which_nothing_was_trained_has_not_diverged(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", settings(), rounds=6)
    records = [RoundRecord.from_json(told) for told in RunFolder.open(folder).records()]
    with RunFolder.create(tmp_path / "planned", settings(), facts={"trained": False}) as planned:
        for record in records:
            nothing = {"sent": [], "loss": [], "update_norm": [], "payload_bits": []}
            nothing |= {"train_loss": None, "test_accuracy": None}  # type: ignore[dict-item]
            planned.append(replace(record, **nothing).to_json())  # type: ignore[arg-type]
        planned.finish("finished")
    run = read_run(tmp_path / "planned")
    assert (run.trained, run.status) == (False, "finished")
    np.testing.assert_array_equal(run.num_senders, read_run(folder).num_senders)
    np.testing.assert_array_equal(run.participation(), read_run(folder).participation())


# --- old folders ------------------------------------------------------------------------------------------------


def test_a_folder_of_format_1_is_read_as_one_of_today() -> None:
    run = read_run(FORMAT_1)
    told = [json.loads(line) for line in (FORMAT_1 / "rounds.jsonl").read_text().splitlines()]
    assert run.num_rounds == len(told) == 4
    assert (run.data, run.status, run.trained) == ("digits", "interrupted", True)
    np.testing.assert_array_equal(run.of_round["clock_s"], [record["clock_s"] for record in told])
    np.testing.assert_array_equal(run.of_selected["tau"], [tau for record in told for tau in record["tau"]])
    np.testing.assert_array_equal(run.sent, [device for record in told for device in record["selected"]])
    assert summarise(group(run)).total_rounds == 4


def test_a_damaged_record_is_named_with_its_folder_and_round(tmp_path: Path) -> None:
    sound = RunFolder.open(write_run(tmp_path / "sound", settings(), rounds=3)).records()
    for name, value, words in (
        ("sent", None, "has sent = None, which is no list of whole numbers"),
        ("clock_s", "soon", "has clock_s = soon, which is no number"),
        ("clock_s", True, "has clock_s = True, which is no number"),
        ("clock_s", 10**400, "too large"),
        ("sent", [], "values of loss for 0 devices sent"),
        ("selected", [], "values of tau for 0 devices selected"),
    ):
        with RunFolder.create(tmp_path / "run", settings(), force=True) as folder:
            folder.append(sound[0])
            folder.append(sound[1] | {name: value})
        with pytest.raises(ValueError, match=rf"run: round 2 of its records .*{words}.*; the run folder is damaged"):
            read_run(tmp_path / "run")


def test_a_device_that_cannot_be_is_damage(tmp_path: Path) -> None:
    sound = RunFolder.open(write_run(tmp_path / "sound", settings(), rounds=1)).records()[0]
    with RunFolder.create(tmp_path / "run", settings()) as folder:
        folder.append(sound | {"sent": [10**12], "loss": [None], "update_norm": [None], "payload_bits": [1.0]})
    with pytest.raises(ValueError, match="round 1 of its records names device 1000000000000"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("part", CODE_PARTS)
def test_runs_of_other_code_are_another_group(tmp_path: Path, part: str) -> None:
    """Of whatever part of a run; a folder is not continued with it either, and the message says so."""
    codes = ({part: "mine", code_key(part): code} for code in ("abc123", "def456"))
    folders = [
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=2, identity=identity)
        for seed, identity in enumerate(codes)
    ]
    groups, _ = group_runs([read_run(folder) for folder in folders])
    assert [group.label.rpartition(", ")[2] for group in groups] == ["abc123", "def456"]
    manifest, other = read_manifest(folders[0]), {part: "mine", code_key(part): "def456"}
    with pytest.raises(ValueError, match=f"here: the code of its {part} is another; continue"):
        refuse_other(folders[0], manifest, other)
