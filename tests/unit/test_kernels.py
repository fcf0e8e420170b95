"""The kernels of the batched engine that no compiler sees, against plain PyTorch in double precision.

They run on a GPU or, with TRITON_INTERPRET=1 and Triton installed, on a CPU.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flare.learning.engine.stack import Starts
from flare.rng import stream

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
NEEDS_TRITON = pytest.mark.skipif(
    DEVICE == "cpu" and not IS_INTERPRETED, reason="no CUDA device on this machine, nor Triton with TRITON_INTERPRET=1"
)


def kernels() -> Any:
    return pytest.importorskip("flare.learning.engine.kernels", reason="Triton is not installed")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(stream(seed, "numbers", *shape).standard_normal(shape, dtype=np.float32)).to(DEVICE)


@NEEDS_TRITON
@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize(
    ("out", "into", "samples"), [(10, 33, 10), (70, 130, 40), (10, 572, 40), (33, 64, 64), (20, 70, 100), (5, 3, 2)]
)
def test_a_gradient_is_added_onto_the_weights_and_nothing_beside_them(
    jobs: int, out: int, into: int, samples: int
) -> None:
    stack, begin = numbers(jobs + 2, 64 * (out * into // 64 + 2)), 13
    before, end = stack.clone(), begin + out * into
    dy, x, scale = numbers(jobs, out, samples), numbers(jobs, into, samples, seed=1), numbers(jobs, 1)
    kernels().TensorCores().add_outer_(stack[:jobs, begin:end], dy, x, scale)
    step = scale.double()[:, :, None] * torch.bmm(dy.double(), x.double().transpose(1, 2))
    wanted = before[:jobs, begin:end].double() + step.flatten(1)
    assert float((stack[:jobs, begin:end] - wanted).norm() / wanted.norm()) < 1e-6
    stack[:jobs, begin:end] = before[:jobs, begin:end]
    assert torch.equal(stack, before)


@NEEDS_TRITON
def test_what_is_added_onto_a_job_does_not_depend_on_its_company() -> None:
    weights, cores = numbers(5, 70 * 130), kernels().TensorCores()
    dy, x, scale = numbers(5, 70, 40), numbers(5, 130, 40, seed=1), numbers(5, 1)
    alone = weights[3:4].clone()
    cores.add_outer_(alone, dy[3:4], x[3:4], scale[3:4])
    cores.add_outer_(weights, dy, x, scale)
    assert torch.equal(alone[0], weights[3])


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device on this machine")
@pytest.mark.parametrize(("out", "into", "samples"), [(572, 512, 40), (10, 572, 40), (128, 2304, 10)])
def test_on_a_gpu_weights_get_the_same_bits_where_the_gradient_is_written_down_first(
    out: int, into: int, samples: int
) -> None:
    """A plain rule may stand in a stack beside one that adds something to its gradient."""
    weights, cores = numbers(3, out * into), kernels().TensorCores()
    dy, x, scale = numbers(3, out, samples), numbers(3, into, samples, seed=1), numbers(3, 1)
    wanted = weights.addcmul(cores.multiply(dy, x.transpose(1, 2)).flatten(1), scale)
    cores.add_outer_(weights, dy, x, scale)
    assert torch.equal(weights, wanted)


@NEEDS_TRITON
@pytest.mark.parametrize("num_weights", [5, 4096, 9000, 9024])
@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_the_way_from_the_start_and_its_length_are_those_of_pytorch(jobs: int, num_weights: int) -> None:
    row_length = -(-num_weights // 64) * 64
    stack, rows = numbers(jobs, row_length), numbers(3, row_length, seed=1)
    starts = Starts(rows, torch.tensor([2, 0, 2, 1, 0], device=DEVICE)[:jobs])
    before = stack.clone()
    way, lengths = kernels().moved(starts, stack, num_weights)
    assert torch.equal(stack, before)  # another program may have to do it over again
    wanted, wanted_lengths = starts.moved(stack, num_weights)
    assert torch.equal(way, wanted)
    torch.testing.assert_close(lengths, wanted_lengths, rtol=1e-14, atol=0.0)
