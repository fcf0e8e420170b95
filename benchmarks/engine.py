"""How fast the batched engine is on a GPU: time for each device-step against grouped convolution, in the same run.

    PYTHONPATH=src python benchmarks/engine.py [--out DIR] [--quick]

writes engine.json and engine.md into docs/benchmarks. A device-step is one step of one device on one batch; its time is
that of `BatchedEngine.train` on all jobs, everything included, divided by the steps of all devices. Data are random:
only their shape counts here. On a machine without a GPU, --quick runs tiny sizes as a check.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from flare.data.dataset import Dataset
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Job, LocalRule
from flare.learning.models import make_model
from flare.rng import stream

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
SHAPES = {"mnist-cnn": (1, 28, 28), "cifar-cnn": (3, 32, 32)}
PRODUCTS = ("_product", "_convolve", "_convolve_back", "_add_outer", "_back_of_few")  # our kernels of matrix products


class Opaque(nn.Module):
    """Hides a chain of layers from the engine, which then takes vmap and with it grouped convolution."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.inner(x)
        return answer


class Bench:
    """One model with random data, and the engines on it."""

    def __init__(self, name: str, device: str, samples: int) -> None:
        self.name, self.device = name, device
        shape = SHAPES[name]
        draw = stream(0, "benchmark", "data")
        x = draw.standard_normal((samples, *shape), dtype=np.float32)
        y = draw.integers(10, size=samples)
        self.data = Dataset("random", x, y, x[:10], y[:10], num_classes=10)
        self.module = make_model(name, shape, 10, seed=0)

    def engine(self, variant: str) -> BatchedEngine:
        """`grouped`: vmap; `plain`: PyTorch alone; `own`: our own kernels."""
        what, tf32 = variant.removesuffix("-tf32"), variant.endswith("-tf32")
        module = Opaque(self.module) if what == "grouped" else self.module
        return BatchedEngine(module, self.data, device=self.device, own_kernels=what == "own", tf32=tf32)

    def jobs(self, count: int, batch: int, *, uneven: bool, devices_in_a_run: int = 40) -> list[Job]:
        """Jobs of runs of 40 devices, each run with its own weights: 3 steps, or as the paper draws them, mean 3."""
        draw = stream(0, "benchmark", "jobs", count)
        start = FlatModel(self.module).flatten().to(self.device)
        starts = [start + 1e-3 * i for i in range(-(-count // devices_in_a_run))]
        tau = np.maximum(1, np.rint(draw.exponential(3.0, count))).astype(int) if uneven else np.full(count, 3)
        return [
            Job(
                starts[i // devices_in_a_run],
                LocalRule(lr=0.01, steps=steps),
                draw.integers(len(self.data.train_y), size=(steps, batch)),
            )
            for i, steps in enumerate(tau.tolist())
        ]


def milliseconds(work: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begin)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def measure(engine: BatchedEngine, jobs: list[Job], repeats: int, device: str) -> dict[str, Any]:
    """Median time for each device-step after warm-up, the spread, the first call's seconds, and memory."""
    steps = sum(job.rule.steps for job in jobs)
    first_s = 1e-3 * milliseconds(lambda: engine.train(jobs), device)
    if repeats > 1:
        engine.train(jobs)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    times = [milliseconds(lambda: engine.train(jobs), device) / steps for _ in range(repeats)]
    return {
        "ms_per_device_step": statistics.median(times),
        "least_ms": min(times),
        "most_ms": max(times),
        "first_call_s": first_s,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0,
        "device_steps": steps,
    }


def first_calls(model: str, jobs: int, batch: int) -> dict[str, float]:
    """Seconds of the first call in a new process: with nothing compiled, and with the kernels that the one before left
    behind."""
    with tempfile.TemporaryDirectory(prefix="flare-kernels-") as kept:
        command = [
            sys.executable,
            __file__,
            "--first-call",
            "--models",
            model,
            "--jobs",
            str(jobs),
            "--batch",
            str(batch),
        ]
        environment = os.environ | {"TRITON_CACHE_DIR": kept}
        told = [subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout for _ in range(2)]
    return dict(zip(("nothing", "kernels"), map(float, told), strict=True))


def print_first_call(model: str, options: argparse.Namespace) -> None:
    bench = Bench(model, "cuda", samples=1_000)
    engine, jobs = bench.engine("own"), bench.jobs(options.jobs[0], options.batch, uneven=False)
    print(1e-3 * milliseconds(lambda: engine.train(jobs), "cuda"))


def kernels(engine: BatchedEngine, jobs: list[Job], device: str) -> list[dict[str, Any]]:
    """Microseconds for each device-step by kernel, from the profiler."""
    cuda = device != "cpu"
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda) as profiler:
        engine.train(jobs)
        if cuda:
            torch.cuda.synchronize()
    steps = sum(job.rule.steps for job in jobs)
    rows = []
    for event in profiler.key_averages():
        if event.device_type.name != ("CUDA" if cuda else "CPU"):
            continue
        total_us = event.self_device_time_total if cuda else event.self_cpu_time_total
        rows.append({"kernel": event.key, "us_per_device_step": total_us / steps, "calls": event.count})
    return sorted(rows, key=lambda row: -row["us_per_device_step"])[:30]


def deviation(bench: Bench, engine: BatchedEngine, count: int, batch: int) -> dict[str, float]:
    """Median and largest |delta - reference| / |reference| of a few jobs."""
    jobs = bench.jobs(count, batch, uneven=True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        wanted = ReferenceEngine(bench.module, bench.data, device=bench.device).train(jobs)
    pairs = zip(engine.train(jobs), wanted, strict=True)
    apart = [float((mine.delta - right.delta).norm() / right.delta.norm()) for mine, right in pairs]
    return {"median": statistics.median(apart), "largest": max(apart)}


def giga_operations(bench: Bench, batch: int) -> float:
    """Multiplications and additions of a device-step, in 1e9: those of the matrix products alone."""
    x, y = torch.zeros(batch, *SHAPES[bench.name]), torch.zeros(batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as counted:
        functional.cross_entropy(bench.module(x), y).backward()  # type: ignore[no-untyped-call]
    bench.module.zero_grad()
    return 1e-9 * float(counted.get_total_flops())


def ceilings(device: str) -> dict[str, float]:
    """What the machine can do: copied bytes (read and written) and float32 matrix products."""
    if device == "cpu":
        return {}
    source = torch.rand(2**29, device=device)
    target = torch.empty_like(source)
    matrix = source[: 8192 * 8192].view(8192, 8192)
    for _ in range(3):
        target.copy_(source)
        matrix @ matrix
    copy_ms = statistics.median(milliseconds(lambda: target.copy_(source), device) for _ in range(5))
    product_ms = statistics.median(milliseconds(lambda: matrix @ matrix, device) for _ in range(5))
    return {"copy_tb_per_s": 2 * 4 * 2**29 / copy_ms / 1e9, "float32_tflop_per_s": 2 * 8192**3 / product_ms / 1e9}


def run(bench: Bench, variant: str, options: argparse.Namespace, results: dict[str, Any]) -> None:
    """All measurements of a variant; one that fails leaves its error in the results and the others go on."""
    repeats = 3 if variant == "grouped" else options.repeats
    try:
        engine = bench.engine(variant)
        for count in options.jobs:
            for uneven in (False, True) if variant != "grouped" else (False,):
                jobs = bench.jobs(count, options.batch, uneven=uneven)
                what = {"model": bench.name, "variant": variant, "jobs": count, "uneven": uneven}
                row = what | measure(engine, jobs, repeats, bench.device)
                results["rows"].append(row)
                print({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}, flush=True)
        if variant != "grouped":
            key = f"{bench.name}, {variant}"
            results["deviation"][key] = deviation(bench, engine, 16, options.batch)
            results["giga_operations"][bench.name] = giga_operations(bench, options.batch)
            even = bench.jobs(options.jobs[0], options.batch, uneven=False)
            results["kernels"][key] = kernels(engine, even, bench.device)
    except Exception:
        results["errors"].append(f"{bench.name}, {variant}: {traceback.format_exc()}")
        print(results["errors"][-1], flush=True)


def roofline(results: dict[str, Any], key: str, rows: list[dict[str, Any]]) -> str:
    """How near the work is to what the machine can do."""
    giga = results["giga_operations"][key.split(", ")[0]]
    everything = sum(row["us_per_device_step"] for row in rows)
    ours = sum(row["us_per_device_step"] for row in rows if row["kernel"] in PRODUCTS)
    text = f"Matrix products of {giga:.2f} GFLOP a device-step: {1e3 * giga / everything:.0f} TFLOP/s over all kernels"
    if ours:
        text += f", {1e3 * giga / ours:.0f} in the products, which take {ours / everything:.0%} of the time"
        text += "; with them dense layers step, too"
    peak = results["ceilings"].get("float32_tflop_per_s")
    return f"{text}. A large product of PyTorch's in float32 does {peak:.0f}." if peak else f"{text}."


def with_earlier(results: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Results with those of an earlier run on the same machine: `before` has the rows that were measured again, and
    what was not measured again stands among the others and says so."""
    now = {_what(row) for row in results["rows"]}
    kept = [row | {"earlier": True} for row in earlier["rows"] if _what(row) not in now]
    before = [row for row in earlier["rows"] if _what(row) in now]
    return results | {
        "rows": [*results["rows"], *kept],
        "before": [*results.get("before", []), *before],
    }


def _what(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["model"], row["variant"], row["jobs"], row["uneven"]


def progress(results: dict[str, Any]) -> list[str]:
    """A table of what was measured before and now; nothing where there is no before."""
    now = {_what(row): row for row in results["rows"]}
    rows = [
        f"| {row['model']} | {row['variant']} | {'uneven' if row['uneven'] else 'even'} | "
        f"{row['ms_per_device_step']:.4f} | {now[_what(row)]['ms_per_device_step']:.4f} | "
        f"{row['peak_gib']:.1f} | {now[_what(row)]['peak_gib']:.1f} |"
        for row in results.get("before", [])
    ]
    if not rows:
        return []
    head = ["", "## Before and now", "", "| model | variant | steps | ms before | ms now | GiB before | GiB now |"]
    return [*head, "| --- | --- | --- | ---: | ---: | ---: | ---: |", *rows]


_CEILINGS = {
    "copy_tb_per_s": "It copies {:.3g} TB/s",
    "float32_tflop_per_s": "a large product of matrices in float32 does {:.3g} TFLOP/s",
}
_GOALS_MS = {"mnist-cnn": 0.020, "cifar-cnn": 0.05}
"""For each device-step of 480 devices with uneven steps."""


def _goals(results: dict[str, Any]) -> list[str]:
    """What was aimed at, and whether it was reached."""
    lines = []
    for row in results["rows"]:
        if (row["variant"], row["jobs"], row["uneven"]) == ("own", 480, True) and row["model"] in _GOALS_MS:
            goal, reached = _GOALS_MS[row["model"]], row["ms_per_device_step"]
            lines.append(
                f"Goal for {row['model']}, `own`, 480 devices, uneven: {goal:.3f} ms; "
                f"{'reached' if reached <= goal else 'not reached'}, {reached:.4f} ms.  "
            )
    return [*lines, ""] if lines else []


def report(results: dict[str, Any]) -> str:
    ceiling = ", ".join(_CEILINGS[name].format(value) for name, value in results["ceilings"].items())
    lines = [
        "# Batched engine: measured",
        "",
        f"Made by `benchmarks/engine.py`; the numbers are in `engine.json`. Machine: {results['machine']}. {ceiling}",
        "",
        f"Batch {results['batch']}. Even: 3 steps for each device; uneven: exponential with mean 3. `grouped` is the",
        "same engine with vmap, which makes grouped convolutions. `plain` is PyTorch alone, `own` (the default) is our",
        "own kernels; `tf32` keeps 10 bits of the factors of matrix products. Rows that say `earlier` are of an",
        "earlier run on the same machine; `compiled` was PyTorch's compiler, which is no longer used.",
        "",
        *_goals(results),
        "| model | variant | devices | steps | ms for each device-step | against grouped | first call | memory |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    peers = {
        (row["model"], row["jobs"]): row["ms_per_device_step"] for row in results["rows"] if row["variant"] == "grouped"
    }
    for row in results["rows"]:
        peer = peers.get((row["model"], row["jobs"]))
        ratio = f"{peer / row['ms_per_device_step']:.1f} x" if peer else "-"
        variant = f"{row['variant']} (earlier)" if row.get("earlier") else row["variant"]
        steps = "uneven" if row["uneven"] else "even"
        lines.append(
            f"| {row['model']} | {variant} | {row['jobs']} | {steps} | "
            f"{row['ms_per_device_step']:.4f} ({row['least_ms']:.4f} - {row['most_ms']:.4f}) | {ratio} | "
            f"{row['first_call_s']:.1f} s | {row['peak_gib']:.1f} GiB |"
        )
    lines += [
        "",
        "Relative difference from the reference engine over 16 jobs, median and largest; large where two places of a",
        "window are equal but for rounding, and one engine takes the one, the other the other for its maximum:",
        "",
    ]
    lines += [f"- {key}: {apart['median']:.1e}, {apart['largest']:.1e}" for key, apart in results["deviation"].items()]
    lines += [""] + [
        f"First call of a new process, {model}: {each['nothing']:.1f} s where nothing was kept, "
        f"{each['kernels']:.1f} s with the kernels of another one.  "
        for model, each in results.get("first_calls", {}).items()
    ]
    lines += progress(results)
    for key, rows in results["kernels"].items():
        lines += ["", f"## {key}: time by kernel, even steps", "", "| kernel | us | calls |", "| --- | ---: | ---: |"]
        lines += [
            f"| `{row['kernel'][:100]}` | {row['us_per_device_step']:.3f} | {row['calls']} |" for row in rows[:20]
        ]
        everything = sum(row["us_per_device_step"] for row in rows)
        lines.append(f"| these and the next {len(rows) - len(rows[:20])} | {everything:.2f} | |")
        lines += ["", roofline(results, key, rows)]
    lines += ["", *(f"Failed: {error.splitlines()[-1]} ({error.splitlines()[0]})" for error in results["errors"])]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--jobs", type=int, nargs="+", default=[480], help="how many devices train at once")
    parser.add_argument("--before", type=Path, nargs="*", default=[], help="engine.json of earlier runs, to compare")
    parser.add_argument("--batch", type=int, default=40, help="samples in a batch")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument(
        "--variants",
        nargs="+",
        default=["grouped", "plain", "own", "own-tf32"],
        choices=[f"{what}{tf32}" for what in ("grouped", "plain", "own") for tf32 in ("", "-tf32")],
    )
    parser.add_argument("--first-call", action="store_true", help="print the seconds of the first call, and no more")
    options = parser.parse_args()
    if options.first_call:
        print_first_call(options.models[0], options)
        return
    if options.quick:
        options.jobs, options.batch, options.repeats, options.variants = [4], 4, 1, ["grouped", "plain"]
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        parser.error("no CUDA device is there; --quick runs tiny sizes on the CPU")
    device = "cpu" if options.quick else "cuda"
    machine = platform.machine() if options.quick else torch.cuda.get_device_name()
    results: dict[str, Any] = {
        "machine": f"{machine}, Python {platform.python_version()}, torch {torch.__version__}",
        "batch": options.batch,
        "ceilings": ceilings(device),
        **{"rows": [], "first_calls": {}, "deviation": {}, "giga_operations": {}, "kernels": {}, "errors": []},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        if device != "cpu":
            try:
                results["first_calls"][name] = first_calls(name, options.jobs[0], options.batch)
            except (OSError, ValueError, subprocess.CalledProcessError):
                results["errors"].append(f"{name}, first call\n{traceback.format_exc()}")
        bench = Bench(name, device, samples=100 if options.quick else 10_000)
        for variant in options.variants:
            run(bench, variant, options, results)
            told = results
            for path in options.before:
                told = with_earlier(told, json.loads(path.read_text()))
            (options.out / "engine.json").write_text(json.dumps(told, indent=2) + "\n")
            (options.out / "engine.md").write_text(report(told))
            if device != "cpu":
                torch.cuda.empty_cache()
    print((options.out / "engine.md").read_text())


if __name__ == "__main__":
    main()
