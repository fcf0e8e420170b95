"""Runs whose devices code what they send: what arrives, what is held back, what it costs and what is refused."""

from __future__ import annotations

import itertools
import json
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flare
from flare.config import Config, LearningConfig, override
from flare.learning.engine import make_engine, make_engines
from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule, Update
from flare.learning.methods import PlainMethod, make_method, method
from flare.records import RunFolder
from flare.records.checkpoints import checkpoints, read_checkpoint
from flare.records.run import read_run
from flare.rounds import RoundRecord, RunState, RunStatus, coding, local_rules
from flare.rounds.coding import decoded, encoded
from flare.rounds.residuals import Part, Residuals
from flare.rounds.state import to_tensors
from flare.simulation import Member, Simulation, drive, lanes, resume, turn
from flare.simulation.run import Jobs
from flare.uplink import Codec, keys, make_codec
from flare.wireless.rate import upload_s
from tests.driving import applied, followed, same_state, same_tensors, stop_after
from tests.hostile import flare as command
from tests.method_rounds import OF_ANY_MODEL
from tests.plugin_files import registries_as_they_were

SMALL = (
    "wireless.num_devices=6", "wireless.deadline_s=1", "wireless.batch_size=10", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=4", "run.evaluate_every=2", "data.partition=shards",
    "scheduling.policy=round-robin", "scheduling.options.num_selected=3",
)  # fmt: skip
CODECS = {
    "float16": ("uplink.codec=float16",),
    "qsgd": ("uplink.codec=qsgd", "uplink.bits=3"),
    "ternary": ("uplink.codec=ternary", "uplink.options.block=100"),
    "sign": ("uplink.codec=sign",),
    "topk": ("uplink.codec=topk", "uplink.share=0.05"),
}
SENDING_TWO = ("scaffold", "fedlin")
each_codec = pytest.mark.parametrize("codec", CODECS)


def small(*settings: str) -> Config:
    return override(Config(), [*SMALL, *settings])


def ended(*configs: Config) -> tuple[list[Member], list[list[RoundRecord]]]:
    members = [Member(Simulation(config)) for config in configs]
    return members, followed(members)


def tensors(state: RunState) -> dict[str, Tensor]:
    return to_tensors(state)[0]


# --- the plain twin: one device after the other, through bytes ---------------------------------------------------


class OneByOne:
    """A run in which each vector is encoded and decoded by itself, as the docstring of flare.rounds.coding says."""

    def __init__(self, config: Config) -> None:
        self.simulation = Simulation(config)
        self.engine = make_engine(self.simulation.module, self.simulation.dataset, config.learning)
        self.codec, self.size = self.simulation.station.codec, self.simulation.model.num_weights
        self.held: dict[tuple[Part, int], Tensor] = {}
        self.state = self.simulation.start()

    def through(self, part: Part, device: int, vector: Tensor) -> Tensor:
        feedback = self.codec.error_feedback and part is not Part.CONTROL
        wanted = vector + self.held.get((part, device), torch.zeros(self.size)) if feedback else vector
        key = int(keys(self.simulation.config.seed, self.state.rounds_done, [device], part=part)[0])
        message = self.codec.encode(wanted, key)
        assert 8 * len(message) == self.codec.bits(self.size)
        received = self.codec.decode(message, self.size)
        if feedback:
            self.held[part, device] = wanted - received
        if part is Part.CONTROL and self.codec.unbiased:
            received = received / (1.0 + self.codec.variance(self.size))
        return received

    def round(self) -> None:
        plan = self.simulation.plan(self.state)
        devices = plan.selected.tolist()
        gradients = self.engine.gradients(self.simulation.gradient_jobs(plan))
        heard = [(i, self.through(Part.GRADIENT, i, g)) for i, g in zip(devices, gradients, strict=False)]
        rules = local_rules(self.simulation.station, plan, heard)
        jobs = self.simulation.jobs(self.state, plan, gradients).jobs  # of the batches; the rules are those above
        own = dict(zip(devices, gradients, strict=False))
        jobs = [replace(job, rule=resolved(rules[i], own.get(i))) for i, job in zip(devices, jobs, strict=True)]
        updates = [self.sent(i, rules[i], each) for i, each in zip(devices, self.engine.train(jobs), strict=True)]
        work = Jobs(rules, jobs, self.state.residuals)
        self.state, _ = applied(self.simulation, self.state, plan, work, updates)

    def sent(self, device: int, rule: LocalRule, update: Update) -> Update:
        change = None
        if rule.control is not None:  # c_i' - c_i
            change = self.through(Part.CONTROL, device, -rule.control - update.delta / (rule.steps * rule.lr))
        return replace(update, delta=self.through(Part.UPDATE, device, update.delta), control_change=change)


def resolved(rule: LocalRule, own: Tensor | None) -> LocalRule:
    if not rule.subtract_own_gradient:
        return rule
    return replace(rule, drift=(rule.drift - own).float(), subtract_own_gradient=False)


@pytest.fixture
def single_threaded() -> Iterator[None]:
    """Threads that wait for each other take a hundred times as long on vectors this short, where a machine is busy."""
    with one_thread(torch.device("cpu")):
        yield


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize("method", ["flare", *SENDING_TWO])
@each_codec
def test_a_run_is_that_of_devices_that_send_bytes_one_by_one(codec: str, method: str) -> None:
    config = small(*CODECS[codec], f"learning.method={method}")
    plain = OneByOne(config)
    for _ in range(4):
        plain.round()
    (member,), _ = ended(config)
    assert torch.equal(member.state.weights, plain.state.weights)
    assert all(torch.equal(value, plain.state.method[name]) for name, value in member.state.method.items())
    held = {(part, i): row for part, rows in member.state.residuals.rows.items() for i, row in rows.items()}
    assert held.keys() == plain.held.keys()
    assert all(torch.equal(held[each], plain.held[each]) for each in held)
    expected = {Part.UPDATE, *([Part.GRADIENT] if method == "fedlin" else [])} if codec in ("sign", "topk") else set()
    assert {part for part, _ in held} == expected


# --- alone, in company, interrupted ------------------------------------------------------------------------------


@each_codec
def test_a_run_gives_the_same_bits_alone_and_in_company(codec: str) -> None:
    own = small(*CODECS[codec], "learning.method=scaffold", "seed=2")
    company = [
        small(*CODECS[codec], "learning.method=fedlin"),
        small(*CODECS[codec], "run.rounds=2"),
        small("uplink.codec=topk", "uplink.share=0.5"),
        small(),
    ]
    (alone,), (records,) = ended(own)
    (first, *_), (together, *_) = ended(own, *company)
    assert together == records
    assert same_state(first.state, alone.state)


@pytest.mark.parametrize("codec", ["qsgd", "topk"])
def test_neither_portions_nor_threads_change_a_bit(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [small(*CODECS[codec], f"learning.method={method}", "seed=4") for method in ("fedlin", "scaffold")]
    members, records = ended(*configs)
    before = torch.get_num_threads()
    for at_once in (1, 2 * 650):  # a row in each portion, then two
        monkeypatch.setattr(sys.modules["flare.uplink.codec"], "_ENTRIES_AT_ONCE", {"cpu": at_once})
        torch.set_num_threads(3)
        try:
            others, again = ended(*configs)
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(before)
        assert again == records
        assert all(same_state(a.state, b.state) for a, b in zip(members, others, strict=True))


def test_a_checkpoint_has_what_those_hold_back_that_have_sent(tmp_path: Path) -> None:
    config = small(*CODECS["topk"])
    stop_after(config, tmp_path / "run", 1)
    snapshot, _ = read_checkpoint(checkpoints(tmp_path / "run" / "checkpoints")[0][1])
    (sent,) = (record["sent"] for record in RunFolder.open(tmp_path / "run").records())
    assert snapshot.tensors["uplink.update.devices"].tolist() == sent  # and no rows of the others
    assert snapshot.tensors["uplink.update.rows"].shape == (3, 650)


def test_what_is_held_back_is_read_row_by_row() -> None:
    """A row that is replaced in the next round is freed then, though others of its checkpoint are not."""
    rows = Residuals({Part.UPDATE: {device: torch.randn(50) for device in (1, 4, 6)}})
    again = Residuals.from_tensors(rows.to_tensors()).of(Part.UPDATE)
    for device, row in rows.of(Part.UPDATE).items():
        assert torch.equal(again[device], row)
        assert again[device].untyped_storage().nbytes() == row.nbytes


def test_gradients_are_gone_while_devices_train(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def transmit(outgoing: Any) -> Any:
        heard = coding.transmit(outgoing)
        sent.extend(weakref.ref(each) for one in heard if one.part is Part.GRADIENT for each in one.vectors.values())
        return heard

    def engines(*given: Any, **named: Any) -> Any:
        (made,) = make_engines(*given, **named)
        launch = made.launch

        def watched(jobs: Any) -> Any:
            alive.append(sum(each() is not None for each in sent))
            return launch(jobs)

        monkeypatch.setattr(made, "launch", watched)
        return [made]

    monkeypatch.setattr(turn, "transmit", transmit)
    monkeypatch.setattr(lanes, "make_engines", engines)
    drive([Member(Simulation(small("learning.method=fedlin", "uplink.codec=qsgd", "run.rounds=2")))])
    assert sent
    assert alive == [0, 0]


def test_an_interrupted_round_leaves_what_is_held_back_as_it_was() -> None:
    (member,), _ = ended(small(*CODECS["sign"], "run.rounds=2"))
    simulation, state = member.simulation, replace(member.state, status=RunStatus.RUNNING)
    before = {name: each.clone() for name, each in tensors(state).items()}
    plan = simulation.plan(state)
    drive([again := Member(simulation)], stopping=lambda: True)
    again.state = state
    drive([again])
    assert plan.selected.tolist()
    assert same_tensors(tensors(state), before)
    assert not same_tensors(tensors(again.state), before)


# --- what is recorded --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OF_ANY_MODEL)
@each_codec
def test_the_clock_is_charged_what_is_sent_to_the_bit(codec: str, method: str) -> None:
    if make_method(LearningConfig(method=method)).needs_codec not in ("", codec):
        with pytest.raises(ValueError, match=rf'sent with codec .* but uplink.codec is "{codec}"; set it to'):
            Simulation(small(*CODECS[codec], f"learning.method={method}"))
        return
    simulation = Simulation(small(*CODECS[codec], f"learning.method={method}"))
    size = simulation.model.num_weights
    message = simulation.station.codec.encode(torch.linspace(-1.0, 1.0, size), 5)
    bits = (2 if method in SENDING_TWO else 1) * 8 * len(message)
    plan = simulation.plan(simulation.start())
    record = simulation.untrained(simulation.start(), plan)[1]
    at = plan.schedule.selected
    assert plan.payload_bits.tolist() == [bits] * 3
    assert record.upload_s == upload_s(bits, plan.schedule.bandwidth_hz[at], plan.seen.snr_hz[at]).tolist()


def test_every_sender_has_its_bits_in_records_tables_and_pictures() -> None:
    run = flare.simulate(small(*CODECS["qsgd"], "learning.method=scaffold"), progress=False)
    codec = make_codec("qsgd", {"bits": 3})
    bits = 2.0 * codec.bits(650)
    assert [record.payload_bits for record in run.records] == [[bits] * 3] * 4
    assert run.round_columns()["payload_bits"].tolist() == [3.0 * bits] * 4
    of_devices, _ = run.device_table()
    assert np.nansum(of_devices["payload_bits"]) == 12.0 * bits
    assert np.array_equal(np.isnan(of_devices["payload_bits"]), ~of_devices["sent"])
    (drawn,) = run.plot("accuracy", x="bits").get_lines()
    assert np.asarray(drawn.get_xdata())[-1] == 12.0 * bits


def test_loss_and_norm_are_those_before_coding() -> None:
    _, (plain, coded) = ended(small(), small(*CODECS["topk"]))
    assert coded[0].selected == plain[0].selected
    assert coded[0].loss == plain[0].loss
    assert coded[0].update_norm == plain[0].update_norm
    assert coded[1].loss != plain[1].loss


def test_the_base_station_knows_the_norm_of_what_it_decoded() -> None:
    members, (coded,) = ended(small("run.rounds=1", *CODECS["topk"]))
    known = members[0].state.history.update_norm[coded[0].sent]
    own = np.array(coded[0].update_norm)
    assert (known > 0.0).all()
    assert (known < 0.999 * own).all()  # most entries were left out, and with them a part of the length


def test_records_of_older_versions_are_read_without_bits(tmp_path: Path) -> None:
    _, ((first, *_),) = ended(small("run.rounds=1"))
    told = {name: value for name, value in first.to_json().items() if name != "payload_bits"}
    assert RoundRecord.from_json(told).payload_bits == [None] * 3
    with pytest.raises(ValueError, match="has 2 values of payload_bits for 3 devices sent"):
        RoundRecord.from_json(told | {"payload_bits": [1.0, 2.0]})
    config = small("run.rounds=1")
    with RunFolder.create(tmp_path / "old", config) as folder:
        folder.append(told)
        folder.finish("finished", rounds=1, clock_s=1.0)
    assert np.isnan(read_run(tmp_path / "old").round_payload_bits()).tolist() == [True]


# --- what cannot be coded ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", *SENDING_TWO])
@each_codec
def test_a_run_that_diverges_ends_as_one_and_its_company_goes_on(codec: str, method: str) -> None:
    sound = small(*CODECS[codec], f"learning.method={method}")
    (alone,), (records,) = ended(sound)
    wild = small(*CODECS[codec], f"learning.method={method}", "learning.local_lr=1e38")
    (lost, unharmed), (_, beside) = ended(wild, sound)
    assert lost.state.status is RunStatus.DIVERGED
    assert not bool(torch.isfinite(lost.state.weights).all())
    assert all(bool(torch.isfinite(row).all()) for rows in lost.state.residuals.rows.values() for row in rows.values())
    assert beside == records
    assert same_state(unharmed.state, alone.state)


# --- SCAFFOLD's controls -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("single_threaded")
@pytest.mark.parametrize("name", ["qsgd", "ternary", "sign", "topk", "float16"])
def test_held_controls_come_closer_to_what_they_should_be_with_every_message(name: str) -> None:
    codec = make_codec(name, {"bits": 2} if name == "qsgd" else {})
    wanted = torch.from_numpy(flare.stream(0, "controls").normal(size=(5, 400)).astype(np.float32))
    held = torch.zeros_like(wanted)
    distances = []
    for index in range(20):
        distances.append(float((wanted - held).norm()))
        for device, goal in enumerate(wanted):
            told = {"seed": 0, "index": index, "device": device}
            message, kept = encoded(codec, Part.CONTROL, goal - held[device], residual=None, **told)
            assert kept is None
            held[device] += decoded(codec, Part.CONTROL, message, 400)
    limit = codec.variance(400) / (1.0 + codec.variance(400)) if codec.unbiased else codec.variance(400)
    assert all(later <= limit**0.5 * before + 1e-4 for before, later in itertools.pairwise(distances))
    assert distances[-1] < 0.8 * distances[0]


# --- bad input ---------------------------------------------------------------------------------------------------

LINE = [part for text in (*SMALL[:4], "run.rounds=1", "scheduling.policy=all") for part in ("--set", text)]


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *settings: str) -> str:
    given = [part for text in settings for part in ("--set", text)]
    code, _, said = command(capsys, "run", *LINE, *given, "--quiet", "--out", str(folder / "run"))
    assert code == 2, said
    assert not (folder / "run").exists()
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["uplink.codec=qsdg"], "there is no codec 'qsdg'; did you mean 'qsgd'? Codecs: none, float16, qsgd"),
        (["uplink.codec=qsgd", "uplink.bits=1"], "uplink.bits is 1; it must be a whole number, at least 2, at most 16"),
        (["uplink.codec=topk", "uplink.share=0"], "uplink.share is 0; it must be a finite number, greater than 0"),
        (["uplink.codec=topk", "uplink.share=1.01"], "uplink.share is 1.01; it must be"),
        (["uplink.share=nan"], "uplink.share is nan; it must be a finite number"),
        (
            ["uplink.codec=topk", "uplink.bits=4"],
            "uplink.bits is 4, but codec 'topk' has no such option (its options: share, error_feedback); leave it out, "
            "or take a codec that has it: qsgd",
        ),
        (["uplink.share=0.1"], "codec 'none' has no such option (its options: none); leave it out, or take"),
        (["uplink.codec=sign", "uplink.bits=auto"], "uplink.bits is auto, but codec 'sign' has no such option"),
        (["uplink.codec=qsgd", "uplink.options.bits=17"], "option 'bits' of codec 'qsgd' is 17; it must be a whole"),
        (["uplink.codec=qsgd", "uplink.options.bits=3", "uplink.bits=4"], "they are one option; give it once"),
        (["uplink.codec=sign", "uplink.options.blok=3"], "codec 'sign' has no option 'blok' (its options: block, "),
        (
            ["uplink.codec=qsgd", "run.payload=wireless"],
            "with codec 'qsgd' the clock is charged what is really sent; set run.payload to \"model\", or uplink.codec",
        ),
        (["uplink.codec=qsgd", "uplink.bits=auto"], 'uplink.bits is "auto"'),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    settings: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert says in refused(capsys, tmp_path, *settings)


def test_a_method_that_does_not_say_what_it_sends_is_refused_with_a_codec() -> None:
    with registries_as_they_were():

        @method("talkative")
        class Talkative(PlainMethod):
            uplink_models = 3
            sends_control = True

            def rules(self, state: Any, now: Any, common_gradient: Any) -> list[LocalRule]:
                return [LocalRule(now.local_lr, int(now.tau[i])) for i in now.selected]

        Simulation(small("learning.method=talkative"))  # without a codec only the clock needs to know
        with pytest.raises(ValueError, match="sends 3 vectors a round and says what 2 of them are"):
            Simulation(small("learning.method=talkative", "uplink.codec=sign"))
        Talkative.uplink_models = 2
        with pytest.raises(ValueError, match=r"'talkative' says that .* but a rule of it has no control"):
            ended(small("learning.method=talkative", "uplink.codec=sign"))


# --- names, options and code of one's own ------------------------------------------------------------------------

COARSE = """
from dataclasses import dataclass
import torch
import flare
from flare.config import setting
from flare.uplink import Codec

@flare.codec("coarse")
@dataclass(frozen=True)
class Coarse(Codec):
    step: float = setting(0.01, "what a unit stands for", above=0.0)
    unbiased = False

    def bits(self, num_weights):
        return 8 * num_weights

    def variance(self, num_weights):
        return 1.0

    def pack(self, updates, keys):
        return (updates / self.step).round().clamp(-127, 127).to(torch.int8).view(torch.uint8)

    def unpack(self, messages, num_weights):
        return messages.view(torch.int8)[:, :num_weights{more}].float() * self.step
"""


def test_a_codec_of_ones_own_runs_and_its_code_is_part_of_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(COARSE.format(more=""))
    line = ["--plugin", str(file), "--set", "uplink.codec=coarse", "--quiet"]
    with registries_as_they_were():
        code, _, said = command(capsys, "run", *LINE, *line, "-o", "step=0.02", "--out", str(tmp_path / "run"))
        assert code == 0, said
        run = read_run(tmp_path / "run")
        assert dict(run.config.uplink.options) == {"step": 0.02}
        assert run.payload_bits.tolist() == [8.0 * 650] * 6
        told = json.loads((tmp_path / "run" / "manifest.json").read_text())["identity"]
        assert told["codec"] == "coarse"
        file.write_text(COARSE.format(more=" - 1"))
        code, _, said = command(capsys, "run", *LINE, *line, "--out", str(tmp_path / "other"))
        assert code == 2
        assert "its unpack answered torch.float32 (1, 99) for 1 messages of 100 weights" in " ".join(said.split())
        code, _, said = command(capsys, "run", "--resume", str(tmp_path / "run"), "--quiet")
        assert code == 2
        assert "mine.py was changed" in " ".join(said.split())


def test_another_codec_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    config = small("uplink.codec=mine")
    with registries_as_they_were():

        @flare.codec("mine")
        def one() -> Codec:
            return make_codec("sign")

        turns = itertools.count()
        with RunFolder.create(tmp_path / "run", config) as folder:
            drive([Member(Simulation(config), folder)], stopping=lambda: next(turns) >= 1)
        del flare.uplink.CODECS["mine"]

        @flare.codec("mine")
        def other() -> Codec:
            return make_codec("sign", {"block": 7})

        with (
            RunFolder.open(tmp_path / "run") as folder,
            pytest.raises(ValueError, match="the code of its codec is another"),
        ):
            resume(Member(Simulation(config), folder))


def test_options_of_the_codec_are_given_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, said = command(
        capsys, "run", *LINE, "--set", "uplink.codec=qsgd", "-o", "bits=2", "--quiet", "--out", str(tmp_path / "run")
    )
    assert code == 0, said
    assert read_run(tmp_path / "run").payload_bits[0] == make_codec("qsgd", {"bits": 2}).bits(650)
    code, _, said = command(capsys, "run", *LINE, "-o", "bits=2", "--quiet", "--out", str(tmp_path / "other"))
    assert code == 2
    assert "codec 'none' (none)" in " ".join(said.split())


def test_entries_with_other_codecs_are_told_apart(tmp_path: Path) -> None:
    shared = {"method": "flare", "policy": "all"}
    entries = [
        {"label": "as it is", **shared},
        {"label": "two bits", **shared, "uplink.codec": "qsgd", "uplink.bits": 2},
    ]
    config = {"wireless": {"num_devices": 3, "deadline_s": 1}, "learning.model": "logistic", "run.rounds": 2}
    runs = flare.compare(entries, config=config, out=tmp_path, progress=False)
    table = runs.summary().to_dict("index")
    assert table["as it is"]["payload_bits"] == 6 * 32 * 650  # three devices, two rounds
    assert table["two bits"]["payload_bits"] == 6 * make_codec("qsgd", {"bits": 2}).bits(650)
    for folder in tmp_path.glob("*/manifest.json"):  # without the labels of the user
        folder.write_text(json.dumps({**json.loads(folder.read_text()), "label": ""}))
    assert sorted(group.label for group in flare.load(tmp_path).groups) == [
        "flare:all, qsgd, 2 bits",
        "flare:all, uncoded",
    ]
