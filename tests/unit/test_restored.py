"""Checkpoints that somebody edited, with a checksum that is right: what cannot be a state of the run is refused."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flare.atomic import write_whole
from flare.config import Config, override
from flare.learning.methods import METHODS
from flare.learning.methods.base import PlainMethod
from flare.records import RunFolder, Snapshot
from flare.records.checkpoint import encode
from flare.records.checkpoints import checkpoints, read_checkpoint
from flare.rounds import first_state
from flare.rounds.restored import restored_state
from flare.rounds.state import to_tensors
from flare.scheduling import POLICIES
from flare.simulation import Member, Simulation, drive, resume
from tests.driving import settings_of_method
from tests.hostile import flare as command
from tests.method_rounds import OF_ANY_MODEL

SETTINGS = (
    "wireless.num_devices=4", "wireless.deadline_s=5", "wireless.batch_size=5", "learning.model=logistic",
    "learning.device=cpu", "run.rounds=2", "run.checkpoint_every=1", "scheduling.policy=round-robin",
    "scheduling.options.num_selected=2",
)  # fmt: skip
TOPK = ("uplink.codec=topk", "uplink.share=0.05")
WEIGHTS = 650
Tensors = dict[str, Tensor]


def small(*settings: str) -> Config:
    return override(Config(), [*SETTINGS, *settings])


def after_two_rounds(*settings: str) -> tuple[Simulation, Tensors, dict[str, Any]]:
    member = Member(Simulation(small(*settings)))
    drive([member])
    return member.simulation, *to_tensors(member.state)


def read(simulation: Simulation, tensors: Tensors, numbers: dict[str, Any]) -> None:
    restored_state(simulation.station, 2, tensors, numbers, fleet=False)


@pytest.fixture(scope="module")
def fedlin() -> tuple[Simulation, Tensors, dict[str, Any]]:
    return after_two_rounds(*TOPK, "learning.method=fedlin")


@pytest.fixture(scope="module")
def scaffold() -> tuple[Simulation, Tensors, dict[str, Any]]:
    return after_two_rounds("learning.method=fedadam", "learning.options.inner=scaffold")


@pytest.fixture(scope="module")
def underway() -> tuple[Simulation, Tensors, dict[str, Any]]:
    return after_two_rounds("learning.asynchronous=true")


@pytest.fixture(scope="module")
def xu() -> tuple[Simulation, Tensors, dict[str, Any]]:
    return after_two_rounds("scheduling.policy=xu", "scheduling.options={}")


def put(name: str, value: Any) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = value(tensors[name]) if callable(value) else value

    return change


def drop(*names: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


def one_row_less(tensors: Tensors) -> None:
    for name in ("uplink.update.devices", "uplink.update.rows"):
        tensors[name] = tensors[name][1:]


def two_of_one_device(tensors: Tensors) -> None:
    tensors["uplink.update.devices"][1] = tensors["uplink.update.devices"][0]


UNSOUND: dict[str, tuple[str, Callable[[Tensors], None], str]] = {
    "residuals gone": ("fedlin", drop("uplink.update.devices", "uplink.update.rows"), "lacks uplink.update of device"),
    "gradients gone": ("fedlin", drop("uplink.gradient.devices", "uplink.gradient.rows"), "lacks uplink.gradient"),
    "rows gone": ("fedlin", drop("uplink.update.rows"), "the devices or their rows, and not both"),
    "devices gone": ("fedlin", drop("uplink.update.devices"), "the devices or their rows, and not both"),
    "a row gone": ("fedlin", one_row_less, "lacks uplink.update of device"),
    "rows too many": ("fedlin", put("uplink.update.rows", torch.zeros(9, WEIGHTS)), "must have a row for each device"),
    "rows of a vector": ("fedlin", put("uplink.update.rows", torch.zeros(4)), "must have a row for each device"),
    "rows short": ("fedlin", put("uplink.update.rows", lambda each: each[:, 1:]), r"float32 (649,); it must be"),
    "rows of float64": ("fedlin", put("uplink.update.rows", Tensor.double), "is float64 (650,); it must be float32"),
    "rows not finite": ("fedlin", put("uplink.update.rows", lambda each: each / 0.0), "numbers that are not finite"),
    "devices of float32": ("fedlin", put("uplink.update.devices", Tensor.float), "must have a row for each device"),
    "device out of range": (
        "fedlin",
        put("uplink.update.devices", lambda each: each + 2),
        "the run has devices 0 to 3",
    ),
    "device negative": ("fedlin", put("uplink.update.devices", lambda each: each - 1), "is of device -1"),
    "doubled": ("fedlin", two_of_one_device, "two rows of one device"),
    "held back in vain": (
        "scaffold",
        lambda each: each.update(
            {"uplink.update.devices": torch.tensor([0]), "uplink.update.rows": torch.zeros(1, 650)}
        ),
        "of which nothing is held back in this run",
    ),
    "weights gone": ("fedlin", drop("weights"), "it is no state of a run ('weights')"),
    "weights short": ("fedlin", put("weights", torch.zeros(3)), "weights are float32 (3,); the model has 650 numbers"),
    "weights whole numbers": ("fedlin", put("weights", Tensor.long), "weights are int64 (650,)"),
    "weights not finite": ("fedlin", put("weights", lambda each: each / 0.0), "its weights are not all finite"),
    "history gone": ("fedlin", drop("history.last_loss"), "last_loss"),
    "history short": ("fedlin", put("history.upload_s", lambda each: each[1:]), "upload_s has 3 devices"),
    "history square": ("fedlin", put("history.times_sent", torch.zeros(2, 2).double()), "times_sent has shape (2, 2)"),
    "history of float32": ("fedlin", put("history.energy_j", Tensor.float), "history.energy_j is float32 (4,)"),
    "history of others": (
        "fedlin",
        lambda each: each.update({name: old[:3] for name, old in each.items() if name.startswith("history.")}),
        "its history is of 3 devices; the run has 4",
    ),
    "history unknown": ("fedlin", put("history.mood", torch.zeros(4)), "mood"),
    "memory square": ("fedlin", put("memory.device_place", torch.zeros(4, 4)), "which no policy of flare gives it"),
    "memory short": ("fedlin", put("memory.device_place", torch.zeros(3)), "memory.device_place has shape (3,)"),
    "memory of nobody": ("fedlin", drop("memory_known.device_place"), "does not say of which devices it knows"),
    "known numbers": ("fedlin", put("memory_known.device_place", Tensor.double), "memory_known.device_place"),
    "known too many": ("fedlin", put("memory_known.device_place", torch.ones(9) > 0.0), "there are 4 devices"),
    "under way gone": ("underway", drop("underway.tau"), "it is no state of a run ('tau')"),
    "under way short": ("underway", put("underway.left_s", lambda each: each[1:]), "underway.left_s is float64 (3,)"),
    "under way not finite": ("underway", put("underway.tau", lambda each: each / 0.0), "it must be finite float64"),
    "under way whole": ("underway", put("underway.steps", Tensor.double), "underway.steps is float64 (4,)"),
    "model short": ("underway", put("underway.model.1", torch.zeros(3)), "model of round 1 is float32 (3,)"),
    "model of another round": (
        "underway",
        put("underway.began", lambda each: each + 7),
        "models that it does not have",
    ),
    "rate negative": ("underway", put("underway.lr", lambda each: -each), "underway.lr has -0.075; it must be"),
    "rate zero": (
        "underway",
        put("underway.lr", lambda each: 0.0 * each),
        "it must be a finite number, greater than 0",
    ),
    "pull negative": ("underway", put("underway.mu", lambda each: each - 1.0), "underway.mu has -1"),
    "no steps": ("underway", put("underway.steps", lambda each: 0 * each), "underway.steps has 0; it must be a finite"),
    "age negative": ("underway", put("underway.age", lambda each: each - 5), "underway.age has -"),
    "age too great": ("underway", put("underway.age", lambda each: each + 9), "more than the rounds since"),
    "more left than there was": ("underway", put("underway.left_s", lambda each: each + 1e9), "more is left than"),
    "began before all": ("underway", put("underway.began", lambda each: each - 9), "underway.began has -"),
    "age not a number": ("fedlin", put("history.age", lambda each: each / 0.0), "history.age has nan; it must be"),
    "sent less than never": ("fedlin", put("history.times_sent", lambda each: each - 5.0), "history.times_sent has -"),
    "energy infinite": ("fedlin", put("history.energy_j", lambda each: each + torch.inf), "history.energy_j has inf"),
    "heard in the future": ("fedlin", put("history.rounds_since_sent", lambda each: each - 9.0), "1 or more"),
    "length negative": ("fedlin", put("history.update_norm", lambda each: -each), "history.update_norm has -"),
    "time infinite": ("fedlin", put("history.upload_s", lambda each: each + torch.inf), "history.upload_s has inf"),
    "queue infinite": ("xu", put("memory.device_queue_j", lambda each: each + torch.inf), "device_queue_j has inf"),
    "queue not a number": ("xu", put("memory.device_queue_j", lambda each: each * torch.nan), "device_queue_j has nan"),
    "rounds negative": ("xu", put("memory.round", lambda each: -each.double()), "memory.round has -2; it must be"),
    "method gone": ("scaffold", drop("method.inner.control"), "its method keeps inner.device_control, momentum,"),
    "method more": (
        "scaffold",
        put("method.mood", torch.zeros(1)),
        "device_control, momentum, mood, second_moment; method",
    ),
    "method short": ("scaffold", put("method.momentum", torch.zeros(9).double()), "must be float64 (650,)"),
    "method of float16": (
        "scaffold",
        put("method.inner.control", Tensor.half),
        "is float16 (650,); it must be float32",
    ),
    "method rows": (
        "scaffold",
        put("method.inner.device_control", lambda each: each[1:]),
        "it must be float32 (4, 650)",
    ),
}


@pytest.mark.parametrize("kind", UNSOUND)
def test_what_cannot_be_a_state_of_the_run_is_refused_with_what_is_wrong(
    kind: str, request: pytest.FixtureRequest
) -> None:
    run, change, why = UNSOUND[kind]
    simulation, tensors, numbers = request.getfixturevalue(run)
    edited = {name: each.clone() for name, each in tensors.items()}
    change(edited)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the words are compared below)
        read(simulation, edited, numbers)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "numbers",
    [{}, {"clock_s": 1.0}, {"clock_s": 1.0, "status": "asleep"},
     {"clock_s": float("nan"), "status": "running"}, {"clock_s": -1.0, "status": "running"}],
)  # fmt: skip
def test_numbers_of_no_run_are_refused(numbers: dict[str, Any], fedlin: tuple[Simulation, Tensors, Any]) -> None:
    simulation, tensors, _ = fedlin
    with pytest.raises(ValueError, match=r"clock_s|status|asleep"):
        read(simulation, tensors, numbers)


@pytest.mark.parametrize("method", METHODS)
def test_what_methods_of_flare_keep_is_taken(method: str) -> None:
    model = "learning.model=logistic" if method in OF_ANY_MODEL else "learning.model=mlp"
    read(*after_two_rounds(*settings_of_method(method), model))


@pytest.mark.parametrize("policy", [name for name, one in POLICIES.items() if one.remembers or one.asynchronous])
def test_what_policies_of_flare_keep_is_taken(policy: str) -> None:
    shared = [f"data.share_{word}=true" for word in POLICIES[policy].needed({})]
    read(*after_two_rounds(f"scheduling.policy={policy}", *shared, "scheduling.options={}"))


def test_a_state_of_devices_that_compute_across_rounds_is_not_one_of_others(
    underway: tuple[Simulation, Tensors, Any],
) -> None:
    simulation, tensors, numbers = underway
    plain = {name: each for name, each in tensors.items() if not name.startswith("underway.")}
    with pytest.raises(ValueError, match="has nothing that is under way, and its devices compute across rounds"):
        read(simulation, plain, numbers)
    with pytest.raises(ValueError, match="has something that is under way, and its devices begin anew every round"):
        read(after_two_rounds()[0], tensors, numbers)


def test_a_run_whose_devices_compute_across_rounds_can_be_stopped_before_the_first(
    underway: tuple[Simulation, Tensors, Any],
) -> None:
    simulation, _, _ = underway
    tensors, numbers = to_tensors(simulation.start())
    again = restored_state(simulation.station, 0, tensors, numbers, fleet=False)
    assert again.underway is None
    nobody = simulation.station.method.start(simulation.model.num_weights, 0)
    tensors, numbers = to_tensors(first_state(simulation.start_weights, nobody, 0))
    assert restored_state(simulation.station, 3, tensors, numbers, fleet=True).rounds_done == 3  # none was there yet


def test_a_method_of_ones_own_may_keep_what_it_likes(scaffold: tuple[Simulation, Tensors, dict[str, Any]]) -> None:
    simulation, tensors, numbers = scaffold

    class Own(PlainMethod):
        pass

    station = replace(simulation.station, method=Own())  # type: ignore[type-var]
    kept = {name: each for name, each in tensors.items() if not name.startswith("method.")}
    state = restored_state(station, 2, kept | {"method.grows": torch.zeros(2)}, numbers, fleet=False)
    assert state.method["grows"].tolist() == [0.0, 0.0]


def test_of_an_update_that_was_not_finite_nothing_is_held_back(fedlin: tuple[Simulation, Tensors, Any]) -> None:
    simulation, tensors, numbers = fedlin
    edited = {**tensors, "weights": tensors["weights"] / 0.0}
    drop("uplink.update.devices", "uplink.update.rows")(edited)
    read(simulation, edited, {**numbers, "status": "diverged"})


# --- in the folder of a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after rounds 1 and 2, stopped then."""
    path = tmp_path_factory.mktemp("restored") / "run"
    config, turns = small(*TOPK, "run.rounds=3"), itertools.count()
    with RunFolder.create(path, config) as made:
        drive([Member(Simulation(config), made)], stopping=lambda: next(turns) >= 2)
    return path


def edit(path: Path, *rounds: int) -> None:
    """Take what devices hold back out of some checkpoints, and put their checksums right."""
    for done, file in checkpoints(path / "checkpoints"):
        if done in rounds:
            snapshot, check = read_checkpoint(file)
            kept = {name: each for name, each in snapshot.tensors.items() if not name.startswith("uplink.")}
            write_whole(file, *encode(Snapshot(snapshot.rounds_done, kept, snapshot.numbers), check))


@pytest.mark.parametrize(("edited", "goes_on_after"), [([2], 1), ([1, 2], 0)])
def test_an_edited_checkpoint_is_set_aside_and_the_one_before_is_taken(
    edited: list[int], goes_on_after: int, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(shutil.copytree(folder, tmp_path / "run"))
    edit(path, *edited)
    with RunFolder.open(path) as opened, caplog.at_level(logging.WARNING):
        resume(member := Member(Simulation(opened.config), opened))
    assert member.state.rounds_done == goes_on_after
    assert "lacks uplink.update of device" in caplog.text
    assert len(list((path / "checkpoints").glob("*.aside-1"))) == len(edited)


def test_a_command_says_why_and_ends_as_the_run_that_nobody_touched(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    whole, edited = (Path(shutil.copytree(folder, tmp_path / name)) for name in ("whole", "edited"))
    edit(edited, 2)
    assert command(capsys, "run", "--resume", str(whole), "--quiet")[0] == 0
    assert command(capsys, "run", "--resume", str(edited), "--quiet")[0] == 0
    assert "lacks uplink.update of device" in caplog.text
    ends = [read_checkpoint(checkpoints(path / "checkpoints")[0][1])[0].tensors for path in (whole, edited)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ("weights", "uplink.update.rows"))
