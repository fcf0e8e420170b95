"""Run folders for tests of those who read runs as they grow: quick ones without training, and a small comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import flare
from flare.config import Config
from flare.records import RunFolder
from flare.rounds import RoundRecord

CONFIG = replace(Config(), wireless=replace(Config().wireless, num_devices=4), run=replace(Config().run, rounds=1000))
SMALL = {"run.rounds": 6, "run.evaluate_every": 2, "wireless.num_devices": 6, "learning.model": "logistic"}


def record(index: int, **changed: Any) -> RoundRecord:
    """A round in which device `index % 4` sends; tested every other round."""
    return RoundRecord(
        **{
            "round": index,
            "status": "optimal",
            "available": 4,
            "selected": [index % 4],
            "tau": [2.0],
            "tau_bar": 2.0,
            "lr": [0.1],
            "bandwidth_hz": [1e6],
            "compute_s": [0.1],
            "upload_s": [0.2],
            "latency_s": 0.3,
            "deadline_s": 0.4,
            "gamma": 10.0,
            "smoothness": None,
            "clock_s": 0.3 * (index + 1),
            "compute_energy_j": [1.0],
            "upload_energy_j": [0.5],
            "objective": 2.0,
            "lower_bound": 1.0,
            "sent": [index % 4],
            "loss": [1.0],
            "update_norm": [1.0],
            "payload_bits": [1000.0],
            "train_loss": 1.0 / (index + 1),
            "test_accuracy": 1.0 - 1.0 / (index + 2) if index % 2 else None,
            **changed,
        }
    )


def written(path: Path, rounds: int, *, status: str = "finished", config: Config = CONFIG, **facts: Any) -> Path:
    """A run folder with so many rounds; with status "running" it says that it goes on, and nobody does."""
    with RunFolder.create(path, config, facts=facts) as folder:
        for index in range(rounds):
            folder.append(record(index).to_json())
        if status != "running":
            folder.finish(status, rounds=rounds)
    return path


def comparison(path: Path) -> Path:
    """FLARE with exact scheduling and FedAvg with CP, three seeds each, six rounds of six devices."""
    flare.compare(["flare:exact", "fedavg:cp"], 3, config=SMALL, out=path, progress=False)
    return path
