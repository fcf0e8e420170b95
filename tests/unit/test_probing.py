"""Devices are asked before the selection: what it costs, what they answer, and what they tell only if they may."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flare
from flare.config import Config, override
from flare.learning.engine import make_engine
from flare.learning.job import GradientJob
from flare.learning.methods import make_method
from flare.records import RunFolder
from flare.records.run import read_run, run_of
from flare.rng import stream
from flare.rounds import BaseStation, Observation, RoundRecord, first_state, plan_round
from flare.rounds.broadcast import heard_model
from flare.rounds.plan import question_of
from flare.rounds.probing import Answered
from flare.scheduling import POLICIES, Probe, Probed, RoundProblem, admit, policy, solve
from flare.simulation import Member, Simulation, drive, plan_rounds, resume
from flare.simulation.probing import distances, planned, probe_jobs
from flare.units import dbm_to_watt
from tests.cells import hand_cell
from tests.hostile import flare as command
from tests.small_runs import timeless

SMALL = ("wireless.num_devices=6", "wireless.deadline_s=0.3", "wireless.batch_size=10", "learning.model=logistic")
CHOICE = ("scheduling.policy=power-of-choice", "scheduling.options.num_selected=2", "data.share_losses=true")


def settings(*more: str) -> Config:
    return override(Config(), [*SMALL, "run.rounds=4", "run.evaluate_every=2", "learning.device=cpu", *more])


def rounds_of(*configs: Config) -> tuple[list[Member], list[list[RoundRecord]]]:
    """Runs in lockstep, and the records of each."""
    members = [Member(Simulation(each), key=str(at)) for at, each in enumerate(configs)]
    records: list[list[RoundRecord]] = [[] for _ in configs]
    drive(members, callback=lambda member, record: records[int(member.key)].append(record))
    return members, records


@pytest.fixture
def loudest() -> Iterator[str]:
    """A user's policy that asks everybody for the length of the gradient."""

    def everybody(problem: RoundProblem, *, samples: str) -> Probe:
        return Probe(problem.reachable, "gradient", samples)

    @policy("loudest", probe=everybody, needs=("norms",))
    def loudest(problem: RoundProblem, *, probed: Probed, samples: str = "all") -> np.ndarray:
        return admit(problem, np.argsort(-probed.norm, kind="stable"), max_devices=2)

    yield "loudest"
    del POLICIES["loudest"]


# What it costs


def base(*more: str) -> tuple[BaseStation, Observation]:
    config = override(Config(), ["wireless.deadline_s=5", "run.payload=wireless", *more])
    seen = Observation(
        devices=np.array([1, 2, 4]),
        num_devices=5,
        tau=np.ones(3),
        cpu_hz=np.array([2e9, 4e9, 2e9]),
        snr_hz=np.array([3e7, 1e7, 1e8]),
        power_w=np.full(3, 0.1),
        num_samples=np.array([60.0, 200.0, 90.0]),
    )
    return BaseStation(config, make_method(config.learning), 10, dict(config.scheduling.options)), seen


ASK_TWO = (
    "scheduling.policy=power-of-choice", "scheduling.options.num_selected=1", "data.share_losses=true",
    "wireless.total_bandwidth_hz=2e7", "wireless.cycles_per_sample=1e6", "wireless.batch_size=40",
    "wireless.capacitance=1e-28",
)  # fmt: skip


def test_a_probe_costs_computing_an_answer_and_a_broadcast_by_hand() -> None:
    # Of the three present two are asked. A loss is a third of a step: n_i / 3 samples of 1e6 cycles each; the answer is
    # 32 bit on half of 20 MHz.
    station, seen = base(*ASK_TWO, "scheduling.options.losses=all")
    state = first_state(torch.zeros(10), station.method.start(10, 5), 5)
    asked = question_of(station, state, seen)
    assert asked is not None
    at = asked.probe.devices
    assert at.size == 2
    answer_s = 32.0 / (1e7 * np.log2(1.0 + seen.snr_hz[at] / 1e7))
    cycles = seen.num_samples[at] / 3.0 * 1e6
    assert asked.lasts_s == pytest.approx((cycles / seen.cpu_hz[at] + answer_s).max(), rel=1e-12)
    assert asked.energy_j == pytest.approx(1e-28 * cycles * seen.cpu_hz[at] ** 2 + 0.1 * answer_s, rel=1e-12)
    assert asked.devices.tolist() == seen.devices[at].tolist()

    batch, _ = base(*ASK_TWO, "scheduling.options.losses=batch")
    of_batch = question_of(batch, state, seen)
    assert of_batch is not None
    assert of_batch.lasts_s == pytest.approx((40.0 / 3.0 * 1e6 / seen.cpu_hz[at] + answer_s).max(), rel=1e-12)

    heard, _ = base(*ASK_TWO, "scheduling.options.losses=all", "wireless.downlink=broadcast")
    with_model = question_of(heard, state, seen)
    assert with_model is not None
    weakest = dbm_to_watt(40.0) / 0.1 * seen.snr_hz[at].min()
    model_s = 1e7 / (2e7 * math.log2(1.0 + weakest / 2e7))
    assert with_model.lasts_s - asked.lasts_s == pytest.approx(model_s, rel=1e-9)


def test_a_gradient_costs_a_whole_pass_and_one_that_is_sent_its_payload(loudest: str) -> None:
    of_norms = ("data.share_norms=true", "wireless.cycles_per_sample=1e6", "wireless.total_bandwidth_hz=3e7")
    station, seen = base("scheduling.policy=loudest", *of_norms)
    state = first_state(torch.zeros(10), station.method.start(10, 5), 5)
    asked = question_of(station, state, seen)
    assert asked is not None
    answer_s = 32.0 / (1e7 * np.log2(1.0 + seen.snr_hz / 1e7))
    assert asked.lasts_s == pytest.approx((seen.num_samples * 1e6 / seen.cpu_hz + answer_s).max(), rel=1e-12)
    divfl = ("scheduling.policy=divfl", "scheduling.options.gradients=all", "data.share_gradients=true")
    sending, _ = base(*divfl, *of_norms)
    whole = question_of(sending, state, seen)
    assert whole is not None
    sent_s = 1e7 / (1e7 * np.log2(1.0 + seen.snr_hz / 1e7))  # wireless.payload_bits, 1e7
    assert whole.lasts_s == pytest.approx((seen.num_samples * 1e6 / seen.cpu_hz + sent_s).max(), rel=1e-12)
    assert (asked.answer_bits, whole.answer_bits) == (32.0 * seen.num_present, 1e7 * seen.num_present)
    assert whole.question_bits == 0.0  # where broadcasts do not count


def test_clock_energy_and_history_pay_for_it() -> None:
    station, seen = base(*ASK_TWO, "scheduling.options.losses=all", "wireless.downlink=broadcast")
    state = first_state(torch.zeros(10), station.method.start(10, 5), 5)
    asked = question_of(station, state, seen)
    assert asked is not None
    probed = Probed.nothing(3)
    probed.loss[asked.probe.devices] = [1.0, 2.0]
    plan = plan_round(station, state, seen, Answered(asked, probed))
    assert plan is not None
    assert plan.schedule.selected.tolist() == [int(asked.probe.devices[1])]  # the greater loss
    assert plan.schedule.broadcast_s == 0.0  # it has the model already
    assert plan.before_s == asked.lasts_s
    assert (asked.answer_bits, asked.question_bits) == (2 * 32.0, station.downlink_bits)
    assert plan.history.energy_j[asked.devices] == pytest.approx(asked.energy_j)
    assert plan.history.energy_j.sum() == pytest.approx(asked.energy_j.sum())
    with pytest.raises(ValueError, match=r"policy 'power-of-choice' asks devices .* nobody can answer"):
        plan_round(station, state, seen)


def test_records_of_older_versions_asked_nobody() -> None:
    _, ((first, *_),) = rounds_of(settings("run.rounds=1"))
    new = ("probe", "question", "control")
    told = {name: each for name, each in first.to_json().items() if not name.startswith(new)}
    assert RoundRecord.from_json(told) == first
    with pytest.raises(ValueError, match="has 1 values of probe_energy_j for 0 devices probed"):
        RoundRecord.from_json(told | {"probe_energy_j": [1.0]})


def test_what_answers_and_trials_of_older_versions_took_is_not_known() -> None:
    _, ((first, *_),) = rounds_of(settings(*CHOICE, "scheduling.options.losses=all", "run.rounds=1"))
    new = ("question_bits", "control_bits")
    told = {name: each for name, each in first.to_json().items() if name not in new}
    assert RoundRecord.from_json(told).control_bits is None
    no_one = told | {"probed": [], "probe_energy_j": [], "probe_s": 0.0}
    assert RoundRecord.from_json(no_one).control_bits == 0.0
    assert RoundRecord.from_json(no_one | {"pilot_s": 2.0}).control_bits is None
    assert np.isnan(run_of([RoundRecord.from_json(told)], Config(), {}, None).round_sent_bits()).all()


# What they answer


@pytest.mark.parametrize("samples", ["all", "batch"])
def test_candidates_are_chosen_by_their_loss_under_the_global_model(samples: str) -> None:
    config = settings(*CHOICE, f"scheduling.options.losses={samples}", "run.rounds=2")
    (member,), ((first, _),) = rounds_of(config)
    simulation, state = member.simulation, member.simulation.start()
    question = simulation.question(state)
    assert question is not None
    assert first.probed == question.devices.tolist()
    assert len(first.probed) == 4
    assert first.probe_s == question.lasts_s > 0.0
    assert first.clock_s == pytest.approx(first.probe_s + first.latency_s)
    losses = {}
    for device in first.probed:
        held = simulation.held[device]
        if samples == "batch":
            drawn = stream(config.seed, "probe-batch", 0, device).permutation(len(held))[:10]
            held = held[drawn]
        with torch.no_grad():
            logits = simulation.module(torch.from_numpy(simulation.dataset.train_x[held]))
        labels = torch.from_numpy(simulation.dataset.train_y[held])
        losses[device] = float(torch.nn.functional.cross_entropy(logits, labels))
    assert first.selected == sorted(sorted(losses, key=losses.__getitem__)[-2:])


def test_a_user_asks_for_the_length_of_gradients(loudest: str) -> None:
    config = settings("scheduling.policy=loudest", "data.share_norms=true", "run.rounds=1")
    (member,), ((record,),) = rounds_of(config)
    simulation = member.simulation
    jobs = [GradientJob(simulation.start_weights, held) for held in simulation.held]
    gradients = make_engine(simulation.module, simulation.dataset, config.learning).gradients(jobs)
    norms = [float(torch.linalg.vector_norm(each.double())) for each in gradients]
    assert record.selected == sorted(np.argsort(norms)[-2:].tolist())
    assert record.probed == list(range(6))


def test_distances_are_those_between_the_vectors() -> None:
    rows = stream(0, "rows").standard_normal((5, 70_000)).astype(np.float32)  # more than are summed at once
    rows[3] = rows[1]
    found = distances(list(torch.from_numpy(rows)))
    plain = [[np.linalg.norm(one.astype(float) - other.astype(float)) for other in rows] for one in rows]
    np.testing.assert_allclose(found, plain, rtol=1e-12, atol=1e-5)
    assert found[1, 3] < 1e-5


def test_a_coded_broadcast_is_what_they_answer_for() -> None:
    coded = ("wireless.downlink=broadcast", "wireless.downlink_codec=float16")
    simulation = Simulation(settings(*CHOICE, "scheduling.options.losses=all", *coded))
    state = simulation.start()
    question = simulation.question(state)
    assert question is not None
    jobs = probe_jobs(simulation, state, question)
    assert torch.equal(jobs[0].at, heard_model(simulation.station, 0, state.weights))
    assert torch.equal(jobs[0].at, state.weights.half().float())


# Alone, in company, interrupted


def test_a_run_that_asks_is_the_same_alone_and_in_company(loudest: str) -> None:
    losses = settings(*CHOICE, "scheduling.options.losses=batch")
    configs = [
        losses,
        settings("scheduling.policy=loudest", "data.share_norms=true", "scheduling.options.samples=batch"),
        settings("scheduling.policy=greedy"),
        replace(losses, seed=5),
    ]
    _, together = rounds_of(*configs)
    for config, theirs in zip(configs, together, strict=True):
        _, (alone,) = rounds_of(config)
        assert timeless(alone) == timeless(theirs)
    assert [len(each.probed) for each in together[2]] == [0] * 4


def test_a_run_that_asks_is_continued_to_the_bit(tmp_path: Path) -> None:
    config = settings(*CHOICE, "scheduling.options.losses=all", "run.checkpoint_every=1")
    (whole,), (records,) = rounds_of(config)
    with RunFolder.create(tmp_path / "run", config) as folder:
        turns = iter(range(9))
        drive([Member(Simulation(config), folder)], stopping=lambda: next(turns) >= 2)
    with RunFolder.open(tmp_path / "run") as folder:
        member = Member(Simulation(config), folder)
        resume(member)
        assert member.state.rounds_done == 2
        drive([member])
        assert timeless(map(RoundRecord.from_json, folder.records())) == timeless(records)
    assert torch.equal(member.state.weights, whole.state.weights)
    assert member.state.history.energy_j.tolist() == whole.state.history.energy_j.tolist()
    numbers = read_run(tmp_path / "run")
    spent = [sum(r.compute_energy_j) + sum(r.upload_energy_j) + sum(r.probe_energy_j) for r in records]
    assert numbers.round_energy_j().tolist() == pytest.approx(spent, rel=1e-12)
    answers = [32.0 * len(record.probed) for record in records]
    assert [record.control_bits for record in records] == answers
    assert min(answers) > 0.0
    sent = [sum(map(float, record.payload_bits)) + own for record, own in zip(records, answers, strict=True)]  # type: ignore[arg-type]
    assert numbers.round_sent_bits().tolist() == pytest.approx(sent, rel=1e-12)
    assert numbers.bits_so_far()[-1] == pytest.approx(sum(sent), rel=1e-12)
    assert numbers.round_split_s()[0] == pytest.approx(np.mean([record.probe_s for record in records]))


@pytest.mark.parametrize(
    ("asked", "parts"),
    [  # of three runs with six devices each, where there is room for so many gradients
        (["scheduling.policy=loudest", "data.share_norms=true"], {4: [4, 4, 4, 4, 2], 8: [8, 8, 2]}),
        (
            ["scheduling.policy=divfl", "data.share_gradients=true", "scheduling.options.gradients=all"],
            {4: [6, 6, 6], 14: [12, 6]},
        ),
    ],
)
def test_gradients_are_taken_in_parts_that_fit(
    loudest: str, asked: list[str], parts: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(*asked, "run.rounds=1")
    runs = [(simulation := Simulation(replace(config, seed=seed)), simulation.start()) for seed in range(3)]
    engine = make_engine(runs[0][0].module, runs[0][0].dataset, config.learning)
    whole = [plan.selected.tolist() for plan in planned(engine, runs)]
    inner = engine.gradients
    for room, expected in parts.items():
        calls: list[int] = []
        monkeypatch.setattr(engine, "gradients", lambda jobs, calls=calls: calls.append(len(jobs)) or inner(jobs))
        monkeypatch.setattr("flare.simulation.probing._MAX_NUMBERS", room * len(runs[0][1].weights))
        assert [plan.selected.tolist() for plan in planned(engine, runs)] == whole
        assert calls == expected


# What they do not tell


def test_a_policy_that_needs_more_than_devices_tell_is_refused(
    loudest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"policy 'oort' needs training losses.*set data\.share_losses to true"):
        Simulation(settings("scheduling.policy=oort"))
    with pytest.raises(ValueError, match=r"policy 'loudest' needs lengths of the gradients.*data\.share_norms"):
        Simulation(settings("scheduling.policy=loudest"))
    asked = ("--policies", "oort,greedy,amiri-bn2,power-of-choice", "-o", "norms=all")
    code, _, said = command(capsys, "compare", *asked, "--out", str(tmp_path / "all"))
    said = " ".join(said.split())
    assert code == 2
    assert all(f"policy '{name}' needs" in said for name in ("oort", "amiri-bn2", "power-of-choice"))
    assert "greedy" not in said
    assert "--set data.share_losses=true --set data.share_norms=true" in said
    assert not (tmp_path / "all").exists()


def test_a_probe_for_what_was_not_declared_is_refused() -> None:
    @policy("sly", probe=lambda problem: Probe(problem.reachable))
    def sly(problem: RoundProblem, *, probed: Probed) -> np.ndarray:
        return problem.reachable[:1]

    try:
        simulation = Simulation(settings("scheduling.policy=sly"))
        with pytest.raises(ValueError, match=r"asks devices for their losses, which they keep to themselves"):
            simulation.question(simulation.start())
    finally:
        del POLICIES["sly"]


def test_without_training_nobody_can_answer() -> None:
    member = Member(Simulation(settings(*CHOICE, "scheduling.options.losses=all")))
    with pytest.raises(ValueError, match="here nobody can answer"):
        plan_rounds(member)


def test_one_round_alone_has_nobody_to_ask() -> None:
    cell = hand_cell([1.0] * 3, [0.2] * 3, gamma=1.0)
    with pytest.raises(ValueError, match=r"policy 'power-of-choice' asks devices .*pass probed="):
        solve(cell, "power-of-choice", rng=stream(0), losses="all")
    with pytest.raises(ValueError, match="probed is of 2 devices, the round has 3"):
        solve(cell, "power-of-choice", rng=stream(0), losses="all", probed=Probed.nothing(2))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Probe(np.array([0]), "norm"), "the kind must be"),
        (lambda: Probe(np.array([0]), "loss", "some"), 'the samples "all" or "batch"'),
        (lambda: Probe(np.array([0]), "loss", distances=True), "those between gradients"),
        (lambda: Probe(np.array([1, 1])), "each of them once"),
        (lambda: policy("x", needs=("secrets",))(lambda problem: []), "policy 'x' needs 'secrets'; devices can tell"),
        (lambda: policy("x", needs=5)(lambda problem: []), "policy 'x' needs 5; devices can tell"),  # type: ignore[arg-type]
        (lambda: replace(POLICIES.find("all"), needs=lambda given: 5).needed({}), "policy 'all' needs 5; devices can"),
    ],
)
def test_odd_questions_are_refused(made: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made()  # type: ignore[operator]


@pytest.mark.parametrize("shares", [False, True])
def test_the_history_has_losses_only_where_devices_tell_them(shares: bool) -> None:
    (member,), (records,) = rounds_of(settings("scheduling.policy=all", f"data.share_losses={str(shares).lower()}"))
    history = member.state.history
    sent = history.times_sent > 0.0
    assert sent.any()
    assert (np.isfinite(history.last_loss) == (sent & shares)).all()
    assert (np.isfinite(history.mean_squared_loss) == (sent & shares)).all()
    assert np.isfinite(history.update_norm[sent]).all()  # the base station computes it
    assert all(record.train_loss is not None for record in records)


def test_the_report_names_what_devices_told(tmp_path: Path) -> None:
    from flare.report.run_groups import group_runs
    from flare.report.run_words import control_traffic, what_was_told

    told: dict[str, Any] = {"method": "fedavg", "data.share_losses": True}
    runs = flare.compare(
        [
            "fedavg:greedy",
            {"label": "asking", "policy": "power-of-choice", "scheduling.options.losses": "all", **told},
        ],
        config={"wireless.num_devices": 4, "run.rounds": 1, "learning.model": "logistic"},
        progress=False,
    )
    groups, _ = group_runs([run.numbers for run in runs])
    assert what_was_told(groups) == (
        "Beside updates and numbers of samples, devices told the base station training losses (asking)."
    )
    assert "nothing of their data" in what_was_told([each for each in groups if each.label != "asking"])
    (asking,) = [run for run in runs if run.policy == "power-of-choice"]
    bits = 32 * len(asking.records[0].probed)
    assert control_traffic(groups) == [
        f"Control traffic of a run (answers to the policy, its trials; counted as sent): asking {bits} bit."
    ]
    assert control_traffic([each for each in groups if each.label != "asking"]) == []


def test_where_nobody_can_be_asked_the_deadline_passes() -> None:
    late = ("wireless.deadline_s=1e-6", "scheduling.options.losses=all", "data.share_losses=true", "run.rounds=2")
    member = Member(Simulation(settings("scheduling.policy=power-of-choice", *late)))
    drive([member])
    assert (member.state.rounds_done, member.state.clock_s) == (2, 2e-6)


def test_the_problem_of_a_round_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    station, seen = base(*ASK_TWO, "scheduling.options.losses=all")
    state, built = first_state(torch.zeros(10), station.method.start(10, 5), 5), []

    def counted(*given: Any, **named: Any) -> RoundProblem:
        built.append(RoundProblem(*given, **named))
        return built[-1]

    monkeypatch.setattr("flare.rounds.scheduled.RoundProblem", counted)
    asked = question_of(station, state, seen)
    assert asked is not None
    told = Probed.nothing(3)
    told.loss[asked.probe.devices] = 1.0
    plan = plan_round(station, state, seen, Answered(asked, told))
    assert plan is not None
    assert plan.problem is asked.known[0] is built[0]
    assert len(built) == 1


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("divfl", {"gradients": "all"}),
        ("power-of-choice", {"losses": "all"}),
        ("amiri-bn2", {"norms": "all"}),
        ("amiri-bc-bn2", {"norms": "batch"}),
        ("amiri-bn2-c", {"norms": "all"}),
        ("ren", {"norms": "all"}),
    ],
)
def test_where_nobody_could_be_asked_a_policy_chooses_by_what_it_has(name: str, option: dict[str, str]) -> None:
    late = hand_cell([1.0, 2.0, 3.0], [1.5, 1.5, 1.5], gamma=1.0)  # nobody can meet the deadline
    near = hand_cell([1.0, 2.0, 3.0], [0.2, 0.2, 0.2], gamma=1.0)
    for cell in (late, near):
        answer = solve(cell, name, rng=stream(0), probed=Probed.nothing(3), num_selected=2, **option)
        assert answer.num_selected <= 2
        if cell is late and name != "ren":  # which waits for those that it draws
            assert answer.num_selected == 0
    if name == "divfl":
        assert answer.num_selected == 2  # nobody is known, so that the lot decides
