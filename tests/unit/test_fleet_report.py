"""What the report, the views and the log say of real nodes: whose accuracy, which time, who did not send."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import flare
from flare.config import Config, override
from flare.flower import from_run_config
from flare.flower.evaluation import say_not_asked
from flare.flower.faults import Faults
from flare.flower.under_way import say_round
from flare.records import RunFolder
from flare.records.run import read_run, run_of
from flare.report.comparison import as_json
from flare.report.curves import summarise
from flare.report.effect_sections import effect_sections
from flare.report.effects import SweptRun
from flare.report.paired import ranked_groups
from flare.report.run_groups import group_runs
from flare.report.run_report import contents, read_runs
from flare.report.run_words import accuracy_note, headline, remarks_on
from flare.research.tables import device_columns
from flare.rounds import RoundRecord
from flare.rounds.record import OF_SELECTED, OF_SENT
from flare.rounds.why_nobody import nobody_reported
from flare.scheduling import RoundProblem, Schedule, solve
from flare.studio import run_curves
from flare.sweeps.sweep_file import Factor

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


def record(index: int = 0, **changes: Any) -> RoundRecord:
    """A round of three nodes, of which two are selected and send, save where told otherwise."""
    selected, sent = changes.pop("selected", [0, 2]), changes.pop("sent", [0, 2])
    unknown = dict.fromkeys(("tau_bar", "gamma", "smoothness", "objective", "lower_bound"))
    told: dict[str, Any] = {
        "round": index,
        "status": "feasible",
        "available": 3,
        "selected": selected,
        "sent": sent,
        "latency_s": 2.0,
        "deadline_s": 2.0,
        "clock_s": 2.0 * (index + 1),
        "wall_s": 3.25,
        **{name: [1.0] * len(selected) for name in OF_SELECTED},
        **{name: [1.0] * len(sent) for name in OF_SENT},
    }
    return RoundRecord(**(unknown | told | changes))


def fleet_run(folder: Path, config: Config, records: list[RoundRecord]) -> Path:
    with RunFolder.create(folder, config, facts={"driver": "flower"}) as run:
        for each in records:
            run.append(each.to_json())
        run.finish("finished", rounds=len(records), clock_s=records[-1].clock_s)
    return folder


def words(folder: Path) -> str:
    """What stands above the pictures, without drawing any, and their titles."""
    runs = read_runs([folder])
    groups, ranked = ranked_groups(runs)
    lines = [summarise(group) for group in groups]
    titles = [f"{each.title}. {each.caption}" for section in contents(runs)[1] for each in section.panels]
    return "\n".join([headline(groups, lines, ranked), remarks_on(groups, lines, []), *accuracy_note(groups), *titles])


def test_a_round_of_which_nothing_came_is_one_without_a_sender(tmp_path: Path) -> None:
    late = record(1, sent=[], late=[0, 2], real_deadline_s=2.0)
    folder = fleet_run(tmp_path / "run", override(Config(), ["fleet.deadline=wall"]), [record(), late])
    run = read_run(folder)
    assert run.without_sender.tolist() == [False, True]
    groups, _ = group_runs([run])
    line = summarise(groups[0])
    assert line.without_sender == 1
    shown = words(folder)
    assert "In 1 of 2 rounds (50.0%) nobody sent; in 1 of them nothing came of those that were selected." in shown
    assert "In every round somebody sent" not in shown


@pytest.mark.parametrize(
    ("deadline", "time", "kind"),
    [
        ("modelled", "simulated time", "deadline 400 ms of modelled time"),
        ("wall", "real time", "deadline 400 ms of real time"),
        ("auto", "real time", "deadline 400 ms of real time at first, then as devices need it"),
    ],
)
def test_a_report_says_in_which_time_it_counts(tmp_path: Path, deadline: str, time: str, kind: str) -> None:
    records = [record(index, test_accuracy=0.5) for index in range(2)]
    shown = words(fleet_run(tmp_path / "run", override(Config(), [f"fleet.deadline={deadline}"]), records))
    assert f"Accuracy against {time}" in shown
    assert f"{kind}." in shown
    assert ("simulated time" in shown) == (deadline == "modelled")


@pytest.mark.parametrize(
    ("deadlines", "time"),
    [
        (["modelled"], "simulated time"),
        (["wall"], "real time"),
        (["auto", "wall"], "real time"),
        (["modelled", "wall"], "simulated or real time"),
    ],
)
def test_every_name_of_the_clock_says_in_which_time_it_counts(tmp_path: Path, deadlines: list[str], time: str) -> None:
    records = [record(index, test_accuracy=0.5) for index in range(2)]
    folders = [
        fleet_run(tmp_path / each, override(Config(), [f"fleet.deadline={each}"]), records) for each in deadlines
    ]
    runs = [read_run(folder) for folder in folders]
    axes = flare.Runs([flare.load(each) for each in folders]).plot("clock_s", x="time")
    assert (axes.get_xlabel(), axes.get_ylabel()) == (f"{time} (s)",) * 2
    curves = run_curves.curves(
        [(run.config.fleet.deadline, run) for run in runs], run_curves.CurveWish("clock_s", "time")
    )
    assert (curves["x_label"], curves["label"]) == (f"{time} (s)",) * 2
    assert [as_json(ranking)["by"] for ranking in ranked_groups(runs)[1]] == ["rounds", time]
    factor = Factor(("seed",), tuple((level,) for level in range(2)))
    (section,) = effect_sections([factor], [SweptRun(runs[0], (0,)), SweptRun(runs[-1], (1,))], target=0.0)
    assert f">{time}</th>" in section.after
    if len(runs) == 1:
        assert f" of {time}" in repr(flare.load(folders[0]))


def test_where_nodes_alone_test_the_accuracy_is_theirs_and_said_to_be(tmp_path: Path) -> None:
    by_nodes = {"tested": [0, 1], "node_accuracy": [0.7, 0.9], "node_accuracy_mean": 0.8, "node_accuracy_std": 0.1}
    folder = fleet_run(tmp_path / "run", Config(), [record(), record(1, **by_nodes)])
    assert read_run(folder).accuracy == 0.8
    shown = words(folder)
    assert "ends at a test accuracy on the nodes' own data of <b>80.0 %</b>" in shown
    assert "Accuracy: the mean over nodes of their own tests, as the server made none." in shown
    assert "devices told the base station the accuracy and loss of the model on their own data." in shown
    assert "told the base station nothing of their data" not in shown


def test_the_test_of_the_server_comes_before_those_of_nodes(tmp_path: Path) -> None:
    both = {"test_accuracy": 0.6, "tested": [0], "node_accuracy": [0.9], "node_accuracy_mean": 0.9}
    both |= {"node_accuracy_std": 0.0}
    folder = fleet_run(tmp_path / "run", Config(), [record(**both)])
    assert read_run(folder).accuracy == 0.6
    assert "the mean over nodes of their own tests" not in words(folder)


def test_data_and_model_of_ones_own_are_called_by_their_names(tmp_path: Path) -> None:
    own = override(Config(), ["data.name=photos", "learning.model=unet"])
    shown = words(fleet_run(tmp_path / "own", own, [record(test_accuracy=0.5)]))
    assert "data photos" in shown
    assert "model unet" in shown
    assert not any(word in shown for word in ("digits", "mlp", "partition"))


def test_the_table_of_devices_says_who_was_late(tmp_path: Path) -> None:
    config = override(Config(), ["fleet.deadline=wall", "wireless.num_devices=3"])
    records = [record(sent=[0], late=[2], real_deadline_s=2.0)]
    columns, _ = device_columns(records, run_of(records, config, {"driver": "flower"}, None))
    assert columns["late"].tolist() == [False, False, True]


def test_the_example_takes_rules_against_wrong_updates() -> None:
    said = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert {"robust", "clip"} <= set(said["learning"])  # Flower refuses to set what is not listed
    flat = {f"{section}.{key}": value for section in ("learning", "data") for key, value in said[section].items()}
    assert from_run_config(flat | {"learning.robust": "median", "learning.clip": 0}).learning.clip == 0


# The log


def logged(caplog: pytest.LogCaptureFixture, *records: RoundRecord) -> list[str]:
    with caplog.at_level(logging.INFO, logger="flwr"):
        for each in records:
            say_round(each)
    return [each.getMessage() for each in caplog.records]


def test_the_log_says_why_nodes_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def schedule_of(compute_s: list[float], snr_hz: list[float]) -> Schedule:
        common = {"payload_bits": 1e6, "total_bandwidth_hz": 1e7, "deadline_s": 1.0}
        return solve(RoundProblem(tau=[5.0] * len(snr_hz), compute_s=compute_s, snr_hz=snr_hz, **common))

    with caplog.at_level(logging.INFO, logger="flwr"):
        say_round(record(), schedule_of([0.1, 0.1, 9.0, 0.1], [1e9, 1e9, 1e9, 1.0]))
        say_round(record(), schedule_of([0.1, 0.1], [1e9, 1e9]))
    told = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert told == ["\tleft out: 1 too slow to compute, 1 channel too weak"]


def test_a_line_has_what_is_known_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    by_nodes = {"tested": [0], "node_accuracy": [0.8], "node_accuracy_mean": 0.8, "node_accuracy_std": 0.0}
    lines = logged(
        caplog,
        record(available=1, selected=[0], sent=[0]),
        record(1, train_loss=0.51234, test_accuracy=0.94321),
        record(2, **by_nodes),
    )
    assert lines == [
        "round 1: 1 node, 1 selected, 1 sent; clock 2 s, 3.2 s of real time",
        "round 2: 3 nodes, 2 selected, 2 sent; clock 4 s, 3.2 s of real time, loss 0.512, accuracy 0.943",
        "round 3: 3 nodes, 2 selected, 2 sent; clock 6 s, 3.2 s of real time, accuracy 0.800 (mean over 1 node)",
        "\ton 1 node: accuracy 0.800 +- 0.000",
    ]


def test_shortened_and_refused_updates_are_told_by_device(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, record(clipped=[2], norm_limit=1.5))[1:] == [
        "\tshortened to a norm of 1.5: the update of device 2"
    ]
    caplog.clear()
    faults = Faults({77: 2}.get)
    faults.note(77, "train", "its update has a norm of 900")
    faults.note(78, "query", "tau is missing")
    assert [each.getMessage() for each in caplog.records] == [
        "device 2 (node 77), train: its update has a norm of 900",
        "node 78, query: tau is missing",
    ]


def test_nodes_that_cannot_be_asked_to_test_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flwr"):
        say_not_asked({11, 12, 13}, {11: 4, 12: 1})
        say_not_asked(set(), {11: 4})
    assert [each.getMessage() for each in caplog.records] == [
        "\tnot asked to test the model: devices 1, 4 (at work) and 1 node of which the device is not known yet"
    ]


@pytest.mark.parametrize(
    ("due_s", "came", "words"),
    [
        (None, 1, "no deadline in real time: 0 late, 1 update of earlier rounds came"),
        (2.5, 2, "deadline 2.5 s in real time: 0 late, 2 updates of earlier rounds came"),
    ],
)
def test_the_log_of_late_updates_reads_well(
    due_s: float | None, came: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    late = [{"device": 0, "round": 0, "after_s": 9.0}] * came
    (words_said,) = logged(caplog, record(1, real_deadline_s=due_s, came_late=late))[1:]
    assert words in words_said


def test_reasons_are_counted_in_words_that_fit() -> None:
    faults = [{"why": "a"}, {"why": "b"}]
    assert "(a, and 1 other reason)" in nobody_reported(faults)
    assert "(a, and 2 other reasons)" in nobody_reported([*faults, {"why": "c"}])
