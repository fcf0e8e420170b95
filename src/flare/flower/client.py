"""A ClientApp around a user's own PyTorch model and data.

    app = client_app(model=make_model, batches=my_batches)

Asked ("query"), the node says what it can do; told to train, it does the steps that the server asks of it at the rate
that the server gives it, and sends back the difference to the model that it was sent.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

from flare.flower.arrays import difference, load_arrays
from flare.flower.device import Ask, own_resources
from flare.flower.resources import RECORD


@dataclass(frozen=True)
class Work:
    """What the server asks of this node in a round."""

    round: int
    device: int
    steps: int
    lr: float
    tau_bar: float
    bandwidth_hz: float
    seed: int


MakeModel = Callable[[Context], nn.Module]
Batches = Callable[[Context, Work], Iterable[Any]]
TrainStep = Callable[[nn.Module, Any, float], float]
OwnResources = Callable[[Context, Ask], Mapping[str, float]]


def sgd_step(module: nn.Module, batch: Any, lr: float) -> float:
    """One step of gradient descent on the mean cross-entropy of a batch (samples, labels); its loss before the step."""
    x, y = batch
    loss = functional.cross_entropy(module(x), y)
    parameters = [each for each in module.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient.mul_(lr))
    return float(loss.detach())


def client_app(
    *,
    model: MakeModel,
    batches: Batches,
    train_step: TrainStep = sgd_step,
    resources: OwnResources = own_resources,
) -> ClientApp:
    """A ClientApp that FlareStrategy can schedule.

    Parameters
    ----------
    model : makes the module; its weights are then set to those that the server sends.
    batches : the batches to learn from this round, one for each of `work.steps` (more are not used).
    train_step : takes one step on a batch at the given rate, changing the module; returns the loss. The rate is the
        server's: FLARE scales it so that devices with few steps get as far as those with many.
    resources : what this device can do; by default what it measures, or its node configuration says.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        answer = resources(context, _read(Ask, message))
        numbers = MetricRecord({name: float(value) for name, value in answer.items()})
        return Message(RecordDict({RECORD: numbers}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        start = time.perf_counter()
        work = _read(Work, message)
        arrays = message.content.array_records["arrays"]
        module = model(context)
        load_arrays(module, arrays)
        losses = [train_step(module, batch, work.lr) for batch in itertools.islice(batches(context, work), work.steps)]
        if len(losses) < work.steps:
            raise ValueError(f"batches gave {len(losses)} of the {work.steps} batches; give one for each step")
        update = difference(module, arrays)
        told = {"steps": work.steps, "loss": sum(losses) / len(losses), "work_s": time.perf_counter() - start}
        return Message(RecordDict({"arrays": update, "metrics": MetricRecord(told)}), reply_to=message)

    return app


def _read(kind: type[Any], message: Message) -> Any:
    """The dataclass `kind` from the message's configuration."""
    config = message.content.config_records["config"]
    return kind(**{each.name: config[each.name] for each in fields(kind)})
