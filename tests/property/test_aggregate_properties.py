"""What the base station does with updates, over random updates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flare.learning import aggregate
from flare.learning.job import LocalRule, Update
from flare.learning.methods import FedAvg, FedNova, Round

numbers = st.floats(-1e6, 1e6, width=32)
vector_sets = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=1, max_size=12)
)


def tensors(rows: list[list[float]]) -> list[Tensor]:
    return [torch.tensor(row) for row in rows]


@settings(max_examples=200)
@given(vector_sets)
def test_the_mean_is_the_exact_mean_up_to_float64_rounding(rows: list[list[float]]) -> None:
    exact = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    scale = max(abs(number) for row in rows for number in row)
    assert aggregate.mean(tensors(rows)).tolist() == pytest.approx(exact, abs=1e-14 * scale)


@settings(max_examples=100)
@given(vector_sets, st.randoms())
def test_the_order_of_devices_matters_to_float64_rounding_alone(rows: list[list[float]], random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    scale = max(abs(number) for row in rows for number in row)
    assert aggregate.mean(tensors(shuffled)).tolist() == pytest.approx(
        aggregate.mean(tensors(rows)).tolist(), abs=1e-14 * scale
    )


@settings(max_examples=100)
@given(vector_sets)
def test_a_stream_gives_what_a_list_gives_and_nothing_is_written_to(rows: list[list[float]]) -> None:
    vectors = tensors(rows)
    from_list = aggregate.mean(vectors)
    assert torch.equal(aggregate.mean(vector for vector in vectors), from_list)
    assert [vector.tolist() for vector in vectors] == rows


@settings(max_examples=100)
@given(st.lists(numbers, min_size=1, max_size=5), st.integers(1, 60))
def test_devices_that_agree_are_answered_exactly(row: list[float], devices: int) -> None:
    # A sum of up to 60 equal float32 numbers is exact in float64, and so is its quotient.
    assert aggregate.mean(tensors([row] * devices)).tolist() == row


@settings(max_examples=100)
@given(vector_sets, st.floats(0.0, 4.0))
def test_the_weights_move_along_the_mean_and_are_rounded_once(rows: list[list[float]], global_lr: float) -> None:
    weights, direction = tensors(rows)[0], aggregate.mean(tensors(rows))
    moved = aggregate.move(weights, global_lr, direction)
    exact = (weights.double() + global_lr * direction).numpy()
    assert moved.dtype == torch.float32
    assert np.array_equal(moved.numpy(), exact.astype(np.float32))


@settings(max_examples=100)
@given(vector_sets, st.data())
def test_fednova_is_fedavg_where_all_do_the_same_steps_and_scale_free_where_not(rows, data) -> None:
    steps = data.draw(st.lists(st.integers(1, 50), min_size=len(rows), max_size=len(rows)))
    weights = torch.zeros(len(rows[0]))
    updates = [Update(delta, 0.0) for delta in tensors(rows)]
    scale = max(abs(number) for row in rows for number in row)

    def move(method, counts):
        reducer = method.reducer({}, Round(weights, np.arange(len(rows)), np.array(counts, dtype=float), 0.1, 1.0))
        for device, (count, update) in enumerate(zip(counts, updates, strict=True)):
            reducer.add(device, LocalRule(0.1, count), update)
        return reducer.end()[0].tolist()

    same = [steps[0]] * len(rows)
    assert move(FedNova(), same) == pytest.approx(move(FedAvg(), same), rel=1e-6, abs=1e-6 * scale)
    doubled = [2 * count for count in steps]  # twice the steps, twice tau_eff: the normalised mean is the same
    assert move(FedNova(), doubled) == pytest.approx(move(FedNova(), steps), rel=1e-6, abs=1e-6 * scale)


def test_no_mean_over_no_devices():
    with pytest.raises(ValueError, match="no mean over no devices"):
        aggregate.mean([])
