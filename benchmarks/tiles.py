"""Which tiles are the fastest for the products and convolutions of some networks on this GPU.

    PYTHONPATH=src python benchmarks/tiles.py [--out DIR] [--models mnist-cnn cifar-cnn pfl-cnn] [--tried 20]
        [--precisions tf32x3 tf32] [--seconds 95] [--quick]

prints and writes tiles.json: for each pass of a step the time of the tiles that the engine takes, of the best ones
tried, and of the way that is not taken (`before`: a convolution by products, with its windows written down on the way
back; the way back of a dense layer with few samples in two passes over its weights). What `kernels.choose_tiles`,
`kernels.back_of_few` and `convolutions.choose_place_tiles` take was read off here. Kernels are compiled by many
processes at once, and then timed in one, as CUDA graphs, so that only the GPU's time counts. What there is no time for
is left out, the same number of tiles for every pass. --quick runs tiny sizes through Triton's interpreter
(TRITON_INTERPRET=1), as a check that everything runs.

Tiles are written as rows.columns.depth w warps s stages, then p and the number of parts, then how factors are split: t
and b, by the compiler into two and three; r, both rounded by hand; ~, factors are swapped; n, numbers are read two at a
time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flare.learning.engine.between import Kernels
from flare.learning.engine.convolutions import PlaceTiles, choose_place_tiles, convolve, convolve_back
from flare.learning.engine.kernels import (
    BACK_OF_FEW,
    FEW,
    Tiles,
    Window,
    add_outer_,
    back_of_few,
    choose_tiles,
    launch,
)
from flare.learning.engine.operations import Onto, Plain, Pool, Windows
from flare.rng import stream

JOBS = 240
PLAIN = Plain()
PRECISIONS = ("tf32x3", "tf32")
BEFORE = "before"
BYTES_A_US = 4.2e6  # what an H200 copies
SIGNS = {"": "", "tf32x3": "t", "bf16x6": "b", "rounded": "r"}
Cut = Tiles | PlaceTiles | str


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
TINY = {"tiny": Network(2, 8, 3, 5, 2, True, 7, 2)}


class Shape(NamedTuple):
    """A product: a (rows, depth), b (depth, columns), each perhaps lying transposed, or windows of an activation."""

    rows: int
    columns: int
    depth: int
    transposed: tuple[bool, bool] = (False, False)
    window: Window | None = None
    channels: int = 0
    is_added: bool = False  # onto weights that are there
    precision: str = PRECISIONS[0]

    @property
    def along_depth(self) -> bool:
        """Whether neighbours in the memory of b are neighbours in the depth."""
        return self.transposed[1] if self.window is None else True

    @property
    def chosen(self) -> Tiles:
        """What the engine takes."""
        lies = {"along_depth": self.along_depth, "is_turned": self.transposed[0]}
        return choose_tiles(*self.sizes, **lies, precision=self.precision)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.rows, self.columns, self.depth

    @property
    def numbers(self) -> int:
        """Read and written, where each is once."""
        right = self.depth * self.columns
        if self.window is not None:
            right = self.channels * self.window.side[0] * self.window.side[1] * self.window.samples
        return self.rows * self.depth + right + (2 if self.is_added else 1) * self.rows * self.columns


class Dense(NamedTuple):
    """The way back of a dense layer, of few samples, whose gradient is added onto its weights, (rows, columns)."""

    rows: int
    columns: int
    samples: int
    precision: str = PRECISIONS[0]

    @property
    def chosen(self) -> Tiles:
        return BACK_OF_FEW[self.precision]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As many multiplications as of both products."""
        return self.rows, self.columns, 2 * self.samples

    @property
    def numbers(self) -> int:
        return 2 * self.rows * self.columns + (self.rows + 2 * self.columns) * self.samples


class Convolved(NamedTuple):
    """A convolution that is finished, or the gradient of what it was given."""

    windows: Windows
    channels: int
    out: int
    samples: int
    is_pooled: bool
    is_back: bool
    precision: str = PRECISIONS[0]

    @property
    def chosen(self) -> PlaceTiles:
        taps = self.windows.kernel[0] * self.windows.kernel[1]
        sizes = (self.channels, self.out) if self.is_back else (self.out, self.channels)
        return choose_place_tiles(*sizes, taps, back=self.is_back, precision=self.precision)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Of the product."""
        (kh, kw), (high, wide) = self.windows.kernel, self.windows.out_side
        return self.out, high * wide * self.samples, self.channels * kh * kw

    @property
    def numbers(self) -> int:
        given = self.channels * self.windows.side[0] * self.windows.side[1] * self.samples
        made = self.sizes[0] * self.sizes[1]
        return given + (made // 4 * 5 // 4 if self.is_pooled and not self.is_back else made)


Pass = Shape | Convolved | Dense


def passes(network: Network, precision: str) -> dict[str, Pass]:
    """Those of a step, with the layouts that factors have there."""
    one = network.side - network.kernel + 1
    half = one // 2 if network.is_first_pooled else one
    two = half - network.kernel + 1
    flat, taps, batch = network.second * (two // 2) ** 2, network.kernel**2, network.batch
    kernel = (network.kernel, network.kernel)
    in_first, in_second = Window(kernel, (network.side,) * 2, batch), Window(kernel, (half, half), batch)
    first, second = (Windows(kernel, (1, 1), (0, 0), each.side) for each in (in_first, in_second))
    deep_1, deep_2 = network.channels * taps, network.first * taps
    dense = (network.hidden, batch, flat)
    found: dict[str, Pass] = {
        "conv1": Convolved(first, network.channels, network.first, batch, network.is_first_pooled, is_back=False),
        "conv2": Convolved(second, network.first, network.second, batch, is_pooled=True, is_back=False),
        "conv2 input": Convolved(second, network.first, network.second, batch, is_pooled=True, is_back=True),
        "conv2 weights": Shape(network.second, deep_2, two * two * batch, window=in_second, channels=network.first),
        "conv1 weights": Shape(network.first, deep_1, one * one * batch, window=in_first, channels=network.channels),
        "linear": Shape(*dense),
    }
    if batch <= FEW:
        found["linear back"] = Dense(network.hidden, flat, batch)
    else:
        found["linear input"] = Shape(flat, batch, network.hidden, (True, False))
        found["linear step"] = Shape(network.hidden, flat, batch, (False, True), is_added=True)
    return {name: each._replace(precision=precision) for name, each in found.items()}


class Product:
    """Random factors of a shape, PyTorch's answer and ours."""

    def __init__(self, shape: Shape, jobs: int, device: str) -> None:
        self.shape = shape
        self.a = _drawn(jobs, shape.rows, shape.depth, shape.transposed[0], device)
        if shape.window is None:
            self.b = _drawn(jobs, shape.depth, shape.columns, shape.transposed[1], device)
        else:
            self.b = torch.randn(jobs, shape.channels, *shape.window.side, shape.window.samples, device=device)
        sizes = (shape.rows, shape.columns) if shape.is_added else (1, 1)
        self.weights = torch.randn(jobs, *sizes, device=device)
        self.before = self.weights.clone()
        self.scale = torch.full((jobs, 1), 1e-3, device=device)

    def ours(self, cut: Cut) -> Tensor:
        assert isinstance(cut, Tiles)
        shape = self.shape
        if shape.is_added:
            add_outer_(self.weights, self.a, self.b.transpose(1, 2), self.scale, shape.precision, cut)
            return self.weights
        return launch(self.a, self.b, shape.columns, shape.depth, shape.precision, window=shape.window, tiles=cut)

    def answer(self, cut: Cut) -> Tensor:
        """Ours, added onto the weights as they were."""
        self.weights.copy_(self.before)
        return self.ours(cut)

    def exact(self, jobs: int) -> Tensor:
        a, b = self.a[:jobs].double(), self.b[:jobs].double()
        if self.shape.is_added:
            weights = self.before[:jobs].double()
            return weights.addcmul_(PLAIN.multiply(a, b), self.scale[:jobs, :, None].double())
        if self.shape.window is None:
            return PLAIN.multiply(a, b)
        return PLAIN.window_gradient(a, b, self.shape.window.kernel, (1, 1))


class WayBack:
    """Random factors of the way back of a dense layer, PyTorch's answer and ours."""

    def __init__(self, asked: Dense, jobs: int, device: str) -> None:
        self.asked = asked
        self.weights = torch.randn(jobs, asked.rows, asked.columns, device=device)
        self.before = self.weights.clone()
        self.dy = torch.randn(jobs, asked.rows, asked.samples, device=device)
        self.x = torch.randn(jobs, asked.columns, asked.samples, device=device)
        self.scale = torch.full((jobs, 1), 1e-3, device=device)

    def ours(self, cut: Cut) -> Tensor:
        """The gradient of the input, beside the step."""
        rows, columns, samples, precision = self.asked
        if cut == BEFORE:
            dx = launch(self.weights.transpose(1, 2), self.dy, samples, rows, precision)
            tiles = choose_tiles(rows, columns, samples, along_depth=True, precision=precision)
            add_outer_(self.weights, self.dy, self.x, self.scale, precision, tiles)
            return dx
        assert isinstance(cut, Tiles)
        return back_of_few(self.weights, self.dy, self.x, Onto(self.weights, self.scale), precision, cut)[0]

    def answer(self, cut: Cut) -> Tensor:
        """The gradient of the input and what was added, from weights as they were."""
        self.weights.copy_(self.before)
        dx = self.ours(cut)
        return torch.cat([dx.flatten(1), 1e3 * (self.weights - self.before).flatten(1)], dim=1)

    def exact(self, jobs: int) -> Tensor:
        weights, dy, x = (each[:jobs].double() for each in (self.before, self.dy, self.x))
        dx, gradient = PLAIN.dense_back(weights, dy, x, None, to_input=True)
        assert dx is not None
        assert gradient is not None
        return torch.cat([dx.flatten(1), gradient.flatten(1)], dim=1)


class Convolution:
    """Random weights and activations, PyTorch's answer and ours."""

    def __init__(self, asked: Convolved, jobs: int, device: str) -> None:
        (out, _, deep), windows = asked.sizes, asked.windows
        self.asked, self.operations = asked, Kernels(tf32=asked.precision == "tf32")
        self.weight = torch.randn(jobs, out, deep, device=device)
        sides = (out, *windows.out_side) if asked.is_back else (asked.channels, *windows.side)
        self.given = torch.randn(jobs, *sides, asked.samples, device=device)
        self.bias = torch.randn(jobs, out, device=device)
        self.pool = Pool((2, 2), windows.out_side) if asked.is_pooled else None

    def ours(self, cut: Cut) -> Tensor:
        windows, precision = self.asked.windows, self.asked.precision
        if cut == BEFORE:
            return self._before()
        assert isinstance(cut, PlaceTiles)
        if self.asked.is_back:
            return convolve_back(self.weight, self.given, windows, precision, cut)
        work = partial(convolve, bias=self.bias, pool=self.pool, relu=True, tiles=cut)
        return work(self.weight, self.given, windows, precision)[0]

    answer = ours

    def _before(self) -> Tensor:
        windows, operations = self.asked.windows, self.operations
        if self.asked.is_back:
            dwindows = operations.multiply(self.weight.transpose(1, 2), self.given.flatten(2))
            return operations.add_windows(dwindows, windows, self.asked.samples)
        y = operations.multiply_windows(self.weight, self.given, windows.kernel, windows.stride)
        y = y.view(*y.shape[:2], *windows.out_side, self.asked.samples)
        return operations.finish(y, self.bias, self.pool, True)[0]

    def exact(self, jobs: int) -> Tensor:
        weight, given, bias = (each[:jobs].double() for each in (self.weight, self.given, self.bias))
        if self.asked.is_back:
            return PLAIN.convolve_back(weight, given, self.asked.windows)
        return PLAIN.convolve(weight, given, self.asked.windows, bias, self.pool, True)[0]


def drawn(asked: Pass, jobs: int, device: str) -> Product | WayBack | Convolution:
    if isinstance(asked, Shape):
        return Product(asked, jobs, device)
    return WayBack(asked, jobs, device) if isinstance(asked, Dense) else Convolution(asked, jobs, device)


def _drawn(jobs: int, rows: int, columns: int, is_transposed: bool, device: str) -> Tensor:
    if is_transposed:
        return torch.randn(jobs, columns, rows, device=device).transpose(1, 2)
    return torch.randn(jobs, rows, columns, device=device)


def product_candidates(shape: Shape) -> list[Tiles]:
    """Cuts that suit the shape."""
    splits = ("", "bf16x6") if shape.precision == PRECISIONS[0] else ("", "rounded")
    found = []
    sizes = itertools.product((16, 32, 64, 128), (16, 32, 64, 128, 256), (16, 32, 64), (4, 8, 2), (1, 2, 3, 4))
    for (bm, bn, bk, warps, stages), split, swapped in itertools.product(sizes, splits, (False, True)):
        fits = (
            min(32 if shape.is_added else 64, _up(shape.rows)) <= bm <= _up(shape.rows)
            and min(64, _up(shape.columns)) <= bn
        )
        fits &= bn <= _up(shape.columns) and min(32, _up(shape.depth)) <= bk <= _up(shape.depth)
        left = bn if swapped else bm  # tensor cores take 64 at a time, where they can
        odd_size = not 512 <= bm * bn <= 16384 or (warps == 2 and bm * bn >= 2048) or (warps == 8 and bm * bn < 8192)
        odd_size |= left < 64 and (split != "" or swapped)
        odd_size |= shape.is_added and (split == "bf16x6" or swapped)
        odd_size |= (stages == 1) != (shape.depth <= bk) or 4 * (bm + bn) * bk * stages > 160_000
        if not fits or odd_size:
            continue
        tiles = -(-shape.rows // bm) * -(-shape.columns // bn)
        parts = (1,) if shape.is_added or shape.depth < 1024 or tiles > 8 else (8, 16) if tiles <= 2 else (1, 4)
        found += [Tiles(bm, bn, bk, warps, stages, part, split, swapped) for part in parts]
    return found


def dense_candidates(asked: Dense) -> list[Tiles]:
    """Cuts that suit the way back of a dense layer: few enough numbers at once for the registers there are."""
    sizes = itertools.product((16, 32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3))
    return [
        Tiles(bm, bn, FEW, warps, stages)
        for bm, bn, warps, stages in sizes
        if 1024 <= bm * bn <= 1024 * warps and bm <= _up(asked.rows)
    ]


def place_candidates(asked: Convolved) -> list[PlaceTiles]:
    """Cuts that suit a convolution."""
    channels, inner = (asked.channels, asked.out) if asked.is_back else (asked.out, asked.channels)
    splits = ("", "", "", "bf16x6", "tf32x3") if asked.precision == PRECISIONS[0] else ("",)
    nearness = (False,) if asked.samples % 4 else (False, True)
    found = []
    sizes = itertools.product((64, 128, 256), (16, 32, 64), (16, 32, 64), (4, 8), (2, 3, 4))
    for (bm, bn, bk, warps, stages), split, near in itertools.product(sizes, splits, nearness):
        fits = bn == min(64, _up(channels)) and (inner < 16 or inner % bk == 0)
        odd_size = bm * bn > 16384 or (warps == 8) != (bm == 256) or 4 * (bm + 2 * bn) * bk * stages > 160_000
        if fits and not odd_size:
            found.append(PlaceTiles(bm, bn, bk, warps, stages, split, near))
    return found


def _up(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def suited(asked: Pass) -> Sequence[Cut]:
    """Cuts that suit a pass."""
    if isinstance(asked, Shape):
        return product_candidates(asked)
    return dense_candidates(asked) if isinstance(asked, Dense) else place_candidates(asked)


def candidates(name: str, asked: Pass, tried: int) -> list[Cut]:
    """What the engine takes, what it does not, and others, drawn: as many of every way to split."""
    by_way: dict[object, list[Cut]] = {}
    for cut in suited(asked):
        if cut != asked.chosen:
            by_way.setdefault(cut[5:] if isinstance(cut, PlaceTiles) else cut[6:], []).append(cut)
    ways = []
    for way, cuts in by_way.items():
        order = stream(0, "benchmark", name, str(way)).permutation(len(cuts)).tolist()
        ways.append(list(dict.fromkeys(cuts[i] for i in order)))
    mixed = [cut for several in itertools.zip_longest(*ways) for cut in several if cut is not None]
    first: list[Cut] = [asked.chosen] if isinstance(asked, Shape) else [asked.chosen, BEFORE]
    return [*first, *mixed[:tried]]


def compiled(work: tuple[int, Pass, Cut, str]) -> tuple[int, str | None]:
    """Leave the kernel in the compiler's cache; and why it could not be made, None where it could."""
    place, asked, cut, device = work
    try:
        drawn(asked, 1, device).ours(cut)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as why:
        return place, f"{asked}, {cut}: {type(why).__name__}: {why}"[:300]
    return place, None


def compile_all(work: list[tuple[Pass, Cut]], device: str, until: float) -> set[tuple[Pass, Cut]]:
    """What could be compiled in the time there is."""
    done, failed = set(), []
    with multiprocessing.get_context("spawn").Pool(min(len(work), 16, os.cpu_count() or 2)) as pool:
        answers = pool.imap_unordered(compiled, [(place, *each, device) for place, each in enumerate(work)])
        for _ in work:
            try:
                place, why = answers.next(timeout=max(0.1, until - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            if why is None:
                done.add(work[place])
            else:
                failed.append(why)
    print(f"{len(done)} of {len(work)} kernels compiled, {len(failed)} failed", *failed[:3], sep="\n", flush=True)
    return done


def microseconds(work: Callable[[], Any], jobs: int, device: str) -> float:
    """For each job, the median."""
    if device != "cuda":
        begin = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - begin) / jobs
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            work()
    graph.replay()
    times = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / jobs / 2)
    return float(statistics.median(times))


def short(cut: Cut) -> str:
    if isinstance(cut, str):
        return cut
    written = f"{cut.bm}.{cut.bn}.{cut.bk}w{cut.warps}s{cut.stages}"
    if isinstance(cut, PlaceTiles):
        return written + SIGNS[cut.split] + "n" * cut.near
    return written + (f"p{cut.parts}" if cut.parts > 1 else "") + SIGNS[cut.split] + "~" * cut.swapped


def measure(asked: Pass, cuts: Sequence[Cut], jobs: int, device: str) -> dict[str, Any]:
    work = drawn(asked, jobs, device)
    tried: dict[Cut, float] = {}
    for cut in cuts:
        try:
            tried[cut] = microseconds(partial(work.ours, cut), jobs, device)
        except Exception as why:
            print(f"    {cut}: {type(why).__name__}: {why}"[:120])
    best = sorted(tried, key=lambda cut: tried[cut])
    exact, count = work.exact(1), len(best)
    rows, columns, depth = asked.sizes

    def apart(cut: Cut) -> float:
        return float((work.answer(cut)[:1] - exact).norm() / exact.norm())

    return {
        "sizes": asked.sizes,
        "giga": 2e-9 * rows * columns * depth,
        "floor_us": 4 * asked.numbers / BYTES_A_US,
        "chosen": [short(asked.chosen), tried.get(asked.chosen)],
        "before_us": tried.get(BEFORE),
        "best": [[short(cut), tried[cut], apart(cut) if i < 3 else None] for i, cut in enumerate(best[:count])],
        "error": apart(asked.chosen) if asked.chosen in tried else None,
    }


def line(name: str, row: dict[str, Any]) -> str:
    """What is known of a pass."""
    rows, columns, depth = row["sizes"]
    chosen, us = row["chosen"]
    now = "-" if us is None else f"{us:.2f} us {1e3 * row['giga'] / us:.0f} T, {row['error']:.0e}"
    before = "" if row["before_us"] is None else f", before {row['before_us']:.2f}"
    best = "; ".join(f"{cut} {each:.2f}" for cut, each, _ in row["best"][:3])
    wrong = "".join(f" WRONG {cut} {far:.0e}" for cut, _, far in row["best"][:3] if far is not None and not far < 5e-3)
    shape = f"{rows}x{columns}x{depth} {row['giga']:.3f}G floor {row['floor_us']:.2f}"
    return f"{name} {shape} | {chosen} {now}{before} | {best}{wrong}"


def main(arguments: Sequence[str] | None = None) -> None:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of tiles.json")
    parser.add_argument("--models", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--passes", nargs="+", default=[], help="names of passes; all where none is given")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--tried", type=int, default=20, help="how many tiles are tried for each pass")
    parser.add_argument("--seconds", type=float, default=95.0, help="how long all of it may take, roughly")
    parser.add_argument("--quick", action="store_true", help="a tiny network, by Triton's interpreter")
    options = parser.parse_args(arguments)
    networks = TINY if options.quick else {name: NETWORKS[name] for name in options.models}
    jobs, device = (2, "cpu") if options.quick else (JOBS, "cuda")
    asked = {
        f"{model.removesuffix('-cnn')} {name} {'x3' if precision == PRECISIONS[0] else 'tf'}": each
        for precision, model in itertools.product(options.precisions, networks)
        for name, each in passes(networks[model], precision).items()
        if name in (options.passes or [name])
    }
    cuts = {name: candidates(name, each, options.tried) for name, each in asked.items()}
    in_turn = itertools.zip_longest(*([(asked[name], cut) for cut in each] for name, each in cuts.items()))
    work = [each for several in in_turn for each in several if each is not None]
    made = compile_all(work, device, begin + 0.62 * options.seconds)
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    results: dict[str, Any] = {}
    options.out.mkdir(parents=True, exist_ok=True)
    for name, each in asked.items():
        if time.monotonic() > begin + options.seconds:
            print(f"no time left for {name} and what follows")
            break
        results[name] = measure(each, [cut for cut in cuts[name] if (each, cut) in made], jobs, device)
        print(line(name, results[name]), flush=True)
        (options.out / "tiles.json").write_text(json.dumps(results, indent=2) + "\n")
        if device == "cuda":
            torch.cuda.empty_cache()
    for model, mark in itertools.product(networks, ("x3", "tf")):
        of_model = [
            row
            for name, row in results.items()
            if name.startswith(model.removesuffix("-cnn") + " ") and name.endswith(mark) and row["best"]
        ]
        now, best = (sum(row[key][0][1] if key == "best" else row[key][1] or 0.0 for row in of_model) for key in KEYS)
        print(f"{model} {mark}: now {now:.1f} us, best {best:.1f} us; {time.monotonic() - begin:.0f} s so far")


KEYS = ("chosen", "best")

if __name__ == "__main__":
    main()
