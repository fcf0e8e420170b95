"""Robust rules: clipping, median and trimmed mean, against attackers, in the simulator and on Flower."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor

from flare.config import Config, override
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.learning.aggregate import RunningMean
from flare.learning.engine import make_engine
from flare.learning.job import LocalRule, Update
from flare.learning.methods import METHODS, make_method
from flare.learning.robust import TrimmedMean, num_trimmed
from flare.records import RunFolder
from flare.records.run import run_of
from flare.report.curves import summarise
from flare.report.run_groups import group_runs
from flare.report.run_words import headline, remarks_on
from flare.rng import stream
from flare.rounds import BaseStation, Observation, RoundRecord
from flare.rounds.observation import Speeds
from flare.rounds.robust import ClippedMean, Clipping, Heard, as_believed, typical_norm, votes_of
from flare.scheduling.history import History
from flare.simulation import Member, Simulation, drive, resume
from flare.simulation.attackers import Attack, attackers_of
from tests.driving import settings_of_method
from tests.fleet_runs import SOUND, node, records, run, told, trained, update
from tests.fleet_runs import settings as settings_of
from tests.fleets import FakeGrid, Node, cell_app, running
from tests.hostile import flare as command
from tests.method_rounds import OF_ANY_MODEL

RULE = LocalRule(lr=0.1, steps=2)
COMMON = (
    "wireless.deadline_s=100", "learning.model=logistic", "learning.local_lr=0.5", "learning.device=cpu",
    "learning.engine=sequential", "run.rounds=20", "run.evaluate_every=20",
    "scheduling.policy=round-robin", "scheduling.bound=false",
)  # fmt: skip
FOUR = (
    "wireless.num_devices=4", "scheduling.options.num_selected=4", "learning.attackers=1", "wireless.batch_size=40",
    "wireless.tau_law=groups", "wireless.tau_values=[8,12]",
)  # fmt: skip
TWENTY = (
    "wireless.num_devices=20", "scheduling.options.num_selected=20", "learning.attackers=4", "wireless.batch_size=20",
    "wireless.tau_law=groups", "wireless.tau_values=[4,6]",
)  # fmt: skip


def config_of(*settings: str) -> Config:
    return override(Config(), [*COMMON, *settings])


def driven(*settings: str) -> tuple[Member, list[RoundRecord]]:
    member, records = Member(Simulation(config_of(*settings))), []
    drive([member], callback=lambda _, record: records.append(record))
    return member, records


def accuracy(*settings: str) -> float:
    return driven(*settings)[1][-1].test_accuracy or 0.0


def vectors(count: int, num_weights: int) -> list[Tensor]:
    drawn = stream(5, "vectors", count).standard_normal((count, num_weights))
    return list(torch.from_numpy(drawn).float())


# The reducers


@pytest.mark.parametrize(("trim", "count", "left_out"), [
    (0.25, 4, 1), (0.25, 3, 1), (0.25, 2, 0), (0.25, 20, 5), (0.1, 20, 2), (0.2, 15, 3), (0.5, 7, 3), (0.5, 8, 3),
    (0.0, 9, 0), (0.3, 10, 3), (0.5, 1, 0),
])  # fmt: skip
def test_how_many_are_left_out(trim: float, count: int, left_out: int) -> None:
    assert num_trimmed(trim, count) == left_out


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_the_median_is_that_of_every_weight_in_any_order_and_in_portions(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = vectors(count, 23)
    expected = np.median(torch.stack(given).numpy(), axis=0)
    ends = []
    for order, at_once in ((given, 2**22), (given[::-1], 2**22), (given, 10)):
        monkeypatch.setattr("flare.learning.robust._NUMBERS_AT_ONCE", at_once)
        median, room = TrimmedMean(0.5), torch.empty(23)
        for each in order:
            median.add(room.copy_(each))  # as vectors of nodes come: each where the last one was
        ends.append(median.end())
    assert all(torch.equal(ends[0], each) for each in ends)
    assert ends[0].dtype == torch.float64
    assert np.allclose(ends[0].numpy(), expected, rtol=1e-6, atol=0.0)


def test_a_trimmed_mean_by_hand() -> None:
    mean = TrimmedMean(0.25)
    for number in (1.0, 2.0, 3.0, float("nan")):  # what is no number counts as the largest
        mean.add(torch.tensor([number, -number]))
    assert mean.end().tolist() == [2.5, -1.5]
    mean = TrimmedMean(0.2)
    for number in (1.0, 1e30, 3.0, 5.0, -7.0):
        mean.add(torch.tensor([number]))
    assert mean.end().tolist() == [3.0]  # of 1, 3 and 5


# Clipping


def history_of(norms: list[float], since: list[float] | None = None) -> History:
    known = History.empty(len(norms))
    return replace(known, update_norm=np.array(norms), rounds_since_sent=np.array(since or [1.0] * len(norms)))


def test_the_typical_length_has_one_vote_of_each_device_heard_of_late() -> None:
    assert typical_norm([1.0, 9.0, 2.0]) == 2.0
    assert typical_norm([1.0, 100.0]) == 1.0  # the lower of two
    assert typical_norm([0.0, 0.0, 0.0, 4.0, np.nan, np.inf]) == 4.0
    assert np.isnan(typical_norm([]))
    known = history_of([1.0, 2.0, 9.0, 9.0], [1.0, 20.0, 21.0, np.inf])
    assert votes_of(known) == {0: 1.0, 1: 2.0}
    assert votes_of(known, np.array([1, 3, 7])) == {1: 2.0}


def heard(device: int, *numbers: float, change: Tensor | None = None) -> Heard:
    delta = torch.tensor(numbers)
    norm = float(delta.norm())
    return Heard(device, Update(delta, 0.5, norm=norm, control_change=change), norm)


def test_a_long_update_keeps_its_direction_and_a_short_one_its_bits() -> None:
    clipping = Clipping(3.0, history_of([1.0, 1.0, 1.0, 1.0]), 10)
    short, long = heard(0, 0.6, 2.8), heard(1, 30.0, -40.0)
    assert clipping.take(short, RULE) == [short]
    assert clipping.take(long, RULE) == []  # others of this round may be as long
    (taken,) = clipping.rest()
    assert taken.norm == 3.0
    assert taken.update.delta.tolist() == pytest.approx([1.8, -2.4], rel=1e-6)
    assert (taken.update.norm, taken.update.loss) == (50.0, 0.5)  # what the device made
    assert (clipping.limit, clipping.clipped, clipping.rest()) == (3.0, [1], [])


def test_in_a_first_round_the_updates_are_held_and_vote() -> None:
    clipping, room = Clipping(2.0, History.empty(4), 10), torch.zeros(2)
    for device, length in enumerate((1.0, 1000.0, 1.5, 0.5)):
        update = Update(room.copy_(torch.tensor([length, 0.0])), 0.5, norm=length)
        assert clipping.take(Heard(device, update, length), RULE) == []
    taken = {each.device: each.update.delta.tolist() for each in clipping.rest()}
    assert taken == {0: [1.0, 0.0], 1: [2.0, 0.0], 2: [1.5, 0.0], 3: [0.5, 0.0]}  # the lower median is 1
    assert clipping.clipped == [1]


def test_where_most_of_a_round_are_longer_than_ever_before_they_are_not_clipped() -> None:
    """One device was there alone and sent next to nothing; four others come, and one of them sends very much."""
    clipping = Clipping(3.0, history_of([1e-20]), 10)
    for device, length in enumerate((1.0, 1.1, 0.9, 1e6), start=1):
        assert clipping.take(heard(device, length), RULE) == []
    assert {each.device: each.norm for each in clipping.rest()} == pytest.approx({1: 1.0, 2: 1.1, 3: 0.9, 4: 3.0})
    assert clipping.clipped == [4]


def test_policies_see_no_update_that_is_longer_than_believed() -> None:
    known = history_of([1.0, 1.0, 1e6, np.nan])
    assert as_believed(known, 3.0).update_norm[:3].tolist() == [1.0, 1.0, 3.0]
    assert as_believed(known, 0.0) is known


def test_no_more_are_held_than_there_is_room_for() -> None:
    clipping = Clipping(2.0, History.empty(4), 2)
    assert clipping.take(heard(0, 1.0), RULE) == []
    assert [each.device for each in clipping.take(heard(1, 9.0), RULE)] == [0, 1]
    assert [each.norm for each in clipping.take(heard(2, 7.0), RULE)] == [2.0]  # by the first two
    many = Clipping(2.0, History.empty(4), 10**6)
    assert [len(many.take(heard(device, 1.0), RULE)) for device in range(66)] == [*[0] * 63, 64, 1, 1]


def test_where_nothing_can_be_compared_all_stays() -> None:
    clipping = Clipping(2.0, History.empty(2), 10)
    zero, broken = heard(0, 0.0), heard(1, float("inf"))
    assert clipping.take(zero, RULE) == clipping.take(broken, RULE) == []
    assert [each.norm for each in clipping.rest()] == [0.0, float("inf")]
    off = Clipping(0.0, history_of([1.0]), 10)
    assert off.take(broken, RULE) == [broken]


def test_the_change_of_a_control_is_bounded_by_what_a_step_of_the_limit_makes_it() -> None:
    rule = replace(RULE, control=torch.tensor([3.0, 4.0]))
    clipping = Clipping(2.0, history_of([1.0]), 10)
    (taken,) = clipping.take(heard(0, 1.0, 0.0, change=torch.tensor([0.0, 300.0])), rule)
    assert taken.update.control_change is not None
    assert float(taken.update.control_change.norm()) == pytest.approx(5.0 + 2.0 / (2 * 0.1))  # |c| + limit / (tau eta)
    (taken,) = clipping.take(heard(1, 1.0, 0.0, change=torch.tensor([0.0, 14.0])), rule)
    assert taken.update.control_change is not None
    assert taken.update.control_change.tolist() == [0.0, 14.0]
    assert clipping.clipped == [0]


@pytest.mark.parametrize("max_held", [10, 2])
def test_gradients_are_clipped_by_their_own_median(max_held: int) -> None:
    mean, plain = ClippedMean(RunningMean(), 2.0, max_held), RunningMean()
    for device, length in enumerate((1.0, 1000.0, 0.5, 1.5)):
        mean.add(torch.tensor([length, 0.0]), device)
    for length in (1.0, 2.0, 0.5, 1.5):
        plain.add(torch.tensor([length, 0.0]))
    assert mean.end().tolist() == plain.end().tolist()


# Attackers


@pytest.fixture(scope="module")
def honest() -> dict[str, float]:
    return {name: accuracy(*cell, "learning.attack=absent") for name, cell in {"4": FOUR, "20": TWENTY}.items()}


ATTACKS = (("noise", 1000.0), ("sign-flip", 1.0), ("sign-flip", 10.0), ("scaled", 10.0))
WITHSTOOD = [
    *[("4", FOUR, "learning.robust=median", *attack) for attack in ATTACKS],
    *[("20", TWENTY, "learning.robust=trimmed-mean", *attack) for attack in ATTACKS],
    *[("4", FOUR, "learning.clip=2", *attack) for attack in (ATTACKS[0], ATTACKS[3])],
]


@pytest.mark.parametrize(("cell", "settings", "rule", "attack", "scale"), WITHSTOOD)
def test_attackers_cost_at_most_three_points(
    cell: str, settings: tuple[str, ...], rule: str, attack: str, scale: float, honest: dict[str, float]
) -> None:
    reached = accuracy(*settings, rule, f"learning.attack={attack}", f"learning.attack_scale={scale}")
    assert honest[cell] > 0.95
    assert reached >= honest[cell] - 0.03


def test_without_a_rule_they_ruin_the_model() -> None:
    assert accuracy(*FOUR, "learning.attack=sign-flip", "run.rounds=5") < 0.5


SHORT = (
    *("wireless.num_devices=6", "scheduling.options.num_selected=4", "wireless.batch_size=5", "run.rounds=6"),
    *("learning.attackers=2", "learning.attack=scaled"),
)


def test_who_was_clipped_is_recorded_and_the_history_has_what_was_decoded() -> None:
    member, records = driven(*SHORT, "learning.clip=2", "learning.attack_scale=1000")
    attackers = set(attackers_of(member.simulation.config).tolist())
    assert len(attackers) == 2
    for record in records:
        assert record.norm_limit is not None
        long = [
            device
            for device, norm in zip(record.sent, record.update_norm, strict=True)
            if norm is not None and norm > record.norm_limit
        ]
        assert record.clipped == long
        assert attackers & set(record.sent) <= set(record.clipped)
    lengths = {device: norm for each in records for device, norm in zip(each.sent, each.update_norm, strict=True)}
    history = member.state.history
    assert {device: history.update_norm[device] for device in lengths} == lengths


def test_the_report_says_who_attacked_and_how_many_updates_were_clipped() -> None:
    member, records = driven(*SHORT, "learning.clip=2", "learning.robust=median", "learning.attack_scale=1000")
    run = run_of(records, member.simulation.config, {}, None)
    clipped, sent = sum(len(each.clipped) for each in records), sum(len(each.sent) for each in records)
    assert run.num_clipped.tolist() == [len(each.clipped) for each in records]
    groups, left_out = group_runs([run])
    lines = [summarise(group) for group in groups]
    assert f"{clipped} of {sent} updates were too long, and were clipped" in remarks_on(groups, lines, left_out)
    assert "2 attackers (scaled), the median of the updates" in headline(groups, lines, ())


def test_noise_for_a_gradient_is_not_that_for_the_update_of_the_round() -> None:
    attack = Attack.of(config_of(*SHORT, "learning.attack=noise"))
    device, vector = int(attack.attackers[0]), torch.ones(50)
    (update,) = attack.on_updates(3, {device: Update(vector, math.nan, math.nan, 1.0)})
    (gradient,) = attack.on_gradients(3, [device], [vector])
    alike = float(torch.nn.functional.cosine_similarity(update.delta, gradient, dim=0))
    assert abs(alike) < 0.5  # of 50 random numbers each: 0.14 is the deviation


def test_who_is_absent_is_left_out_of_all_that_is_known() -> None:
    attack = Attack.of(config_of(*SHORT, "learning.attack=absent"))
    count = attack.config.wireless.num_devices
    present = np.setdiff1d(np.arange(1, count), attack.attackers)
    number = np.arange(count, dtype=np.float64)[1:]  # device 0 is silent: a place is not a number
    everybody = Observation(
        devices=np.arange(1, count),
        num_devices=count,
        **dict.fromkeys(("tau", "cpu_hz", "snr_hz", "power_w", "num_samples", "mean_snr_hz"), number),
        label_counts=np.repeat(number[:, None], 3, axis=1),
        speeds=Speeds(number, number, number, number),
    )
    seen = attack.seen(everybody)
    assert seen.num_devices == count
    assert seen.speeds is not None
    for each in (*vars(seen).values(), *vars(seen.speeds).values()):
        if isinstance(each, np.ndarray):
            assert (each[:, 0] if each.ndim == 2 else each).tolist() == present.tolist()


def test_absent_attackers_are_never_there() -> None:
    member, records = driven(*SHORT, "learning.attack=absent")
    attackers = set(attackers_of(member.simulation.config).tolist())
    assert all(record.available == 4 and not attackers & set(record.selected) for record in records)


@pytest.mark.parametrize("rule", [("learning.clip=2",), ("learning.robust=median", "learning.clip=3")])
def test_a_run_is_continued_to_the_last_bit(tmp_path: Path, rule: tuple[str, ...]) -> None:
    settings = (*SHORT, *rule, "learning.attack=noise", "run.checkpoint_every=2")
    whole, records = driven(*settings)
    member = Member(Simulation(config_of(*settings)), RunFolder.create(tmp_path / "run", config_of(*settings)))
    done = itertools.count(1)
    drive([member], stopping=lambda: next(done) > 3)
    assert member.folder is not None
    member.folder.close()
    again = Member(Simulation(config_of(*settings)), RunFolder.open(tmp_path / "run"))
    resume(again)
    assert again.state.rounds_done == 3
    drive([again])
    assert torch.equal(again.state.weights, whole.state.weights)
    assert again.folder is not None
    told = [replace(RoundRecord.from_json(each), wall_s=None) for each in again.folder.records()]
    assert told == [replace(each, wall_s=None) for each in records]
    again.folder.close()


def test_the_base_station_selects_no_more_than_it_may_hold() -> None:
    room = f"learning.robust_bytes={4 * 650 * 3}"
    _, records = driven(*SHORT, "learning.robust=median", room, "run.rounds=2")
    assert [len(record.selected) for record in records] == [3, 3]


# What goes together


METHODS_REFUSED = {"scaffold": "not the change of their mean", "heterofl": "models of different sizes"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", ["learning.robust=trimmed-mean", "learning.clip=2"])
def test_every_method_is_robust_or_says_why_not(method: str, rule: str) -> None:
    model = "learning.model=logistic" if method in OF_ANY_MODEL else "learning.model=mlp"
    settings = (*SHORT, *settings_of_method(method), rule, "learning.attack_scale=100", model, "run.rounds=3")
    if method == "heterofl" or (method == "scaffold" and "robust" in rule):
        with pytest.raises(ValueError, match=METHODS_REFUSED[method]):
            Simulation(config_of(*settings))
        return
    _, records = driven(*settings, "learning.attack=noise", "learning.local_lr=0.05")
    assert len(records) == 3
    assert all(each.train_loss is not None and each.train_loss < 10.0 for each in records if each.sent)
    _, ruined = driven(*settings, "learning.robust=none", "learning.clip=0", "learning.local_lr=0.05")
    assert [each.loss for each in ruined] != [each.loss for each in records]


REFUSED = {
    "median over the air": (("learning.robust=median", "uplink.air=ota"), "of which it could doubt"),
    "clipped over the air": (("learning.clip=3", "uplink.air=ota"), "set learning.clip to 0, or uplink.air"),
    "weighed": (("learning.robust=median", "scheduling.policy=ren", "scheduling.options={}"), "all count the same"),
    "sparse": (("learning.robust=median", "uplink.codec=topk"), "most numbers of such updates are zero"),
    "no room": (("learning.robust=median", "learning.robust_bytes=3000"), "room for 1 updates of 650 weights"),
    "below one": (("learning.clip=0.5",), "it must be 0, 1 or more"),
    "all attack": (("learning.attack=noise", "learning.attackers=6"), "nobody would be left"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_robust_ends_with_words(kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings, why = REFUSED[kind]
    given = [*COMMON, "wireless.num_devices=6", "scheduling.options.num_selected=4", *settings]
    options = [part for each in given for part in ("--set", each)]
    code, _, said = command(capsys, "run", *options, "--out", str(tmp_path / "run"))
    assert code == 2
    assert why in " ".join(said.split())


def test_codecs_go_with_clipping_and_attackers_with_every_rule() -> None:
    for settings in (
        ("uplink.codec=topk", "learning.clip=2"),
        ("uplink.codec=qsgd", "learning.clip=2", "learning.method=scaffold"),
        ("uplink.codec=qsgd", "learning.clip=2", "learning.method=fedlin", "learning.robust=median"),
        ("uplink.codec=sign", "learning.robust=median"),
        ("learning.asynchronous=true", "learning.robust=median", "learning.clip=2"),
    ):
        _, records = driven(*SHORT, *settings, "learning.attack_scale=1e6", "run.rounds=3", "learning.local_lr=0.05")
        losses = [loss for record in records for loss in record.loss if loss is not None]
        assert losses
        assert max(losses) < 10.0


# On Flower


@pytest.mark.parametrize("rule", ["clip=2", "robust=median", "robust=trimmed-mean"])
def test_a_fleet_is_as_robust_as_the_simulated_cell(tmp_path: Path, rule: str) -> None:
    config = config_of(
        *("wireless.num_devices=6", "scheduling.options.num_selected=5", "run.rounds=4", "seed=3"),
        *("learning.clip=0", f"learning.{rule}"),
        *("learning.local_lr=0.1", "wireless.batch_size=10", "learning.method=fedavg"),
    )
    member, records = Member(Simulation(config)), []
    drive([member], callback=lambda _, record: records.append(record))
    simulation = member.simulation
    app = cell_app(simulation.cell, lambda: copy.deepcopy(simulation.module), simulation.dataset, simulation.held)
    nodes = {2**63 + d: running(app, 2**63 + d, {"partition-id": 5 - d}) for d in range(6)}
    strategy = FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001)
    result = strategy.start(FakeGrid(nodes), trained_arrays(simulation.module), timeout=60)
    written = RunFolder.open(tmp_path / "run").records()
    assert [each["clipped"] for each in written] == [each.clipped for each in records]
    assert rule != "clip=2" or any(each.clipped for each in records)
    weights = Layout(result.arrays).flatten(result.arrays)
    assert torch.linalg.vector_norm(weights - member.state.weights) < 1e-6 * torch.linalg.vector_norm(weights)


def test_on_nodes_updates_are_clipped_by_default_and_in_simulations_not() -> None:
    config = config_of("wireless.num_devices=4", "scheduling.options.num_selected=4")
    method = make_method(config.learning)
    assert BaseStation(config, method, 650).clip == 0.0
    assert BaseStation(config, method, 650, fleet=True).clip == 3.0
    with pytest.raises(ValueError, match="nodes of a fleet are real"):
        FlareStrategy(config_of("learning.attack=noise", "learning.attackers=1"))


FIRST = 2**63


def honest_fleet(config: Config) -> tuple[Simulation, dict[int, Node]]:
    simulation = Simulation(config)
    app = cell_app(simulation.cell, lambda: copy.deepcopy(simulation.module), simulation.dataset, simulation.held)
    return simulation, {2**63 + d: running(app, 2**63 + d, {"partition-id": d}) for d in range(4)}


def lying(honest: Node, sent: Callable[[Tensor], Tensor]) -> Node:
    """A node that trains, and sends something else."""

    def answer(message: Message) -> list[Message]:
        answers = honest(message)
        for each in answers:
            if "arrays" in each.content and "metrics" in each.content:
                layout = Layout(each.content["arrays"])
                each.content["arrays"] = layout.arrays(sent(layout.flatten(each.content["arrays"])))
        return answers

    return answer


def noise_just_below_the_limit() -> Callable[[Tensor], Tensor]:
    """Another noise every round."""
    rng = stream(3, "lie")

    def sent(update: Tensor) -> Tensor:
        drawn = torch.from_numpy(rng.standard_normal(len(update)))
        return (9.99 * drawn / drawn.norm()).float()

    return sent


def reached_by(simulation: Simulation, nodes: dict[int, Node], *settings: str) -> float:
    """The accuracy after 20 rounds; every device counts, and no node tells anything but its update."""
    strategy = FlareStrategy(override(simulation.config, settings), poll_s=0.001)
    result = strategy.start(FakeGrid(nodes), trained_arrays(simulation.module), timeout=60)
    weights = Layout(result.arrays).flatten(result.arrays)
    return (
        make_engine(simulation.module, simulation.dataset, simulation.config.learning).evaluate([weights])[0].accuracy
    )


@pytest.fixture(scope="module")
def three() -> tuple[Simulation, dict[int, Node], float]:
    simulation, nodes = honest_fleet(config_of(*FOUR, "learning.attackers=0"))
    alone = reached_by(simulation, {node: each for node, each in nodes.items() if node != FIRST})
    assert alone > 0.95
    return simulation, nodes, alone


def test_noise_of_one_node_of_four_is_clipped_unless_it_is_set_otherwise(
    three: tuple[Simulation, dict[int, Node], float],
) -> None:
    simulation, nodes, alone = three
    with_noise = {**nodes, FIRST: lying(nodes[FIRST], noise_just_below_the_limit())}
    assert reached_by(simulation, with_noise) >= alone - 0.03
    assert reached_by(simulation, with_noise, "learning.clip=0") < alone - 0.03


def test_the_flipped_updates_of_one_node_of_four_are_outvoted(three: tuple[Simulation, dict[int, Node], float]) -> None:
    simulation, nodes, alone = three
    flipped = {**nodes, FIRST: lying(nodes[FIRST], lambda update: -2.0 * update)}
    assert reached_by(simulation, flipped, "learning.robust=median") >= alone - 0.03
    assert reached_by(simulation, flipped) < alone - 0.03  # clipping does not help


def test_one_node_cannot_vote_again_under_other_numbers_or_names(tmp_path: Path) -> None:
    """It claims one device after another, or comes back as another node, and sends next to nothing each time."""

    def rotating(message: Message) -> list[Message]:
        if message.metadata.message_type == "query":
            claims.append(4 + len(claims) % 4)
            return [told(message, SOUND | {"device": float(claims[-1])})]
        return [trained(message, update(1e-18))]

    def rejoining(message: Message) -> list[Message]:
        if message.metadata.message_type == "query":
            return [told(message, SOUND)]
        del nodes[message.metadata.dst_node_id]
        nodes[message.metadata.dst_node_id + 1] = rejoining
        return [trained(message, update(1e-18))]

    claims: list[int] = []
    for attacker in (rotating, rejoining):
        nodes = {each: node(said=SOUND | {"device": float(each)}) for each in range(4)}
        nodes[100] = attacker
        folder = tmp_path / attacker.__name__
        run(nodes, settings_of("run.rounds=10"), folder)
        assert all(each["clipped"] == [] and len(each["sent"]) == 5 for each in records(folder))


def test_who_was_alone_at_first_cannot_hold_the_others_down(tmp_path: Path) -> None:
    nodes = {1: node(value=1e-18)}
    first = nodes[1]

    def others_join(message: Message) -> list[Message]:
        nodes.update({each: node() for each in (2, 3, 4, 5)} if message.metadata.message_type != "query" else {})
        return first(message)

    nodes[1] = others_join
    run(nodes, settings_of("run.rounds=3"), tmp_path / "run")
    told = records(tmp_path / "run")
    assert [len(each["sent"]) for each in told] == [1, 5, 5]
    assert [each["clipped"] for each in told] == [[], [], []]
