"""Means that are taken together are those that are taken one by one, to the last bit."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from flare import method
from flare.learning import together
from flare.learning.aggregate import RunningMean, move
from flare.learning.job import LocalRule, Update, all_finite, which_are_finite
from flare.learning.methods import PlainMethod, equal_rates
from flare.learning.methods.base import MethodState, Round
from flare.learning.together import MeansTogether
from flare.simulation import Member, Simulation, turn
from tests.driving import followed
from tests.plugin_files import registries_as_they_were
from tests.unit.test_simulation import small

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
NEEDS_TRITON = pytest.mark.skipif(
    DEVICE == "cpu" and not IS_INTERPRETED, reason="no CUDA device on this machine, nor Triton with TRITON_INTERPRET=1"
)


def vectors(count: int, length: int = 7) -> list[Tensor]:
    """Of very different sizes, so that the order in which they are added shows."""
    draw = torch.Generator().manual_seed(count)
    made = torch.randn(count, length + 1, generator=draw) * 10.0 ** torch.randint(-6, 7, (count, 1), generator=draw)
    made[0, 0] = -0.0
    return list(made[:, :length])


def plain_sums(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    sums = [group[0].double() for group in groups]
    for total, group in zip(sums, groups, strict=True):
        for vector in group[1:]:
            total += vector
    return sums


def one_by_one(group: Sequence[Tensor]) -> Tensor:
    running = RunningMean()
    for vector in group:
        running.add(vector)
    return running.end()


def bits(vector: Tensor) -> list[int]:
    return vector.view(torch.int64).tolist()


@pytest.mark.parametrize("kept", [range(12), range(0), range(0, 12, 2), range(5), range(7, 12)])
@pytest.mark.parametrize("max_bytes", [0, 2 * 7 * 8, 2**29])
def test_means_are_those_of_one_vector_after_the_other(
    monkeypatch: pytest.MonkeyPatch, kept: range, max_bytes: int
) -> None:
    monkeypatch.setattr(together, "_MAX_BYTES", max_bytes)
    asked: list[int] = []

    def add(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        asked.append(len(groups))
        return plain_sums(groups)

    given = vectors(12)
    groups = [given[:5], given[5:6], given[6:9], given[9:]]
    means = MeansTogether((given[i] for i in kept), add)
    made = [means.new() for _ in groups]
    for mean, group in zip(made, groups, strict=True):
        for vector in group:
            mean.add(vector)
    assert [bits(mean.end()) for mean in made] == [bits(one_by_one(group)) for group in groups]
    if kept == range(12):
        assert asked == {0: [1, 1, 1, 1], 2 * 7 * 8: [2, 2], 2**29: [4]}[max_bytes]


def test_vectors_of_other_lengths_are_added_up_by_themselves() -> None:
    groups = [vectors(3), vectors(4, 5), vectors(2)]
    means = MeansTogether((each for group in groups for each in group), plain_sums)
    made = [means.new() for _ in groups]
    for mean, group in zip(made, groups, strict=True):
        for vector in group:
            mean.add(vector)
    assert [bits(mean.end()) for mean in made] == [bits(one_by_one(group)) for group in groups]
    with pytest.raises(ValueError, match="no mean over no devices"):
        means.new().end()


def test_what_goes_wrong_costs_speed_and_not_the_run() -> None:
    def broken(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        raise RuntimeError("no kernel today")

    given = vectors(4)
    means = MeansTogether(given, broken)
    first, second = means.new(), means.new()
    for vector in given:
        first.add(vector)
        second.add(vector)
    with pytest.warns(UserWarning, match="no kernel today"):
        assert bits(first.end()) == bits(one_by_one(given))
    assert bits(second.end()) == bits(one_by_one(given))  # it is not tried, and not told, again
    assert not any(map(MeansTogether(given, broken).keeps, given))


def test_where_memory_is_short_a_sum_is_made_alone() -> None:
    def without_room(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        raise torch.cuda.OutOfMemoryError

    given = vectors(4)
    means = MeansTogether(given, without_room)
    mean = means.new()
    for vector in given:
        mean.add(vector)
    assert bits(mean.end()) == bits(one_by_one(given))
    assert all(map(MeansTogether(given, without_room).keeps, given))  # there may be room another time


def test_a_sum_that_was_asked_for_is_not_held() -> None:
    given = vectors(4)
    means = MeansTogether(given, plain_sums)
    several = [means.new() for _ in range(3)]
    for mean in several:
        mean.add(given[0])
    held = [weakref.ref(mean.end()) for mean in several]
    assert [each() for each in held] == [None] * 3


def test_on_a_cpu_vectors_are_added_as_they_come() -> None:
    given = vectors(3)
    means = MeansTogether(given)
    assert not any(map(means.keeps, given))


@NEEDS_TRITON
@pytest.mark.parametrize("length", [1, 1024, 2050])
def test_the_kernel_adds_in_their_order(length: int) -> None:
    adding = pytest.importorskip("flare.learning.adding", reason="Triton is not installed")
    given = [each.to(DEVICE) for each in vectors(9, length)]
    given[4][0], given[7][-1] = torch.inf, torch.nan
    groups = [given[:1], given[1:6], given[6:9], [given[0]] * 3]
    for mine, wanted in zip(adding.sums_of(groups), plain_sums(groups), strict=True):
        assert torch.equal(mine.isnan(), wanted.isnan())
        assert bits(mine.nan_to_num()) == bits(wanted.nan_to_num())


def test_which_vectors_are_finite() -> None:
    huge = torch.full((4,), 3e38)  # their sum is too large for a number
    given = [torch.ones(4), torch.tensor([0.0, torch.nan]), huge, torch.tensor([torch.inf, -torch.inf])]
    assert which_are_finite(given) == [True, False, True, False] == list(map(all_finite, given))
    assert which_are_finite([]) == []


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("learning.method=fednova",),
        ("learning.method=scaffold",),
        ("learning.method=fedadam",),
        ("learning.method=fedlin",),
        ("learning.clip=1.0",),
        ("learning.robust=median", "scheduling.policy=random", "scheduling.options.num_selected=4"),
        ("uplink.codec=qsgd", "run.payload=model"),
        ("learning.local_lr=1e30",),
    ],
    ids=lambda settings: " ".join(settings) or "plain",
)
def test_runs_whose_updates_are_added_up_together_are_the_same(
    monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    def runs() -> tuple[list[object], list[Member]]:
        members = [Member(Simulation(small(*settings, "run.rounds=4", f"seed={seed}"))) for seed in range(3)]
        return list(followed(members)), members

    alone, one_by_one_ = runs()
    monkeypatch.setattr(turn, "MeansTogether", partial(MeansTogether, add=plain_sums))
    together_, at_once = runs()
    assert together_ == alone
    for mine, wanted in zip(at_once, one_by_one_, strict=True):
        assert torch.equal(mine.state.weights.view(torch.int32), wanted.state.weights.view(torch.int32))
        assert mine.state.status is wanted.state.status


class ChangesLater:
    """Adds each update, and uses its memory for something else."""

    def __init__(self, now: Round) -> None:
        self.now, self.mean = now, now.new_mean()

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        self.mean.add(update.delta, device)
        update.delta.zero_()

    def end(self) -> tuple[Tensor, MethodState]:
        return move(self.now.weights, 1.0, self.mean.end()), {}


@dataclass(frozen=True)
class Careless(PlainMethod):
    """The mean of updates, none of which is left as it was."""

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        return equal_rates(now)

    def reducer(self, state: MethodState, now: Round) -> ChangesLater:
        return ChangesLater(now)


@pytest.mark.parametrize("inner", [(), ("learning.options.inner=careless",)], ids=["itself", "within another"])
def test_a_method_of_a_users_own_may_change_what_it_has_added(
    monkeypatch: pytest.MonkeyPatch, inner: tuple[str, ...]
) -> None:
    added: list[int] = []

    def add(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        added.extend(map(len, groups))
        return plain_sums(groups)

    with registries_as_they_were():
        method("careless")(Careless)
        names = ("fedavgm" if inner else "careless", "fedavg")
        configs = [small("run.rounds=3", f"learning.method={name}", *inner * (name == "fedavgm")) for name in names]
        alone = [Member(Simulation(config)) for config in configs]
        records = followed(alone)
        monkeypatch.setattr(turn, "MeansTogether", partial(MeansTogether, add=add))
        in_company = [Member(Simulation(config)) for config in configs]
        assert followed(in_company) == records
    for mine, wanted in zip(in_company, alone, strict=True):
        assert torch.equal(mine.state.weights, wanted.state.weights)
    assert added == [len(record.sent) for record in records[1] if record.sent]  # the other run is added up as before
