"""How long a round of pfl-research's CIFAR-10 benchmark takes on a GPU, one run and eight in lockstep.

    PYTHONPATH=src python benchmarks/rounds.py [--out DIR] [--quick] [--profile]

writes rounds.json and rounds.md into docs/benchmarks. 1,000 clients hold 50 images each, 50 of them train in a round, 5
steps of batch 10, on a network of 1,626,442 weights (two convolutions of 3 x 3 without padding, 32 and 64 channels, a
maximum of 2 x 2, 128 units, 10 classes). Images are random: only their shape counts here. A round is all that
`flare run` does in one: the cell, the selection, the steps, the mean, the clock and the record; nothing is written to
disk. --quick runs tiny sizes on a CPU, as a check that everything runs. --profile writes nothing but profile.json: it
prints how long each kernel takes in a round of as many runs in lockstep as are asked for last.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from flare.config import Config, override
from flare.data import from_arrays
from flare.data.dataset import Dataset
from flare.rng import stream
from flare.simulation import Member, Simulation, drive

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
CLIENTS, IMAGES, SELECTED, STEPS, BATCH = 1000, 50, 50, 5, 10
PEER = (
    "For comparison, measured once on another day and not by this program: pfl-research 0.6 takes 549 ms a round for "
    "the same work on an H200 with one process, and 109 ms with ten that share the GPU (MPS)"
)
PRECISIONS = ("float32", "tf32")
GOALS_MS = {1: 10.0, 8: 6.0}
"""By the number of runs in lockstep, for each run, in float32."""


def network(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(sample_shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


def giga_operations(selected: int) -> float:
    """Multiplications and additions of a round of one run, in 1e9: those of the matrix products alone."""
    x, y, module = torch.zeros(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.int64), network((3, 32, 32), 10)
    with FlopCounterMode(display=False) as counted:
        functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    return 1e-9 * selected * STEPS * float(counted.get_total_flops())


def images(clients: int) -> Dataset:
    draw = stream(0, "benchmark")
    x = draw.standard_normal((clients * IMAGES, 3, 32, 32), dtype=np.float32)
    y = draw.integers(0, 10, size=len(x))
    return from_arrays(x, y, x[:100], y[:100], num_classes=10)


def settings(seed: int, options: argparse.Namespace, *, precision: str) -> Config:
    return override(
        Config(seed=seed),
        [
            "learning.method=fedavg-fixed",
            f"learning.options.fixed_steps={STEPS}",
            f"learning.device={options.device}",
            f"learning.precision={precision}",
            "scheduling.policy=random",
            f"scheduling.options.num_selected={options.selected}",
            f"wireless.num_devices={options.clients}",
            f"wireless.batch_size={BATCH}",
            "wireless.deadline_s=1e6",  # all that are drawn are in time
            f"run.rounds={options.rounds}",
            "run.evaluate_every=1000000",
        ],
    )


def members_of(runs: int, options: argparse.Namespace, *, precision: str) -> list[Member]:
    data = images(options.clients)
    held = np.split(np.arange(options.clients * IMAGES), options.clients)
    return [
        Member(
            Simulation(
                settings(seed, options, precision=precision),
                dataset=data,
                held=held,
                module=network,
            )
        )
        for seed in range(runs)
    ]


def measure(runs: int, options: argparse.Namespace, *, precision: str) -> dict[str, Any]:
    """Milliseconds of a round for each run, of the later half of the rounds: the first compile."""
    members = members_of(runs, options, precision=precision)
    ends = [time.perf_counter()]
    drive(members, callback=lambda member, _: ends.append(time.perf_counter()) if member is members[-1] else None)
    rounds_ms = 1e3 * np.diff(ends)
    later = rounds_ms[len(rounds_ms) // 2 : -1] / runs  # the last one also tests
    return {
        "runs": runs,
        "precision": precision,
        "ms_a_round": statistics.median(later),
        "least_ms": min(later),
        "most_ms": max(later),
        "first_s": 1e-3 * rounds_ms[0],
        "goal_ms": GOALS_MS.get(runs) if precision == "float32" else None,
    }


def kernel_times(runs: int, options: argparse.Namespace, *, precision: str) -> dict[str, Any]:
    """Milliseconds of a round for each run by kernel and the tiles of its grid, of two rounds near the end."""
    members = members_of(runs, options, precision=precision)
    is_cuda, ends = options.device == "cuda", list[float]()
    profiler = profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU])

    def after(member: Member, _: object) -> None:
        if member is not members[-1]:
            return
        ends.append(time.perf_counter())
        if len(ends) == options.rounds - 3:
            profiler.start()
        elif len(ends) == options.rounds - 1:
            if is_cuda:
                torch.cuda.synchronize()
            profiler.stop()

    drive(members, callback=after)
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    times: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") in (("kernel", "gpu_memcpy", "gpu_memset") if is_cuda else ("cpu_op",)):
            across = event.get("args", {}).get("grid", [0, 0, 0])
            tiles = f" {across[0]} x {across[2]}" if event["name"].startswith("_") else ""
            times.setdefault(event["name"][:60] + tiles, []).append(event["dur"])
    rows = [{"kernel": name, "ms": 1e-3 * sum(each) / 2 / runs, "calls": len(each)} for name, each in times.items()]
    rounds_ms = [1e3 * (ends[-2] - ends[-4]) / 2 / runs, 1e3 * (ends[-4] - ends[-5]) / runs]
    return {
        **{"runs": runs, "precision": precision, "ms_a_round_profiled": rounds_ms[0], "ms_a_round": rounds_ms[1]},
        "kernels": sorted(rows, key=lambda row: -float(str(row["ms"]))),
    }


def show_profile(options: argparse.Namespace) -> None:
    found = [kernel_times(options.runs[-1], options, precision=precision) for precision in PRECISIONS]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "profile.json").write_text(json.dumps(found, indent=2) + "\n")
    for each in found:
        total = sum(row["ms"] for row in each["kernels"])
        print(
            f"{each['runs']} in lockstep, {each['precision']}: {each['ms_a_round']:.2f} ms a round for each run; ",
            end="",
        )
        print(f"profiled {each['ms_a_round_profiled']:.2f}, of which kernels {total:.2f}")
        for row in each["kernels"][:32]:
            print(f"  {row['ms']:.3f} ms {row['calls']:4d} x {row['kernel']}")


def _reached(row: dict[str, Any]) -> str:
    if row["goal_ms"] is None:
        return "-"
    return "yes" if row["ms_a_round"] <= row["goal_ms"] else "no"


def report(results: dict[str, Any]) -> str:
    lines = [
        "# Rounds on a GPU: measured",
        "",
        f"Made by `benchmarks/rounds.py`; the numbers are in `rounds.json`. Machine: {results['machine']}.",
        "",
        f"{results['clients']:,} clients x {IMAGES} images, {results['selected']} a round, {STEPS} steps of batch "
        f"{BATCH}, a network of {results['weights']:,} weights. Times are of whole rounds, with "
        "scheduling and records.",
        f"{PEER}.",
        "",
        "With TF32, factors of products keep 10 bits, as PyTorch does by itself in convolutions, so also for",
        "pfl-research; the goals are for products of about the accuracy of float32. The products of a round are "
        f"{results['giga_operations']:.3g} GFLOP; what a large product of PyTorch's does, and where the time of a step "
        "goes, is told in [the page of the engine](engine.md).",
        "",
        "| runs in lockstep | products | ms a round for each run | TFLOP/s | goal | reached | first round |",
        "| ---: | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    lines += [
        f"| {row['runs']} | {row['precision']} | {row['ms_a_round']:.1f} "
        f"({row['least_ms']:.1f} - {row['most_ms']:.1f}) | {results['giga_operations'] / row['ms_a_round']:.0f} | "
        f"{row['goal_ms'] or '-'} | {_reached(row)} | {row['first_s']:.1f} s |"
        for row in results["rows"]
    ]
    return "\n".join([*lines, *(["", results["note"]] if "note" in results else []), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 8], help="how many runs are in lockstep")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--note", help="what a reader must know of these measurements")
    parser.add_argument("--profile", action="store_true", help="how long each kernel takes, not whole rounds")
    options = parser.parse_args(arguments)
    options.device, options.clients, options.selected = "cuda", CLIENTS, SELECTED
    if options.quick:
        options.device, options.clients, options.selected, options.rounds, options.runs = "cpu", 20, 2, 4, [1, 2]
    elif not torch.cuda.is_available():
        parser.error("no CUDA device is there; --quick runs tiny sizes on the CPU")
    if options.profile:
        options.rounds = 8
        show_profile(options)
        return
    machine = platform.machine() if options.quick else torch.cuda.get_device_name()
    results: dict[str, Any] = {
        "machine": f"{machine}, Python {platform.python_version()}, torch {torch.__version__}",
        **{"clients": options.clients, "selected": options.selected},
        "weights": sum(each.numel() for each in network((3, 32, 32), 10).parameters()),
        "giga_operations": giga_operations(options.selected),
        "rows": [measure(runs, options, precision=precision) for precision in PRECISIONS for runs in options.runs],
    }
    if options.note:
        results["note"] = options.note
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rounds.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "rounds.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
