"""Steps of few jobs as graphs: what is copied in and out, and that not a bit changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from flare.learning.engine import batched
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.graphs import StepGraphs, largest_height, rounded_height
from flare.learning.engine.operations import Onto
from flare.learning.engine.seams import Seams
from flare.learning.engine.stack import Descent
from flare.learning.engine.step import Step
from flare.learning.flat import FlatModel
from tests.tiny import tiny_data, tiny_module
from tests.unit.test_seams import NEEDS_CUDA, jobs_of

WIDTH, WEIGHTS = 4, 3


def gradients_of(
    weights: Tensor, indices: Tensor, shares: Tensor, seams: Seams | None, onto: Onto | None
) -> tuple[Tensor, list[Tensor]]:
    """Each row's from its own row alone, as of a program that writes all of them down."""
    pulled = indices.double().mean(1).float()[:, None] - weights[:, :WEIGHTS]
    if seams is not None:
        assert seams.ascents is not None
        pulled = pulled * seams.ascents[: len(weights)]
    return shares.sum(1) + weights[:, 0], [pulled[:, :1], pulled[:, 1:]]


def step_of(jobs: int, *, with_all: bool) -> Step:
    draw = torch.Generator().manual_seed(jobs)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(jobs, *shape, generator=draw)

    extras = (numbers(64), numbers(WEIGHTS), numbers(WEIGHTS) > 1.0) if with_all else (None, None, None)
    descent = Descent([1, WEIGHTS - 1], 0.1 * numbers(1), numbers(1), *extras)
    seams = Seams([1, WEIGHTS - 1], numbers(1), None, None, None, None, None) if with_all else None
    shares = torch.rand(jobs, WIDTH, generator=draw)
    return Step(numbers(64), torch.zeros(jobs, 2, dtype=torch.float64), shares, descent, seams)


def samples_of(counts: list[int]) -> list[tuple[int, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(n, torch.randint(50, (n, WIDTH), generator=draw)) for n in counts]


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Records nothing: the work itself, done once as a recorder does."""
    work()
    return work


@pytest.mark.parametrize("with_all", [False, True])
def test_steps_by_graphs_are_the_plain_steps_whatever_was_done_before(with_all: bool) -> None:
    graphs = StepGraphs(step_of(2, with_all=with_all), WIDTH, 12, gradients_of, record=at_once)
    for counts in ([11, 11, 5, 5, 4, 1], [3], [12, 2, 2, 2, 1, 1, 1], [1, 1]):
        plain, by_graphs = (step_of(counts[0] + 2, with_all=with_all) for _ in range(2))  # two that are done already
        for count, indices in samples_of(counts):
            plain(gradients_of, count, indices)
        graphs.run(by_graphs, samples_of(counts))
        assert torch.equal(plain.weights, by_graphs.weights)
        assert torch.equal(plain.sums, by_graphs.sums)
        assert plain.sums[: counts[0], 0].abs().min() > 0.0


def test_a_row_that_is_done_is_safe_from_what_its_place_computes_later() -> None:
    graphs = StepGraphs(step_of(2, with_all=False), WIDTH, 8, gradients_of, record=at_once)
    step, plain = (step_of(6, with_all=False) for _ in range(2))
    first, second = samples_of([6, 5])
    plain(gradients_of, *first)
    graphs.run(step, [first, second])  # of the height 6 in both steps: the last row moves once more, in its copy
    assert torch.equal(step.weights[5], plain.weights[5])
    assert torch.equal(step.sums[5], plain.sums[5])
    plain(gradients_of, *second)
    assert torch.equal(step.weights, plain.weights)


def test_steps_of_other_kinds_are_told_apart() -> None:
    assert step_of(6, with_all=False).kind == step_of(3, with_all=False).kind
    assert step_of(6, with_all=False).kind != step_of(6, with_all=True).kind


def test_heights_are_rounded_up_by_at_most_an_eighth_and_few_are_left() -> None:
    rounded = [rounded_height(count) for count in range(1, 513)]
    assert all(count <= height <= max(2, count + 1, 1.125 * count) for count, height in enumerate(rounded, start=1))
    assert len(set(rounded)) <= 52
    for limit in range(2, 513):
        highest = largest_height(limit)
        assert max(rounded_height(count) for count in range(1, highest + 1)) == highest <= limit
    assert largest_height(1) == largest_height(0) == 0


def recording(monkeypatch: pytest.MonkeyPatch, record: Callable[[Callable[[], None]], Callable[[], None]]) -> Any:
    """An engine on a CPU that records its steps by `record`, and another that does not."""
    monkeypatch.setattr(batched, "StepGraphs", partial(StepGraphs, record=record))
    made, plain = (BatchedEngine(tiny_module("mlp"), tiny_data(), device="cpu", own_kernels=False) for _ in range(2))
    made._kernels, made._records = made._program, True
    return made, plain


def test_an_engine_alone_on_a_gpu_keeps_more_memory_for_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = recording(monkeypatch, at_once)
    monkeypatch.setattr(made, "_bytes_for_a_job", lambda width: 10**8)
    alone = made._max_graph_height(WIDTH)
    for lanes, shares in ((2, False), (1, True)):
        made.lanes, made.shares_gpu = lanes, shares
        assert 0 < made._max_graph_height(WIDTH) < alone


def assert_alike(made: BatchedEngine, plain: BatchedEngine) -> None:
    jobs = jobs_of(FlatModel(tiny_module("mlp")).flatten())
    for mine, other in zip(made.train(jobs), plain.train(jobs), strict=True):
        torch.testing.assert_close(mine.delta, other.delta)  # on a CPU, products round by the height of the stack


@pytest.mark.filterwarnings("error")
def test_where_memory_is_short_steps_run_without_graphs_and_are_recorded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    shortages = iter([1, 1])

    def record(work: Callable[[], None]) -> Callable[[], None]:
        if next(shortages, 0):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return at_once(work)

    made, plain = recording(monkeypatch, record)
    for _ in range(3):
        assert_alike(made, plain)
    assert made._graphs
    made.give_up_graphs()
    assert not made._graphs
    shortages = iter([1] * 9)
    with pytest.warns(UserWarning, match="could not be recorded as CUDA graphs"):
        assert_alike(made, plain)
    assert not made._records


def test_what_cannot_be_recorded_may_still_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(work: Callable[[], None]) -> Callable[[], None]:
        kernels = made._kernels
        monkeypatch.setattr(made, "_kernels", Forbidden())
        try:
            work()
        finally:
            made._kernels = kernels
        return work

    class Forbidden:
        def batch(self, *_: object) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    made, plain = recording(monkeypatch, record)
    with pytest.warns(UserWarning, match="could not be recorded as CUDA graphs.*not permitted"):
        assert_alike(made, plain)
    assert made._kernels is made._program
    assert not made._records


def test_graphs_have_room_for_the_jobs_that_there_are_and_the_kinds_used_last_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batched, "_MIN_GRAPH_HEIGHT", 4)
    made, plain = recording(monkeypatch, at_once)
    few = jobs_of(FlatModel(tiny_module("mlp")).flatten())
    kinds = len({(*each.rule.kind, *each.rule.added) for each in few})

    def heights(number: int) -> set[int]:
        for mine, other in zip(made.train(few * number), plain.train(few * number), strict=True):
            torch.testing.assert_close(mine.delta, other.delta)
        return {graphs.max_height for graphs in made._graphs.values()}

    assert heights(1) == {4}
    assert min(heights(5)) >= 8
    before = list(made._graphs.values())
    assert heights(5) == heights(1)  # smaller ones do not take their place
    assert all(any(each is other for other in before) for each in made._graphs.values())
    monkeypatch.setattr(batched, "_MAX_GRAPH_KINDS", 2)
    made.give_up_graphs()
    heights(1)
    assert kinds > 2 == len(made._graphs)


@NEEDS_CUDA
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_on_a_gpu_graphs_change_no_bit(name: str) -> None:
    module, data = tiny_module(name), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    with_graphs, without = (BatchedEngine(module, data, device="cuda", own_kernels=True) for _ in range(2))
    without._records = False
    for _ in range(2):  # recorded, and again
        for mine, plain in zip(with_graphs.train(jobs), without.train(jobs), strict=True):
            assert torch.equal(mine.delta, plain.delta)
            assert (mine.loss, mine.squared_loss, mine.norm) == (plain.loss, plain.squared_loss, plain.norm)
    assert with_graphs._graphs
    assert not without._graphs
