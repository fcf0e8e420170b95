"""Nodes that are functions, a model that is small, and runs of the strategy with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import nn

from flare.config import Config, override
from flare.flower import FlareStrategy, trained_arrays
from flare.flower.arrays import Layout
from flare.records import RunFolder
from tests.fleets import FakeGrid, Node

SOUND = {"tau": 2.0, "cpu_hz": 3e9, "power_w": 0.2, "gain_db": -95.0}
SHAPES = {"weight": (3, 4), "bias": (3,)}
SIZE = 15
REAL_TIME = {"wall_s": None, "measured_upload_s": []}  # what no two runs have in common


def settings(*more: str) -> Config:
    common = ["wireless.num_devices=8", "run.rounds=3", "scheduling.policy=all", "data.share_losses=true", "seed=1"]
    return override(Config(), [*common, *more])


def module() -> nn.Module:
    built = nn.Linear(4, 3)
    for parameter in built.parameters():
        nn.init.constant_(parameter, 0.25)
    return built


def update(value: float) -> ArrayRecord:
    return ArrayRecord({name: Array(np.full(shape, value, dtype=np.float32)) for name, shape in SHAPES.items()})


def trained(message: Message, arrays: ArrayRecord, **said: Any) -> Message:
    config = message.content.config_records["config"]
    metrics = {"steps": config["steps"], "loss": 1.0, "work_s": 0.01} | said
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


def told(message: Message, said: dict[str, Any]) -> Message:
    return Message(RecordDict({"resources": MetricRecord(said)}), reply_to=message)


def node(
    *,
    value: float = 1.0,
    said: dict[str, Any] | None = None,
    query: Callable[[Message], list[Message]] | None = None,
    train: Callable[[Message], list[Message]] | None = None,
) -> Node:
    """A node that reports sound resources and an update of `value` everywhere, save where told otherwise."""

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "query":
            return query(message) if query else [told(message, SOUND if said is None else said)]
        return train(message) if train else [trained(message, update(value))]

    return answer


def run(
    nodes: dict[int, Node], config: Config, folder: Path | None = None, *, timeout: float = 60.0, **options: Any
) -> torch.Tensor:
    """The weights at the end, shape (15,)."""
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001, **options)
    result = strategy.start(FakeGrid(nodes), trained_arrays(module()), timeout=timeout)
    return Layout(result.arrays).flatten(result.arrays)


def records(folder: Path) -> list[dict[str, Any]]:
    return RunFolder.open(folder).records()


def restored(folder: Path) -> torch.Tensor:
    """The weights of the newest checkpoint."""
    with RunFolder.open(folder) as opened:
        snapshot = opened.restore()
        assert snapshot is not None
        return snapshot.tensors["weights"]


class Killed(BaseException):
    """Ends a run as kill -9 would: nothing is put in order."""
