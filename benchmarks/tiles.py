"""Which tiles are the fastest for the matrix products of the paper's networks on this GPU.

    PYTHONPATH=src python benchmarks/tiles.py [--out DIR] [--models mnist-cnn cifar-cnn]

prints and writes tiles.json: for each product the time of PyTorch's, of the tiles that `kernels.choose_tiles` takes and
of the best ones tried. What `choose_tiles` says was read off here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flare.learning.engine.kernels import Tiles, Window, choose_tiles, launch
from flare.learning.engine.products import Plain

JOBS, BATCH = 480, 40
PLAIN = Plain()


class Product:
    """One product of a network: random factors, PyTorch's answer and ours."""

    def __init__(self, a: Tensor, b: Tensor, kernel: tuple[int, int] | None = None, taps_down: bool = False) -> None:
        self.a, self.b, self.kernel, self.taps_down = a, b, kernel, taps_down
        self.rows = a.shape[1]
        self.columns, self.depth, self.window = b.shape[-1], a.shape[2], None
        if kernel is not None:
            _, channels, height, width, samples = b.shape
            self.window = Window(kernel, (height, width), samples)
            places = (height - kernel[0] + 1) * (width - kernel[1] + 1) * samples
            self.columns = places if taps_down else channels * kernel[0] * kernel[1]

    def plain(self) -> Tensor:
        if self.kernel is None:
            return PLAIN.multiply(self.a, self.b)
        work = PLAIN.multiply_windows if self.taps_down else PLAIN.window_gradient
        return work(self.a, self.b, self.kernel, (1, 1))

    def ours(self, tiles: Tiles | None) -> Tensor:
        return launch(
            self.a,
            self.b,
            self.columns,
            self.depth,
            "tf32x3",
            window=self.window,
            taps_down=self.taps_down,
            tiles=tiles,
        )


def products(model: str) -> dict[str, Product]:
    """The products of a step, with the layouts they have there."""
    channels, side, first, second, hidden = {"mnist-cnn": (1, 28, 16, 32, 572), "cifar-cnn": (3, 32, 32, 64, 1208)}[
        model
    ]
    one, half = side - 4, (side - 4) // 2
    two, quarter = half - 4, (half - 4) // 2
    flat, kernel = second * quarter * quarter, (5, 5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(JOBS, *shape, device="cuda")

    x1, x2, x3 = draw(channels, side, side, BATCH), draw(first, half, half, BATCH), draw(flat, BATCH)
    y1, y2, y3 = draw(first, one * one * BATCH), draw(second, two * two * BATCH), draw(hidden, BATCH)
    w1, w2, w3 = draw(first, channels * 25), draw(second, first * 25), draw(hidden, flat)
    return {
        "conv1": Product(w1, x1, kernel, taps_down=True),
        "conv2": Product(w2, x2, kernel, taps_down=True),
        "linear": Product(w3, x3),
        "linear, weights": Product(y3, x3.transpose(1, 2)),
        "linear, input": Product(w3.transpose(1, 2), y3),
        "conv2, weights": Product(y2, x2, kernel),
        "conv2, windows": Product(w2.transpose(1, 2), y2),
        "conv1, weights": Product(y1, x1, kernel),
    }


def candidates(product: Product) -> list[Tiles]:
    """Some twenty cuts that suit the shape."""
    found = []
    small = product.rows <= 32 and product.columns <= 128
    for bm, bn, bk, warps in itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (16, 32, 64), (4, 8)):
        too_high = bm > max(16, 2 * product.rows - 1) or bn > max(32, 2 * product.columns - 1)
        too_low = (bm < 64 and product.rows > 64) or (bn < 64 and product.columns > 64) or (bm < product.rows <= 32)
        too_deep = bk > max(16, 2 * product.depth - 1)
        odd_size = not (512 <= bm * bn <= 16384) or (warps == 8) != (bm * bn >= 8192)
        if too_high or too_low or too_deep or odd_size:
            continue
        stages = 1 if product.depth <= bk else 3
        parts = (4, 8, 16) if small and product.depth > 2048 else (1,)
        found += [Tiles(bm, bn, bk, warps, stages, part) for part in parts]
    return found


def microseconds(work: Any, repeats: int = 5) -> float:
    """For each job, the median."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / JOBS)
    return float(statistics.median(times))


def tune(product: Product, until_s: float) -> dict[str, Any]:
    tried: dict[Tiles, float] = {}
    failed: dict[str, str] = {}
    chosen = choose_tiles(product.rows, product.columns, product.depth)
    for tiles in [chosen, *candidates(product)]:
        if time.perf_counter() > until_s:
            break
        try:
            tried.setdefault(tiles, microseconds(lambda t=tiles: product.ours(t)))
        except Exception as why:
            failed[str(tuple(tiles))] = f"{type(why).__name__}: {why}"[:200]
    exact = Product(product.a[:2].double(), product.b[:2].double(), product.kernel, product.taps_down).plain()
    apart = float((product.ours(None)[:2] - exact).norm() / exact.norm())
    best = sorted(tried, key=lambda tiles: tried[tiles])
    return {
        "shape": (product.rows, product.columns, product.depth),
        "plain_us": microseconds(product.plain),
        "chosen": (tuple(chosen), tried.get(chosen)),
        "best": [(tuple(tiles), tried[tiles]) for tiles in best[:8]],
        "tried": len(tried),
        "failed": failed,
        "relative_error": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder of tiles.json")
    parser.add_argument("--models", nargs="+", default=["mnist-cnn"])
    parser.add_argument("--seconds", type=float, default=25.0, help="for each product, at most")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for model in options.models:
        for name, product in products(model).items():
            row = tune(product, time.perf_counter() + options.seconds)
            results[f"{model}, {name}"] = row
            print(
                f"{model}, {name} {row['shape']}: PyTorch {row['plain_us']:.2f} us, error {row['relative_error']:.1e}"
            )
            print(f"    chosen {row['chosen']}, tried {row['tried']}, failed {len(row['failed'])}")
            for best in row["best"][:4]:
                print(f"    {best[0]}: {best[1]:.3f} us", flush=True)
            (options.out / "tiles.json").write_text(json.dumps(results, indent=2) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
