"""Runs over the air: what arrives of the updates, what a round takes, what is recorded, shown and refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flare
from flare.config import Config, override
from flare.learning.engine import make_engine
from flare.learning.job import LocalRule, Update
from flare.learning.methods import PlainMethod, method
from flare.learning.methods.base import MeanReducer
from flare.records import RunFolder
from flare.report.curves import accuracy_against_bits, summarise
from flare.report.paired import ranked_groups
from flare.report.run_report import _final_table as final_table
from flare.report.run_sections import _accuracy as accuracy_section
from flare.research import Runs
from flare.rounds import RoundRecord, RunState, RunStatus
from flare.scheduling import POLICIES, policy
from flare.simulation import Member, Simulation
from flare.sweeps.entries import policies_in_vain
from flare.uplink.air import AIR_SCHEMES, AirScheme, Precoding, air_key, air_objective, air_scheme, normal
from tests.driving import applied, followed
from tests.hostile import flare as command
from tests.plugin_files import registries_as_they_were

SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=3", "run.evaluate_every=2", "data.partition=shards", "scheduling.policy=all",
)  # fmt: skip
OTA = "uplink.air=ota"
LOUD, QUIET = "wireless.noise_dbm_per_mhz=-95", "wireless.noise_dbm_per_mhz=-300"
SIZE = 650  # weights of the model
METHODS = ("flare", "fedavg", "fedavg-fixed", "fedprox", "fednova", "fedavgm", "fedadam", "fedsam", "moon")


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(*configs: Config) -> tuple[list[Member], list[list[RoundRecord]]]:
    members = [Member(Simulation(config)) for config in configs]
    return members, followed(members)


class OneRound:
    """The first round of a run, its updates computed by an engine and applied by hand."""

    def __init__(self, config: Config) -> None:
        self.simulation = Simulation(config)
        self.state = self.simulation.start()
        self.plan = self.simulation.plan(self.state)
        self.work = self.simulation.jobs(self.state, self.plan, [])
        engine = make_engine(self.simulation.module, self.simulation.dataset, config.learning)
        self.updates = engine.train(self.work.jobs)
        self.seen = self.simulation.observe(0)

    def applied(self, updates: list[Update] | None = None) -> tuple[Any, RoundRecord]:
        sent = self.updates if updates is None else updates
        return applied(self.simulation, self.state, self.plan, self.work, sent)


# --- what arrives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_a_run_is_that_of_a_band_divided(name: str) -> None:
    chosen = (f"learning.method={name}", QUIET)
    (air, divided), (records, others) = ended(small(OTA, *chosen), small(*chosen))
    assert [record.sent for record in records] == [record.sent for record in others] != [[]] * 3
    assert air.state.weights == pytest.approx(divided.state.weights.numpy(), rel=1e-5, abs=1e-7)
    assert [record.train_loss for record in records] == pytest.approx([record.train_loss for record in others])
    assert 0.0 < max(record.noise_std or 0.0 for record in records) < 1e-8


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
def test_the_noise_is_that_of_the_weakest_sender_at_its_limit(name: str) -> None:
    """By hand, in watts: all invert their channels, and the first to reach its power sets the scale of all."""
    one = OneRound(small(OTA, LOUD, f"learning.method={name}"))
    state, record = one.applied()
    config = one.simulation.config.wireless
    devices = record.sent
    steps = [rule.steps for rule in one.work.rules.values()]
    divided = steps if name == "fednova" else [1] * len(steps)
    parts = [update.delta.double() / by for update, by in zip(one.updates, divided, strict=True)]
    noise_w = 1e-3 * 10 ** (config.noise_dbm_per_mhz / 10) * config.total_bandwidth_hz / 1e6
    gain = 10 ** (one.simulation.cell.draw(0).gain_db[devices] / 10)
    power_w = 1e-3 * 10 ** (config.power_dbm / 10)
    square = np.array([float((part**2).mean()) for part in parts])
    # Of two weights x, y the symbol scale (x + y i) / sqrt(2) arrives; a device radiates scale^2 v / gain in the mean.
    # Half of the noise is in each of I and Q.
    scale = math.sqrt(min(power_w * gain / square))
    noise_std = math.sqrt(noise_w / 2) / (scale / math.sqrt(2)) / len(devices)
    assert record.noise_std == pytest.approx(noise_std, rel=1e-9)
    air_s = math.ceil(SIZE / 2) / config.total_bandwidth_hz
    assert record.upload_energy_j == pytest.approx(list(scale**2 * square / gain * air_s), rel=1e-9)
    assert max(record.upload_energy_j) == pytest.approx(power_w * air_s)
    drawn = normal(torch.tensor([air_key(0, 0)]), SIZE)[0].double()
    rate = float(np.mean(steps)) if name == "fednova" else 1.0
    heard = torch.stack(parts).mean(0) + noise_std * drawn
    assert state.weights == pytest.approx((one.state.weights.double() + rate * heard).numpy(), rel=1e-5, abs=1e-6)
    assert float((heard - torch.stack(parts).mean(0)).norm()) > 0.1 * float(heard.norm())  # it does matter here


def test_noise_differs_by_round_and_seed_alone() -> None:
    same = [OneRound(small(OTA, LOUD)).applied()[0].weights for _ in range(2)]
    assert torch.equal(*same)
    for other in (OneRound(small(OTA, LOUD)), OneRound(small(OTA, LOUD))):
        other.state = replace(other.state, rounds_done=1)
        same.append(other.applied()[0].weights)
    assert torch.equal(*same[2:])
    assert not torch.equal(*same[1:3])


@pytest.mark.parametrize("scheme", ["mse", "truncated-inversion", "cotaf"])
@pytest.mark.parametrize("fading", ["none", "rayleigh", "rician"])
def test_every_scheme_runs_in_every_cell(scheme: str, fading: str) -> None:
    (member,), (records,) = ended(small(OTA, f"uplink.air_scheme={scheme}", f"wireless.fading={fading}"))
    assert member.state.status is RunStatus.FINISHED
    assert bool(torch.isfinite(member.state.weights).all())
    for record in records:
        assert (record.noise_std is not None) == bool(record.sent)
        link = member.simulation.observe(record.round)
        if scheme == "truncated-inversion" and fading != "none":
            assert link.mean_snr_hz is not None
            heard = np.flatnonzero(link.snr_hz / link.mean_snr_hz >= 0.1)
            assert record.sent == heard.tolist()
        else:
            assert len(record.sent) == 6


def test_a_trace_has_no_mean_channel(tmp_path: Path) -> None:
    trace = tmp_path / "gains.csv"
    rows = [f"{r},{d},{-100 - d}" for r in range(3) for d in range(6)]
    trace.write_text("\n".join(["round,device,gain_db", *rows]))
    config = small(OTA, "uplink.air_scheme=cotaf", "wireless.fading=rayleigh", f"wireless.trace={trace}")
    (member,), (records,) = ended(config)
    assert member.simulation.observe(0).mean_snr_hz is None
    assert all(len(record.sent) == 6 for record in records)


# --- what a round takes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["random", "greedy", "exact", "ps", "dm"])
def test_policies_choose_who_sends_and_the_slowest_decides(policy: str) -> None:
    config = small(OTA, f"scheduling.policy={policy}")
    _, (records,) = ended(config)
    air_s = SIZE / 2 / config.wireless.total_bandwidth_hz
    clock_s = 0.0
    for record in records:
        assert record.sent == record.selected != []
        assert record.latency_s == pytest.approx(max(record.compute_s) + air_s, rel=1e-12)
        assert record.upload_s == [air_s] * len(record.sent)
        assert record.bandwidth_hz == [config.wireless.total_bandwidth_hz] * len(record.sent)
        assert record.payload_bits == [0.0] * len(record.sent)
        assert record.deadline_s == 1.0
        clock_s += record.latency_s or math.nan
        assert record.clock_s == pytest.approx(clock_s)


def test_every_policy_is_asked_a_question_that_it_can_answer() -> None:
    refused = {name for name, one in POLICIES.items() if one.needs_hardware or one.weighs or one.goes_by_updates({})}
    names = [name for name in POLICIES if name not in refused]
    assert len(names) > 10
    shared = {name: [f"data.share_{word}=true" for word in POLICIES[name].needed({})] for name in names}
    short = ("run.rounds=2", "scheduling.bound=false")
    configs = [small(OTA, f"scheduling.policy={name}", *short, *shared[name]) for name in names]
    for _, records in zip(names, ended(*configs)[1], strict=True):
        assert all(record.sent for record in records)


@pytest.mark.parametrize("name", ["hu", "luo", "ren"])
def test_policies_that_weigh_updates_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"policy '{name}' says how much each update counts: over the air"):
        Simulation(small(OTA, f"scheduling.policy={name}", "data.share_labels=true"))


@pytest.mark.parametrize("name", ["tran", "xu"])
def test_policies_that_set_powers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"uplink.air is \"ota\", but policy '{name}' goes by powers and parts"):
        Simulation(small(OTA, f"scheduling.policy={name}"))


def test_who_computes_until_the_symbols_must_go_out_does_not_send() -> None:
    config = small(OTA, "wireless.total_bandwidth_hz=1e4", QUIET)  # 32.5 ms on the air
    simulation = Simulation(config)
    compute_s = np.sort(simulation.cell.draw(0).compute_s)
    between = float(compute_s[2] + compute_s[3]) / 2 + 0.0325
    run = flare.simulate(override(config, [f"wireless.deadline_s={between}", "run.rounds=1"]), progress=False)
    (record,) = run.records
    assert len(record.sent) == 3
    assert max(record.compute_s) == compute_s[2]
    why = run.devices()["why_left_out"]
    assert sorted(why) == [""] * 3 + ["too slow to compute"] * 3


def test_a_comparison_of_policies_that_nobody_asks_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*SMALL, OTA, "uplink.air_senders=best", "run.rounds=1"]
    changes = [part for each in given for part in ("--set", each)]
    monkeypatch.setattr("flare.report.run_report.write_page", lambda runs, page: None)  # it takes its time
    code, _, said = command(
        capsys, "compare", "--policies", "all,greedy", "--seeds", "2", "--quiet", *changes, "--out", str(tmp_path / "a")
    )
    assert code == 0
    assert said.splitlines() == [
        'warning: uplink.air_senders is "best": the best senders are chosen in the place of a policy, so that runs '
        'that differ in their policy alone (all, greedy) are alike; set it to "policy" to compare policies'
    ]
    with pytest.warns(UserWarning, match=r"\(all, greedy\) are alike"):
        flare.compare(["flare:all", "flare:greedy"], config=override(Config(), given), progress=False)


@pytest.mark.parametrize("asked", [(OTA,), ("uplink.air_senders=best",), (OTA, "uplink.air_senders=policy")])
def test_nothing_is_said_where_policies_are_asked(asked: tuple[str, ...]) -> None:
    assert policies_in_vain([small(*asked, f"scheduling.policy={name}") for name in ("all", "greedy")]) is None
    best = small(OTA, "uplink.air_senders=best")
    assert policies_in_vain([best, replace(best, seed=1), small("scheduling.policy=greedy")]) is None  # one of them


def test_the_best_senders_have_the_least_objective_with_the_noise() -> None:
    config = small(OTA, LOUD, "uplink.air_senders=best", "uplink.air_noise=5", "uplink.air_options.max_mse=1e9")
    simulation = Simulation(config)
    plan = simulation.plan(simulation.start())
    snr = plan.seen.snr_hz / config.wireless.total_bandwidth_hz

    def cost(chosen: tuple[int, ...]) -> float:
        return air_objective(chosen, snr, 1.0 / plan.problem.tau, gamma=plan.problem.gamma, noise=5.0)

    sets = [each for size in range(1, 7) for each in itertools.combinations(range(6), size)]
    assert tuple(plan.selected.tolist()) == min(sets, key=cost)
    assert tuple(plan.selected.tolist()) != min(sets, key=lambda each: plan.problem.objective(np.array(each)))
    assert plan.schedule.objective == plan.problem.objective(plan.selected)
    assert plan.lower_bound <= plan.schedule.objective
    few = Simulation(override(config, ["scheduling.options.max_devices=1"]))
    assert len(few.plan(few.start()).selected) == 1


# --- alone, in company, interrupted, diverged --------------------------------------------------------------------


def test_a_run_gives_the_same_bits_alone_and_in_company() -> None:
    own = small(OTA, LOUD, "seed=2")
    (alone,), (records,) = ended(own)
    company = [small(OTA, "learning.method=fednova"), small(), small("uplink.codec=qsgd", "seed=2")]
    (first, *_), (together, *_) = ended(own, *company)
    assert together == records
    assert torch.equal(first.state.weights, alone.state.weights)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_updates_that_no_amplitude_can_carry_end_the_run(bad: float) -> None:
    one = OneRound(small(OTA))
    broken = one.updates[1].delta.clone()
    broken[3] = bad
    state, record = one.applied([one.updates[0], replace(one.updates[1], delta=broken), *one.updates[2:]])
    assert state.status is RunStatus.DIVERGED
    assert record.noise_std is None
    assert record.sent == list(range(6))
    assert RoundRecord.from_json(record.to_json()) == record


def test_rounds_without_training_expect_updates_of_one_size() -> None:
    one = OneRound(small(OTA))
    _, record = one.simulation.untrained(one.state, one.plan)
    config = one.simulation.config.wireless
    weakest = one.seen.snr_hz.min()
    limit_j = one.seen.power_w * SIZE / 2 / config.total_bandwidth_hz
    assert record.upload_energy_j == pytest.approx(list(limit_j * weakest / one.seen.snr_hz))
    assert record.noise_std is None


# --- what is shown -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Any:
    chosen = ("uplink.air_scheme=truncated-inversion", "wireless.fading=rayleigh", "uplink.air_options.threshold=0.5")
    return flare.simulate(small(OTA, "scheduling.policy=exact", *chosen), progress=False)


def test_tables_of_a_run_over_the_air(run: Any) -> None:
    rounds = run.frame()
    assert rounds["noise_std"].tolist() == [record.noise_std for record in run.records]
    assert rounds["payload_bits"].tolist() == [0.0] * 3
    devices = run.devices()
    simulation = Simulation(run.config)
    for record in run.records:
        own = devices[devices["round"] == record.round].reset_index()
        seen = simulation.observe(record.round)
        weak = np.flatnonzero(seen.snr_hz / seen.mean_snr_hz < 0.5)
        assert set(own["why_left_out"][weak]) <= {"channel too weak"}
        assert "channel too weak" not in set(own["why_left_out"].drop(weak))
        assert own["finish_s"].dropna().tolist() == [record.latency_s] * len(record.sent)
        assert own["compute_s"].tolist() == simulation.cell.draw(record.round).compute_s.tolist()
        assert own["upload_energy_j"].sum() == pytest.approx(sum(record.upload_energy_j))
    assert devices["why_left_out"].str.contains("weak").any()
    (line,) = run.plot("noise_std").get_lines()
    assert np.asarray(line.get_ydata()).tolist() == rounds["noise_std"].tolist()


def test_what_is_sent_over_the_air_is_not_drawn_against_bits(run: Any) -> None:
    refused = r'over the air, analog and not in bits; take one of "rounds", "time", "energy"'
    with pytest.raises(ValueError, match=f'x is "bits", but the run sends {refused}'):
        run.plot(x="bits")
    with pytest.raises(ValueError, match=f'x is "bits", but all runs send {refused}'):
        Runs([run, flare.simulate(small(OTA, "seed=1", "run.rounds=1"), progress=False)]).plot(x="bits")
    divided = flare.simulate(small("run.rounds=2"), progress=False)
    assert len(divided.plot("train_loss", x="bits").get_lines()[0].get_xdata()) == 2
    axes = Runs([run, divided]).plot("train_loss", x="bits")  # in company the others are drawn
    assert [len(line.get_xdata()) > 0 for line in axes.lines] == [False, True]
    assert len(run.plot("train_loss").get_lines()[0].get_xdata()) == len(run.records)


def test_older_records_say_nothing_of_noise(run: Any) -> None:
    told = run.records[0].to_json()
    del told["noise_std"]
    assert RoundRecord.from_json(told) == replace(run.records[0], noise_std=None)


def test_a_report_says_analog_and_leaves_the_run_out_of_what_a_bit_is_worth() -> None:
    configs = [small(setting, "run.rounds=2", "run.evaluate_every=1") for setting in (OTA, "uplink.codec=qsgd")]
    numbers = [flare.simulate(config, progress=False).numbers for config in configs]
    groups, ranked = ranked_groups(numbers)
    assert sorted(group.label for group in groups) == ["flare:all, over the air", "flare:all, qsgd"]
    over = next(group for group in groups if "air" in group.label)
    assert len(accuracy_against_bits(over).x) == 0
    assert "accuracy-bits" in {panel.name for panel in accuracy_section(groups).panels}
    table = final_table(groups, [summarise(group) for group in groups], ranked)
    assert table.count(">analog<") == 1


# --- what is refused ---------------------------------------------------------------------------------------------

LINE = [part for setting in SMALL for part in ("--set", setting)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["uplink.codec=qsgd"], 'there is nothing to code; set uplink.codec to "none", or uplink.air to "fdma"'),
        (["run.payload=wireless"], 'set run.payload to "model", or uplink.air to "fdma"'),
        (["wireless.block_hz=180e3"], 'no blocks; set wireless.block_hz to 0, or uplink.air to "fdma"'),
        (["learning.method=scaffold"], "the devices of method 'scaffold' send 2 vectors a round"),
        (["learning.method=fedadam", "learning.options.inner=scaffold"], "of method 'fedadam' send 2 vectors a round"),
        (["learning.method=fedlin"], 'take another method (flare, fedavg, fednova, ...), or set uplink.air to "fdma"'),
        (["uplink.air_scheme=msee"], "there is no air scheme 'msee'; did you mean 'mse'?"),
        (["uplink.air_options.threshold=1"], "air scheme 'mse' has no option 'threshold' (its options: max_mse)"),
        (["uplink.air_options.max_mse=0"], "option 'max_mse' of air scheme 'mse' is 0; it must be"),
        (["uplink.air_senders=some"], "uplink.air_senders is"),
        (["uplink.air_noise=-1"], "uplink.air_noise is -1; it must be"),
        (
            ["scheduling.policy=chen"],
            "policy 'chen' goes by powers and parts of the band or sets them: over the air the",
        ),
        (["scheduling.policy=luo"], "policy 'luo' says how much each update counts: over the air the channel adds"),
        (
            ["scheduling.policy=divfl"],
            "policy 'divfl' goes by what single updates were like: over the air the base station hears their sum "
            "alone; take another policy, options with which it asks devices (and pays for it), or set uplink.air to",
        ),
        (["scheduling.policy=amiri-bn2"], "policy 'amiri-bn2' goes by what single updates were like"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    settings: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = [part for setting in (OTA, *settings) for part in ("--set", setting)]
    code, _, said = command(capsys, "run", *LINE, *given, "--quiet", "--out", str(tmp_path / "run"))
    assert code == 2
    assert says in " ".join(said.split())
    assert not (tmp_path / "run").exists()


def test_what_is_not_asked_of_a_policy_is_not_refused() -> None:
    assert Simulation(small(OTA, "scheduling.policy=luo", "uplink.air_senders=best")).station.air is not None
    asking = ("scheduling.policy=amiri-bn2", "scheduling.options.norms=batch", "data.share_norms=true")
    assert Simulation(small(OTA, *asking)).station.air is not None


def first_round(*settings: str) -> tuple[RunState, RoundRecord]:
    state, record = OneRound(small(*settings)).applied()
    return state, record


def test_of_single_updates_over_the_air_nothing_is_known() -> None:
    with registries_as_they_were():

        @policy("sketching", sketches=True, by_updates=False)
        def sketching(problem: Any, *, history: Any) -> Any:
            return np.arange(problem.num_devices)

        state, record = first_round(OTA, "scheduling.policy=sketching")
        assert record.sent
        assert all(norm is not None and norm > 0.0 for norm in record.update_norm)  # as the devices know it
        assert np.isnan(state.history.update_norm).all()
        assert state.history.sketch is None
        assert state.history.times_sent[record.sent].tolist() == [1.0] * len(record.sent)
        state, record = first_round("scheduling.policy=sketching", "wireless.deadline_s=60")
        assert record.sent
        assert state.history.sketch is not None
        assert state.history.update_norm[record.sent].tolist() == record.update_norm


def test_real_nodes_do_not_add_in_the_air() -> None:
    from flare.flower.settings import refuse_settings

    with pytest.raises(ValueError, match=r'uplink.air is "ota", but the nodes .* set it to "fdma", or simulate'):
        refuse_settings(small(OTA))


def test_a_method_with_a_reducer_of_its_own_is_refused() -> None:
    with registries_as_they_were():

        class OneByOne:
            def __init__(self, now: Any) -> None:
                self._reducer = MeanReducer(now, {})

            def add(self, device: int, rule: LocalRule, update: Update) -> None:
                self._reducer.add(device, rule, update)

            def end(self) -> tuple[Tensor, dict[str, Tensor]]:
                return self._reducer.end()

        @method("median")
        class Median(PlainMethod):
            def rules(self, state: Any, now: Any, common_gradient: Any) -> list[LocalRule]:
                return [LocalRule(now.local_lr, int(now.tau[i])) for i in now.selected]

            def reducer(self, state: Any, now: Any) -> Any:
                return OneByOne(now)

        Simulation(small("learning.method=median"))
        with pytest.raises(ValueError, match=r"'median' has a reducer of its own.* let it answer a MeanReducer"):
            Simulation(small(OTA, "learning.method=median"))


def test_a_run_in_which_nobody_is_heard_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for settings, says in (
        (["uplink.air_options.max_mse=1e-30"], "air scheme 'mse' hears none of the 6 devices; it would take"),
        (["wireless.total_bandwidth_hz=100"], "an update is 3.25 s on the air, the deadline is 1 s; it would take"),
    ):
        given = [part for setting in (OTA, *settings) for part in ("--set", setting)]
        out = str(tmp_path / settings[0])
        code, said, error = command(capsys, "run", *LINE, *given, "--set", "run.rounds=1", "--quiet", "--out", out)
        assert code == 0, error
        assert says in " ".join(said.split())


def test_schemes_and_their_options_are_listed_and_set_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, said, _ = command(capsys, "list", "air-schemes")
    assert code == 0
    assert all(name in said for name in AIR_SCHEMES)
    line = ["--set", OTA, "-o", "max_mse=0.5", "--set", "run.rounds=1", "--quiet", "--out", str(tmp_path / "run")]
    code, _, said = command(capsys, "run", *LINE, *line)
    assert code == 0, said
    assert dict(RunFolder.open(tmp_path / "run").config.uplink.air_options) == {"max_mse": 0.5}


def test_a_scheme_of_ones_own_is_part_of_the_run() -> None:
    with registries_as_they_were():

        @air_scheme("plain")
        class Plain(AirScheme):
            def can_send(self, link: Any, shares: Any) -> Any:
                return np.arange(link.num_devices) != 2

            def precoding(self, link: Any, shares: Any, told: Any) -> Precoding:
                return Precoding(0.0, 1e3)

        (member,), (records,) = ended(small(OTA, "uplink.air_scheme=plain"))
        assert {record.noise_std for record in records} == {1.0 / (1e3 * 5)}
        assert all(record.sent == [0, 1, 3, 4, 5] for record in records)
        assert member.simulation.identity["air scheme"] == "plain"
        assert "over the air plain" in repr(member.simulation)
        assert member.simulation.identity["air scheme code"]
    assert "air scheme" not in Simulation(small()).identity
