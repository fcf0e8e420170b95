"""Tests of the global model on the nodes' own data: what a node computes, what it is asked, and what is believed of it.

A node tells its accuracy and its loss and nothing else; only nodes whose app has an `evaluate` can be asked, and only
where `fleet.evaluate_share` is set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor, nn
from torch.nn import functional

from flare.flower.arrays import load_arrays
from flare.flower.exchange import Answer
from flare.flower.faults import Faults, log
from flare.learning.job import Score
from flare.rounds import RoundRecord
from flare.text import plural

Evaluate = Callable[[Context, nn.Module], Mapping[str, float]]
_MAX_LOSS = 1e9


@torch.inference_mode()
def classifier_score(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    loss_of: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> dict[str, float]:
    """The accuracy and the mean loss of a classifier over batches (samples, labels), as `client_app(evaluate=...)`
    gives them; ValueError where there is no sample."""
    right, loss, count = 0, 0.0, 0
    for samples, labels in batches:
        scores = module(samples.clone())  # the module may work in place, and the samples be kept for the next test
        right += int((scores.argmax(dim=1) == labels).sum())
        loss += float(loss_of(scores, labels)) * len(labels)
        count += len(labels)
    if count == 0:
        raise ValueError("there is no sample to test the model on; give evaluate batches of this node's own")
    return {"accuracy": right / count, "loss": loss / count}


def answer_test(message: Message, context: Context, module: nn.Module, evaluate: Evaluate) -> Message:
    """A node's answer: what its own test says of the model that it was sent."""
    load_arrays(module, message.content.array_records["arrays"])
    with _testing(module):
        found = evaluate(context, module)
    numbers = MetricRecord({name: float(value) for name, value in found.items()})
    return Message(RecordDict({"metrics": numbers}), reply_to=message)


@contextmanager
def _testing(module: nn.Module) -> Iterator[None]:
    """No gradients, no dropout; the module is left as it was."""
    training = module.training
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        module.train(training)


def evaluate_messages(nodes: Collection[int], index: int, arrays: ArrayRecord, *, ttl_s: float) -> list[Message]:
    """Asks nodes to test the model after round `index`; all share the arrays."""
    asked = ConfigRecord({"round": index})
    contents = (RecordDict({"arrays": arrays, "config": asked}) for _ in nodes)
    return [
        Message(content, node, MessageType.EVALUATE, ttl=ttl_s, group_id=str(index))
        for node, content in zip(nodes, contents, strict=True)
    ]


def say_not_asked(nodes: Collection[int], device_of: Mapping[int, int]) -> None:
    """Log which of the connected nodes cannot be drawn to test the model: those at work, and those whose device is
    not known, as they have never been asked what they can do, or gave no sound answer."""
    busy = sorted(device_of[node] for node in nodes if node in device_of)
    unknown = len(nodes) - len(busy)
    told = [f"devices {', '.join(map(str, busy))} (at work)"] if busy else []
    told += [f"{plural(unknown, 'node')} of which the device is not known yet"] if unknown else []
    if told:
        log.info("\tnot asked to test the model: %s", " and ".join(told))


@final
@dataclass(frozen=True)
class Findings:
    """What devices found, by device."""

    accuracy: Mapping[int, float] = field(default_factory=dict)
    loss: Mapping[int, float] = field(default_factory=dict)  # nan of those that do not tell it

    @property
    def score(self) -> Score | None:
        """The means over the devices, each counting once; None where nobody tested."""
        mean_loss, _ = _mean_and_std(self.loss.values())
        accuracy, _ = _mean_and_std(self.accuracy.values())
        return None if accuracy is None else Score(accuracy, math.nan if mean_loss is None else mean_loss)

    def metrics(self) -> MetricRecord | None:
        """What Flower is told; None where nobody tested."""
        if not self.accuracy:
            return None
        told = {name.removeprefix("node_"): value for name, value in self._numbers().items() if value is not None}
        return MetricRecord({**told, "num_nodes": len(self.accuracy)})

    def written_into(self, record: RoundRecord) -> RoundRecord:
        """The record with what devices found."""
        if not self.accuracy:
            return record
        devices = sorted(self.accuracy)
        found: list[float | None] = [self.accuracy[device] for device in devices]
        return replace(record, tested=devices, node_accuracy=found, **self._numbers())

    def _numbers(self) -> dict[str, Any]:
        accuracy, loss = _mean_and_std(self.accuracy.values()), _mean_and_std(self.loss.values())
        return {
            "node_accuracy_mean": accuracy[0],
            "node_accuracy_std": accuracy[1],
            "node_loss_mean": loss[0],
            "node_loss_std": loss[1],
        }


def read_tests(answers: Iterable[Answer], device_of: Mapping[int, int], faults: Faults) -> Findings:
    """What the sound answers say; others are faults of their nodes."""
    accuracy, loss = {}, {}
    for answer in answers:
        try:
            right, lost = _read(answer.message)
        except ValueError as error:
            faults.note(answer.node, "evaluate", str(error))
            continue
        accuracy[device_of[answer.node]], loss[device_of[answer.node]] = right, lost
    return Findings(accuracy, loss)


def _read(answer: Message) -> tuple[float, float]:
    """Accuracy and loss, nan where that is not told."""
    said = answer.content.get("metrics")
    if not isinstance(said, MetricRecord):
        raise ValueError("its answer lacks the record 'metrics'")
    accuracy, loss = said.get("accuracy"), said.get("loss")
    if isinstance(accuracy, bool) or not isinstance(accuracy, int | float) or not 0.0 <= accuracy <= 1.0:
        raise ValueError(f"its accuracy is {str(accuracy)[:40]}; it must be a number from 0 to 1")
    if loss is None:
        return float(accuracy), math.nan
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not 0.0 <= loss <= _MAX_LOSS:
        raise ValueError(f"its loss is {str(loss)[:40]}; it must be a number from 0 to {_MAX_LOSS:g}")
    return float(accuracy), float(loss)


def _mean_and_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over what is a number; None where there is none."""
    known = [each for each in values if math.isfinite(each)]
    return (statistics.fmean(known), statistics.pstdev(known)) if known else (None, None)
