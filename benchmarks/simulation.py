"""What the simulator itself costs: the share of a round that is not training, and memory over many rounds.

    python benchmarks/simulation.py [--quick]

writes docs/benchmarks/simulation.md and .json. A round is 10 of 40 devices x 3 steps of batch 40 on the mnist-cnn with
random images. Drawing the cell, scheduling (with the proven bound beside it), averaging, the clock, the records and the
checkpoints are the simulator; what the engine does is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.config import Config, override
from flare.data import from_arrays
from flare.data.dataset import Dataset
from flare.learning.engine import SequentialEngine
from flare.learning.job import Job, Update
from flare.records import RunFolder
from flare.rng import stream
from flare.simulation import Member, Record, Simulation, drive

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


def images(num_samples: int) -> Dataset:
    draw = stream(0, "benchmark")
    x = draw.normal(size=(num_samples, 1, 28, 28)).astype(np.float32)
    y = draw.integers(0, 10, size=num_samples)
    return from_arrays(x, y, x[:100], y[:100], num_classes=10)


def settings(rounds: int, model: str) -> Config:
    return override(
        Config(),
        [
            f"learning.model={model}",
            "learning.device=cpu",
            "scheduling.policy=random",
            "wireless.deadline_s=20.0",
            "wireless.tau_law=groups",
            "wireless.tau_values=[3]",
            "run.payload=wireless",
            f"run.rounds={rounds}",
            "run.evaluate_every=1000000",
            "run.checkpoint_every=20",
        ],
    )


def share_of_a_round(rounds: int) -> dict[str, float]:
    """The simulator's share of each round's time, by timing what the engine does inside it."""
    trained: list[float] = []
    train: Any = SequentialEngine.train

    def timed(engine: SequentialEngine, jobs: Sequence[Job]) -> list[Update]:
        start = time.perf_counter()
        updates: list[Update] = train(engine, jobs)
        trained.append(time.perf_counter() - start)
        return updates

    data = images(4000)
    config = settings(rounds, "mnist-cnn")
    held = np.split(np.arange(4000), 40)
    setattr(SequentialEngine, "train", timed)  # noqa: B010  (a type checker knows that methods are not assigned)
    try:
        with tempfile.TemporaryDirectory() as folder:
            member = Member(Simulation(config, dataset=data, held=held), RunFolder.create(Path(folder) / "run", config))
            ends = [time.perf_counter()]
            drive([member], watch=lambda _, record: ends.append(time.perf_counter()))
    finally:
        setattr(SequentialEngine, "train", train)  # noqa: B010
    whole = np.diff(ends)[2:]
    inside = np.array(trained)[2:]
    return {
        "round_s": statistics.median(whole),
        "simulator_s": statistics.median(whole - inside),
        "share": float((whole - inside)[:-1].sum() / whole[:-1].sum()),  # the last round also tests
    }


def memory_over(rounds: int) -> dict[str, float]:
    """Peak memory after a tenth of the rounds and at the end, in MiB."""
    peaks: dict[int, float] = {}

    def watch(_: Member, record: Record) -> None:
        if record["round"] in (rounds // 10, rounds - 1):
            peaks[record["round"]] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    config = settings(rounds, "logistic")
    with tempfile.TemporaryDirectory() as folder:
        held = np.split(np.arange(4000), 40)
        simulation = Simulation(config, dataset=images(4000), held=held)
        drive([Member(simulation, RunFolder.create(Path(folder) / "run", config))], watch=watch)
    return {"after_a_tenth_mib": peaks[rounds // 10], "at_the_end_mib": peaks[rounds - 1], "rounds": rounds}


def report(results: dict[str, Any]) -> str:
    cost, memory = results["cost"], results["memory"]
    return "\n".join(
        [
            "# The simulator itself: measured",
            "",
            f"Made by `benchmarks/simulation.py`. Machine: {results['machine']}.",
            "",
            f"- A round of 10 devices x 3 steps of batch 40 on the mnist-cnn takes {1e3 * cost['round_s']:.0f} ms; "
            f"drawing, scheduling, averaging, clock, records and checkpoints take {100 * cost['share']:.2f} % of it.",
            f"- Peak memory after {memory['rounds'] // 10:,} rounds {memory['after_a_tenth_mib']:.0f} MiB, after "
            f"{memory['rounds']:,} rounds {memory['at_the_end_mib']:.0f} MiB.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, as a check that everything runs")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}",
        "memory": memory_over(100 if arguments.quick else 3000),
        "cost": share_of_a_round(6 if arguments.quick else 60),
    }
    (arguments.out / "simulation.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "simulation.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
