"""What FlareStrategy costs beside Flower's own messages: asking, scheduling, averaging and writing down a round.

    python benchmarks/flower.py [--quick]

writes docs/benchmarks/flower.md and .json. The nodes are answers that lie ready in this process: nothing is trained,
nothing crosses a network. Making a message of the ready bytes, which Flower would do, is the grid's time, measured in
the thread that does it. The model has 312,500 weights (1.25 MB). Every node is asked every round, or 100 of them
(`fleet.ask`); in the paper's cell with a deadline of 1 s the exact policy lets few send, in the other case there
is time for all that were asked, and all do.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from flare.config import Config, override
from flare.flower import FlareStrategy, strategy
from flare.records.run_keeper import RunKeeper
from flare.rounds import Arrivals
from flare.wireless.cell import Cell

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
WEIGHTS = 312_500
SHAPES = {"hidden": (500, 560), "out": (56, 500), "bias": (4500,)}  # 280,000 + 28,000 + 4,500
CASES = ((40, 0), (1000, 0), (1000, 100))  # nodes, and how many of them are asked in a round; 0: all
PARTS = ("ask", "schedule", "average", "apply", "write")


class ReadyGrid(Grid):
    """Nodes whose answers are made when they are fetched, from bytes that lie ready."""

    def __init__(self, cell: Cell) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.cell = cell
        self.spent_s = 0.0
        self._drawn = lru_cache(cell.draw)
        self._sent: dict[str, Message] = {}
        update = {name: Array(np.full(shape, 1e-6, np.float32)) for name, shape in SHAPES.items()}
        self._bytes = {name: (each.shape, bytearray(each.data)) for name, each in update.items()}

    def get_node_ids(self) -> list[int]:
        return list(range(1, 1 + self.cell.config.num_devices))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._sent = {f"{each.metadata.message_type}-{each.metadata.dst_node_id}": each for each in messages}
        for name, each in self._sent.items():
            each.metadata.__dict__["_message_id"] = name
        return list(self._sent)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        start = time.thread_time()
        answers = [self._answer(self._sent[each]) for each in message_ids]
        self.spent_s += time.thread_time() - start
        return answers

    def _answer(self, message: Message) -> Message:
        config = message.content.config_records["config"]
        if message.metadata.message_type == "query":
            device, drawn = message.metadata.dst_node_id - 1, self._drawn(int(str(config["round"])))
            said = MetricRecord({"device": float(device)})
            for name in ("tau", "cpu_hz", "power_w", "gain_db"):
                said[name] = float(getattr(drawn, name)[device])
            return Message(RecordDict({"resources": said}), reply_to=message)
        arrays = {
            name: Array("float32", shape, "numpy.ndarray", bytes(data)) for name, (shape, data) in self._bytes.items()
        }
        metrics = MetricRecord({"steps": int(str(config["steps"])), "loss": 1.0, "work_s": 0.0})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


def settings(num_nodes: int, ask: int, policy: str, rounds: int) -> Config:
    return override(
        Config(),
        [
            f"wireless.num_devices={num_nodes}",
            f"wireless.deadline_s={1e4 if policy == 'all' else 1.0}",
            f"scheduling.policy={policy}",
            "run.payload=wireless",
            f"run.rounds={rounds}",
            f"fleet.ask={ask}",
        ],
    )


def measure(num_nodes: int, ask: int, policy: str, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, the first two left out."""
    config = settings(num_nodes, ask, policy, rounds)
    grid = ReadyGrid(Cell(config.wireless, config.seed))
    first = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    spent: dict[str, list[float]] = {name: [0.0] * rounds for name in (*PARTS, "keep", "whole", "wall")}

    def own_s() -> float:
        return time.process_time() - grid.spent_s

    with (
        tempfile.TemporaryDirectory() as folder,
        timing(strategy, "enquire", spent["ask"], own_s),
        timing(strategy, "plan_round", spent["schedule"], own_s),
        timing(strategy, "take_in", spent["average"], own_s),
        timing(Arrivals, "end", spent["apply"], own_s),
        timing(RunKeeper, "append", spent["keep"], own_s),
        timing(RunKeeper, "save", spent["keep"], own_s),
        timing(RunKeeper, "append", spent["write"], time.perf_counter),
        timing(RunKeeper, "save", spent["write"], time.perf_counter),
        timing(FlareStrategy, "configure_train", spent["whole"], own_s),
        timing(FlareStrategy, "_end_round", spent["whole"], own_s),
        timing(FlareStrategy, "configure_train", spent["wall"], time.perf_counter),
        timing(FlareStrategy, "_end_round", spent["wall"], time.perf_counter),
    ):
        FlareStrategy(config, folder=Path(folder) / "run").start(grid, first, timeout=600)
        records = [json.loads(line) for line in (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()]
    assert not any(each["faults"] for each in records)
    return {
        "nodes": num_nodes,
        "asked": ask or num_nodes,
        "policy": policy,
        "sent": statistics.median(len(each["sent"]) for each in records[2:]),
        "own_s": statistics.median(np.subtract(spent["whole"], spent["keep"])[2:].tolist()),
        "grid_s": grid.spent_s / rounds,
        **{f"{name}_s": statistics.median(spent[name][2:]) for name in (*PARTS, "wall")},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


@contextmanager
def timing(owner: Any, name: str, spent: list[float], clock: Callable[[], float]) -> Iterator[None]:
    """Inside the block, how long the function takes is added to its round; each round calls it once."""
    original: Callable[..., Any] = getattr(owner, name)
    rounds = itertools.count()

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        answer = original(*args, **kwargs)
        spent[next(rounds)] += clock() - start
        return answer

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


def apart(num_nodes: int, ask: int, policy: str, rounds: int) -> dict[str, Any]:
    """The same in a process of its own, whose peak memory is its own."""
    command = [sys.executable, __file__, "--one", str(num_nodes), str(ask), policy, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        "# FLARE on Flower: what the strategy costs",
        "",
        f"Made by `benchmarks/flower.py`. Machine: {machine['cores']} cores, {machine['processor']}, "
        f"torch {machine['torch']}, flwr {machine['flwr']}.",
        "",
        "A round of `FlareStrategy` apart from Flower's own messages: nodes are asked and their answers checked, the",
        "round is scheduled (`exact`: the paper's cell with 1 s; `all`: time enough for every node), the updates of a",
        "model of 312,500 weights are checked and averaged as they come, and the global model moves by their mean.",
        "Processor time, without that in which a stand-in for the network makes the answers from bytes that lie ready;",
        "the limit is 50 ms for 40 nodes and 1 s for 1,000. Then the record and a checkpoint go to the disk. The last",
        "two columns are real time; the whole round has the work of the stand-in in it. `strategy` is more than the",
        "sum of its parts by what lies between them. Medians.",
        "",
        "| nodes | asked | policy | send | ask | schedule | average | move | strategy | memory | disk | whole round |",
        "| ---: | ---: | --- " + "| ---: " * 9 + "|",
    ]
    for row in results["rows"]:
        times = [f"{1e3 * row[f'{name}_s']:.1f} ms" for name in (*PARTS[:-1], "own", "write", "wall")]
        cells = [f"{row['nodes']:,}", f"{row['asked']:,}", f"`{row['policy']}`", f"{row['sent']:,.0f}", *times[:5]]
        lines.append("| " + " | ".join([*cells, f"{row['peak_mib']:.0f} MiB", *times[5:]]) + " |")
    lines += ["", "Memory is the peak of the process; an update is 1.2 MiB, and their number does not show in it."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--one", nargs=4)
    arguments = parser.parse_args()
    if arguments.one:
        num_nodes, ask, policy, rounds = arguments.one
        print(json.dumps(measure(int(num_nodes), int(ask), policy, int(rounds))))
        return
    rounds = 4 if arguments.quick else 22
    cases = ((5, 0), (5, 3)) if arguments.quick else CASES
    rows = [apart(*case, policy, rounds) for case in cases for policy in ("exact", "all")]
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "flwr": importlib.metadata.version("flwr"),
    }
    results = {"machine": machine, "rows": rows}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "flower.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "flower.md").write_text(page(results))
    print(page(results))


if __name__ == "__main__":
    main()
