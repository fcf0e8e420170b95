"""A server of a small fleet that kills itself, as kill -9 would, at the so many-th thing that it does.

Its nodes stay the same: what a node sends depends on its device, the round, the work and the model alone. Things that
it does are questions and work sent, looks for an answer, answers made, and files brought to the disk or into place.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from flare.config import Config, override
from flare.flower import FlareStrategy
from flare.rng import stream
from tests.fleets import FakeGrid, Node

ROUNDS = 40
KINDS = {
    "synchronous": ("scheduling.policy=proportional-fair", "learning.options.tau_bar=fmes", "fleet.ask=4"),
    "across rounds": ("learning.method=fedbuff", "learning.options.buffer=2", "scheduling.policy=round-robin"),
}
NUM_NODES = 5


def config_of(kind: str) -> Config:
    common = [f"run.rounds={ROUNDS}", "run.evaluate_every=3", "fleet.evaluate_share=0.5", "seed=4"]
    return override(Config(), [*common, f"wireless.num_devices={NUM_NODES}", *KINDS[kind]])


def start_arrays() -> ArrayRecord:
    return ArrayRecord({"w": Array(stream(4, "start").standard_normal(40).astype(np.float32))})


def serve(folder: str | Path, kind: str, moments: int = 0) -> ArrayRecord:
    """Begin or continue the run, and die at the so many-th thing that is done; 0: go on to the end."""
    tick = _Dying(moments).tick
    if moments:
        for name in ("fsync", "replace"):
            setattr(os, name, _counted(getattr(os, name), tick))
    strategy = FlareStrategy(config_of(kind), folder=folder, poll_s=0.001)
    return strategy.start(_Grid(tick), start_arrays(), timeout=60).arrays


class _Dying:
    def __init__(self, moments: int) -> None:
        self.left = moments

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _counted(function: Callable[..., Any], tick: Callable[[], None]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        tick()
        return function(*args, **kwargs)

    return counted


class _Grid(FakeGrid):
    def __init__(self, tick: Callable[[], None]) -> None:
        super().__init__({900 + k: _node(k, tick) for k in range(NUM_NODES)})
        self.tick = tick

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.tick()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.tick()
        return super().pull_messages(message_ids)


def _node(number: int, tick: Callable[[], None]) -> Node:
    def answer(message: Message) -> list[Message]:
        tick()
        config, kind = message.content.config_records["config"], message.metadata.message_type
        index = int(str(config["round"]))
        draw = stream(number, kind, index)
        if kind == "query":
            said = {"tau": float(draw.integers(1, 6)), "cpu_hz": 3e9, "power_w": 0.2, "gain_db": -95.0 - number}
            return [Message(RecordDict({"resources": MetricRecord(said)}), reply_to=message)]
        weights = message.content.array_records["arrays"]["w"].numpy()
        if kind == "evaluate":
            told = {"accuracy": float(abs(np.tanh(weights.mean()))), "loss": float(abs(weights).mean())}
            return [Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)]
        lr, steps = float(str(config["lr"])), int(str(config["steps"]))
        update = -lr * steps * (weights - draw.standard_normal(len(weights))).astype(np.float32)
        metrics = MetricRecord({"steps": steps, "work_s": 0.01})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(update.astype(np.float32))}), "metrics": metrics})
        return [Message(content, reply_to=message)]

    return answer
