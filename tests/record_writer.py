"""A small run whose every number depends on all rounds before it, and a process that starts writers of it to be killed.

    python -m tests.record_writer

reads a line for each thing to do: "write FOLDER" starts a process that continues the run without end and answers with
its number once the run is restored, "begin FOLDER" starts one and answers at once, "reap" waits for its end and
answers how it ended.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flare.config import Config
from flare.records import RunFolder, Snapshot
from flare.rng import stream

CONFIG = Config(seed=5)
CHECKPOINT_EVERY = 3


def start() -> Tensor:
    return torch.zeros(64, dtype=torch.float64)


def step(weights: Tensor, number: int) -> tuple[Tensor, dict[str, Any]]:
    noise = torch.from_numpy(stream(CONFIG.seed, "noise", number).standard_normal(64))
    weights = 0.9 * weights + noise
    loss = float("nan") if number % 7 == 3 else float(weights.norm())
    return weights, {"round": number, "loss": loss, "head": weights[: number % 5].tolist()}


def snapshot(weights: Tensor, rounds_done: int) -> Snapshot:
    return Snapshot(rounds_done, {"weights": weights}, {"clock_s": 0.1 * rounds_done})


def write(folder: RunFolder, weights: Tensor, first: int, end: int) -> Tensor:
    """Rounds from `first` to `end`, as a run writes them."""
    for number in range(first, end):
        weights, record = step(weights, number)
        folder.append(record)
        if (number + 1) % CHECKPOINT_EVERY == 0:
            folder.checkpoint(snapshot(weights, number + 1))
    return weights


def resume(folder: RunFolder) -> tuple[Tensor, int]:
    """Weights and number of rounds that the folder continues from."""
    restored = folder.restore()
    return (start(), 0) if restored is None else (restored.tensors["weights"], restored.rounds_done)


def _write_for_ever(path: Path, ready: int) -> None:
    if path.exists():
        folder = RunFolder.open(path)
        weights, done = resume(folder)
    else:
        folder, weights, done = RunFolder.create(path, CONFIG), start(), 0
    os.write(ready, b"!")
    write(folder, weights, done, 1_000_000)


def _started(path: Path, wait: bool) -> int:
    listen, ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _write_for_ever(path, ready)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(ready)
    if wait:
        os.read(listen, 1)  # one that is not waited for must find somebody listening: left open
    return child


def main() -> None:
    torch.set_num_threads(1)
    child = 0
    for line in sys.stdin:
        task, _, path = line.rstrip("\n").partition(" ")
        if task == "reap":
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        else:
            child = _started(Path(path), wait=task == "write")
            print(child, flush=True)


if __name__ == "__main__":
    main()
