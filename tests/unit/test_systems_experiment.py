"""All systems side by side: who takes part, at which rate, what is claimed of them, and what the table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flare.cli.progress import showing_total
from flare.config import Config, settings_of
from flare.experiments import EXPERIMENTS, systems
from flare.experiments.claims import Verdict
from flare.experiments.experiment import Results, Scale
from flare.experiments.measures import fairness, seconds_to, total_energy_j
from flare.experiments.outcome import Outcome
from flare.experiments.page import page
from flare.experiments.reproduce import Reproduced, reproduce
from flare.experiments.systems import RATES, SYSTEMS, TUNING_SEEDS, times_earlier, tuning_seeds
from flare.experiments.systems_shown import scale_accuracies
from flare.experiments.trial import Trial
from flare.learning.methods import METHODS
from flare.registry import Registry
from flare.report import figures
from flare.scheduling import POLICIES
from flare.sweeps import Place
from tests.made_up_outcomes import filled, luck, made_up, ranked

EXPERIMENT = EXPERIMENTS["systems-mnist"]
HOLDS, FAILS, UNDECIDED = Verdict.HOLDS, Verdict.FAILS, Verdict.UNDECIDED


@pytest.fixture(autouse=True)
def two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "CELLS", systems.CELLS[:2])


def built_in(registry: Registry[object]) -> set[str]:
    return {name for name in registry if registry.origin(name).built_in}


# --- who takes part -----------------------------------------------------------------------------------------------


def test_no_method_and_no_policy_is_forgotten() -> None:
    assert {one.policy for one in SYSTEMS if one.method == "fedavg"} == built_in(POLICIES)  # type: ignore[arg-type]
    assert {one.method for one in systems.KINDS[1]} | {"fedavg"} == built_in(METHODS)  # type: ignore[arg-type]
    assert {one.method for one in systems.KINDS[1] if one.policy != "exact"} == {"fedbuff"}
    assert systems.SPF in SYSTEMS
    assert systems.SHARED in SYSTEMS
    assert len({one.label for one in SYSTEMS}) == len(SYSTEMS)
    listed = {*systems.POLICY_NEEDS, *systems.METHOD_NEEDS}
    assert listed == {*POLICIES, *METHODS}
    groups = [name for group in systems.GROUPS.values() for name in group]
    assert len(set(groups)) == len(groups)
    assert set(groups) <= set(systems.POLICY_NEEDS)
    assert all(one in SYSTEMS for one in systems.LINES)


def test_what_systems_need_are_settings() -> None:
    known = settings_of(Config())
    needs = {need.partition("=")[0] for one in SYSTEMS for need in one.needs}
    assert {need for need in needs if not need.startswith("scheduling.options.")} <= set(known)


def test_cells_are_those_of_figs_5_and_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [(cell.dataset, cell.deadline_s, cell.distribution) for cell in systems.CELLS] == [
        (data, deadline, distribution)
        for data, deadlines in (("mnist", (0.4, 1.0)), ("cifar10", (1.5, 5.0)))
        for deadline in deadlines
        for distribution in ("i.i.d.", "non-i.i.d.")
    ]
    assert {cell.dataset: cell.target for cell in systems.CELLS} == {"mnist": 0.9, "cifar10": 0.5}


# --- the rate -----------------------------------------------------------------------------------------------------


def peaked(best: Callable[[Trial], float]) -> Callable[[Trial], Outcome]:
    """Runs that are best at one rate, another for every system."""
    return ranked(lambda trial: 0.6 if trial.config.learning.local_lr == best(trial) else 0.4)


def test_each_is_judged_at_its_best_rate_by_seeds_it_was_not_chosen_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "SYSTEMS", systems.SYSTEMS[:6])
    scale, (low, middle, high) = Scale((0, 1, 2)), RATES["mnist"]
    tuning = EXPERIMENT.trials(scale)
    assert {trial.seed for trial in tuning} == set(TUNING_SEEDS)
    many = Scale(tuple(range(101)))  # those of `--seeds 101`
    assert not set(tuning_seeds(many)) & set(many.seeds)
    assert {trial.config.run.rounds for trial in tuning} == {100}
    assert len(tuning) == 2 * 6 * 3 * len(TUNING_SEEDS)
    liked = {"greedy": high, "cp": low}

    def best(trial: Trial) -> float:
        return liked.get(trial.config.scheduling.policy, middle)

    first = Results(tuning, {trial.key: peaked(best)(trial) for trial in tuning}, scale)
    assert EXPERIMENT.then is not None
    judged = EXPERIMENT.then(first)
    assert len(judged) == 2 * 6 * 3
    assert [trial.seed for trial in judged[:3]] == [0, 1, 2]
    assert {trial.config.run.rounds for trial in judged} == {300}
    for trial in judged:
        assert trial.config.learning.local_lr == best(trial)
        assert trial.curve in {one.label for one in systems.SYSTEMS}  # one curve a system, whatever its rate
    assert not {trial.key for trial in tuning} & {trial.key for trial in judged}


def test_of_equal_rates_the_papers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "SYSTEMS", systems.SYSTEMS[:2])
    scale = Scale((0,))
    tuning = EXPERIMENT.trials(scale)
    results = Results(tuning, {trial.key: made_up() for trial in tuning}, scale)
    assert systems.best_rate(results, systems.CELLS[0], SYSTEMS[0]) == RATES["mnist"][0]


def test_rates_are_chosen_and_told_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURE_FORMATS", (".png",))
    monkeypatch.setattr(systems, "CELLS", systems.CELLS[1:2])
    monkeypatch.setattr(systems, "rates", lambda cell, scale: (0.05, 1e-6))
    kept = tuple(one for one in SYSTEMS if one in systems.LINES[:3] or one == systems.SHARED)
    monkeypatch.setattr(systems, "SYSTEMS", kept)
    monkeypatch.setattr(systems, "KINDS", (kept,))
    monkeypatch.setitem(EXPERIMENTS, EXPERIMENT.name, replace(EXPERIMENT, claims=lambda results: []))
    (one,) = reproduce([EXPERIMENT.name], Scale((0,), quick=True), Place("cpu"), tmp_path)
    content = json.loads((tmp_path / "systems-mnist.json").read_text())
    (panel,) = content["panels"]
    assert set(content["panels"][panel]) == {each.label for each in kept}
    assert set(content["chosen_by"][panel]) == {f"{s.label}, lr {r}" for s in kept for r in ("0.05", "1e-06")}
    assert all(trial.config.learning.local_lr == 0.05 for trial in one.results.trials)
    assert one.first is not None
    keys = {trial.key for lot in (one.results, one.first) for trial in lot.trials}
    assert {path.name for path in (tmp_path / "trials").iterdir()} == keys
    assert len(keys) == 4 * (2 + 1)


def test_progress_takes_in_runs_that_others_decided(capsys: pytest.CaptureFixture[str]) -> None:
    rounds_of = {"first": 4.0}
    with showing_total(rounds_of, quiet=False) as show:
        show("first", 4, True)
        rounds_of["then"] = 6.0
        show("then", 3, False)
        show("then", 6, True)
    assert "Error" not in capsys.readouterr().err


# --- measures and claims ------------------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    run = made_up([0.2, 0.5, 0.4, 0.9, 0.8, 0.95], energy_j=2.0, times_sent=[3.0, 1.0, 0.0, 0.0])
    assert seconds_to(run, 0.5) == 2.0  # the second test, after four rounds of half a second
    assert seconds_to(run, 0.9) == 4.0
    assert seconds_to(run, 0.96) == float("inf")
    assert total_energy_j(run) == 24.0
    assert fairness(run) == pytest.approx(16.0 / (4 * 10.0))
    assert fairness(made_up(times_sent=[2.0, 2.0, 2.0])) == 1.0
    assert np.isnan(fairness(made_up(times_sent=[0.0, 0.0])))


def test_how_much_earlier_by_hand() -> None:
    early, late, never = made_up([0.6] * 6), made_up([0.1] * 3 + [0.6] * 3), made_up([0.1] * 6)
    assert times_earlier(early, late, 0.5) == pytest.approx(2.0)  # 1 s against 4 s
    assert times_earlier(late, early, 0.5) == pytest.approx(-2.0)
    assert times_earlier(early, never, 0.5) == pytest.approx(np.log2(6.0))  # its end
    assert times_earlier(never, never, 0.5) == 0.0
    soon_over = replace(
        never, test_s=never.test_s / 3.0, end_s=never.end_s / 3.0
    )  # at 2 s: before the other has the target; not earlier
    assert times_earlier(late, soon_over, 0.5) == 0.0
    assert times_earlier(soon_over, late, 0.5) == 0.0


def found(outcome: Callable[[Trial], Outcome]) -> dict[str, Verdict]:
    claims = EXPERIMENT.claims(filled(EXPERIMENT, outcome))
    return {each.name.removeprefix("systems-mnist-"): each.verdict for each in claims}


def test_a_group_is_above_another_by_its_mean() -> None:
    heights = {"both": 0.7, "channel": 0.6, "importance": 0.65, "blind": 0.5}
    of = {name: heights[group] for group, names in systems.GROUPS.items() for name in names}
    spread = {"cp": 0.05, "fedcs": -0.05}  # which cancels
    table = ranked(
        lambda trial: of.get(trial.config.scheduling.policy, 0.4) + spread.get(trial.config.scheduling.policy, 0.0)
    )
    verdicts = found(table)
    pairs = ("both-over-channel", "both-over-importance", "both-over-blind", "channel-over-blind")
    assert {verdicts[name] for name in (*pairs, "importance-over-blind")} == {HOLDS}
    claims = {each.name: each for each in EXPERIMENT.claims(filled(EXPERIMENT, table))}
    assert claims["systems-mnist-both-over-channel"].effect.mean == pytest.approx(10.0)
    assert claims["systems-mnist-both-over-channel"].depends
    assert verdicts["flare-exact-over-policies"] is FAILS
    assert verdicts["flare-over-fedavg"] is UNDECIDED


def test_one_policy_ahead_in_one_cell_is_enough_to_fail() -> None:
    def outcome(trial: Trial) -> Outcome:
        lucky = trial.curve == "fedavg:oort" and trial.panel.startswith("non")
        ours = 0.7 if trial.config.learning.method == "flare" else 0.5
        return made_up((0.8 if lucky else ours) + luck(trial.seed))

    verdicts = found(outcome)
    assert verdicts["flare-exact-over-policies"] is verdicts["flare-greedy-over-policies"] is FAILS
    assert verdicts["flare-over-fedavg"] is HOLDS


def test_sharing_is_judged_on_data_that_are_not_iid_and_fairness_by_who_sends() -> None:
    def outcome(trial: Trial) -> Outcome:
        shared = trial.config.data.shared_fraction > 0.0
        height = 0.6 if shared and trial.panel.startswith("non") else 0.4 if shared else 0.5
        even = trial.config.scheduling.policy == "exact"
        return made_up(height + luck(trial.seed), times_sent=[3.0 + trial.seed, 3.0 if even else 0.5])

    verdicts = found(outcome)
    assert verdicts["sharing-over-fedavg"] is HOLDS
    assert verdicts["exact-fairer"] is HOLDS


def test_what_is_not_run_is_neither_claimed_nor_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the systems in a part of the cells, as somebody with little time takes it."""
    first = systems.CELLS[0]
    monkeypatch.setattr(systems, "is_run", lambda cell, one: cell == first and one.policy in ("exact", "cp", "oort"))
    results = filled(EXPERIMENT, ranked(lambda trial: 0.5))
    assert results.panels == [first.name]
    names = {each.name.removeprefix("systems-mnist-") for each in EXPERIMENT.claims(results)}
    assert {"flare-exact-over-policies", "both-over-channel", "exact-fairer"} <= names
    assert not {"sharing-over-fedavg", "flare-greedy-over-policies", "both-over-blind"} & names
    figures = EXPERIMENT.draw(results)
    assert set(figures) == {f"systems-mnist{end}" for end in ("", "-target", "-rounds", "-seconds")}
    rows = {text.get_text() for text in figures["systems-mnist"].axes[0].get_yticklabels()}
    assert "fedavg:cp (CP)" in rows
    assert "fedavg:greedy (SP)" not in rows
    assert "`fedavg:cp`" in systems.survey(results)
    assert "`fedavg:greedy`" not in systems.survey(results)


def test_on_cifar10_devices_are_asked_about_a_batch_and_rates_are_chosen_over_all_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    trials = EXPERIMENTS["systems-cifar10"].trials(Scale((0,)))
    assert {trial.config.data.name for trial in trials} == {"cifar10"}
    assert {trial.config.wireless.deadline_s for trial in trials} == {1.5, 5.0}
    assert {trial.config.run.rounds for trial in trials} == {500}  # also those by which rates are chosen
    run = {trial.curve.rpartition(", lr ")[0] for trial in trials}
    asking = {data: {one.label for one in those} for data, those in systems.ASKING.items()}
    assert run == {one.label for one in SYSTEMS} - asking["mnist"]
    asked = [
        trial.config.scheduling.options for trial in trials if trial.curve.rpartition(", lr ")[0] in asking["cifar10"]
    ]
    assert len(asked) == len(asking["cifar10"]) * len(systems.cells_with("cifar10")) * len(RATES["cifar10"])
    assert all("batch" in options.values() for options in asked)
    horizons = [trial.config.scheduling.options.get("horizon") for trial in trials if "fedavg:xu" in trial.curve]
    assert set(horizons) == {None}
    mnist = EXPERIMENT.trials(Scale((0,)))
    assert {trial.curve.rpartition(", lr ")[0] for trial in mnist} == {one.label for one in SYSTEMS} - asking["cifar10"]
    assert {trial.config.run.rounds for trial in mnist} == {100}
    horizons = [trial.config.scheduling.options.get("horizon") for trial in mnist if "fedavg:xu" in trial.curve]
    assert set(horizons) == {100}


def test_accuracies_can_be_told_apart_where_most_are_good() -> None:
    """Equal ratios of errors are equally far apart, and no axis goes beyond 100 %."""

    def axis(*accuracies: float) -> tuple[Axes, list[float]]:
        axes = Figure().add_subplot()
        for row, mean in enumerate(accuracies):
            axes.errorbar(mean, row, xerr=0.6)
        scale_accuracies(axes)
        return axes, axes.transData.transform([(each, 0.0) for each in (0.0, 0.9, 0.99)])[:, 0].tolist()

    axes, at = axis(0.5, 0.95, 0.97, 0.992)
    assert at[2] - at[1] == pytest.approx(at[1] - at[0])
    assert 0.0 == axes.get_xlim()[0] < 0.992 < axes.get_xlim()[1] < 1.0
    assert {"0", "50", "90", "99", "99.5"} <= {text.get_text() for text in axes.get_xticklabels()}
    axes, at = axis(0.3, 0.5, 0.4)
    assert at[2] - at[1] == pytest.approx(0.1 * (at[1] - at[0]))
    assert axes.get_xlim() == pytest.approx((0.0, 0.55))


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_table_says_what_the_runs_say() -> None:
    def outcome(trial: Trial) -> Outcome:
        if trial.curve != "fedavg:oort":
            return made_up()
        uneven = trial.panel.startswith("non")
        tests = [0.5, 0.5, 0.95, 0.95, 0.95, 0.95] if uneven and trial.seed else [0.5] * 6
        return made_up(tests, energy_j=3.0 if uneven else 1.0, times_sent=[1.0, 1.0] if uneven else [1.0, 0.0])

    text = systems.survey(filled(EXPERIMENT, outcome))
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert head == [
        *("system", "digits, 0.4 s: accuracy, %", "digits, 0.4 s: s to 90%", "digits, 0.4 s: devices a round"),
        *("energy of a run, J", "fairness"),
    ]
    there = [one for one in SYSTEMS if one not in systems.ASKING["cifar10"]]
    assert [row[0] for row in rows] == [f"`{one.label}`" for one in there]
    (oort,) = [row for row in rows if row[0] == "`fedavg:oort`"]
    # Non-i.i.d.: of two seeds the last five tests are 0.5 once and 0.95 four times, 86 %, of the other 50 %: 74 % on
    # average; the third test is at 3 s. Energy: 12 rounds of 1 J and of 3 J. Fairness: a half and one.
    assert oort[1:] == ["50.0 / 74.0", "– / 3 (2 of 3)", "4 / 4", "24", "0.75"]


def test_the_page_has_a_section_when_the_runs_are_there() -> None:
    results = filled(EXPERIMENT, ranked(lambda trial: 0.5))
    made = Reproduced(EXPERIMENT, results, tuple(EXPERIMENT.claims(results)))
    text = page([made], "folder")
    section = text.split(f"### {EXPERIMENT.title}")[1]
    assert systems.survey(results) in section
    assert all(f"(`{claim.name}`)" in section for claim in made.claims)
    assert {f"folder/figures/{stem}.png" in section for stem in EXPERIMENT.draw(results)} == {True}
    short = text.split("## In short")[1].split("## Setting")[0]
    assert short.count("\n- ") == 1  # sentences about other experiments are left out with them
    assert "importance and channel" in short
