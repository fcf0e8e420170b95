"""How fast a node trains, as it measures it itself: with its own model, batches and threads, and beside whatever else
its machine does.

A round of s steps takes  setup_s + s x (a step's time).  The clock runs through the node's work of every round: a step
is the mean of all but the first, in which libraries warm up and data are opened; whatever else there is goes to the
set-up. Of the last rounds the median counts, so that one bad round is forgotten and a node that has become slow is
known to be slow three rounds later. Before the first round a few steps on the node's own data stand in.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from flwr.app import Context, MetricRecord

ROUNDS_KEPT = 5
"""Rounds from which a speed is told."""
_KEPT = "flare.speed"  # what a node keeps from message to message, under this name in its state
_WARM_UP = "warm_up"


@dataclass(frozen=True)
class Speed:
    """How fast a node trains."""

    samples_per_s: float
    spread: float  # standard deviation of the time of a step over its mean
    batch_samples: float  # samples of a local step
    setup_s: float  # of a round beside its steps

    @property
    def step_s(self) -> float:
        """How long a local step takes."""
        return self.batch_samples / self.samples_per_s

    def steps_within(self, seconds: float) -> int:
        """How many local steps fit into so many seconds, set-up and a spread of every step included."""
        steps = (seconds - self.setup_s) / (self.step_s * (1.0 + self.spread))
        return max(0, int(steps * (1.0 + 1e-9)))  # rounding is not to cost a step


@final
class Stopwatch:
    """Times the work of one round: made when it begins, told of every step."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._steps: list[float] = []  # seconds
        self._samples = 0.0

    @property
    def elapsed_s(self) -> float:
        """Since the work began."""
        return time.perf_counter() - self._start

    def begin_steps(self) -> None:
        """The first step begins now: what was before belongs to the set-up."""
        self._last = time.perf_counter()

    def step_done(self, batch: Any) -> None:
        """A step on this batch is over, and the next begins."""
        now = time.perf_counter()
        self._steps.append(now - self._last)
        self._last = now
        self._samples += samples_in(batch)

    def keep(self, context: Context, *, warm_up: bool = False, step_cost: float = 1.0) -> None:
        """The work is over: remember what it says of the speed, where a step will take `step_cost` times as long. A
        warm-up counts until the first round is over."""
        lasted_s = self.elapsed_s
        if not self._steps:
            return
        steps = self._steps[1:] or self._steps
        mean_s = max(math.fsum(steps) / len(steps), 1e-9)
        told = {
            "step_s": step_cost * mean_s,
            "variance": step_cost**2 * math.fsum((each - mean_s) ** 2 for each in steps) / len(steps),
            "setup_s": max(0.0, lasted_s - len(self._steps) * mean_s),
            "batch_samples": self._samples / len(self._steps),
            _WARM_UP: float(warm_up),
        }
        before = _kept(context)
        if before.get(_WARM_UP, [1.0])[-1]:
            before = {}
        context.state[_KEPT] = MetricRecord(
            {name: [*before.get(name, []), value][-ROUNDS_KEPT:] for name, value in told.items()}
        )


def known_speed(context: Context) -> Speed | None:
    """What this node knows of its speed; None: it has not trained yet, nor warmed up."""
    kept = _kept(context)
    if not kept:
        return None
    step_s, batch_samples = statistics.median(kept["step_s"]), kept["batch_samples"][-1]
    variance = math.fsum(kept["variance"]) / len(kept["variance"]) + statistics.pvariance(kept["step_s"])
    return Speed(
        samples_per_s=batch_samples / step_s,
        spread=math.sqrt(variance) / step_s,
        batch_samples=batch_samples,
        setup_s=statistics.median(kept["setup_s"]),
    )


def samples_in(batch: Any) -> int:
    """How many samples a batch holds: by the first of (samples, labels), or of the values of a mapping; one that has no
    length counts as one sample."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    first = batch[0] if isinstance(batch, tuple | list) and batch else batch
    try:
        return max(1, len(first))
    except TypeError:
        return 1


def _kept(context: Context) -> dict[str, list[float]]:
    """Lists of one length, the newest round last; empty: nothing was measured."""
    record = context.state.metric_records.get(_KEPT, MetricRecord())
    return {name: [float(each) for each in values] for name, values in record.items() if isinstance(values, list)}
