"""What the server says to the nodes in a round, and what it takes from their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flare.config import Config
from flare.flower.arrays import Layout
from flare.flower.client import Work
from flare.flower.device import Ask
from flare.flower.exchange import Answer, exchange
from flare.flower.faults import Faults
from flare.flower.fleet import Fleet
from flare.flower.resources import Resources, read_resources
from flare.flower.rounds import FleetPlan, Sent
from flare.learning.aggregate import RunningMean
from flare.learning.engine.threads import one_thread
from flare.units import dbm_to_watt

_CPU = torch.device("cpu")
_MAX = 1e9  # greatest loss and seconds of work that a node may report


def ask_nodes(
    grid: Grid,
    config: Config,
    round: int,
    *,
    fleet: Fleet,
    faults: Faults,
    max_steps: int,
    timeout_s: float,
    poll_s: float,
) -> dict[int, Resources]:
    """The resources of every connected node that gives sound ones."""
    messages = []
    for node in grid.get_node_ids():
        ask = _ask(config, round, fleet.uplink(node).rate_bps(round))
        content = RecordDict({"config": ConfigRecord(dict(vars(ask)))})
        messages.append(Message(content, node, MessageType.QUERY, ttl=1.1 * timeout_s, group_id=str(round)))
    said = {}
    for answer in exchange(grid, messages, when="query", timeout_s=timeout_s, poll_s=poll_s, faults=faults):
        try:
            said[answer.node] = read_resources(answer.message, max_steps)
            fleet.uplink(answer.node).asked(answer.after_s)
        except Exception as error:  # no answer of a node may end the run
            faults.note(answer.node, "query", str(error))
    return said


def works(config: Config, round: int, plan: FleetPlan | None, nodes: Mapping[int, int]) -> dict[int, Work]:
    """What each selected node is to do; `nodes` has the node of each device."""
    if plan is None:
        return {}
    return {
        nodes[device]: Work(
            round=round,
            device=device,
            steps=rule.steps,
            lr=rule.lr,
            tau_bar=plan.tau_bar,
            bandwidth_hz=bandwidth_hz,
            seed=config.seed,
        )
        for device, rule, bandwidth_hz in zip(plan.now.selected.tolist(), plan.rules, plan.bandwidth_hz, strict=True)
    }


def train_message(node: int, work: Work, arrays: ArrayRecord, extra: Mapping[str, Any], *, ttl_s: float) -> Message:
    """Sends a node the model, which all share, and its own work."""
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({**extra, **vars(work)})})
    return Message(content, node, MessageType.TRAIN, ttl=ttl_s, group_id=str(work.round))


def collect(
    answers: Iterable[Answer],
    works: Mapping[int, Work],
    layout: Layout,
    *,
    max_norm: float,
    fleet: Fleet,
    faults: Faults,
) -> Sent:
    """Check each answer as it comes, add it to the mean, forget it."""
    mean, devices, losses = RunningMean(), [], []
    for answer in answers:
        work = works.get(answer.node)
        if work is None or work.device in devices:
            faults.note(answer.node, "train", "it answered twice, or was not asked")
            continue
        try:
            with one_thread(_CPU):  # threads cost more than they save on sums this short
                trained = _read_trained(answer.message, layout, steps=work.steps, max_norm=max_norm)
                mean.add(trained.delta)
        except Exception as error:  # no answer of a node may end the run
            faults.note(answer.node, "train", str(error))
            continue
        devices.append(work.device)
        losses.append(trained.loss)
        fleet.uplink(answer.node).sent(work.round, 32.0 * layout.num_weights, answer.after_s - trained.work_s)
    return Sent(devices, losses, mean.end() if devices else None)


@dataclass(frozen=True, eq=False)
class Trained:
    """A sound answer of a node that trained."""

    delta: Tensor  # (weights,)
    loss: float
    work_s: float  # between question and answer on the node itself


def _ask(config: Config, round: int, uplink_bps: float) -> Ask:
    """What a node is told when it is asked."""
    wireless = config.wireless
    return Ask(
        round=round,
        deadline_s=wireless.deadline_s,
        cycles_per_step=float(wireless.cycles_per_sample * wireless.batch_size),
        power_w=dbm_to_watt(wireless.power_dbm),
        bandwidth_hz=wireless.total_bandwidth_hz,
        uplink_bps=uplink_bps,
    )


def _read_trained(answer: Message, layout: Layout, *, steps: int, max_norm: float) -> Trained:
    """The update in a node's answer, until the next is read; ValueError says why it is not to be used."""
    arrays, metrics = (answer.content.get(name) for name in ("arrays", "metrics"))  # a view by kind outlives the answer
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord):
        raise ValueError("its answer lacks the record 'arrays' or 'metrics'")
    done, loss, work_s = (metrics.get(name) for name in ("steps", "loss", "work_s"))
    if done != steps:
        raise ValueError(f"it reports {str(done)[:40]} steps; it was asked for {steps}")
    if not _sensible(loss, -_MAX) or not _sensible(work_s, 0.0):
        said = f"its loss is {str(loss)[:40]} and its work_s {str(work_s)[:40]}"
        raise ValueError(f"{said}; both must be finite numbers up to {_MAX:g}, and work_s not negative")
    delta = layout.flatten(arrays, out=layout.room)
    if not float(torch.dot(delta, delta)) <= max_norm**2:  # true of nan too; then it is looked at closely
        norm = float(torch.linalg.vector_norm(delta.double()))
        if not math.isfinite(norm):
            raise ValueError("its update holds numbers that are not finite")
        if norm > max_norm:
            raise ValueError(f"its update has norm {norm:.3g}; {max_norm:.3g} is the most")
    return Trained(delta, float(loss), float(work_s))  # type: ignore[arg-type]


def _sensible(value: object, least: float) -> bool:
    """Whether a node can have said this: false of nan, and of what would overflow a sum."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _MAX
