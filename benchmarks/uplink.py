"""What coding an update costs, against the training that made it.

    python benchmarks/uplink.py [--quick]

writes docs/benchmarks/uplink.md and .json. The yardstick is one device's part of a round, measured in the same run: 3
steps (the mean of the default settings) of batch 40 on the mnist-cnn with random images, in the engine for CPUs on one
core. Its update is then encoded and decoded by every codec, one at a time, as real devices and base stations do, and
once more as in a simulation, which computes what arrives without laying out the bytes. Times are CPU times of one
thread, medians, training and codecs in turn: other work on the machine enters less. Where there is a GPU, 40 devices
are trained and coded there at once, by the clock.

Results of several machines stand side by side: a run replaces those of the machine of the same name (`--machine`) and
leaves the others in the file as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch

from flare.data import from_arrays
from flare.data.dataset import Dataset
from flare.learning.engine import BatchedEngine, SequentialEngine
from flare.learning.flat import FlatModel
from flare.learning.job import Job, LocalRule
from flare.learning.models import make_model
from flare.rng import stream
from flare.uplink import Codec, keys, make_codec

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
STEPS, BATCH, DEVICES = 3, 40, 40
Results = dict[str, Any]
"""Of a machine: "machine", its name, "core" and "gpu"; of one of the two: "training_s" and "rows"."""
CODECS: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("float16", {}),
    *(("qsgd", {"bits": bits}) for bits in (2, 3, 4, 8, 16)),
    ("ternary", {}),
    ("sign", {}),
    *(("topk", {"share": share}) for share in (0.01, 0.1)),
]


def images(num_samples: int) -> Dataset:
    draw = stream(0, "benchmark")
    x = draw.normal(size=(num_samples, 1, 28, 28)).astype(np.float32)
    y = draw.integers(0, 10, size=num_samples)
    return from_arrays(x, y, x[:10], y[:10], num_classes=10)


def jobs(model: torch.nn.Module, devices: int, num_samples: int) -> list[Job]:
    start = FlatModel(model).flatten()
    batches = stream(0, "batches").integers(num_samples, size=(devices, STEPS, BATCH))
    return [Job(start, LocalRule(0.01, STEPS), each) for each in batches]


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(works: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]) -> list[float]:
    """The median time of each piece of work, all of them in turn, `repeats` times after one that is not counted."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 1):
        for work, taken in zip(works, times, strict=True):
            begin = clock()
            work()
            taken.append(clock() - begin)
    return [statistics.median(taken[1:]) for taken in times]


def rows_of(training: float, updates: torch.Tensor, times: list[float]) -> list[dict[str, Any]]:
    num_weights, rows = updates.shape[1], []
    for i, (name, options) in enumerate(CODECS):
        encode, decode, arrive = times[3 * i : 3 * i + 3]
        rows.append(
            {
                "codec": name,
                "options": options,
                "bits_per_weight": make_codec(name, options).bits(num_weights) / num_weights,
                "encode_s": encode,
                "decode_s": decode,
                "arrive_s": arrive,
                "of_round": arrive / (training + arrive),
            }
        )
    return rows


def on_one_core(repeats: int) -> dict[str, Any]:
    """One device, one update at a time, as bytes."""
    data, model = images(400), make_model("mnist-cnn", (1, 28, 28), 10, seed=0)
    engine, work = SequentialEngine(model, data, device="cpu"), jobs(model, 1, 400)
    update = engine.train(work)[0].delta
    key = int(keys(0, 0, [0])[0])

    def works(codec: Codec) -> list[Callable[[], object]]:
        message = codec.encode(update, key)
        stack, own = update.unsqueeze(0), keys(0, 0, [0])
        return [
            lambda: codec.encode(update, key),
            lambda: codec.decode(message, len(update)),
            lambda: codec.arrive_many(stack, own),
        ]

    pieces = [each for name, options in CODECS for each in works(make_codec(name, options))]
    training, *times = interleaved([lambda: engine.train(work), *pieces], repeats, time.thread_time)
    return {"training_s": training, "rows": rows_of(training, update.unsqueeze(0), times)}


def on_a_gpu(repeats: int) -> dict[str, Any]:
    """All devices at once; updates and messages stay on the GPU."""
    data, model = images(4000), make_model("mnist-cnn", (1, 28, 28), 10, seed=0)
    engine, work = BatchedEngine(model, data, device="cuda"), jobs(model, DEVICES, 4000)
    updates = torch.stack([update.delta for update in engine.train(work)])
    own = keys(0, 0, range(DEVICES), device="cuda")

    def works(codec: Codec) -> list[Callable[[], object]]:
        messages = codec.encode_many(updates, own)
        return [
            lambda: codec.encode_many(updates, own),
            lambda: codec.decode_many(messages, updates.shape[1]),
            lambda: codec.arrive_many(updates, own),
        ]

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    pieces = [each for name, options in CODECS for each in works(make_codec(name, options))]
    training, *times = interleaved([lambda: engine.train(work), *pieces], repeats, clock)
    return {"training_s": training, "rows": rows_of(training, updates, times)}


def merged(before: list[Results], now: Results) -> list[Results]:
    """The results of all machines, the new ones in the place of those of the same machine."""
    names = [each["machine"] for each in before]
    if now["machine"] not in names:
        return [*before, now]
    return [now if name == now["machine"] else each for name, each in zip(names, before, strict=True)]


def table(measured: list[tuple[str, Results]]) -> list[str]:
    """The rows of some machines, given by letter."""
    lines = [
        "| machine | codec | bits a weight | encode | decode | both in a simulation | of the round |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for letter, results in measured:
        for row in results["rows"]:
            options = "".join(f", {name} = {value}" for name, value in row["options"].items())
            lines.append(
                f"| {letter} | {row['codec']}{options} | {row['bits_per_weight']:.4g} | {1e3 * row['encode_s']:.2f} ms "
                f"| {1e3 * row['decode_s']:.2f} ms | {1e3 * row['arrive_s']:.2f} ms | {100 * row['of_round']:.1f} % |"
            )
    return lines


def report(machines: list[Results]) -> str:
    """The page: the machines, what was measured on one core of each, and on the GPUs of those that have one."""
    named = list(zip(ascii_uppercase, machines, strict=False))
    cores = [(letter, each["core"]) for letter, each in named if "core" in each]
    gpus = [(letter, each["gpu"]) for letter, each in named if "gpu" in each]
    takes = [f"{1e3 * core['training_s']:.1f} ms on {letter}" for letter, core in cores]
    lines = [
        "# Coding updates: measured",
        "",
        "Made by `benchmarks/uplink.py`; the numbers are in `uplink.json`. Machines:",
        "",
        *(f"- {letter}: {each['machine']}" + _whole(each) for letter, each in named),
        "",
        "A simulation computes what arrives at the base station, to the bit, without laying out the bytes.",
        "*Of the round* is its share of training and coding together.",
        "",
        f"One core. A device's {STEPS} steps of batch {BATCH} on the mnist-cnn (312,414 weights) take "
        f"{', '.join(takes) or 'a time that nobody measured'}.",
        "",
        *table(cores),
        "",
    ]
    if not gpus:
        return "\n".join([*lines, "No GPU was at hand: nothing is measured on one here.", ""])
    takes = [f"{1e3 * gpu['training_s']:.1f} ms on that of {letter} ({gpu['name']})" for letter, gpu in gpus]
    lines += [f"A GPU. The same steps of {DEVICES} devices at once take {', '.join(takes)}.", "", *table(gpus), ""]
    return "\n".join(lines)


def _whole(results: Results) -> str:
    return "" if "core" in results else "; on one core of it nothing is measured"


def main(given: list[str] | None = None) -> None:
    here = f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}"
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few repetitions, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--machine", default=here, help="what this machine is called there (default: %(default)s)")
    arguments = parser.parse_args(given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    repeats = 2 if arguments.quick else 40
    with one_thread():
        results: Results = {"machine": arguments.machine, "core": on_one_core(repeats)}
    if torch.cuda.is_available():
        results["gpu"] = {"name": torch.cuda.get_device_name(), **on_a_gpu(repeats)}
    numbers, page = arguments.out / "uplink.json", arguments.out / "uplink.md"
    before = json.loads(numbers.read_text())["machines"] if numbers.exists() else []
    machines = merged(before, results)
    numbers.write_text(json.dumps({"machines": machines}, indent=2) + "\n")
    page.write_text(report(machines))
    print(report(machines))


if __name__ == "__main__":
    main()
