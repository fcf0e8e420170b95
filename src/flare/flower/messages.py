"""The messages that the server sends, and what it takes from the answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from flare.config import Config
from flare.flower.arrays import Layout
from flare.flower.client import Work
from flare.flower.device import Ask
from flare.units import dbm_to_watt


@dataclass(frozen=True, eq=False)
class Trained:
    """A sound answer of a node that trained."""

    delta: Tensor  # (weights,)
    loss: float
    work_s: float  # between question and answer on the node itself


def query_message(node: int, ask: Ask, *, ttl_s: float) -> Message:
    """Asks a node for its resources."""
    content = RecordDict({"config": ConfigRecord(asdict(ask))})
    return Message(content, node, MessageType.QUERY, ttl=ttl_s, group_id=str(ask.round))


def train_message(node: int, work: Work, arrays: ArrayRecord, extra: Mapping[str, Any], *, ttl_s: float) -> Message:
    """Sends a node the model, which all share, and its own work."""
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(dict(extra) | asdict(work))})
    return Message(content, node, MessageType.TRAIN, ttl=ttl_s, group_id=str(work.round))


def ask_of(config: Config, round: int, uplink_bps: float) -> Ask:
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


def read_trained(answer: Message, layout: Layout, *, steps: int, most_norm: float) -> Trained:
    """The update in a node's answer; ValueError says why it is not to be used."""
    content = answer.content
    if "arrays" not in content.array_records or "metrics" not in content.metric_records:
        raise ValueError("its answer lacks the record 'arrays' or 'metrics'")
    metrics = content.metric_records["metrics"]
    done, loss, work_s = (metrics.get(name) for name in ("steps", "loss", "work_s"))
    if done != steps:
        raise ValueError(f"it reports {str(done)[:40]} steps; it was asked for {steps}")
    if not _finite(loss) or not _finite(work_s):
        raise ValueError(f"its loss is {str(loss)[:40]} and its work_s {str(work_s)[:40]}; both must be finite numbers")
    delta = layout.flatten(content.array_records["arrays"])
    norm = float(torch.linalg.vector_norm(delta.double()))
    if not math.isfinite(norm):
        raise ValueError("its update holds numbers that are not finite")
    if norm > most_norm:
        raise ValueError(f"its update has norm {norm:.3g}; {most_norm:.3g} is the most")
    return Trained(delta, float(loss), float(work_s))  # type: ignore[arg-type]


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
