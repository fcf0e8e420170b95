"""A run of a fleet and its round while they are under way, and what is told of a round when it is over."""

from __future__ import annotations

import math
from typing import final

from flwr.app import ArrayRecord, MetricRecord

from flare.flower.arrays import Layout
from flare.flower.client import Work
from flare.flower.faults import log
from flare.flower.vectors import Reader
from flare.learning.job import Score
from flare.records.run_keeper import RunKeeper
from flare.rounds import Arrivals, BaseStation, RoundRecord, RunState


@final
class FleetRun:
    """A run that has begun: where it stands, and what it is made of."""

    def __init__(
        self, station: BaseStation, layout: Layout, keeper: RunKeeper, first_norm: float, state: RunState
    ) -> None:
        self.station, self.layout, self.keeper = station, layout, keeper
        self.first_norm = first_norm
        self.state = state
        self.present = 0  # nodes that answered last

    def arrays(self) -> ArrayRecord:
        """The global model."""
        return self.layout.arrays(self.state.weights)


@final
class FleetRound:
    """A round under way: when it began, what takes in its updates, what reads them, and the work of each node."""

    def __init__(self, began: float, arrivals: Arrivals, reader: Reader, works: dict[int, Work]) -> None:
        self.began, self.arrivals, self.reader, self.works = began, arrivals, reader, works


def score_of(metrics: MetricRecord) -> Score:
    """What evaluate_fn said; ValueError where it did not say the accuracy."""
    accuracy, loss = metrics.get("accuracy"), metrics.get("loss", math.nan)
    if not isinstance(accuracy, int | float) or not isinstance(loss, int | float):
        given = ", ".join(metrics) or "nothing"
        raise ValueError(f"evaluate_fn gave {given}; it must give the number 'accuracy', or None for no test")
    return Score(float(accuracy), float(loss))


def train_metrics(record: RoundRecord) -> MetricRecord | None:
    """What Flower is told of the training in a round; None where nobody sent."""
    if not record.sent:
        return None
    loss = {} if record.train_loss is None else {"train_loss": record.train_loss}  # nodes may keep it to themselves
    return MetricRecord({**loss, "num_devices": len(record.sent)})


def say_round(record: RoundRecord) -> None:
    """Log a round in a line."""
    log.info(
        "round %d: %d nodes, %d selected, %d sent; clock %.3g s, loss %s, accuracy %s",
        record.round + 1,
        record.available,
        len(record.selected),
        len(record.sent),
        record.clock_s,
        record.train_loss,
        record.test_accuracy,
    )
    if record.why_nobody:
        log.warning("round %d: nobody was selected: %s", record.round + 1, record.why_nobody)
