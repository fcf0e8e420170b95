"""What the steps of FedSAM, MOON and HeteroFL take, as multiples of a step of FedAvg, in the same run.

    PYTHONPATH=src python benchmarks/rules.py [--out DIR] [--device cuda] [--quick]

writes rules.json and rules.md into docs/benchmarks. The jobs are those that the methods themselves ask for: runs of 40
devices with 3 steps of batch 40 on random images; for MOON every device has a last model of its own, for HeteroFL the
rates are the default ones, by the numbers of the devices. On a GPU the engine is the batched one; on a CPU both engines
that there are for it. The methods take turns, so that what else the machine does enters all of them; a ratio is that of
the medians. The first calls, which compile, are timed on their own.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flare.data.dataset import Dataset
from flare.learning.engine import BatchedEngine, Engine, SequentialEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Job
from flare.learning.methods import FedAvg, FedSam, HeteroFl, Method, MethodState, Moon, Round
from flare.learning.models import make_model
from flare.learning.widths import read_widths
from flare.rng import stream

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
SHAPES = {"mlp": (1, 28, 28), "mnist-cnn": (1, 28, 28), "cifar-cnn": (3, 32, 32)}
DEVICES, STEPS = 40, 3
LIMITS = {"fedsam": 2.2, "moon": 2.0, "heterofl": 1.0}
"""The most that a step may take on a GPU, in steps of FedAvg."""


def images(shape: tuple[int, ...], samples: int) -> Dataset:
    draw = stream(0, "benchmark", "data")
    x, y = draw.standard_normal((samples, *shape), dtype=np.float32), draw.integers(10, size=samples)
    return Dataset("random", x, y, x[:10], y[:10], num_classes=10)


def methods(module: nn.Module, shape: tuple[int, ...]) -> dict[str, Method]:
    hetero = HeteroFl().fitted(read_widths(module, shape))
    return {"fedavg": FedAvg(), "fedsam": FedSam(), "moon": Moon(), "heterofl": hetero}


def jobs_of(method: Method, module: nn.Module, options: argparse.Namespace, samples: int) -> list[Job]:
    """What the devices of some runs, each with weights of its own, are asked for by a method."""
    start, jobs = FlatModel(module).flatten().to(options.device), []
    for run in range(-(-options.jobs // DEVICES)):
        devices = min(DEVICES, options.jobs - run * DEVICES)
        now = Round(start + 1e-3 * run, np.arange(devices), np.full(devices, STEPS), local_lr=0.01, global_lr=1.0)
        draw = stream(run, "benchmark", "batches")
        rules = method.rules(state_of(method, now), now, None)
        jobs += [Job(now.weights, rule, draw.integers(samples, size=(STEPS, options.batch))) for rule in rules]
    return jobs


def state_of(method: Method, now: Round) -> MethodState:
    """That of a later round, in which every device has trained before."""
    state = method.start(len(now.weights), len(now.selected))
    if "previous" in state:
        noise = torch.from_numpy(stream(0, "benchmark", "previous").standard_normal(state["previous"].shape))
        state["previous"] = now.weights + 1e-2 * noise.float().to(now.weights)
        state["has_previous"] = torch.ones_like(state["has_previous"])
    return state


def seconds(engine: Engine, jobs: Sequence[Job], device: str) -> float:
    begin = time.perf_counter()
    engine.train(jobs)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def engines(module: nn.Module, data: Dataset, device: str) -> dict[str, Engine]:
    batched = BatchedEngine(module, data, device=device)
    if device == "cuda":
        return {"batched": batched}
    return {"sequential": SequentialEngine(module, data), "batched": batched}


def measure(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each engine and method."""
    samples = 100 if options.quick else 2_000
    shape = SHAPES[model]
    module, data = make_model(model, shape, 10, seed=0), images(shape, samples)
    work = {name: jobs_of(each, module, options, samples) for name, each in methods(module, shape).items()}
    rows = []
    for kind, engine in engines(module, data, options.device).items():
        first = {name: seconds(engine, jobs, options.device) for name, jobs in work.items()}
        times: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(options.repeats):
            for name, jobs in work.items():
                times[name].append(seconds(engine, jobs, options.device))
        steps = options.jobs * STEPS
        plain = statistics.median(times["fedavg"])
        rows += [
            {
                **{"model": model, "device": options.device, "engine": kind, "method": name},
                "ms_per_device_step": 1e3 * statistics.median(taken) / steps,
                "least_ms": 1e3 * min(taken) / steps,
                "most_ms": 1e3 * max(taken) / steps,
                "ratio": statistics.median(taken) / plain,
                "first_call_s": first[name],
            }
            for name, taken in times.items()
        ]
    return rows


def report(results: dict[str, Any]) -> str:
    limits = ", ".join(f"`{name}` {limit:g}" for name, limit in LIMITS.items())
    lines = [
        "# Steps of FedSAM, MOON and HeteroFL: measured",
        "",
        f"Made by `benchmarks/rules.py`; the numbers are in `rules.json`. Machine: {results['machine']}.",
        "",
        f"{results['jobs']} devices at once, batch {results['batch']}. The ratio is to a step of FedAvg; on a GPU it",
        f"may be at most: {limits}. HeteroFL has its default rates, 1 to 1/16. The first call compiles on a GPU.",
        "",
        "| model | device | engine | method | ms for each device-step | ratio | first call |",
        "| --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['model']} | {row['device']} | {row['engine']} | {row['method']} | {row['ms_per_device_step']:.4f} "
        f"({row['least_ms']:.4f} - {row['most_ms']:.4f}) | {row['ratio']:.2f} | {row['first_call_s']:.1f} s |"
        for row in results["rows"]
    ]
    over = [
        f"- over its limit: {row['method']} takes {row['ratio']:.2f} x a step of FedAvg ({row['model']})"
        for row in results["rows"]
        if row["device"] == "cuda" and row["ratio"] > LIMITS.get(row["method"], 1.0)
    ]
    return "\n".join([*lines, *([""] if over else []), *over, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default a GPU where there is one")
    parser.add_argument("--jobs", type=int, help="how many devices train at once; by default 480, on a CPU 20")
    parser.add_argument("--batch", type=int, default=40, help="samples in a batch")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=["mnist-cnn"], choices=list(SHAPES))
    options = parser.parse_args(arguments)
    if options.quick:
        options.device, options.jobs, options.batch, options.repeats, options.models = "cpu", 5, 4, 1, ["mlp"]
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.jobs = options.jobs or (480 if options.device == "cuda" else 20)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    results: dict[str, Any] = {
        "machine": f"{machine}, Python {platform.python_version()}, torch {torch.__version__}",
        **{"jobs": options.jobs, "batch": options.batch, "steps": STEPS, "limits": LIMITS},
        "rows": [row for model in options.models for row in measure(model, options)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rules.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "rules.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
