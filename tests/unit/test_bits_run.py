"""Runs in which the base station chooses with the schedule how many bits each device sends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, override
from flare.learning.engine import make_engine
from flare.rounds.base_station import CHOICES_OF_BITS
from flare.rounds.bits import GRADIENT_SQ, reach
from flare.rounds.coding import transmit
from flare.rounds.scheduled import problem_of
from flare.scheduling import Status, coding_noise, solve
from flare.simulation import Member, Simulation
from flare.theory.conditions import STEP_LIMIT
from flare.uplink import arrive, keys, make_codec
from flare.uplink.choices import normal_noise
from tests.driving import applied, followed
from tests.hostile import flare as command

SETTINGS = (
    "wireless.num_devices=8", "wireless.deadline_s=0.5", "wireless.total_bandwidth_hz=4e3", "wireless.batch_size=10",
    "learning.model=logistic", "learning.device=cpu", "run.rounds=4", "run.evaluate_every=2",
    "scheduling.policy=exact", "uplink.codec=qsgd", "uplink.bits=auto",
)  # fmt: skip


def chosen(*settings: str) -> Config:
    return override(Config(), [*SETTINGS, *settings])


def test_each_device_sends_with_the_bits_that_are_chosen_for_it_and_the_clock_is_charged_those() -> None:
    simulation = Simulation(chosen())
    state = replace(simulation.start(), rounds_done=1)  # a round with devices enough
    plan = simulation.plan(state)
    assert plan.schedule.status is Status.OPTIMAL
    bits = [codec.bits_per_weight for codec in plan.codecs]  # type: ignore[attr-defined]
    assert len(set(bits)) > 1  # on this band devices differ
    assert plan.payload_bits.tolist() == [codec.bits(650) for codec in plan.codecs]
    engine = make_engine(simulation.module, simulation.dataset, simulation.config.learning)
    work = simulation.jobs(state, plan, [])
    updates = engine.train(work.jobs)
    (heard,) = transmit(simulation.updates_out(state, plan, work, updates))
    for device, update, each in zip(plan.selected.tolist(), updates, bits, strict=True):
        alone = arrive(make_codec("qsgd", {"bits": each}), update.delta.unsqueeze(0), keys(0, 1, [device]))
        assert torch.equal(heard.vectors[device], alone.received[0])
    _, record = applied(simulation, state, plan, work, updates, [heard])
    assert record.payload_bits == plan.payload_bits.tolist()
    assert record.objective == record.lower_bound == plan.schedule.objective


def test_no_fixed_number_of_bits_is_better_by_the_same_objective() -> None:
    simulation = Simulation(chosen())
    station, seen = simulation.station, simulation.observe(1)
    found = simulation.plan(replace(simulation.start(), rounds_done=1)).schedule.objective
    problem, _ = problem_of(station, seen)
    noise = coding_noise(
        normal_noise(station.codecs, 650), problem.tau, reach=reach(station, problem), gradient_sq=GRADIENT_SQ
    )
    fixed = [
        solve(flare.RoundProblem(
            problem.tau, problem.compute_s, problem.snr_hz, codec.bits(650), problem.total_bandwidth_hz,
            problem.deadline_s, problem.gamma, coding_noise=own,
        )).objective
        for codec, own in zip(station.codecs, noise, strict=True)
    ]  # fmt: skip
    assert found < min(fixed)


def test_the_reach_is_from_the_smoothness_where_that_is_known_and_the_largest_proven_otherwise() -> None:
    simulation = Simulation(chosen())
    problem, _ = problem_of(simulation.station, simulation.observe(0))
    assert reach(simulation.station, problem) == STEP_LIMIT
    known = Simulation(chosen("scheduling.gamma=auto", "learning.local_lr=1e-4"))
    problem, _ = problem_of(known.station, known.observe(0))
    assert reach(known.station, problem) == known.station.smoothness * problem.tau.max() * 1e-4 < STEP_LIMIT


@pytest.mark.parametrize("method", ["flare", "scaffold", "fedlin"])
def test_in_company_the_same_bits_are_sent(method: str) -> None:
    config = chosen(f"learning.method={method}")
    whole = Member(Simulation(config))
    (alone,) = followed([whole])
    other = override(config, ["uplink.bits=4", "seed=1"])
    both = [Member(Simulation(config)), Member(Simulation(other))]
    assert [record.payload_bits for record in followed(both)[0]] == [record.payload_bits for record in alone]
    assert torch.equal(both[0].state.weights, whole.state.weights)
    vectors = whole.simulation.station.method.uplink_models
    sizes = {float(vectors * codec.bits(650)) for codec in whole.simulation.station.codecs}
    assert {size for record in alone for size in record.payload_bits} <= sizes


def test_frames_reports_and_the_manifest_say_what_was_chosen(tmp_path: Path) -> None:
    run = flare.simulate(chosen(), out=tmp_path / "run", progress=False)
    devices = run.devices()
    sent = devices[devices["sent"]]
    sizes = {float(make_codec("qsgd", {"bits": bits}).bits(650)) for bits in CHOICES_OF_BITS}
    assert set(sent["payload_bits"].dropna()) <= sizes
    assert len(set(sent["payload_bits"].dropna())) > 1
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())["model_of_bits"]
    assert told["bits"] == list(CHOICES_OF_BITS)
    assert "guess" in told["gradient_sq"]
    left_out = devices[~devices["selected"]]
    assert left_out["why_left_out"].notna().all()
    assert np.isfinite(run.frame()["objective"]).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["scheduling.policy=greedy"], "which policy 'greedy' cannot do; set scheduling.policy to \"exact\""),
        (["uplink.codec=topk"], "codec 'topk' has no such option"),
        (["uplink.codec=none"], "codec 'none' has no such option"),
        (["run.payload=wireless"], 'set run.payload to "model"'),
        (["uplink.bits=1"], "at least 2"),
        (["uplink.bits=many"], "auto"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(
    settings: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    changes = [part for each in [*SETTINGS, *settings] for part in ("--set", each)]
    code, _, said = command(capsys, "run", *changes, "--out", str(tmp_path / "run"))
    assert code == 2
    assert words in " ".join(said.split())
    assert not (tmp_path / "run").exists()
