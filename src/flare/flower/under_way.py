"""A run of a fleet and its round while they are under way, and what is told of a round when it is over."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, final

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from flare.flower.arrays import Layout
from flare.flower.asking import Asking
from flare.flower.deadline import Deadline
from flare.flower.faults import log
from flare.flower.fleet import Fleet
from flare.flower.mailbox import Late, Mailbox
from flare.flower.resources import Resources
from flare.flower.stepping import Work
from flare.flower.vectors import Reader
from flare.learning.job import Score
from flare.records.run_keeper import RunKeeper
from flare.rounds import Arrivals, BaseStation, Plan, RoundRecord, RunState, RunStatus
from flare.scheduling import Schedule
from flare.scheduling.explain import explain
from flare.text import plural


@final
class FleetRun:
    """A run that has begun: where it stands, and what it is made of."""

    def __init__(
        self,
        station: BaseStation,
        layout: Layout,
        keeper: RunKeeper,
        first_norm: float,
        state: RunState,
        mail: Mailbox,
    ) -> None:
        self.station, self.layout, self.keeper, self.mail = station, layout, keeper, mail
        self.first_norm = first_norm
        self.state = state
        self.deadline = Deadline.of(station.config)
        self.asking = Asking()
        self.said: dict[int, Resources] = {}  # what each node that is there said last
        self.present = 0  # nodes that took part in the last round

    def arrays(self) -> ArrayRecord:
        """The global model."""
        return self.layout.arrays(self.state.weights)

    def numbers(self, fleet: Fleet) -> dict[str, object]:
        """What a checkpoint of a fleet holds beside the state."""
        return {
            "fleet": fleet.to_numbers(),
            "first_norm": self.first_norm,
            "deadline": self.deadline.to_numbers(),
            "asked": self.asking.to_numbers(),
        }

    def restore(self, state: RunState, numbers: Mapping[str, Any], fleet: Fleet) -> None:
        """Continue after a checkpoint; of older versions there is none of deadlines and of who was asked."""
        self.state = state
        fleet.restore(numbers["fleet"])
        self.first_norm = float(numbers["first_norm"])
        if "deadline" in numbers:
            self.deadline.restore(numbers["deadline"])
        if "asked" in numbers:
            self.asking.restore(numbers["asked"])


@final
class FleetRound:
    """A round under way: when it began, by what it goes, what takes in its updates and what reads them."""

    def __init__(
        self, grid: Grid, began: float, station: BaseStation, plan: Plan | None, arrivals: Arrivals, reader: Reader
    ) -> None:
        self.grid, self.began, self.station, self.plan = grid, began, station, plan
        self.arrivals, self.reader = arrivals, reader
        self.out: float | None = None  # when its work went out, by the monotonic clock
        self.ended: float | None = None  # when it was over, in real time
        self.sending: dict[int, Work] = {}  # the work of each node that is sent some now
        self.awaited: dict[int, Work] = {}  # the work of each node whose update this round waits for
        self.real_s: float | None = None  # after how long it ends in real time, where a deadline does that
        self.late: list[int] = []  # devices of which nothing was there at the deadline

    @property
    def still_at_work(self) -> set[int]:
        """The devices that got the work on which this round waits in an earlier one."""
        return {work.device for node, work in self.awaited.items() if node not in self.sending}

    @property
    def lasted_s(self) -> float | None:
        """How long it took in real time from when its work went out; None where nothing did."""
        return None if self.out is None or self.ended is None else self.ended - self.out


def with_lateness(record: RoundRecord, this: FleetRound, came: Collection[Late]) -> RoundRecord:
    """The record with the real deadline, who missed it, and the updates of earlier rounds that came."""
    told = [{"device": each.device, "round": each.round, "after_s": round(each.after_s, 3)} for each in came]
    return replace(record, real_deadline_s=this.real_s, late=sorted(this.late), came_late=told)


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


def say_nobody_connected(timeout_s: float, waits: int, patience: int) -> None:
    """Say that no round can begin, and what may help."""
    then = "the run is suspended: start it again when they are" if waits >= patience else "waiting on"
    log.warning(
        "no node was connected for %g s (%d of %d times), and no round begins; %s. A SuperLink that was started again "
        "does not know the nodes of the former one: start them again, too",
        timeout_s,
        waits,
        patience,
        then,
    )


def say_restored(folder: object, state: RunState) -> None:
    """Say where a run goes on, or that it has ended and nothing happens."""
    if state.status is RunStatus.RUNNING:
        log.info("continuing %s after round %d", folder, state.rounds_done)
        return
    log.warning(
        "the run in %s has ended after %s (%s), and nothing is trained: give another folder to train anew",
        folder,
        plural(state.rounds_done, "round"),
        state.status.value,
    )


def say_end(state: RunState) -> None:
    """Say so where a run is over in which no update ever came."""
    if state.status is RunStatus.RUNNING or state.history.times_sent.any():
        return
    log.warning(
        "nobody sent in any round, so nothing was learned; why stands above for each round, in `faults` and "
        "`why_nobody` of its record, and in the logs of the nodes"
    )


def say_round(record: RoundRecord, schedule: Schedule | None = None) -> None:
    """Log a round in a line, without what is not known of it, and in others why nodes were left out of its schedule,
    whose updates were shortened, how late some were and what the nodes' own tests say."""
    log.info(
        "round %d: %s, %d selected, %d sent; %s",
        record.round + 1,
        plural(record.available, "node"),
        len(record.selected),
        len(record.sent),
        ", ".join(_outcome(record)),
    )
    if schedule is not None and record.selected and (left_out := explain(schedule).left_out):
        log.info("\tleft out: %s", left_out)
    if record.clipped:
        which = ", ".join(f"device {device}" for device in record.clipped)
        log.info("\tshortened to a norm of %.3g: the update of %s", record.norm_limit, which)
    if record.why_nobody:
        log.warning("round %d: nobody was selected: %s", record.round + 1, record.why_nobody)
    if record.late or record.came_late:
        due_s = record.real_deadline_s
        log.info(
            "\t%s: %d late, %s of earlier rounds came",
            "no deadline in real time" if due_s is None else f"deadline {due_s:.3g} s in real time",
            len(record.late),
            plural(len(record.came_late), "update"),
        )
    if record.node_accuracy_mean is not None:
        log.info(
            "\ton %s: accuracy %.3f +- %.3f",
            plural(len(record.tested), "node"),
            record.node_accuracy_mean,
            record.node_accuracy_std,
        )


def _outcome(record: RoundRecord) -> Iterator[str]:
    """What is known of the time and the model when a round is over."""
    yield f"clock {record.clock_s:.3g} s"
    if record.wall_s is not None:
        yield f"{record.wall_s:.1f} s of real time"
    if record.train_loss is not None:
        yield f"loss {record.train_loss:.3g}"
    if record.test_accuracy is not None:
        yield f"accuracy {record.test_accuracy:.3f}"
    elif record.node_accuracy_mean is not None:
        yield f"accuracy {record.node_accuracy_mean:.3f} (mean over {plural(len(record.tested), 'node')})"
