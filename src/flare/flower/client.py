"""A ClientApp around a user's own PyTorch model and data.

    app = client_app(model=make_model, batches=my_batches)

Asked ("query"), the node says what it can do; told to train, it does the steps that the server asks of it at the rate
that the server gives it, and sends back the difference to the model that it was sent.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from typing import Any, final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional

from flare.flower.arrays import Layout, difference, load_arrays, node_model, own_draws, trained_arrays
from flare.flower.coding import UPLINK, Sender
from flare.flower.device import Ask, own_resources
from flare.flower.evaluation import Evaluate, answer_test
from flare.flower.resources import LABEL_COUNTS, MAX_LABELS
from flare.flower.speed import Speed, Stopwatch, known_speed
from flare.flower.stepping import Loss, TrainStep, Work, keep_model, kept_model, method_step
from flare.learning.job import control_change, drift_less_own, norm_of
from flare.rounds.residuals import Part
from flare.wireless.cell import RESOURCES

DRIFT = "drift"
"""The record of a vector that is added to every gradient of the round."""
CONTROL = "control"
"""The record of the server's control variate, from which a node knows how its own one changes."""
GRADIENT = "gradient"
"""The action of a message that asks for the gradient of all data."""
WARM_UP_STEPS = 4
"""Steps with which a node measures its speed before its first round, the first of them not counted."""
WARM_UP_S = 2.0
"""After so long the warm-up goes on to no further step."""
_KEPT = "flare.gradient"  # where a node keeps its own gradient until it trains
_log = logging.getLogger("flwr")  # Flower's own log, which its programs show


MakeModel = Callable[[Context], nn.Module]
Batches = Callable[[Context, Work], Iterable[Any]]
AllBatches = Callable[[Context], Iterable[Any]]
OwnResources = Callable[[Context, Ask], Mapping[str, float]]


def mean_cross_entropy(module: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch (samples, labels)."""
    x, y = batch
    return functional.cross_entropy(module(x), y)


def sgd_step(module: nn.Module, batch: Any, lr: float, *, loss_of: Loss = mean_cross_entropy) -> float:
    """One step of gradient descent on the mean cross-entropy of a batch (samples, labels); its loss before the step."""
    loss = loss_of(module, batch)
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
    train_step: TrainStep | None = None,
    resources: OwnResources = own_resources,
    all_batches: AllBatches | None = None,
    loss_of: Loss = mean_cross_entropy,
    evaluate: Evaluate | None = None,
) -> ClientApp:
    """A ClientApp that FlareStrategy can schedule.

    Parameters
    ----------
    model : makes the module; its weights are then set to those that the server sends.
    batches : the batches to learn from this round, one for each of `work.steps` (more are not used).
    train_step : takes one step on a batch at the given rate, changing the module; returns the loss. By default one of
        gradient descent on `loss_of`. The rate is the server's: FLARE scales it so that devices with few steps get as
        far as those with many. What a method adds to the gradient (FedProx, SCAFFOLD, FedLin, MOON) is added after it;
        with FedSAM it is taken uphill of the weights.
    resources : what this device can do; by default what it measures, or its node configuration says. To measure how
        fast it trains, a node takes a few steps on its own batches when it is first asked, with a model that it then
        throws away.
    all_batches : all data of this device once, in batches (samples, labels). FedLin needs it, which asks for the
        gradient of all data first, and to know how many samples there are; and so does a run in which devices tell how
        many samples of each label they hold (`data.share_labels`): labels are whole numbers then.
    loss_of : the mean loss of a batch. FedSAM, MOON and FedLin take gradients of it, also beside a `train_step`; with
        MOON it is to call the module on the batch, whose features are seen there.
    evaluate : tests the global model on this device's own data, in evaluation mode; gives "accuracy" from 0 to 1 and,
        where it likes, "loss" (`classifier_score` does). Asked for where the server sets `fleet.evaluate_share`.
    """
    step = partial(sgd_step, loss_of=loss_of) if train_step is None else train_step
    node, app = _Node(model, batches, step, resources, all_batches, loss_of, evaluate), ClientApp()
    app.query()(node.query)
    app.train(GRADIENT)(node.gradient)
    app.train()(node.train)
    app.evaluate()(node.test)
    return app


@final
@dataclass(frozen=True)
class _Node:
    """What a node answers, with the parts that its user gave."""

    model: MakeModel
    batches: Batches
    step: TrainStep
    resources: OwnResources
    all_batches: AllBatches | None
    loss_of: Loss
    evaluate: Evaluate | None

    def query(self, message: Message, context: Context) -> Message:
        """What this device can do."""
        ask = replace(_read(Ask, message), speed=partial(self._speed, message, context))
        answer = dict(self.resources(context, ask))
        if ask.needs_samples and self.all_batches is not None and "num_samples" not in answer:
            answer["num_samples"] = sum(len(batch[1]) for batch in self.all_batches(context))
        told = MetricRecord({name: float(value) for name, value in answer.items()})
        if ask.needs_labels:
            told[LABEL_COUNTS] = self._label_counts(context)
        return Message(RecordDict({RESOURCES: told}), reply_to=message)

    def _label_counts(self, context: Context) -> list[int]:
        """How many samples of each label this device holds, from label 0 to the greatest that it has."""
        if self.all_batches is None:
            raise ValueError("this run has devices tell their labels (data.share_labels): give client_app all_batches")
        labels = torch.cat([torch.as_tensor(batch[1]).reshape(-1) for batch in self.all_batches(context)])
        if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < MAX_LABELS:
            raise ValueError(
                f"labels are told where they are whole numbers from 0 to {MAX_LABELS - 1:,}; these are not"
            )
        held: list[int] = torch.bincount(labels.long()).tolist()
        return held

    def _speed(self, message: Message, context: Context) -> Speed | None:
        """How fast this node trains; None where it cannot take a step on its own."""
        if known_speed(context) is None:
            try:
                self._warm_up(_read(Ask, message), context)
            except Exception as error:  # whatever is wrong shows again, and is told, when it trains
                _log.warning("the training speed is not known before the first round: %s", error)
        return known_speed(context)

    def _warm_up(self, ask: Ask, context: Context) -> None:
        """Some steps with a model that is then thrown away."""
        device = int(context.node_config.get("partition-id", 0))
        work = Work(ask.round, device, WARM_UP_STEPS, 0.0, 0.0, False, float(WARM_UP_STEPS), ask.bandwidth_hz, seed=0)
        watch = Stopwatch()
        module = self.model(context)
        arrays = trained_arrays(module)
        load_arrays(module, arrays)
        watch.begin_steps()
        for batch in itertools.islice(self.batches(context, work), WARM_UP_STEPS):
            self.step(module, batch, work.lr)
            watch.step_done(batch)
            if watch.elapsed_s > WARM_UP_S:
                break
        difference(module, arrays)
        watch.keep(context, warm_up=True, step_cost=ask.step_cost)

    def gradient(self, message: Message, context: Context) -> Message:
        """The gradient of all its data, which it keeps until it trains."""
        watch = Stopwatch()
        if self.all_batches is None:
            raise ValueError("this method needs the gradient of all data: give client_app all_batches")
        arrays = message.content.array_records["arrays"]
        own = _gradient_arrays(self.model(context), arrays, self.all_batches(context), self.loss_of)
        context.state[_KEPT] = own
        context.state[f"{_KEPT}.round"] = ConfigRecord({"round": _round_of(message), "work_s": watch.elapsed_s})
        sender = Sender.asked(message, context)
        if sender is None:
            return Message(RecordDict({"arrays": own}), reply_to=message)
        sender.add(Part.GRADIENT, Layout(arrays).flatten(own))
        return Message(RecordDict({UPLINK: sender.record()}), reply_to=message)

    def train(self, message: Message, context: Context) -> Message:
        """The difference to the model that it was sent, after the steps that it was asked for."""
        watch = Stopwatch()
        work = _read(Work, message)
        arrays = message.content.array_records["arrays"]
        module = self.model(context)
        load_arrays(module, arrays)
        drift, previous = _drift(message, context, work, module), kept_model(context, work, module)
        step = method_step(self.step, self.loss_of, module, work, drift, previous)
        losses = []
        watch.begin_steps()
        with own_draws(work.seed, work.round, work.device):
            for batch in itertools.islice(self.batches(context, work), work.steps):
                losses.append(step(batch))
                watch.step_done(batch)
        if len(losses) < work.steps:
            raise ValueError(f"batches gave {len(losses)} of the {work.steps} batches; give one for each step")
        told: dict[str, float] = {"steps": work.steps}
        if work.share_loss:
            told["loss"] = sum(losses) / len(losses)
            told["squared_loss"] = sum(loss * loss for loss in losses) / len(losses)
        keep_model(context, work, module)
        update, sender = difference(module, arrays), Sender.asked(message, context)
        if sender is None:
            content = RecordDict({"arrays": update})
        else:
            content = RecordDict({UPLINK: _coded(sender, work, message, Layout(arrays).flatten(update), told)})
        watch.keep(context)
        content["metrics"] = MetricRecord({**told, "work_s": watch.elapsed_s + _gradient_s(context, work)})
        return Message(content, reply_to=message)

    def test(self, message: Message, context: Context) -> Message:
        """What its own test says of the model that it was sent."""
        if self.evaluate is None:
            raise ValueError("fleet.evaluate_share is set, and this node has no test: give client_app evaluate")
        return answer_test(message, context, self.model(context), self.evaluate)


def _coded(sender: Sender, work: Work, message: Message, update: Tensor, told: dict[str, float]) -> ConfigRecord:
    """An update, in the order of the server's arrays, coded, and with it the change of the node's control where the
    server sent its own; the norm before coding is told."""
    told["update_norm"] = float(norm_of(update))
    sender.add(Part.UPDATE, update)
    if CONTROL in message.content:
        control = Layout(message.content.array_records["arrays"]).flatten(message.content.array_records[CONTROL])
        sender.add(Part.CONTROL, control_change(control, work.steps, work.lr, update))
    return sender.record()


def _drift(message: Message, context: Context, work: Work, module: nn.Module) -> Tensor | None:
    """What is added to every gradient, shape (weights,), in the order of the module's own parameters; None: nothing."""
    if DRIFT not in message.content:
        return None
    layout = Layout(trained_arrays(module))
    drift = layout.flatten(message.content.array_records[DRIFT])
    if not work.subtract_own_gradient:
        return drift
    kept = context.state.config_records.get(f"{_KEPT}.round")
    if kept is None or kept["round"] != work.round:
        raise ValueError("this node has no gradient of its own for this round: it was started anew since")
    return drift_less_own(drift, layout.flatten(context.state.array_records[_KEPT]))


def _gradient_s(context: Context, work: Work) -> float:
    """How long this node took for its gradient of the same round; 0 where it was not asked for one."""
    kept = context.state.config_records.get(f"{_KEPT}.round")
    return float(kept["work_s"]) if kept is not None and kept["round"] == work.round else 0.0  # type: ignore[arg-type]


def _gradient_arrays(module: nn.Module, arrays: ArrayRecord, batches: Iterable[Any], loss_of: Loss) -> ArrayRecord:
    """The gradient of the mean loss over all batches at the weights in `arrays`."""
    load_arrays(module, arrays)
    model = node_model(module)
    total, count = torch.zeros_like(model.flatten()), 0
    for batch in batches:
        gradients = torch.autograd.grad(loss_of(module, batch), model.parameters, materialize_grads=True)
        total += len(batch[1]) * torch.cat([each.reshape(-1) for each in gradients])
        count += len(batch[1])
    return Layout(trained_arrays(module)).arrays(total / count)


def _round_of(message: Message) -> int:
    return int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]


def _read(kind: type[Any], message: Message) -> Any:
    """The dataclass `kind` from the message's configuration; what has a default there may be missing."""
    config = message.content.config_records["config"]
    asked = (each.name for each in fields(kind) if each.name in config or each.default is MISSING)
    return kind(**{name: config[name] for name in asked})
