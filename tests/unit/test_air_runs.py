"""Runs over the air: what arrives of the updates, and what a round takes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, override
from flare.learning.engine import make_engine
from flare.learning.job import Update
from flare.rounds import RoundRecord, RunStatus
from flare.scheduling import POLICIES
from flare.simulation import Simulation
from flare.sweeps.entries import policies_in_vain
from flare.uplink.air import air_key, air_objective, normal
from tests.hostile import flare as command
from tests.over_the_air import LOUD, OTA, QUIET, SMALL, ended, small

WEIGH = ("hu", "luo", "ren")  # policies that say how much each update counts

SIZE = 650  # weights of the model
METHODS = ("flare", "fedavg", "fedavg-fixed", "fedprox", "fednova", "fedavgm", "fedadam", "fedsam", "moon")


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
        return self.simulation.apply(self.state, self.plan, self.work, self.updates if updates is None else updates)


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
    names = [name for name, one in POLICIES.items() if name not in WEIGH and not one.needs_hardware]
    shared = {name: [f"data.share_{word}=true" for word in POLICIES[name].needed({})] for name in names}
    short = ("run.rounds=2", "scheduling.bound=false")
    configs = [small(OTA, f"scheduling.policy={name}", *short, *shared[name]) for name in names]
    for _, records in zip(names, ended(*configs)[1], strict=True):
        assert all(record.sent for record in records)


@pytest.mark.parametrize("name", WEIGH)
def test_policies_that_weigh_updates_are_refused(name: str) -> None:
    simulation = Simulation(small(OTA, f"scheduling.policy={name}", "data.share_labels=true"))
    with pytest.raises(ValueError, match=rf"policy '{name}' .*over the air"):
        simulation.plan(simulation.start())


@pytest.mark.parametrize("name", ["tran", "xu"])
def test_policies_that_set_powers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"uplink.air is \"ota\", but policy '{name}' sets powers and parts"):
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
