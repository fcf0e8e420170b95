"""Which tiles are the fastest for the matrix products of some networks on this GPU.

    PYTHONPATH=src python benchmarks/tiles.py [--out DIR] [--models mnist-cnn cifar-cnn pfl-cnn] [--tried 40]
        [--precision tf32]

prints and writes tiles.json: for each product the time of PyTorch's, of the tiles that `kernels.choose_tiles` takes,
and of the best ones tried. What `choose_tiles` says was read off here. Kernels are compiled by many processes at once,
and then timed in one, as CUDA graphs, so that only the GPU's time counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flare.learning.engine.kernels import Tiles, Window, add_outer_, choose_tiles, launch
from flare.learning.engine.operations import Plain
from flare.rng import stream

JOBS = 240
PLAIN = Plain()
PRECISIONS = ("tf32x3", "tf32")


class Network(NamedTuple):
    """Two convolutions, the second and perhaps the first followed by a maximum of 2 x 2, and a hidden layer."""

    channels: int
    side: int
    first: int
    second: int
    kernel: int
    is_first_pooled: bool
    hidden: int
    batch: int


NETWORKS = {
    "mnist-cnn": Network(1, 28, 16, 32, 5, True, 572, 40),
    "cifar-cnn": Network(3, 32, 32, 64, 5, True, 1208, 40),
    "pfl-cnn": Network(3, 32, 32, 64, 3, False, 128, 10),  # that of benchmarks/rounds.py
}


class Shape(NamedTuple):
    """A product: a (rows, depth), b (depth, columns), each perhaps lying transposed, or windows of an activation."""

    rows: int
    columns: int
    depth: int
    transposed: tuple[bool, bool] = (False, False)
    window: Window | None = None
    channels: int = 0
    taps_down: bool = False
    is_added: bool = False  # onto weights that are there
    precision: str = PRECISIONS[0]

    @property
    def along_depth(self) -> bool:
        """Whether neighbours in the memory of b are neighbours in the depth."""
        return self.transposed[1] if self.window is None else not self.taps_down

    @property
    def chosen(self) -> Tiles:
        """What the engine takes."""
        return choose_tiles(self.rows, self.columns, self.depth, along_depth=self.along_depth, precision=self.precision)


def products(network: Network) -> dict[str, Shape]:
    """The products of a step, with the layouts they have there."""
    one = network.side - network.kernel + 1
    half = one // 2 if network.is_first_pooled else one
    two = half - network.kernel + 1
    flat, taps = network.second * (two // 2) ** 2, network.kernel**2
    kernel = (network.kernel, network.kernel)
    in_first = Window(kernel, (network.side, network.side), network.batch)
    in_second = Window(kernel, (half, half), network.batch)
    places_1, places_2 = one * one * network.batch, two * two * network.batch
    deep_1, deep_2 = network.channels * taps, network.first * taps
    return {
        "conv1": Shape(network.first, places_1, deep_1, window=in_first, channels=network.channels, taps_down=True),
        "conv2": Shape(network.second, places_2, deep_2, window=in_second, channels=network.first, taps_down=True),
        "linear": Shape(network.hidden, network.batch, flat),
        "linear, weights": Shape(network.hidden, flat, network.batch, (False, True)),
        "linear, step": Shape(network.hidden, flat, network.batch, (False, True), is_added=True),
        "linear, input": Shape(flat, network.batch, network.hidden, (True, False)),
        "conv2, weights": Shape(network.second, deep_2, places_2, window=in_second, channels=network.first),
        "conv2, windows": Shape(deep_2, places_2, network.second, (True, False)),
        "conv1, weights": Shape(network.first, deep_1, places_1, window=in_first, channels=network.channels),
    }


class Product:
    """Random factors of a shape, PyTorch's answer and ours."""

    def __init__(self, shape: Shape, jobs: int) -> None:
        self.shape = shape
        self.a = _drawn(jobs, shape.rows, shape.depth, shape.transposed[0])
        if shape.window is None:
            self.b = _drawn(jobs, shape.depth, shape.columns, shape.transposed[1])
        else:
            self.b = torch.randn(jobs, shape.channels, *shape.window.side, shape.window.samples, device="cuda")
        self.weights = torch.randn(jobs, shape.rows * shape.columns if shape.is_added else 1, device="cuda")
        self.before = self.weights.clone()
        self.scale = torch.full((jobs, 1), 1e-3, device="cuda")

    def ours(self, tiles: Tiles) -> Tensor:
        shape = self.shape
        if shape.is_added:
            add_outer_(self.weights, self.a, self.b.transpose(1, 2), self.scale, shape.precision, tiles)
            return self.weights
        return launch(
            self.a,
            self.b,
            shape.columns,
            shape.depth,
            shape.precision,
            window=shape.window,
            taps_down=shape.taps_down,
            tiles=tiles,
        )

    def answer(self, tiles: Tiles) -> Tensor:
        """Ours, added onto the weights as they were."""
        self.weights.copy_(self.before)
        return self.ours(tiles)

    def plain(self, jobs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        a, b = self.a[:jobs].to(dtype), self.b[:jobs].to(dtype)
        if self.shape.is_added:
            weights = self.before[:jobs].to(dtype, copy=True)
            PLAIN.add_outer_(weights, a, b.transpose(1, 2), self.scale[:jobs].to(dtype))
            return weights
        if self.shape.window is None:
            return PLAIN.multiply(a, b)
        work = PLAIN.multiply_windows if self.shape.taps_down else PLAIN.window_gradient
        return work(a, b, self.shape.window.kernel, (1, 1))


def _drawn(jobs: int, rows: int, columns: int, is_transposed: bool) -> Tensor:
    if is_transposed:
        return torch.randn(jobs, columns, rows, device="cuda").transpose(1, 2)
    return torch.randn(jobs, rows, columns, device="cuda")


def candidates(shape: Shape) -> list[Tiles]:
    """Cuts that suit the shape."""
    found = []
    for bm, bn, bk in itertools.product((16, 32, 64, 128), (16, 32, 64, 128, 256), (16, 32, 64)):
        fits = bm <= _up(shape.rows) and bn <= _up(shape.columns) and bk <= _up(shape.depth)
        if not fits or not 512 <= bm * bn <= 16384 or (bn < 32 and shape.columns > 64):
            continue
        for warps, stages, six in itertools.product((2, 4, 8), (1, 2, 3, 4), (False, True)):
            odd_size = (warps == 2 and bm * bn >= 2048) or (warps == 8 and bm * bn < 8192) or (six and bm < 64)
            odd_size |= six and (shape.is_added or shape.precision != PRECISIONS[0])
            if odd_size or (stages == 1) != (shape.depth <= bk) or 4 * (bm + bn) * bk * stages > 200_000:
                continue
            tiles = -(-shape.rows // bm) * -(-shape.columns // bn)
            parts = (1,) if shape.is_added or shape.depth < 1024 or tiles > 8 else (1, 8) if tiles <= 2 else (1, 2, 4)
            found += [Tiles(bm, bn, bk, warps, stages, part, six) for part in parts]
    return found


def _up(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def some_candidates(name: str, shape: Shape, tried: int) -> list[Tiles]:
    """What the engine takes, and others, drawn."""
    others = [tiles for tiles in candidates(shape) if tiles != shape.chosen]
    drawn = stream(0, "benchmark", name).permutation(len(others))[:tried]
    return [shape.chosen, *(others[i] for i in sorted(drawn.tolist()))]


def compiled(work: tuple[Shape, Tiles]) -> str | None:
    """Leave the kernel in the compiler's cache; why it could not be made, None where it could."""
    shape, tiles = work
    try:
        Product(shape, 1).ours(tiles)
        torch.cuda.synchronize()
    except Exception as why:
        return f"{shape}, {tiles}: {type(why).__name__}: {why}"[:200]
    return None


def microseconds(work: Callable[[], Any], jobs: int, repeats: int = 5) -> float:
    """For each job, the median."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            work()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / jobs / 3)
    return float(statistics.median(times))


def measure(shape: Shape, tiles_tried: list[Tiles]) -> dict[str, Any]:
    product = Product(shape, JOBS)
    tried: dict[Tiles, float] = {}
    for tiles in tiles_tried:
        try:
            tried[tiles] = microseconds(partial(product.ours, tiles), JOBS)
        except Exception as why:
            print(f"    {tiles}: {type(why).__name__}: {why}"[:120])
    exact = product.plain(2, torch.float64)
    best = sorted(tried, key=lambda tiles: tried[tiles])
    return {
        "shape": shape[:3],
        "plain_us": microseconds(lambda: product.plain(JOBS), JOBS),
        "chosen": (tuple(shape.chosen), tried.get(shape.chosen)),
        "best": [(tuple(tiles), tried[tiles]) for tiles in best[:8]],
        "relative_error": float((product.answer(shape.chosen)[:2] - exact).norm() / exact.norm()),
        "relative_error_of_best": float((product.answer(best[0])[:2] - exact).norm() / exact.norm()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of tiles.json")
    parser.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--products", nargs="+", default=[], help="names of products; all where none is given")
    parser.add_argument("--precision", default=PRECISIONS[0], choices=PRECISIONS, help="how factors are rounded")
    parser.add_argument("--tried", type=int, default=40, help="how many tiles are tried for each product")
    options = parser.parse_args()
    shapes = {
        f"{model}, {name}": shape._replace(precision=options.precision)
        for model in options.models
        for name, shape in products(NETWORKS[model]).items()
        if name in (options.products or [name])
    }
    tried = {name: some_candidates(name, shape, options.tried) for name, shape in shapes.items()}
    work = [(shapes[name], tiles) for name, each in tried.items() for tiles in each]
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        failed = [why for why in pool.imap_unordered(compiled, work, chunksize=2) if why is not None]
    print(f"{len(work)} kernels compiled, {len(failed)} failed", *failed[:3], sep="\n", flush=True)
    results: dict[str, Any] = {}
    for name, shape in shapes.items():
        row = results[name] = measure(shape, tried[name])
        giga = 2e-9 * shape.rows * shape.columns * shape.depth
        print(f"{name} {row['shape']}: PyTorch {row['plain_us']:.2f} us, error {row['relative_error']:.1e}")
        print(f"    chosen {row['chosen']}, {1e3 * giga / row['chosen'][1]:.0f} TFLOP/s")
        for tiles, us in row["best"][:4]:
            print(f"    {tiles}: {us:.3f} us", flush=True)
        (options.out / "tiles.json").write_text(json.dumps(results, indent=2) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
