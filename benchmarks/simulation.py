"""What the simulator itself costs: the share of a round that is not training, and memory over many rounds.

    python benchmarks/simulation.py [--quick]

writes docs/benchmarks/simulation.md and .json. A round is 10 of 40 devices x 3 steps of batch 40 on the mnist-cnn with
random images. Drawing the cell, scheduling (with the proven bound beside it), the clock, the records and the
checkpoints are the simulator; the steps of the devices and the averaging are the learning itself.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.config import Config, override
from flare.data import from_arrays
from flare.data.dataset import Dataset
from flare.learning.engine import SequentialEngine
from flare.learning.methods.base import MeanReducer
from flare.records import RunFolder
from flare.rng import stream
from flare.simulation import Member, RoundRecord, Simulation, drive

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
    """The simulator's share of each round's time, by timing the steps and the averaging inside it."""
    spent = {"steps": 0.0, "averaging": 0.0}
    data = images(4000)
    config = settings(rounds, "mnist-cnn")
    held = np.split(np.arange(4000), 40)
    with (
        tempfile.TemporaryDirectory() as folder,
        timing(SequentialEngine, "train", spent, "steps"),
        timing(MeanReducer, "add", spent, "averaging"),
        timing(MeanReducer, "end", spent, "averaging"),
    ):
        member = Member(Simulation(config, dataset=data, held=held), RunFolder.create(Path(folder) / "run", config))
        ends = [(time.perf_counter(), *spent.values())]
        drive([member], callback=lambda _, record: ends.append((time.perf_counter(), *spent.values())))
    # The first rounds warm up, the last also tests.
    whole, steps, averaging = np.diff(np.array(ends), axis=0)[2:-1].T
    return {
        "round_s": statistics.fmean(whole),
        "simulator_s": statistics.fmean(whole - steps - averaging),
        "share": float((whole - steps - averaging).sum() / whole.sum()),
        "averaging_share": float(averaging.sum() / whole.sum()),
    }


def middle(costs: list[dict[str, float]]) -> dict[str, float]:
    """The run whose share is in the middle: other programs of the machine slow single runs down."""
    return sorted(costs, key=lambda cost: cost["share"])[len(costs) // 2]


@contextmanager
def timing(owner: type, name: str, spent: dict[str, float], part: str) -> Iterator[None]:
    """Inside the block, how long each call of the method took is added to a part."""
    plain: Any = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        answer = plain(*arguments, **named)
        spent[part] += time.perf_counter() - start
        return answer

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def memory_over(rounds: int) -> dict[str, float]:
    """Peak memory after a tenth of the rounds and at the end, in MiB."""
    peaks: dict[int, float] = {}

    def callback(_: Member, record: RoundRecord) -> None:
        if record.round in (rounds // 10, rounds - 1):
            peaks[record.round] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    config = settings(rounds, "logistic")
    with tempfile.TemporaryDirectory() as folder:
        held = np.split(np.arange(4000), 40)
        simulation = Simulation(config, dataset=images(4000), held=held)
        drive([Member(simulation, RunFolder.create(Path(folder) / "run", config))], callback=callback)
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
            f"drawing, scheduling, clock, records and checkpoints take {100 * cost['share']:.2f} % of it, averaging "
            f"{100 * cost['averaging_share']:.2f} % (the middle one of five runs).",
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
        "cost": middle([share_of_a_round(6 if arguments.quick else 60) for _ in range(1 if arguments.quick else 5)]),
    }
    (arguments.out / "simulation.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "simulation.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
