"""Runs as tables and as curves, and what is shown of them."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot
from rich.console import Console

import flare
from flare.config import Config, override
from flare.report.curves import accuracy_against_rounds, accuracy_against_time
from flare.research import tables
from flare.research.progress import terminal_lines
from flare.research.quantities import QUANTITIES
from flare.rounds import RoundRecord, RunStatus
from flare.rounds.scheduled import problem_of
from flare.scheduling import solve
from flare.scheduling.explain import explain
from flare.simulation import Simulation
from flare.sweeps import Task
from tests.made_up_runs import settings, write_run
from tests.small_runs import SMALL, own_data

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    pyplot.close("all")


# --- tables -----------------------------------------------------------------------------------------------------


def test_a_frame_has_every_number_of_every_round(in_memory: flare.Run) -> None:
    frame = in_memory.frame()
    scalars = {each.name for each in fields(RoundRecord) if "list" not in str(each.type)}
    assert scalars <= set(frame.columns)
    for row, record in zip(frame.to_dict("records"), in_memory.records, strict=True):
        for name in scalars:
            value = getattr(record, name)
            assert row[name] == value or (value is None and math.isnan(row[name])), name
        assert row["num_selected"] == len(record.selected)
        assert row["num_sent"] == len(record.sent)
        assert row["energy_j"] == pytest.approx(sum(record.compute_energy_j) + sum(record.upload_energy_j))
        assert record.objective is not None
        assert record.lower_bound is not None
        assert row["gap"] == pytest.approx(record.objective / record.lower_bound - 1.0, abs=1e-12)
    frame.loc[0, "clock_s"] = -1.0  # a copy: the run stays as it is
    assert in_memory.frame().clock_s[0] == in_memory.records[0].clock_s


@pytest.mark.parametrize("method", ["flare", "fedlin", "fedavg-fixed"])
def test_devices_are_those_of_the_schedule(method: str) -> None:
    """Against the problem that the simulation itself plans, and a schedule of it."""
    run = flare.simulate(SMALL | {"run.rounds": 3}, method=method, policy="greedy")
    frame = run.devices()
    assert len(frame) == 3 * 8
    simulation = Simulation(run.config)
    for index, record in enumerate(run.records):
        problem, energy_j = problem_of(simulation.station, simulation.observe(index))
        schedule = solve(problem, "greedy")
        told = explain(schedule)
        rows = frame[frame["round"] == index]
        assert rows.device.tolist() == list(range(8))
        assert np.flatnonzero(rows.selected).tolist() == schedule.selected.tolist()
        assert rows.sent.tolist() == rows.selected.tolist()
        assert rows.why_left_out.tolist() == [str(each or "") for each in told.why]
        np.testing.assert_array_equal(rows.objective_change, told.objective_change)
        np.testing.assert_allclose(rows.tau, problem.tau)
        np.testing.assert_allclose(rows.compute_s, problem.compute_s)
        np.testing.assert_allclose(rows.upload_s, told.upload_s)
        np.testing.assert_allclose(rows.finish_s, told.finish_s)
        np.testing.assert_allclose(rows.bandwidth_hz, schedule.bandwidth_hz)
        np.testing.assert_allclose(rows.compute_energy_j, np.where(rows.selected, energy_j, 0.0))
        np.testing.assert_allclose(rows.gain_db, simulation.cell.draw(index).gain_db)
        assert rows.loss[rows.sent].tolist() == record.loss
        assert rows.update_norm[rows.sent].tolist() == record.update_norm
        assert rows.loss[~rows.sent].isna().all()
    assert frame.selected.all() or (frame.why_left_out != "").any()


@pytest.mark.parametrize(
    ("policy", "options", "more"),
    [
        ("chen", {"interference": 3.0}, {"wireless.deadline_s": 1.0}),
        ("luo", {"num_selected": 3, "pilot_j": 8.0}, {}),
        ("power-of-choice", {"num_selected": 2, "losses": "all"}, {"data.share_losses": True}),
    ],
)
def test_rounds_and_devices_tell_the_same_energy_losses_and_weights(
    policy: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    run = flare.simulate(SMALL | {"scheduling.options": options, "run.rounds": 4} | more, policy=policy)
    frame = run.devices()
    np.testing.assert_allclose(frame.groupby("round").energy_j.sum(), run.frame().energy_j, rtol=1e-12)
    for record in run.records:
        rows = frame[frame["round"] == record.round]
        assert np.flatnonzero(rows.lost).tolist() == record.lost
        assert rows.update_weight.dropna().tolist() == record.weights
        assert rows.error_rate.dropna().tolist() == record.error_rate
        assert np.flatnonzero(rows.probe_energy_j).tolist() == record.probed
        assert set(rows.why_left_out[rows.lost]) <= {"its update was lost on the way"}
        assert set(rows.why_left_out[rows.sent]) <= {""}
    assert frame.lost.any() == frame.error_rate.notna().any() == (policy == "chen")
    assert frame.update_weight.notna().any() == (policy != "power-of-choice")


def test_some_devices_are_left_out_for_some_reason(in_memory: flare.Run) -> None:
    """What the test above would not see in a cell where everybody sends."""
    told = in_memory.devices()
    assert set(told.why_left_out) > {"", "too slow to compute"}


def test_devices_of_own_data_are_known_in_memory_and_on_disk(tmp_path: Path) -> None:
    run = flare.simulate(SMALL | {"run.rounds": 2}, method="fedlin", **own_data(), out=tmp_path / "run")
    in_memory = flare.simulate(SMALL | {"run.rounds": 2}, method="fedlin", **own_data())
    assert in_memory.devices().why_left_out.ne("not known").all()
    assert in_memory.devices().equals(run.devices())


def test_a_folder_tells_the_same_of_devices_as_the_run_itself(compared: tuple[flare.Runs, Path]) -> None:
    runs, base = compared
    loaded = flare.load(base)
    assert loaded.devices().equals(runs.devices())
    assert (runs.devices().why_left_out != tables.NOT_KNOWN).all()


@pytest.mark.parametrize(
    ("change", "why"), [("driver", "fleet"), ("num_weights", "size of its model"), ("seed", "otherwise than it was")]
)
def test_why_is_not_known_where_the_cell_cannot_be_drawn_again(in_memory: flare.Run, change: str, why: str) -> None:
    manifest = dict(in_memory.numbers.manifest)
    config = in_memory.config
    if change == "driver":
        manifest["driver"] = "flower"
    elif change == "num_weights":
        del manifest["num_weights"]
    else:
        config = replace(config, seed=99)  # another cell than that of the records
    with pytest.warns(tables.NotRedrawn, match=rf"6 of 6 rounds cannot be drawn again \(.*{why}.*\); why .* not known"):
        frame = flare.Run(in_memory.records, config, manifest).devices()
    left_out = ~frame.selected
    assert left_out.any()
    assert frame.why_left_out[left_out].eq("not known").all()
    assert frame.why_left_out[~left_out].eq("").all()
    assert frame.tau[left_out].isna().all()
    assert frame.gain_db.isna().all()
    known = in_memory.devices()
    assert frame.loss.equals(known.loss)
    assert frame.compute_s[~left_out].equals(known.compute_s[~left_out])


def test_tables_of_several_runs_say_which(compared: tuple[flare.Runs, Path]) -> None:
    runs, _ = compared
    frame = runs.frame()
    assert list(frame.columns[:5]) == ["run", "label", "method", "policy", "seed"]
    assert len(frame) == 6 * 6
    assert frame.groupby(["method", "policy", "seed"]).size().tolist() == [6, 6, 12, 12]  # γ has no column
    one = frame[frame.run == "fedavg-cp-seed1"]
    assert one.test_accuracy.dropna().tolist() == runs["fedavg-cp-seed1"].frame().test_accuracy.dropna().tolist()
    summary = runs.summary()
    for group in runs.groups:
        last = [run.of_round["test_accuracy"][-1] for run in group.runs]
        assert summary.loc[group.label, "accuracy"] == pytest.approx(np.mean(last))
        assert math.isnan(summary.loc[group.label, "accuracy_half"])  # of two seeds no interval is told


def test_the_summary_compares_groups_seed_by_seed(compared: tuple[flare.Runs, Path]) -> None:
    runs, _ = compared
    summary = runs.summary()
    assert summary.equal_rounds.tolist() == [6.0] * len(summary)
    best = summary.accuracy_equal_rounds.idxmax()
    finals = {
        group.label: {run.config.seed: run.of_round["test_accuracy"][-1] for run in group.runs} for group in runs.groups
    }
    for label, own in finals.items():
        apart = [own[seed] - finals[best][seed] for seed in own]
        if label == best:
            assert math.isnan(summary.loc[label, "difference_equal_rounds"])
        else:
            assert summary.loc[label, "difference_equal_rounds"] == pytest.approx(np.mean(apart))
            assert summary.loc[label, "won_equal_rounds"] == sum(each > 0.0 for each in apart)
    assert (summary.equal_time_s > 0.0).all()


def test_a_run_without_rounds_has_empty_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "none", settings(), rounds=0, status="running")
    run = flare.load(tmp_path / "none")
    assert len(run.frame()) == len(run.devices()) == 0
    assert "devices" not in run.frame().columns
    assert "why_left_out" in run.devices().columns
    assert "running after 0 rounds" in repr(run)


def test_without_pandas_the_extra_is_named(in_memory: flare.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"a frame needs pandas: pip install -c constraints.txt '.\[research\]'"):
        in_memory.frame()


# --- pictures ---------------------------------------------------------------------------------------------------


def test_a_plot_has_the_numbers_of_the_run(in_memory: flare.Run) -> None:
    axes = in_memory.plot("accuracy", x="time")
    (line,) = axes.lines
    tested = [record for record in in_memory.records if record.test_accuracy is not None]
    assert line.get_xdata().tolist() == [record.clock_s for record in tested]
    assert line.get_ydata().tolist() == [record.test_accuracy for record in tested]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("simulated time (s)", "test accuracy")
    (rounds,) = in_memory.plot("num_selected").lines
    assert rounds.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert rounds.get_ydata().tolist() == [len(record.selected) for record in in_memory.records]
    assert all(float(tick).is_integer() for tick in rounds.axes.get_xticks())


def test_the_style_is_the_users(in_memory: flare.Run, compared: tuple[flare.Runs, Path]) -> None:
    before = dict(mpl.rcParams)
    _, mine = pyplot.subplots()
    mine.set_ylabel("Genauigkeit")
    with mpl.rc_context({"lines.linewidth": 4.5, "axes.prop_cycle": mpl.cycler(color=["#123456", "#654321"])}):
        axes = in_memory.plot("accuracy", ax=mine, linestyle="--", label="mine")
        drawn = compared[0][:4].plot("accuracy")
        assert [line.get_linewidth() for line in drawn.lines] == [4.5, 4.5]
        assert [line.get_color() for line in drawn.lines] == ["#123456", "#654321"]
    assert axes is mine
    assert (axes.get_ylabel(), axes.lines[0].get_linestyle(), axes.lines[0].get_label()) == (
        "Genauigkeit",
        "--",
        "mine",
    )
    assert dict(mpl.rcParams) == before
    assert axes.get_legend() is None


def test_curves_are_means_over_seeds_with_their_bands(compared: tuple[flare.Runs, Path]) -> None:
    runs, _ = compared
    axes = runs.plot("train_loss")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [group.label for group in runs.groups]
    first = [runs[f"flare-greedy-seed{seed}"].frame().train_loss.to_numpy() for seed in (0, 1)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.mean(first, axis=0))
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert not axes.collections  # of two seeds no interval is told
    timed = runs.plot("accuracy", x="time").lines[0]
    clocks = [runs[f"flare-greedy-seed{seed}"].frame().dropna(subset="test_accuracy") for seed in (0, 1)]
    (begin, end), first = ends_of(timed), sorted(frame.clock_s.iloc[0] for frame in clocks)
    assert first[1] <= begin < first[1] + (end - first[0]) / 119  # on a grid of 120 points
    assert end == min(frame.clock_s.iloc[-1] for frame in clocks)


def test_the_band_is_the_interval_over_three_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=6)
    runs = flare.load(tmp_path)
    axes = runs.plot("train_loss")
    values = [run.frame().train_loss.to_numpy() for run in runs]
    mean, half = np.mean(values, axis=0), 4.30265 * np.std(values, axis=0, ddof=1) / 3**0.5  # Student's t of 2
    low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
    np.testing.assert_allclose((low, high), ((mean - half).min(), (mean + half).max()), rtol=1e-3)
    assert not runs.plot("train_loss", band=False).collections


def test_no_band_is_above_what_can_be(tmp_path: Path) -> None:
    for seed, final in enumerate((0.3, 0.99, 0.99)):
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=20, final_accuracy=final)
    runs = flare.load(tmp_path)
    curve = accuracy_against_rounds(runs.groups[0])
    assert curve.high.max() > 1.0
    (band,) = runs.plot("accuracy").collections
    assert band.get_paths()[0].get_extents().intervaly.max() == 1.0


@pytest.mark.parametrize("x", ["rounds", "time"])
def test_curves_go_as_far_as_those_of_a_report(x: str, tmp_path: Path) -> None:
    for seed, rounds in enumerate((10, 20, 20)):
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=rounds)
    runs = flare.load(tmp_path)
    (line,) = runs.plot("accuracy", x=x).lines
    curve = accuracy_against_rounds if x == "rounds" else accuracy_against_time
    wanted = curve(runs.groups[0])
    assert line.get_xdata().max() == pytest.approx(wanted.x.max())
    assert line.get_ydata()[-1] == pytest.approx(wanted.mean[-1])


def ends_of(drawn: Any) -> tuple[float, float]:
    """Where a line, or a band, begins and ends."""
    x = drawn.get_xdata() if hasattr(drawn, "get_xdata") else drawn.get_paths()[0].vertices[:, 0]
    return float(x.min()), float(x.max())


def test_mean_and_band_go_from_where_all_seeds_have_begun_to_where_the_first_ends(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=20)
    runs = flare.load(tmp_path)
    tests = [run.frame().dropna(subset="test_accuracy").clock_s.to_numpy() for run in runs]
    first, last = max(each[0] for each in tests), min(each[-1] for each in tests)
    step = (last - min(each[0] for each in tests)) / 119  # of the grid
    assert max(each[-1] for each in tests) > last + step  # they do not end at the same time
    axes = runs.plot("accuracy", x="time")
    for drawn in (axes.lines[0], axes.collections[0]):
        begin, end = ends_of(drawn)
        assert first <= begin < first + step
        assert end == pytest.approx(last, rel=1e-12)
    write_run(tmp_path / "stopped early", settings(seed=4), rounds=7)  # the others go on without it
    assert ends_of(flare.load(tmp_path).plot("accuracy", x="time").lines[0])[1] == pytest.approx(last, rel=1e-12)


def test_curves_on_given_axes_are_named_unless_their_drawer_will(
    in_memory: flare.Run, compared: tuple[flare.Runs, Path]
) -> None:
    runs, _ = compared
    _, (left, right, single) = pyplot.subplots(1, 3)
    runs.plot("accuracy", ax=left)
    assert [text.get_text() for text in left.get_legend().get_texts()] == [group.label for group in runs.groups]
    runs.plot("accuracy", ax=right, legend=False)
    assert right.get_legend() is None
    assert right.get_legend_handles_labels()[1] == [group.label for group in runs.groups]
    in_memory.plot(ax=single)
    assert single.get_legend() is None
    in_memory.plot(ax=single, label="again")
    assert [text.get_text() for text in single.get_legend().get_texts()] == [in_memory.name, "again"]


def test_a_band_ends_at_zero_and_labels_fit_a_small_figure(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / str(seed), settings(seed=seed), rounds=6)
    runs = flare.load(tmp_path)
    band = runs.plot("num_selected").collections[0].get_paths()[0].get_extents()
    assert band.y0 == 0.0
    for name in sorted(QUANTITIES, key=lambda one: len(QUANTITIES[one].label))[-3:]:
        with mpl.rc_context({"figure.figsize": (2.6, 2.6)}):
            axes = runs.plot(name)
        axes.figure.draw_without_rendering()
        label, whole = axes.yaxis.label.get_window_extent(), axes.figure.bbox
        assert whole.x0 <= label.x0
        assert whole.y0 <= label.y0 < label.y1 <= whole.y1
        pyplot.close()


def test_names_of_quantities_are_checked(in_memory: flare.Run, compared: tuple[flare.Runs, Path]) -> None:
    for drawn in (in_memory, compared[0]):
        with pytest.raises(ValueError, match=r"did you mean 'accuracy'.*Quantities: accuracy, test_loss"):
            drawn.plot("acuracy")
        with pytest.raises(ValueError, match="no x axis 'tme'; did you mean 'time'"):
            drawn.plot(x="tme")
        with pytest.raises(ValueError, match="ax is a str"):
            drawn.plot(ax="here")
    assert not pyplot.get_fignums()


# --- what is shown ----------------------------------------------------------------------------------------------


def test_what_is_shown_of_runs(in_memory: flare.Run, compared: tuple[flare.Runs, Path]) -> None:
    assert repr(in_memory).startswith("<Run flare-greedy-seed0: finished after 6 rounds and ")
    assert f"test accuracy {100 * in_memory.accuracy:.2f} %; in memory>" in repr(in_memory)
    assert "<td>policy</td><td>greedy</td>" in in_memory._repr_html_()
    assert repr(compared[0]).startswith("<Runs: 6 runs of 3 groups, 2 seeds\n  <Run flare-greedy-seed0")
    assert repr(compared[0][:1]).startswith("<Runs: 1 run of 1 group, 1 seed\n")
    assert "large γ / λ" in compared[0]._repr_html_()
    simulation = Simulation(in_memory.config)
    assert "method flare, policy greedy, seed 0, data digits, model logistic (650 weights)" in repr(simulation)
    assert "<td>devices</td>" in simulation._repr_html_()


def test_a_label_does_no_harm_in_a_notebook() -> None:
    label = "<script>alert(1)</script>"
    runs = flare.compare([{"label": label, "policy": "cp"}], config=SMALL | {"run.rounds": 1})
    shown = runs._repr_html_() + runs[0]._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


def test_progress_is_shown_where_somebody_looks_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_ = SMALL | {"run.rounds": 2}
    flare.simulate(settings_)
    assert capsys.readouterr() == ("", "")  # nobody does

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for progress in (True, False):
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        flare.simulate(settings_, progress=progress)
        assert ("round 2/2" in screen.getvalue()) == progress


def test_of_many_runs_a_few_are_shown_and_a_total() -> None:
    tasks = [Task(f"run {number}", override(Config(), ["run.rounds=2"]), None) for number in range(30)]
    screen = Console(file=io.StringIO(), force_terminal=True, width=150, height=60)
    (record,) = flare.simulate(SMALL | {"run.rounds": 1}).records
    with terminal_lines(screen, tasks, {task.key: task.key for task in tasks}) as callback:
        for task in tasks[:20]:
            callback(task, record, RunStatus.RUNNING)
        callback(tasks[3], replace(record, round=1), RunStatus.FINISHED)
        callback(tasks[4], record, RunStatus.DIVERGED)  # before its last round
    last = screen.file.getvalue().rpartition("all 30 runs")[2].splitlines()
    assert "round 22/60  2 ended" in last[0]
    shown = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line).split("━")[0].strip() for line in last[1:]]
    assert [line for line in shown if line] == [f"run {number}" for number in (0, 1, 2, *range(5, 14))]


def test_scheduling_does_not_wait_for_what_trains() -> None:
    code = "import sys, flare; assert 'simulate' in dir(flare); assert not {'torch', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        flare.simulat  # noqa: B018
