"""The kernels of the batched engine, against plain PyTorch in double precision.

They run on a GPU or, with TRITON_INTERPRET=1 and Triton installed, on a CPU.
"""

from __future__ import annotations

import json
import math
import os
import runpy
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.kernel_program import KernelProgram
from flare.learning.engine.operations import Onto, Plain, Pool, Windows, all_made
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.stack import Starts
from flare.learning.engine.terms import Anchors, row_norms
from flare.learning.flat import FlatModel
from flare.learning.job import GradientJob, LocalRule
from flare.learning.models import make_model
from flare.rng import stream, torch_stream
from tests.tiny import job, small_cnn, tiny_data, tiny_module
from tests.unit.test_seams import jobs_of

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() and not IS_INTERPRETED else "cpu"
NEEDS_TRITON = pytest.mark.skipif(
    DEVICE == "cpu" and not IS_INTERPRETED, reason="no CUDA device on this machine, nor Triton with TRITON_INTERPRET=1"
)


def kernels() -> Any:
    return pytest.importorskip("flare.learning.engine.kernels", reason="Triton is not installed")


def rows() -> Any:
    return pytest.importorskip("flare.learning.engine.rows", reason="Triton is not installed")


def operations() -> Any:
    return pytest.importorskip("flare.learning.engine.between", reason="Triton is not installed").Kernels()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(stream(seed, "numbers", *shape).standard_normal(shape, dtype=np.float32)).to(DEVICE)


@pytest.fixture(autouse=IS_INTERPRETED)
def _ends_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cannot loop to a computed end with numpy 2.4 and later, for which no number is an array."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)


DENSE = [(10, 33, 10), (70, 130, 40), (10, 572, 40), (33, 64, 64), (20, 70, 100), (5, 3, 2), (3, 5, 1100)]
"""Numbers of outputs, of inputs and of samples."""


def in_rows(jobs: int, out: int, into: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of numbers, more of them than jobs, and in the midst of the first ones the weights of a dense layer."""
    rows, begin = numbers(jobs + 2, 64 * (out * into // 64 + 2), seed=seed), 13
    return rows, rows[:jobs].as_strided((jobs, out, into), (rows.stride(0), into, 1), begin)


@NEEDS_TRITON
@pytest.mark.parametrize("to_input", [False, True])
@pytest.mark.parametrize("where", ["nowhere", "itself", "others"])
@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize(("out", "into", "samples"), DENSE)
def test_the_way_back_of_a_dense_layer_changes_its_weights_and_nothing_beside_them(
    out: int, into: int, samples: int, jobs: int, where: str, to_input: bool
) -> None:
    (rows, weight), (others, other) = in_rows(jobs, out, into), in_rows(jobs, out, into, seed=2)
    dy, x, scale = numbers(jobs, out, samples), numbers(jobs, into, samples, seed=1), numbers(jobs, 1)
    onto = {"nowhere": None, "itself": Onto(weight, scale), "others": Onto(other, scale)}[where]
    before, others_before, exact_weight = rows.clone(), others.clone(), weight.double()
    dx, gradient = kernels().TensorCores().dense_back(weight, dy, x, onto, to_input=to_input)
    wanted = torch.bmm(dy.double(), x.double().transpose(1, 2))
    assert (dx is None, gradient is None) == (not to_input, onto is not None)
    if dx is not None:
        assert_near(dx, torch.bmm(exact_weight.transpose(1, 2), dy.double()), 1e-6)
    if gradient is not None:
        assert_near(gradient, wanted, 1e-6)
    else:
        was = exact_weight if where == "itself" else in_rows(jobs, out, into, seed=2)[1].double()
        stepped = was + scale.double()[:, :, None] * wanted
        assert_near(weight if where == "itself" else other, stepped, 1e-6)
    for each, held, row in ((weight, before, rows), (other, others_before, others)):
        each.copy_(held[:jobs].as_strided(each.shape, each.stride(), each.storage_offset()))
        assert torch.equal(row, held)


@NEEDS_TRITON
def test_the_way_back_of_a_job_does_not_depend_on_its_company() -> None:
    weights, cores = numbers(5, 70, 130), kernels().TensorCores()
    dy, x, scale = numbers(5, 70, 40), numbers(5, 130, 40, seed=1), numbers(5, 1)
    alone = weights[3:4].clone()
    own, _ = cores.dense_back(alone, dy[3:4], x[3:4], Onto(alone, scale[3:4]), to_input=True)
    dx, _ = cores.dense_back(weights, dy, x, Onto(weights, scale), to_input=True)
    assert torch.equal(alone[0], weights[3])
    assert torch.equal(own[0], dx[3])


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device on this machine")
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("to_input", [False, True])
@pytest.mark.parametrize(
    ("out", "into", "samples"), [(572, 512, 40), (10, 572, 40), (128, 2304, 10), (64, 300, 100), (64, 300, 1100)]
)
def test_on_a_gpu_weights_get_the_same_bits_wherever_the_gradient_goes(
    out: int, into: int, samples: int, to_input: bool, tf32: bool
) -> None:
    """A plain rule may stand in a stack beside one that adds something to its gradient, or one with an ascent."""
    weights, cores = numbers(3, out, into), kernels().TensorCores(tf32=tf32)
    dy, x, scale = numbers(3, out, samples), numbers(3, into, samples, seed=1), numbers(3, 1)
    others = weights.clone()
    dx, gradient = cores.dense_back(weights, dy, x, None, to_input=to_input)
    wanted = weights.addcmul(gradient, scale[:, :, None])
    also, _ = cores.dense_back(weights, dy, x, Onto(others, scale), to_input=to_input)
    again, _ = cores.dense_back(weights, dy, x, Onto(weights, scale), to_input=to_input)
    assert torch.equal(weights, wanted)
    assert torch.equal(others, wanted)
    if to_input:
        assert torch.equal(dx, again)
        assert torch.equal(dx, also)


@NEEDS_TRITON
@pytest.mark.parametrize("num_weights", [5, 4096, 9000, 9024])
@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_the_way_from_the_start_and_its_length_are_those_of_pytorch(jobs: int, num_weights: int) -> None:
    row_length = -(-num_weights // 64) * 64
    stack, distinct = numbers(jobs, row_length), numbers(3, row_length, seed=1)
    starts = Starts(distinct, torch.tensor([2, 0, 2, 1, 0], device=DEVICE)[:jobs])
    before = stack.clone()
    way, lengths = rows().moved(starts, stack, num_weights)
    assert torch.equal(stack, before)  # another program may have to do it over again
    wanted, wanted_lengths = starts.moved(stack, num_weights)
    assert torch.equal(way, wanted)
    torch.testing.assert_close(lengths, wanted_lengths, rtol=1e-14, atol=0.0)


def assert_near(mine: Tensor, wanted: Tensor, most: float = 1e-6) -> None:
    assert mine.shape == wanted.shape
    assert float((mine.double() - wanted).norm() / wanted.norm()) < most


POOLS = {
    "nothing": None,
    "2 x 2": Pool((2, 2), (8, 6)),
    "edges left over": Pool((2, 3), (7, 8)),
    "an edge below": Pool((3, 2), (10, 4)),
    "mean": Pool((2, 2), (5, 6), average=True),
}


@NEEDS_TRITON
@pytest.mark.parametrize("relu", [False, True], ids=["as it is", "ReLU"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("jobs", "channels", "samples"), [(1, 3, 2), (3, 5, 10), (2, 20, 12)])
def test_what_follows_a_product_and_its_gradients_are_those_of_pytorch(
    pool: str, has_bias: bool, relu: bool, jobs: int, channels: int, samples: int
) -> None:
    asked, side = POOLS[pool], (4, 5) if POOLS[pool] is None else POOLS[pool].side
    x = (2.0 * numbers(jobs, channels, *side, samples)).round()  # many ties, and zeros
    bias = numbers(jobs, channels + 3, seed=1)[:, 1 : channels + 1].round() if has_bias else None  # rows lie apart
    ours, plain = operations(), Plain()
    y, which = ours.finish(x, bias, asked, relu)
    wanted, wanted_which = plain.finish(x.double(), None if bias is None else bias.double(), asked, relu)
    torch.testing.assert_close(y.double(), wanted)
    assert which is wanted_which is None or torch.equal(which, wanted_which)
    dy, kept = numbers(*y.shape, seed=2), y if relu else None
    dx, dbias = ours.finish_back(dy, kept, which, asked, has_bias=has_bias)
    wanted_dx, wanted_dbias = plain.finish_back(dy.double(), kept, which, asked, has_bias=has_bias)
    torch.testing.assert_close(dx.double(), wanted_dx)
    assert (dbias is None) == (wanted_dbias is None) == (not has_bias)
    if has_bias:
        assert_near(dbias, wanted_dbias)


@NEEDS_TRITON
def test_nan_is_the_maximum_of_its_window_and_passes_on() -> None:
    x = numbers(2, 1, 4, 4, 2)
    x[0, 0, 0, 1, 0] = x[0, 0, 3, 3, 0] = torch.nan
    pool = Pool((2, 2), (4, 4))
    for mine, wanted in zip(operations().finish(x, None, pool, True), Plain().finish(x, None, pool, True), strict=True):
        torch.testing.assert_close(mine, wanted, equal_nan=True, rtol=0.0, atol=0.0)


@NEEDS_TRITON
@pytest.mark.parametrize("samples", [2, 10, 40])
@pytest.mark.parametrize(
    "windows",
    [
        Windows((5, 5), (1, 1), (0, 0), (9, 8)),
        Windows((3, 3), (1, 1), (1, 1), (8, 7)),
        Windows((3, 2), (2, 3), (1, 2), (12, 15)),
        Windows((2, 2), (3, 2), (0, 0), (9, 9)),  # windows with gaps between them
    ],
)
def test_windows_are_added_back_where_they_came_from(windows: Windows, samples: int) -> None:
    taps, places = windows.kernel[0] * windows.kernel[1], windows.out_side[0] * windows.out_side[1]
    dwindows = numbers(2, 3 * taps, places * samples)
    mine = operations().add_windows(dwindows, windows, samples)
    assert_near(mine, Plain().add_windows(dwindows.double(), windows, samples))


@NEEDS_TRITON
@pytest.mark.parametrize("seed", range(4 if IS_INTERPRETED else 40))
def test_convolutions_of_any_small_shape_are_those_of_pytorch(seed: int) -> None:
    """Compilers shrink what they know to be small, and have been seen to err in that."""
    draw = stream(seed, "shapes")
    jobs, channels, out, samples = (int(draw.integers(1, limit)) for limit in (4, 7, 7, 7))
    kernel, stride, padding, side = (
        tuple(draw.integers(*of, size=2).tolist()) for of in [(1, 4), (1, 3), (0, 2), (3, 8)]
    )
    windows = Windows(kernel, stride, padding, (side[0] + 2 * padding[0], side[1] + 2 * padding[1]))
    x = numbers(jobs, channels, *windows.side, 2 * samples)
    weight = numbers(jobs, out, channels * kernel[0] * kernel[1], seed=1)
    dy = numbers(jobs, out, windows.out_side[0] * windows.out_side[1] * 2 * samples, seed=2)
    dwindows, bias = numbers(jobs, weight.shape[2], dy.shape[2], seed=3), numbers(jobs, out, seed=4)
    shaped = dy.view(jobs, out, *windows.out_side, 2 * samples)
    pool = Pool((2, 2), windows.out_side) if min(windows.out_side) > 1 else None
    for name, given in {
        "multiply_windows": (weight, x, kernel, stride),
        "window_gradient": (dy, x, kernel, stride),
        "add_windows": (dwindows, windows, 2 * samples),
        "convolve": (weight, x, windows, bias, pool, False),
        "convolve_back": (weight, shaped, windows),
    }.items():
        exact = [each.double() if isinstance(each, Tensor) else each for each in given]
        mine, wanted = getattr(operations(), name)(*given), getattr(Plain(), name)(*exact)
        assert_near(*(each if isinstance(each, Tensor) else each[0] for each in (mine, wanted)))


@pytest.mark.skipif(not IS_INTERPRETED, reason="without TRITON_INTERPRET=1 it is a benchmark")
def test_the_benchmark_of_tiles_runs_and_its_answers_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = runpy.run_path("benchmarks/tiles.py")
    monkeypatch.setitem(benchmark["main"].__globals__, "compile_all", lambda work, *_: set(work))
    benchmark["main"](["--quick", "--tried", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "tiles.json").read_text())
    assert len(rows) == 16
    assert all(row["error"] < (1e-6 if name.endswith("x3") else 1e-3) for name, row in rows.items())


@NEEDS_TRITON
@pytest.mark.parametrize("swapped", [False, True], ids=["as they are", "swapped"])
@pytest.mark.parametrize(("precision", "split"), [("tf32x3", ""), ("tf32", "rounded")])
def test_products_are_those_of_pytorch_however_they_are_cut(precision: str, split: str, swapped: bool) -> None:
    launch, tiles = kernels().launch, kernels().Tiles(32, 64, 16, 4, 2, 2, split, swapped)
    x, weight, dy = numbers(2, 5, 7, 8, 10), numbers(2, 33, 45), numbers(2, 33, 300, seed=1)
    window, near = kernels().Window((3, 3), (7, 8), 10), 1e-6 if precision == "tf32x3" else 2e-3
    exact = [each.double() for each in (weight, x, dy)]
    asked: dict[str, Any] = {"window": window, "tiles": tiles}
    forward = launch(weight, x, 300, 45, precision, **asked, taps_down=True)
    assert_near(forward, Plain().multiply_windows(*exact[:2], (3, 3), (1, 1)), near)
    assert_near(
        launch(dy, x, 45, 300, precision, **asked), Plain().window_gradient(*exact[:0:-1], (3, 3), (1, 1)), near
    )
    product = launch(weight.transpose(1, 2), dy, 300, 33, precision, tiles=tiles)
    assert_near(product, torch.bmm(exact[0].transpose(1, 2), exact[2]), near)


CONVOLUTIONS = {
    "more channels than a tile": (17, 70, Windows((3, 3), (1, 1), (0, 0), (8, 7)), 4),
    "padding, and a window that is not square": (20, 33, Windows((3, 2), (1, 1), (2, 1), (7, 8)), 2),
    "few channels": (3, 5, Windows((5, 5), (1, 1), (1, 0), (9, 11)), 6),
    "lines longer than a tile": (16, 16, Windows((5, 5), (1, 1), (0, 0), (6, 9)), 40),
    "a window of one place": (18, 7, Windows((1, 1), (1, 1), (0, 0), (5, 4)), 10),
}


@NEEDS_TRITON
@pytest.mark.parametrize("is_finished", [False, True], ids=["as it is", "finished"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_and_its_way_back_are_those_of_pytorch_and_a_job_alone_has_the_same_bits(
    name: str, is_finished: bool
) -> None:
    channels, out, windows, samples = CONVOLUTIONS[name]
    size, jobs = channels * windows.kernel[0] * windows.kernel[1], 3
    weight = numbers(jobs, 7 + out * size + 3)[:, 7 : 7 + out * size].unflatten(1, (out, size))  # rows lie apart
    x, dy = numbers(jobs, channels, *windows.side, samples), numbers(jobs, out, *windows.out_side, samples, seed=1)
    bias = numbers(jobs, out, seed=2) if is_finished else None
    pool = Pool((2, 2), windows.out_side) if is_finished and windows.kernel != (3, 2) else None
    exact_bias = None if bias is None else bias.double()
    wanted, places = Plain().convolve(weight.double(), x.double(), windows, exact_bias, pool, is_finished)
    wanted_dx = Plain().convolve_back(weight.double(), dy.double(), windows)
    for tf32, near in ((False, 1e-6), (True, 2e-3)):
        ours = type(operations())(tf32=tf32)
        y, which = ours.convolve(weight, x, windows, bias, pool, is_finished)
        dx = ours.convolve_back(weight, dy, windows)
        assert_near(y, wanted, near)
        assert_near(dx, wanted_dx, near)
        assert (which is None) == (places is None)
        if which is not None:
            assert float((which != places).float().mean()) < near  # where two places are equal but for rounding
        alone, _ = ours.convolve(weight[2:], x[2:], windows, None if bias is None else bias[2:], pool, is_finished)
        assert torch.equal(alone[0], y[2])
        assert torch.equal(ours.convolve_back(weight[2:], dy[2:], windows)[0], dx[2])


@NEEDS_TRITON
def test_nan_is_the_maximum_where_a_convolution_is_finished_too() -> None:
    windows, pool = Windows((1, 1), (1, 1), (0, 0), (4, 4)), Pool((2, 2), (4, 4))
    x, weight = numbers(2, 1, 4, 4, 2), torch.ones(2, 1, 1, device=DEVICE)
    x[0, 0, 0, 1, 0] = x[0, 0, 0, 0, 0] = x[0, 0, 3, 3, 0] = torch.nan
    for tf32 in (False, True):
        y, which = type(operations())(tf32=tf32).convolve(weight, x, windows, None, pool, True)
        wanted, places = Plain().convolve(weight, x, windows, None, pool, True)
        assert places is not None
        assert torch.equal(y.isnan(), wanted.isnan())
        assert torch.equal(which, places)
        weight[1] = torch.nan


@NEEDS_TRITON
@pytest.mark.parametrize(("jobs", "classes", "samples"), [(1, 2, 2), (3, 10, 40), (2, 100, 130), (2, 3000, 6)])
def test_losses_and_their_slopes_are_those_of_pytorch(jobs: int, classes: int, samples: int) -> None:
    logits, shares = 3.0 * numbers(jobs, classes, samples), numbers(jobs, samples).abs()
    labels = torch.from_numpy(stream(1, "labels").integers(classes, size=(jobs, samples))).to(DEVICE)
    mine = operations().cross_entropy(logits, labels, shares)
    for ours, wanted in zip(mine, Plain().cross_entropy(logits.double(), labels, shares.double()), strict=True):
        assert_near(ours, wanted)


@NEEDS_TRITON
def test_a_loss_that_is_no_number_is_its_own_jobs_alone() -> None:
    logits, shares = numbers(3, 5, 4), numbers(3, 4).abs()
    labels = torch.zeros(3, 4, dtype=torch.int64, device=DEVICE)
    calm, _ = operations().cross_entropy(logits, labels, shares)
    logits[1, 2, 3] = torch.nan
    losses, _ = operations().cross_entropy(logits, labels, shares)
    assert losses.isnan().tolist() == [False, True, False]
    assert torch.equal(losses[::2], calm[::2])


@NEEDS_TRITON
@pytest.mark.parametrize(("features", "samples"), [(3, 2), (70, 10), (200, 40)])
def test_the_gradient_of_a_contrast_is_that_of_pytorch(features: int, samples: int) -> None:
    dz, z, z_start, z_previous = (numbers(3, features, samples, seed=seed) for seed in range(4))
    z[0, :, 0] = 0.0  # a vector without a direction
    z_previous[1] = z_start[1]
    mu, temperature = torch.tensor([0.5, 5.0, 0.0], device=DEVICE), torch.tensor([0.5, 0.2, 2.0], device=DEVICE)
    anchors, shares = Anchors(z_start, z_previous, mu, temperature), numbers(3, samples).abs()
    exact = Anchors(*(each.double() for each in anchors))
    wanted = Plain().with_contrast(dz.double(), z.double(), exact, shares.double())
    mine = operations().with_contrast(dz.clone(), z, anchors, shares)
    assert_near(mine, wanted)
    assert torch.equal(mine[1:], dz[1:])  # of equal anchors, and of no weight
    assert not torch.equal(mine[0], dz[0])


@NEEDS_TRITON
@pytest.mark.parametrize("jobs", [1, 4])
def test_lengths_of_gradients_are_those_of_pytorch(jobs: int) -> None:
    gradients = [numbers(jobs, 3), numbers(jobs, 70, 130), numbers(jobs, 9), numbers(jobs, 4096, seed=1)]
    mine = rows().lengths_of(gradients)
    assert_near(mine, row_norms([each.double() for each in gradients]), 1e-7)
    assert torch.equal(rows().lengths_of([each[jobs - 1 :] for each in gradients])[0], mine[jobs - 1])


@NEEDS_TRITON
@pytest.mark.parametrize("columns", [3, 1024, 2500])
def test_sums_of_rows_are_those_of_pytorch_whatever_their_number(columns: int) -> None:
    given = numbers(5, columns).double()
    mine = rows().sums_of(given)
    torch.testing.assert_close(mine, given.sum(1), rtol=1e-14, atol=1e-12)
    assert torch.equal(rows().sums_of(given[3:4])[0], mine[3])


@NEEDS_TRITON
@pytest.mark.parametrize(("shape", "samples"), [((3,), 2), ((1, 7, 5), 10), ((2, 9, 9), 40), ((70,), 130)])
def test_batches_are_gathered_with_their_samples_last(shape: tuple[int, ...], samples: int) -> None:
    data, labels = numbers(30, *shape), torch.arange(30, device=DEVICE) % 7
    indices = torch.from_numpy(stream(2, "indices").integers(30, size=(5, samples))).to(DEVICE)
    between = pytest.importorskip("flare.learning.engine.between", reason="Triton is not installed")
    for table in (data, data.movedim(0, -1).contiguous().movedim(-1, 0)):
        x, y = between.gather(table, labels, indices[1:])
        assert torch.equal(x, data[indices[1:]].movedim(1, -1))
        assert torch.equal(y, labels[indices[1:]])


def _padded() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.Tanh(), nn.AvgPool2d((2, 3)), nn.Conv2d(6, 5, 2, padding=(1, 0))),
        *(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(10, 7), nn.ReLU(), nn.Linear(7, 4)),
    )


CHAINS = {
    "small": (small_cnn, (1, 8, 8)),
    "padding, stride, mean, tanh": (_padded, (2, 13, 17)),
    "logistic": (lambda: make_model("logistic", (12,), 10, seed=0), (12,)),
    "mlp": (lambda: make_model("mlp", (1, 4, 4), 10, seed=0), (1, 4, 4)),
    "mnist-cnn": (lambda: make_model("mnist-cnn", (1, 28, 28), 10, seed=0), (1, 28, 28)),
    "cifar-cnn": (lambda: make_model("cifar-cnn", (3, 32, 32), 10, seed=0), (3, 32, 32)),
}
SIZES = [(1, 2), (2, 10), (5, 40)]


@NEEDS_TRITON
@pytest.mark.parametrize("with_contrast", [False, True], ids=["plain", "contrast"])
@pytest.mark.parametrize(("jobs", "samples"), SIZES)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_kernels_is_the_chain_in_double_precision_and_a_job_alone_has_the_same_bits(
    name: str, jobs: int, samples: int, with_contrast: bool
) -> None:
    if IS_INTERPRETED and name.endswith("cnn") and (jobs, samples) != SIZES[0]:
        pytest.skip("takes the interpreter minutes")
    build, shape = CHAINS[name]
    with torch_stream(0, "kernels"):
        model = FlatModel(build().to(DEVICE))
    count = model.num_weights
    program, exact = KernelProgram(model, shape), LayerProgram(model, shape)

    def stack(seed: int) -> Tensor:
        drawn = numbers(jobs, -(-count // 64) * 64, seed=seed)
        drawn[:, :count] = model.flatten() + 0.02 * drawn[:, :count]
        return drawn

    weights, x = stack(1), program.arrange(numbers(jobs, samples, *shape, seed=2))
    shares = numbers(jobs, samples, seed=3).abs()
    labels = torch.from_numpy(stream(4, "labels").integers(model.shapes[-1][0], size=(jobs, samples))).to(DEVICE)
    mu, temperature = torch.linspace(0.5, 2.0, jobs, device=DEVICE), torch.linspace(0.5, 1.0, jobs, device=DEVICE)

    def passed(by: Any, dtype: torch.dtype, first: int = 0) -> list[Tensor]:
        """Everything that a program answers for the jobs from `first` on."""
        at, of_x, of_shares = (each[first:].to(dtype) for each in (weights, x, shares))
        z = [by.features(stack(seed)[first:].to(dtype), of_x) for seed in (5, 6)]
        anchors = Anchors(*z, mu[first:].to(dtype), temperature[first:].to(dtype)) if with_contrast else None
        losses, gradients = by.gradient(at, of_x, labels[first:], of_shares, anchors)
        numbers_of = all_made(gradients)
        flat = [each.reshape(jobs - first, -1) for each in numbers_of]
        return [losses, by.logits(at, of_x), *z, by.norms(numbers_of), *flat]

    mine, alone = passed(program, torch.float32), passed(program, torch.float32, jobs - 1)
    pairs = zip(mine, passed(exact, torch.float64), strict=True)
    apart = [float((ours.double() - wanted).norm() / wanted.norm()) for ours, wanted in pairs]
    assert statistics.median(apart) < 5e-6
    # Where two places of a window are equal but for rounding, either may be taken for the maximum.
    assert max(apart) < (5e-2 if name.endswith("cnn") and samples > 2 else 5e-6)
    assert all(torch.equal(ours[jobs - 1], own[0]) for ours, own in zip(mine, alone, strict=True))


def tf32(x: Tensor) -> Tensor:
    """Rounded to ten bits behind the leading one."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


@NEEDS_TRITON
@pytest.mark.parametrize("name", ["small", "mlp", "mnist-cnn", "cifar-cnn"])
def test_with_tf32_a_chain_is_near_the_exact_one_and_a_job_alone_has_the_same_bits(name: str) -> None:
    """So it is in every reproduction."""
    jobs, samples = (2, 2) if IS_INTERPRETED else (5, 40)
    build, shape = CHAINS[name]
    with torch_stream(0, "kernels"):
        model = FlatModel(build().to(DEVICE))
    program, exact = KernelProgram(model, shape, tf32=True), LayerProgram(model, shape)
    weights = torch.zeros(jobs, -(-model.num_weights // 64) * 64, device=DEVICE)
    weights[:, : model.num_weights] = model.flatten() + 0.02 * numbers(jobs, model.num_weights)
    x, shares = program.arrange(numbers(jobs, samples, *shape, seed=2)), numbers(jobs, samples, seed=3).abs()
    labels = torch.from_numpy(stream(4, "labels").integers(model.shapes[-1][0], size=(jobs, samples))).to(DEVICE)
    mine = all_made(program.gradient(weights, x, labels, shares)[1])
    alone = all_made(program.gradient(weights[-1:], x[-1:], labels[-1:], shares[-1:])[1])
    wanted = all_made(exact.gradient(weights.double(), x.double(), labels, shares.double())[1])
    apart = [float((ours.double() - each).norm() / each.norm()) for ours, each in zip(mine, wanted, strict=True)]
    # Rounding makes some maxima fall on another place, and how much that is, depends on the numbers. What comes of
    # weights and samples that are rounded once, all else being exact, is the yardstick. Here factors of all layers are
    # rounded, there and back, about four times as many; some are cut off, which is twice as far.
    rough = all_made(exact.gradient(tf32(weights).double(), tf32(x).double(), labels, shares.double())[1])
    yardstick = [float((each - ours).norm() / each.norm()) for ours, each in zip(rough, wanted, strict=True)]
    assert statistics.median(apart) < 8.0 * statistics.median(yardstick), (apart, yardstick)
    assert all(torch.equal(ours[-1], own[0]) for ours, own in zip(mine, alone, strict=True))


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_an_engine_of_kernels_gives_the_references_answers_for_every_kind_of_rule(kind: str) -> None:
    module, data = tiny_module(kind), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())
    engine = BatchedEngine(module, data, device=DEVICE, own_kernels=True)
    mine, theirs = engine.train(jobs), ReferenceEngine(module, data).train(jobs)
    near = 1e-5 if IS_INTERPRETED else 1e-4  # tensor cores round the factors of products
    for ours, wanted in zip(mine, theirs, strict=True):
        assert_near(ours.delta.cpu(), wanted.delta.double(), near)
        assert (ours.loss, ours.norm) == pytest.approx((wanted.loss, wanted.norm), rel=near)
    reference, starts = (
        ReferenceEngine(module, data),
        [jobs[0].start * scale for scale in (1, 2, 3)],
    )
    points = [GradientJob(start, np.arange(3 + 4 * i)) for i, start in enumerate(starts)]
    for got, expected in zip(engine.gradients(points), reference.gradients(points), strict=True):
        assert_near(got.cpu(), expected.double(), near)
    assert engine.losses(points) == pytest.approx(reference.losses(points), rel=near)
    assert engine.losses(points[1:2]) == engine.losses(points)[1:2]
    scores = engine.evaluate(starts)
    assert [each.loss for each in scores] == pytest.approx([each.loss for each in reference.evaluate(starts)], rel=near)
    assert engine.evaluate(starts[2:]) == scores[2:]
    assert engine._kernels is not None  # it did not fall back


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")  # that graphs could not be recorded either
@pytest.mark.parametrize(
    "what", ["finish", "convolve", "convolve_back", "window_gradient", "dense_back", "with_contrast"]
)
def test_what_cannot_be_launched_is_left_to_pytorch_at_the_first_call(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is launched outside of a pass."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of resources, says the test")

    module, data = tiny_module("cnn"), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())[3:4]  # with a contrast
    engine = BatchedEngine(module, data, device=DEVICE, own_kernels=True)
    monkeypatch.setattr(type(operations()), what, fail)
    with pytest.warns(UserWarning, match="our own kernels could not be used.*says the test"):
        (mine,) = engine.train(jobs)
    assert engine._kernels is None
    assert_near(mine.delta.cpu(), ReferenceEngine(module, data).train(jobs)[0].delta.double(), 1e-4)


def off_by(factor: float) -> Callable[[Any], Any]:
    """What turns the numbers of an answer into others."""

    def wrong(answer: Any) -> Any:
        if isinstance(answer, tuple):
            return tuple(map(wrong, answer))
        return answer * factor if isinstance(answer, Tensor) and answer.is_floating_point() else answer

    return wrong


def left_to_pytorch(near: float = 1e-4, **options: Any) -> None:
    """Training is right, and does without kernels, as a warning says."""
    module, data = tiny_module("cnn"), tiny_data()
    jobs = jobs_of(FlatModel(module).flatten())[:1]
    engine = BatchedEngine(module, data, device=DEVICE, own_kernels=True, **options)
    with pytest.warns(UserWarning, match="our own kernels could not be used.* away from PyTorch's"):
        (mine,) = engine.train(jobs)
    assert engine._kernels is None
    assert_near(mine.delta.cpu(), ReferenceEngine(module, data).train(jobs)[0].delta.double(), near)


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")  # that graphs could not be recorded either
@pytest.mark.parametrize("factor", [1.1, math.nan])
@pytest.mark.parametrize("what", ["finish", "finish_back", "window_gradient", "cross_entropy"])
def test_kernels_that_compute_something_else_than_pytorch_are_left_out_with_a_warning(
    what: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a compiler for another GPU makes something else of them, or nothing at all."""
    right, wrong = getattr(type(operations()), what), off_by(factor)
    monkeypatch.setattr(type(operations()), what, lambda *given, **named: wrong(right(*given, **named)))
    left_to_pytorch()


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")
def test_with_tf32_kernels_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = type(operations()).finish_back, off_by(1.3)
    monkeypatch.setattr(type(operations()), "finish_back", lambda *given, **named: wrong(right(*given, **named)))
    left_to_pytorch(near=1e-2, tf32=True)  # TF32 keeps 10 bits, also in PyTorch


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")
def test_kernels_that_add_twice_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = type(operations()).dense_back

    def twice(self: Any, *given: Any, to_input: bool) -> Any:
        right(self, *given, to_input=False)
        return right(self, *given, to_input=to_input)

    monkeypatch.setattr(type(operations()), "dense_back", twice)
    left_to_pytorch()


@NEEDS_TRITON
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("job", [0, 1])
@pytest.mark.parametrize("what", ["gather", "moved"])
def test_kernels_of_whole_rows_are_compared_too_also_beyond_the_first_job(
    what: str, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("flare.learning.engine.between") if what == "gather" else rows()
    right = getattr(module, what)

    def wrong(*given: Any) -> Any:
        answer = right(*given)
        answer[0][job:, ...] *= 1.1
        return answer

    monkeypatch.setattr(module, what, wrong)
    left_to_pytorch()


@NEEDS_TRITON
@pytest.mark.parametrize("what", ["sums", "norms"])
def test_kernels_that_add_up_rows_are_compared_too(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong = {"sums": "sums_of", "norms": "lengths_of"}[what], off_by(1.1)
    right = getattr(rows(), name)
    monkeypatch.setattr(rows(), name, lambda given: wrong(right(given)))
    program = KernelProgram(FlatModel(tiny_module("cnn").to(DEVICE)), (1, 8, 8))
    given = numbers(3, 40).double() if what == "sums" else [numbers(3, 40)]
    with pytest.raises(RuntimeError, match=f"the first {what} by them is 0.1 of its length away"):
        getattr(program, what)(given)


@NEEDS_TRITON
def test_numbers_that_are_none_do_not_speak_against_kernels() -> None:
    """As in a run that diverges: what is compared is made up."""
    program = KernelProgram(FlatModel(tiny_module("cnn").to(DEVICE)), (1, 8, 8))
    stack, nothing = numbers(2, 192), torch.full((1, 192), math.nan, device=DEVICE)
    assert program.moved(stack, Starts(nothing, torch.zeros(2, dtype=torch.int64, device=DEVICE)))[1].isnan().all()
    assert program.sums(torch.full((2, 5), math.nan, device=DEVICE, dtype=torch.float64)).isnan().all()


@NEEDS_TRITON
def test_what_is_too_long_for_kernels_to_count_is_refused_before_one_is_started() -> None:
    launching = pytest.importorskip("flare.learning.engine.launching", reason="Triton is not installed")
    with pytest.raises(ValueError, match="2,147,483,648 numbers in one place"):
        launching._refuse_long((torch.zeros(3, device=DEVICE), torch.zeros(1, device=DEVICE).expand(2, 2**31)))
    launching._refuse_long((torch.zeros(1, device=DEVICE).expand(2**20, 2**20), 7))


@NEEDS_TRITON
def test_a_shortage_of_memory_is_no_reason_to_do_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = BatchedEngine(tiny_module("mlp"), tiny_data(), device=DEVICE, own_kernels=True)
    jobs = jobs_of(FlatModel(tiny_module("mlp")).flatten())[:1] * 4
    shortages, finish = iter([1, 1]), type(operations()).finish

    def scarce(*arguments: Any) -> Any:
        if next(shortages, 0):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory, says the test")
        return finish(*arguments)

    monkeypatch.setattr(type(operations()), "finish", scarce)
    assert len(engine.train(jobs)) == 4
    assert engine._kernels is not None
    assert next(shortages, 0) == 0


@NEEDS_TRITON
def test_a_shortage_of_memory_for_the_way_of_pytorch_costs_neither_kernels_nor_the_size_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory, says the test")

    engine = BatchedEngine(tiny_module("mlp"), tiny_data(), device=DEVICE, own_kernels=True)
    monkeypatch.setattr(KernelProgram, "_compare", short)
    assert len(engine.train(jobs_of(FlatModel(tiny_module("mlp")).flatten())[:1] * 4)) == 4
    assert engine._kernels is not None
    assert not engine._chunks._limits


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device on this machine")
@pytest.mark.filterwarnings("default")
def test_on_a_gpu_other_numbers_of_jobs_need_no_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    runtime = pytest.importorskip("triton.knobs", reason="this Triton does not tell").runtime
    monkeypatch.setattr(runtime, "jit_post_compile_hook", lambda **told: compiled.append(told["fn"].name))
    module = tiny_module("cnn")
    engine, start = BatchedEngine(module, tiny_data(), device=DEVICE, own_kernels=True), FlatModel(module).flatten()
    jobs = [job(start, LocalRule(0.1, 2), seed, batch_size=6) for seed in range(7)]  # a size that no other test has
    engine.train(jobs[:3])
    engine.gradients([GradientJob(start, np.arange(8))] * 2)
    engine.evaluate([start] * 2)
    first = len(compiled)
    for count in (1, 2, 7):
        engine.train(jobs[:count])
        engine.gradients([GradientJob(start, np.arange(8))] * count)
        engine.evaluate([start] * count)
    assert len(compiled) == first > 0
    assert engine._kernels is not None  # it did not fall back


@NEEDS_TRITON
def test_nothing_of_pytorchs_compiler_is_imported() -> None:
    """That alone takes seconds in every process."""
    code = (
        "import sys, torch; from flare.learning.engine.batched import BatchedEngine; from tests.tiny import *;"
        f"module, device = tiny_module('mlp'), '{DEVICE}';"
        "engine = BatchedEngine(module, tiny_data(), device=device, own_kernels=True);"
        "weights = torch.cat([each.detach().flatten() for each in module.parameters()]);"
        "engine.train([job(weights, LocalRule(0.1, 2), 0)] * 2); assert engine._kernels is not None;"
        "print(sorted({'torch._dynamo', 'torch._inductor'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
