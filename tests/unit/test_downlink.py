"""The broadcast of the model: how long it takes, who receives what, where it is told, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flare
from flare import CELLS, Cell, round_problem, solve
from flare.config import Config, override
from flare.flower import FlareStrategy
from flare.learning.engine import make_engine
from flare.learning.job import GradientJob, LocalRule
from flare.learning.methods import PlainMethod, method
from flare.records import RunFolder
from flare.records.run import read_run, run_of
from flare.rounds import BaseStation, RoundRecord
from flare.rounds.base_station import downlink_codec_of
from flare.rounds.residuals import Part
from flare.simulation import Member, Simulation
from flare.uplink import Codec, arrive, keys, make_codec
from flare.wireless.rate import downlink_snr_hz
from tests.driving import applied, followed, same_state, settings_of_method
from tests.hostile import flare as command
from tests.method_rounds import OF_ANY_MODEL
from tests.plugin_files import registries_as_they_were

SIZE = 650  # weights of the logistic model on digits
SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=3", "run.evaluate_every=2", "data.partition=shards",
    "scheduling.policy=round-robin", "scheduling.options.num_selected=3",
)  # fmt: skip
BROADCAST = "wireless.downlink=broadcast"
HALF = (BROADCAST, "wireless.downlink_codec=float16")
QSGD = (BROADCAST, "wireless.downlink_codec=qsgd", "wireless.downlink_options.bits=6")


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(*configs: Config) -> tuple[list[Member], list[list[RoundRecord]]]:
    members = [Member(Simulation(config)) for config in configs]
    return members, followed(members)


# --- how long it takes -------------------------------------------------------------------------------------------


def test_one_round_by_hand() -> None:
    config = small(BROADCAST, "wireless.downlink_power_dbm=33", "run.rounds=1")
    (member,), ((record,),) = ended(config)
    _, ((plain,),) = ended(small("run.rounds=1"))
    gain = 10 ** (member.simulation.cell.draw(0).gain_db[record.selected] / 10)
    station_w, noise_w_per_hz, band_hz = 10**3.3 / 1e3, 10**-11.4 / 1e3 / 1e6, 10e6
    rate = min(band_hz * math.log2(1.0 + station_w * h2 / (noise_w_per_hz * band_hz)) for h2 in gain)
    assert record.downlink_bits == 32 * SIZE
    assert record.broadcast_s == pytest.approx(32 * SIZE / rate, rel=1e-12)
    assert record.clock_s == record.broadcast_s + record.latency_s
    uncounted = {"broadcast_s": 0.0, "downlink_bits": 0.0, "clock_s": record.latency_s}
    assert replace(record, **uncounted) == plain  # the schedule and the model do not depend on it


def test_the_power_of_the_base_station_matters_as_little_as_the_documents_say() -> None:
    cell, heard_s, latency_s = Cell(CELLS["paper"], seed=0), {30: 0.0, 40: 0.0, 46: 0.0}, 0.0
    for index in range(200):
        drawn = cell.draw(index)
        schedule = solve(round_problem(drawn))
        latency_s += schedule.latency_s / 200
        for dbm in heard_s:
            heard_hz = downlink_snr_hz(drawn.snr_hz, drawn.power_w, dbm)
            heard_s[dbm] += schedule.with_broadcast(1e7, heard_hz).broadcast_s / 200
    small_cell, usual, macro = (f"{1e3 * each:.0f} ms" for each in heard_s.values())
    share = f"{heard_s[40] / (heard_s[40] + latency_s):.0%}".replace("%", " %")
    page = (Path(__file__).resolve().parents[2] / "docs" / "uplink.md").read_text()
    says = f"takes {usual} on average, {share} of the round; with 30 dBm {small_cell}, with 46 dBm {macro}."
    assert says in " ".join(page.split())


def test_the_weakest_of_those_who_receive_sets_the_rate() -> None:
    schedule = solve(round_problem(Cell(CELLS["paper"], seed=0).draw(0)))
    heard_hz = np.full(40, 3.0 * 10e6)  # two bits a second for each of 10 MHz
    assert schedule.with_broadcast(1e7, heard_hz).broadcast_s == pytest.approx(0.5)
    left_out = np.setdiff1d(np.arange(40), schedule.selected)
    heard_hz[left_out] = 1.0
    told = schedule.with_broadcast(1e7, heard_hz)
    assert (told.broadcast_s, told.downlink_bits) == (pytest.approx(0.5), 1e7)
    assert told.round_s == told.broadcast_s + told.latency_s
    assert told.latency_s == schedule.latency_s
    heard_hz[schedule.selected[-1]] = 10e6  # one bit
    assert schedule.with_broadcast(1e7, heard_hz).broadcast_s == pytest.approx(1.0)
    heard_hz[schedule.selected[0]] = 0.0
    with pytest.raises(ValueError, match=f"never reach device {schedule.selected[0]}: .*downlink_power_dbm"):
        schedule.with_broadcast(1e7, heard_hz)
    nobody = solve(replace(schedule.problem, deadline_s=1e-6))
    assert nobody.with_broadcast(1e7, heard_hz).broadcast_s == 0.0


def test_the_clock_has_every_broadcast_and_none_where_nobody_sends() -> None:
    # A deadline that some rounds cannot meet.
    config = override(
        Config(), [BROADCAST, "wireless.num_devices=3", "wireless.deadline_s=0.05", "run.rounds=8",
                   "learning.model=logistic", "run.payload=wireless", "wireless.payload_bits=4e6"]
    )  # fmt: skip
    _, (records,) = ended(config)
    simulation = Simulation(config)
    state, untrained = simulation.start(), []
    for _ in records:
        state, record = simulation.untrained(state, simulation.plan(state))
        untrained.append(record)
    assert [each.clock_s for each in untrained] == [each.clock_s for each in records]
    clock_s = 0.0
    for each in records:
        clock_s += each.broadcast_s + (each.deadline_s if each.latency_s is None else each.latency_s)
        assert each.clock_s == pytest.approx(clock_s, rel=1e-14)
        assert (each.broadcast_s > 0.0) == (each.downlink_bits == 4e6) == bool(each.selected)
    assert {bool(each.selected) for each in records} == {True, False}


@pytest.mark.parametrize("name", OF_ANY_MODEL)
def test_what_a_method_sends_down_is_charged(name: str) -> None:
    vectors = 2 if name in ("scaffold", "fedlin") else 1
    for settings, bits in ((QSGD, make_codec("qsgd", {"bits": 6}).bits(SIZE)), ((BROADCAST,), 32 * SIZE), ((), 0)):
        simulation = Simulation(small(*settings, *settings_of_method(name)))
        plan = simulation.plan(simulation.start())
        assert plan.schedule.downlink_bits == vectors * bits


# --- who receives what -------------------------------------------------------------------------------------------


def test_devices_start_from_what_arrives_and_the_base_station_keeps_its_own() -> None:
    (member,), _ = ended(small(*HALF, "run.rounds=1", "learning.method=fedavg"))
    simulation = Simulation(small("learning.method=fedavg"))
    weights, engine = simulation.start_weights, make_engine(simulation.module, simulation.dataset, small().learning)
    received = arrive(make_codec("float16"), weights.unsqueeze(0)).received[0]
    assert not torch.equal(received, weights)
    plan = replace(simulation.plan(simulation.start()), start=received)
    jobs = simulation.jobs(simulation.start(), plan, []).jobs
    assert all(torch.equal(job.start, received) for job in jobs)
    mean = torch.stack([update.delta.double() for update in engine.train(jobs)]).mean(0)
    torch.testing.assert_close(member.state.weights.double(), weights.double() + mean, rtol=0.0, atol=1e-7)


class OneByOne:
    """A run whose base station broadcasts bytes, as the docstring of flare.rounds.broadcast says."""

    def __init__(self, config: Config) -> None:
        self.simulation = Simulation(config)
        self.engine = make_engine(self.simulation.module, self.simulation.dataset, config.learning)
        self.state = self.simulation.start()

    def heard(self, part: Part, vector: Tensor) -> Tensor:
        codec = make_codec("qsgd", {"bits": 6})
        key = int(keys(self.simulation.config.seed, self.state.rounds_done, [0], part=part)[0])
        return codec.decode(codec.encode(vector.float(), key), SIZE)

    def round(self) -> None:
        simulation, name = self.simulation, self.simulation.config.learning.method
        plan = replace(simulation.plan(self.state), start=self.heard(Part.MODEL, self.state.weights))
        asked = [GradientJob(plan.start, simulation.held[i]) for i in plan.selected if name == "fedlin"]
        gradients = self.engine.gradients(asked)
        work = simulation.jobs(self.state, plan, gradients)
        devices = list(work.rules)
        if name == "scaffold":
            control = self.heard(Part.COMMON_CONTROL, self.state.method["control"])
            drifts = {i: control - self.state.method["device_control"][i] for i in devices}
        if name == "fedlin":
            common = self.heard(Part.COMMON_GRADIENT, torch.stack(gradients).double().mean(0)).double()
            drifts = {i: (common - own).float() for i, own in zip(devices, gradients, strict=True)}
        if name != "flare":
            jobs = [
                replace(job, rule=replace(job.rule, drift=drifts[i])) for i, job in zip(devices, work.jobs, strict=True)
            ]
            work = replace(work, jobs=jobs)
        updates = self.engine.train(work.jobs)
        if name == "scaffold":  # c_i' - c_i by the control that the devices have
            changes = [
                -control - each.delta / (job.rule.steps * job.rule.lr)
                for each, job in zip(updates, work.jobs, strict=True)
            ]
            updates = [replace(each, control_change=change) for each, change in zip(updates, changes, strict=True)]
        self.state, _ = applied(simulation, self.state, plan, work, updates)


@pytest.mark.parametrize("name", ["flare", "scaffold", "fedlin"])
def test_a_run_is_that_of_a_base_station_that_broadcasts_bytes(name: str) -> None:
    config = small(*QSGD, f"learning.method={name}")
    plain = OneByOne(config)
    for _ in range(3):
        plain.round()
    (member,), _ = ended(config)
    (uncoded,), _ = ended(small(BROADCAST, f"learning.method={name}"))
    if name != "scaffold":
        assert torch.equal(member.state.weights, plain.state.weights)
    torch.testing.assert_close(member.state.weights, plain.state.weights, rtol=0.0, atol=1e-6)
    for part, value in member.state.method.items():  # c + (Q(c) - c) and Q(c) are rounded otherwise
        torch.testing.assert_close(value, plain.state.method[part], rtol=0.0, atol=1e-5)
    assert float((uncoded.state.weights - member.state.weights).abs().max()) > 1e-4  # a comparison that can tell


def test_a_run_gives_the_same_bits_alone_and_in_company() -> None:
    configs = [
        small(*HALF),
        small(*QSGD, "learning.method=scaffold", "seed=2", "uplink.codec=ternary"),
        small(*QSGD, "learning.method=fedlin"),
        small(*QSGD, "wireless.downlink_options.bits=3"),
        small(*QSGD, "uplink.codec=qsgd", "run.rounds=2"),
        small(BROADCAST),
    ]
    members, records = ended(*configs)
    for config, member, together in zip(configs, members, records, strict=True):
        (alone,), (own,) = ended(config)
        assert together == own
        assert same_state(member.state, alone.state)


def test_a_run_that_diverges_ends_as_one() -> None:
    (member,), _ = ended(small(*QSGD, "learning.method=fedavg", "learning.local_lr=1e38"))
    assert member.state.status.value == "diverged"


# --- where it is told --------------------------------------------------------------------------------------------


def test_tables_pictures_and_the_split_of_the_time_have_it() -> None:
    run = flare.simulate(small(BROADCAST), progress=False)
    told = [each.broadcast_s for each in run.records]
    assert run.round_columns()["broadcast_s"].tolist() == told
    assert run.round_columns()["downlink_bits"].tolist() == [32.0 * SIZE] * 3
    devices, untold = run.device_table()
    assert untold == ""
    assert np.array_equal(np.isnan(devices["broadcast_s"]), ~devices["selected"])
    assert devices["broadcast_s"][devices["selected"]].tolist() == np.repeat(told, 3).tolist()
    split_s = run.numbers.round_split_s()
    assert split_s[1] == pytest.approx(np.mean(told))
    assert 3.0 * split_s.sum() == pytest.approx(run.clock_s)
    (drawn,) = run.plot("broadcast_s").get_lines()
    assert np.asarray(drawn.get_ydata()).tolist() == told


def test_records_of_older_versions_counted_no_broadcast(tmp_path: Path) -> None:
    _, ((first, *_),) = ended(small("run.rounds=1"))
    told = {name: each for name, each in first.to_json().items() if name not in ("broadcast_s", "downlink_bits")}
    assert RoundRecord.from_json(told) == first
    with RunFolder.create(tmp_path / "old", small("run.rounds=1")) as folder:
        folder.append(told)
        folder.finish("finished", rounds=1, clock_s=first.clock_s)
    assert read_run(tmp_path / "old").of_round["broadcast_s"].tolist() == [0.0]
    with pytest.raises(ValueError, match="has broadcast_s = soon, which is no number"):
        RoundRecord.from_json(told | {"broadcast_s": "soon"})


def test_the_report_draws_it_and_labels_runs_by_it(tmp_path: Path) -> None:
    from flare.report.run_figures import split_bars
    from flare.report.run_groups import group_runs

    configs = [small(), small(BROADCAST), small(*HALF)]
    _, records = ended(*configs)
    runs = [run_of(each, config, {}, None) for each, config in zip(records, configs, strict=True)]
    labels = [group.label for group in group_runs(runs)[0]]
    assert len(set(labels)) == 3
    assert any("float16" in label for label in labels)
    assert any("no broadcast" in label for label in labels)
    splits_s = np.array([run.round_split_s() for run in runs])
    figure = split_bars("time (s)", labels, splits_s, [1.0] * 3)
    first = figure.axes[0].containers[0]
    assert first.get_label() == "broadcast"
    assert [bar.get_width() for bar in first] == splits_s[:, 1].tolist()


@pytest.mark.parametrize("devices", [5, 40])
def test_the_gantt_begins_with_the_broadcast(devices: int) -> None:
    config = replace(CELLS["paper"], num_devices=devices)
    problem = round_problem(Cell(config, seed=0).draw(0))
    schedule = solve(problem).with_broadcast(1e7, np.full(devices, 3.0 * 10e6))  # half a second
    axes = schedule.plot("times")
    broadcast, computing, upload = axes.containers
    assert [each.get_label() for each in axes.containers] == ["broadcast", "computing", "upload"]
    for first, second, third in zip(broadcast, computing, upload, strict=True):
        assert (first.get_x(), first.get_width()) == (0.0, pytest.approx(0.5))
        assert second.get_x() == pytest.approx(0.5)
        assert third.get_x() == pytest.approx(0.5 + second.get_width())
        assert third.get_x() + third.get_width() == pytest.approx(schedule.round_s)
    lines = {line.get_gid(): line.get_xdata()[0] for line in axes.get_lines()}
    assert lines["round-end"] == pytest.approx(0.5 + schedule.latency_s)
    assert lines["deadline"] == pytest.approx(0.5 + 0.4)
    assert len(solve(problem).plot("times").containers) == 2
    assert "broadcast takes 500 ms" in schedule._repr_html_()


# --- the command line --------------------------------------------------------------------------------------------


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, error = command(capsys, "schedule", *arguments, "--json")
    assert code == 0, error
    told: dict[str, Any] = json.loads(out)
    return told


def test_flare_schedule_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    cell = ("--cell", "paper", "--seed", "1")
    plain, counted = asked(capsys, *cell), asked(capsys, *cell, "--downlink", "broadcast", "--downlink-power", "1W")
    drawn = Cell(CELLS["paper"], seed=1).draw(0)
    weakest = min(float(drawn.snr_hz[i]) / 0.1 for i, told in enumerate(counted["devices"]) if told["selected"])
    assert counted["broadcast_s"] == pytest.approx(1e7 / (10e6 * math.log2(1.0 + weakest / 10e6)))
    assert counted | {"broadcast_s": 0.0, "downlink_bits": 0.0} == plain
    settings = ("--set", BROADCAST, "--set", "wireless.downlink_power_dbm=1W")
    assert asked(capsys, *cell, *settings) == counted
    half = asked(capsys, *cell, *settings, "--downlink-payload", "5Mbit")
    assert half["broadcast_s"] == pytest.approx(counted["broadcast_s"] / 2)
    rows = asked(capsys, *cell, *settings, "--compare")["policies"]
    assert {row["broadcast_s"] for row in rows if row["policy"] == "exact"} == {counted["broadcast_s"]}
    _, words, _ = command(capsys, "schedule", *cell, *settings)
    assert "broadcasts 10 Mbit in" in words


TABLE = "tau,compute_s,power_dbm,gain_db\n3,0.1,20,-95\n4,0.1,10,-90\n"


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        (TABLE, ("--downlink", "sometimes"), "'sometimes' is not one of"),
        (TABLE, ("--downlink-power", "1W"), "--downlink-power is of a broadcast, and none counts"),
        (TABLE, ("--downlink-power", "10"), "none counts; add --downlink broadcast"),
        (TABLE, ("--downlink", "broadcast", "--downlink-power", "-300dBm"), "it must be from -200 to 200"),
        (TABLE, ("--downlink", "broadcast", "--downlink-power", "-5W"), "--downlink-power: "),
        (TABLE, ("--downlink", "broadcast", "--downlink-payload", "0bit"), "it must be greater than 0"),
        (TABLE, ("--set", BROADCAST, "--set", "wireless.downlink_codec=qsgd"), "add --downlink-payload 5Mbit"),
        ("tau,compute_s,snr_hz\n3,0.1,1e8\n", ("--downlink", "broadcast"), "give power_dbm and gain_db"),
    ],
)  # fmt: skip
def test_flare_schedule_refuses(
    table: str, arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "devices.csv").write_text(table)
    known = ("--bandwidth", "10MHz", "--deadline", "2s", "--payload", "10Mbit")
    code, _, error = command(capsys, "schedule", str(tmp_path / "devices.csv"), *known, *arguments)
    assert code == 2
    assert message in " ".join(error.replace("│", " ").split())


def test_unequal_updates_do_not_tell_how_long_the_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "devices.csv").write_text(
        "tau,compute_s,power_dbm,gain_db,payload_bits\n3,0.1,20,-95,1e6\n4,0.1,10,-90,2e6\n"
    )
    arguments = (str(tmp_path / "devices.csv"), "--bandwidth", "10MHz", "--deadline", "2s", "--downlink", "broadcast")
    code, _, error = command(capsys, "schedule", *arguments)
    assert code == 2
    assert "add --downlink-payload 10Mbit" in error
    told = asked(capsys, *arguments, "--downlink-payload", "3Mbit")
    rate = min(10e6 * math.log2(1.0 + 10.0 * 10**gain / (10**-20.4 * 10e6)) for gain in (-9.5, -9.0))
    assert told["broadcast_s"] == pytest.approx(3e6 / rate)  # both send


def test_an_option_of_the_broadcasts_codec_is_said_to_be_a_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coded = ("--set", BROADCAST, "--set", "wireless.downlink_codec=qsgd", "-o", "bits=4")
    for asked_for in (("run",), ("compare", "--policies", "exact,greedy")):
        code, _, error = command(capsys, *asked_for, *coded, "--out", str(tmp_path / "run"))
        assert code == 2
        words = "the codec of the broadcast, 'qsgd', has: write --set wireless.downlink_options.bits=4"
        assert words in " ".join(error.split())
    assert not (tmp_path / "run").exists()


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((BROADCAST, "wireless.downlink_codec=zip"), "no codec 'zip'.*none, float16, qsgd, ternary, sign, topk"),
        ((BROADCAST, "wireless.downlink_codec=sign"), "feedback.*downlink_options.error_feedback = false, or take one "
         "without: none, float16, qsgd, ternary"),
        ((*HALF, "wireless.downlink_options.bits=4"), "codec 'float16' has no option 'bits'"),
        ((*QSGD, "wireless.downlink_options.bits=1"), "'bits' of codec 'qsgd' is 1; .*at least 2"),
        ((*HALF, "run.payload=wireless"), 'set run.payload to "model", or wireless.downlink_codec to "none"'),
        (("wireless.downlink_codec=float16",), 'downlink is "none", so that nothing is broadcast'),
        (("wireless.downlink_options.bits=4",), "downlink_options are given, but"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Simulation(small(*settings))


@pytest.mark.parametrize("setting", ["downlink=uplink", "downlink_power_dbm=-201", "downlink_power_dbm=-5W"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"wireless.{setting.split('=')[0]}"):
        small(f"wireless.{setting}")


def test_a_codec_of_ones_own_with_error_feedback_is_refused_too() -> None:
    with registries_as_they_were():

        @flare.codec("forgetful")
        def forgetful() -> Codec:
            """Made by a function, which does not tell what it makes."""
            return make_codec("sign")

        with pytest.raises(ValueError, match='"forgetful", a codec with error feedback'):
            downlink_codec_of(small(BROADCAST, "wireless.downlink_codec=forgetful"))


def test_a_method_that_does_not_say_what_it_is_sent_goes_uncoded_only() -> None:
    with registries_as_they_were():

        @method("listening")
        class Listening(PlainMethod):
            downlink_models = 3

            def rules(self, state: Any, now: Any, common_gradient: Any) -> list[LocalRule]:
                raise NotImplementedError

        config = small(BROADCAST, "learning.method=listening")
        assert BaseStation(config, Listening(), SIZE).downlink_bits == 3 * 32 * SIZE
        with pytest.raises(ValueError, match="'listening' is sent 3 vectors a round and says what 1 of them are"):
            BaseStation(override(config, HALF), Listening(), SIZE)


def test_nodes_of_a_fleet_are_sent_the_model_as_it_is() -> None:
    FlareStrategy(small(BROADCAST))
    with pytest.raises(
        ValueError, match=r'wireless.downlink_codec is "float16", but nodes are sent the model as it is'
    ):
        FlareStrategy(small(*HALF))
