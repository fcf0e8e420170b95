"""What the server says to the nodes in a round, and what it takes from their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from flare.config import Config
from flare.flower.arrays import Layout
from flare.flower.client import BEYOND, CONTROL, DRIFT, GRADIENT
from flare.flower.coding import UPLINK, coding_record
from flare.flower.device import Ask
from flare.flower.exchange import Answer
from flare.flower.faults import Faults
from flare.flower.fleet import Fleet, Share
from flare.flower.resources import Resources, read_resources
from flare.flower.settings import not_for_nodes
from flare.flower.stepping import Work
from flare.flower.vectors import Reader
from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule, Update
from flare.rounds import Arrivals, BaseStation, Plan
from flare.rounds.coding import control_of
from flare.rounds.residuals import Part
from flare.units import dbm_to_watt

Beside = dict[str, ArrayRecord | ConfigRecord]
"""Records of a message by name."""
CPU = torch.device("cpu")
_LABELS_AT_LEAST, _COUNTS = 1_000, 10**6  # labels that a node may tell of: fewer, the more devices there are
_MAX = 1e9  # greatest loss and seconds of work that a node may report


@dataclass(frozen=True)
class Terms:
    """What a run tells nodes of itself when it asks them.

    samples       whether it needs to know how many they hold
    labels        whether they tell how many samples of each label
    step_cost     of a step of its method, as a multiple of a plain one
    keeps_model   whether its method compares features with those of a device's own last model
    """

    samples: bool = False
    labels: bool = False
    step_cost: float = 1.0
    keeps_model: bool = False

    @classmethod
    def of(cls, station: BaseStation) -> Terms:
        """Those of a run."""
        method = station.method
        labels = station.config.data.share_labels
        return cls(method.needs_gradients, labels, method.step_cost, method.keeps_models)


def query_messages(
    nodes: Iterable[int],
    config: Config,
    index: int,
    fleet: Fleet,
    *,
    terms: Terms,
    ttl_s: float,
) -> list[Message]:
    """Asks each node what it can do."""
    messages = []
    for node in nodes:
        assumed_bps = config.wireless.total_bandwidth_hz  # 1 bit/s for each Hz, as a node assumes
        ask = _ask(config, index, fleet.uplink(node).rate_bps(index, assumed_bps), terms)
        content = RecordDict({"config": ask.record()})
        messages.append(Message(content, node, MessageType.QUERY, ttl=ttl_s, group_id=str(index)))
    return messages


def read_queries(
    answers: Iterable[Answer], *, index: int, fleet: Fleet, faults: Faults, max_steps: int, terms: Terms
) -> dict[int, Resources]:
    """The resources of every node that gives sound ones, asked in this round."""
    said, max_labels = {}, max(_LABELS_AT_LEAST, _COUNTS // max(1, fleet.max_devices)) if terms.labels else 0
    for answer in answers:
        try:
            said[answer.node] = read_resources(
                answer.message, max_steps, needs_samples=terms.samples, max_labels=max_labels
            )
            fleet.uplink(answer.node).asked(index, answer.delay_s)
        except Exception as error:  # no answer of a node may end the run
            faults.note(answer.node, "query", str(error))
    return said


def works(
    station: BaseStation, index: int, plan: Plan, rules: Mapping[int, LocalRule], tau_bar: float
) -> dict[int, Work]:
    """What each device is to do; ValueError where a rule asks for what nodes cannot do."""
    config = station.config
    method = station.method
    if any(rule.mask is not None for rule in rules.values()):
        raise not_for_nodes(config)
    if not method.keeps_models and any(rule.contrast is not None for rule in rules.values()):
        raise ValueError(
            f"a rule of method '{config.learning.method}' has a contrast, and the method does not say keeps_models = "
            "True: nodes compare with their own last models alone, which they keep where it does"
        )
    granted_hz = dict(zip(plan.selected.tolist(), plan.bandwidth_hz.tolist(), strict=True))
    return {
        device: Work(
            round=index,
            device=device,
            steps=rule.steps,
            lr=rule.lr,
            mu=rule.mu,
            subtract_own_gradient=rule.subtract_own_gradient,
            tau_bar=tau_bar,
            bandwidth_hz=granted_hz.get(device, 0.0),  # 0: it computes across rounds, and sends in a later one
            seed=config.seed,
            share_loss=config.data.share_losses,
            ascent=rule.ascent,
            contrast=0.0 if rule.contrast is None else rule.contrast.mu,
            temperature=1.0 if rule.contrast is None else rule.contrast.temperature,
            keeps_model=method.keeps_models,
            step_cost=method.step_cost,
        )
        for device, rule in rules.items()
    }


def train_message(
    node: int, work: Work, arrays: ArrayRecord, beside: Beside, extra: Mapping[str, Any], *, ttl_s: float
) -> Message:
    """Sends a node the model, which all share, its own work, and records beside."""
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({**extra, **vars(work)}), **beside})
    return Message(content, node, MessageType.TRAIN, ttl=ttl_s, group_id=str(work.round))


def beside_work(station: BaseStation, plan: Plan, rules: Mapping[int, LocalRule], layout: Layout) -> dict[int, Beside]:
    """The records that go to each device beside its work: its drift and, where vectors are coded, how, and the control
    variate that it needs for the change of its own. A vector that devices share is made into arrays once."""
    made: dict[int, ArrayRecord] = {}

    def arrays(vector: Tensor) -> ArrayRecord:
        if id(vector) not in made:
            made[id(vector)] = layout.arrays(vector.float())
        return made[id(vector)]

    told: dict[int, Beside] = {device: {} for device in rules}
    for device, rule in rules.items():
        if rule.drift is not None:
            told[device][DRIFT] = arrays(rule.drift)
        if station.codes:
            told[device][UPLINK] = coding_record(station, plan, device)
            if station.method.sends_control:
                told[device][CONTROL] = arrays(control_of(station, rule))
    return told


def gradient_message(
    node: int, index: int, arrays: ArrayRecord, coding: ConfigRecord | None, *, ttl_s: float
) -> Message:
    """Asks a node for the gradient of all its data at the model."""
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"round": index})})
    if coding is not None:
        content[UPLINK] = coding
    return Message(content, node, f"{MessageType.TRAIN}.{GRADIENT}", ttl=ttl_s, group_id=str(index))


def gradients(
    answers: Iterable[Answer], devices: Mapping[int, int], reader: Reader, *, faults: Faults
) -> Iterator[tuple[int, Tensor]]:
    """The sound gradients with their devices, one at a time: each lies in the same room until the next is asked for.
    `devices` has the device of each node."""
    for answer in answers:
        device = devices[answer.node]
        try:
            gradient, _ = reader.read(answer.message, Part.GRADIENT, device)
        except Exception as error:  # no answer of a node may end the run
            faults.note(answer.node, "train", str(error))
            continue
        yield device, gradient


def take_in(
    answers: Iterable[Answer],
    arrivals: Arrivals,
    works: Mapping[int, Work],
    reader: Reader,
    *,
    fleet: Fleet,
    faults: Faults,
    granted: bool = False,
) -> None:
    """Check each answer as it comes, hand it to the round, forget it; `works` has the work of each node, and `granted`
    says whether the network gives each the bandwidth of its work, and no more."""
    total_hz = reader.station.config.wireless.total_bandwidth_hz
    for answer in answers:
        work, uplink = works.get(answer.node), fleet.uplink(answer.node)
        try:
            if work is None:
                raise ValueError("it was not asked")
            with one_thread(CPU):  # threads cost more than they save on sums this short
                trained = _read_trained(answer.message, reader, work)
                upload_s = uplink.upload_s(work.round, answer.delay_s)
                arrivals.add(work.device, trained.update, compute_s=trained.work_s, upload_s=upload_s)
        except Exception as error:  # no answer of a node may end the run
            faults.note(answer.node, "train", str(error))
            continue
        share = Share(work.bandwidth_hz, total_hz) if granted else None
        uplink.sent(work.round, reader.bits(work.device), answer.delay_s, share=share)


@dataclass(frozen=True, eq=False)
class Trained:
    """A sound answer of a node that trained."""

    update: Update
    work_s: float  # between question and answer on the node itself


def _ask(config: Config, index: int, uplink_bps: float, terms: Terms) -> Ask:
    """What a node is told when it is asked."""
    wireless = config.wireless
    return Ask(
        round=index,
        deadline_s=wireless.deadline_s,
        cycles_per_step=terms.step_cost * wireless.cycles_per_sample * wireless.batch_size,
        power_w=dbm_to_watt(wireless.power_dbm),
        bandwidth_hz=wireless.total_bandwidth_hz,
        uplink_bps=uplink_bps,
        needs_samples=terms.samples,
        needs_labels=terms.labels,
        batch_size=wireless.batch_size,
        step_cost=terms.step_cost,
        keeps_model=terms.keeps_model,
    )


def _read_trained(answer: Message, reader: Reader, work: Work) -> Trained:
    """The update in a node's answer, until the next is read; ValueError says why it is not to be used."""
    metrics = answer.content.get("metrics")
    if not isinstance(metrics, MetricRecord):
        raise ValueError("its answer lacks the record 'metrics'")
    done, work_s = metrics.get("steps"), metrics.get("work_s")
    if done != work.steps:
        raise ValueError(f"it reports {str(done)[:40]} steps; it was asked for {work.steps}")
    if not _sensible(work_s, 0.0):
        raise ValueError(f"its work_s is {str(work_s)[:40]}; it must be a finite number up to {_MAX:g}, not negative")
    if (work.ascent or work.contrast) and metrics.get(BEYOND) != 1.0:
        raise ValueError(
            f"it does not say ({BEYOND}) that its steps were those of the method, as an older version of this package "
            "that knows plain steps alone: bring its version up to date"
        )
    losses = _told_losses(metrics) if reader.station.config.data.share_losses else (math.nan, math.nan)
    delta, norm = reader.read(answer, Part.UPDATE, work.device)
    change = None
    if reader.coded:
        norm = _told_norm(metrics, reader.max_norm)
        if reader.station.method.sends_control:
            change, _ = reader.read(answer, Part.CONTROL, work.device)
    return Trained(Update(delta, *losses, norm, change), float(work_s))  # type: ignore[arg-type]


def _told_losses(metrics: MetricRecord) -> tuple[float, float]:
    """The mean training loss that a node tells, and the mean of its square, nan where it does not tell that."""
    loss, squared = metrics.get("loss"), metrics.get("squared_loss")
    if not _sensible(loss, -_MAX):
        raise ValueError(f"its loss is {str(loss)[:40]}; it must be a finite number up to {_MAX:g}")
    if squared is not None and not _sensible(squared, 0.0, _MAX**2):
        raise ValueError(f"its squared_loss is {str(squared)[:40]}; it must be a finite number, not negative")
    return float(loss), math.nan if squared is None else float(squared)  # type: ignore[arg-type]


def _told_norm(metrics: MetricRecord, max_norm: float) -> float:
    """The norm of an update before it was coded, as the node says it."""
    told = metrics.get("update_norm")
    if not _sensible(told, 0.0, max_norm):
        raise ValueError(f"its update_norm is {str(told)[:40]}; it must be a number from 0 to {max_norm:.3g}")
    return float(told)  # type: ignore[arg-type]


def _sensible(value: object, least: float, greatest: float = _MAX) -> bool:
    """Whether a node can have said this: false of nan, and of what would overflow a sum."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= greatest
