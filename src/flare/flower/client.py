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
from flare.flower.stepping import (
    Loss,
    TrainStep,
    Work,
    flat_gradient,
    keep_model,
    kept_model,
    mean_cross_entropy,
    method_step,
)
from flare.learning.job import control_change, drift_less_own, norm_of
from flare.rounds.residuals import Part
from flare.wireless.cell import RESOURCES

DRIFT = "drift"
"""The record of a vector that is added to every gradient of the round."""
CONTROL = "control"
"""The record of the server's control variate, from which a node knows how its own one changes."""
BEYOND = "beyond_plain"
"""What a node tells that has taken other than plain steps, as it was asked to; versions that cannot do not tell it."""
GRADIENT = "gradient"
"""The action of a message that asks for the gradient of all data."""
WARM_UP_STEPS = 4
"""Steps with which a node measures its speed before its first round, the first of them not counted."""
WARM_UP_S = 2.0
"""After so long the warm-up goes on to no further step."""
_COUNTED = "flare.counted"  # where a node keeps what it has counted
_KEPT = "flare.gradient"  # where a node keeps its own gradient until it trains
_log = logging.getLogger("flwr")  # Flower's own log, which its programs show


MakeModel = Callable[[Context], nn.Module]
Batches = Callable[[Context, Work], Iterable[Any]]
AllBatches = Callable[[Context], Iterable[Any]]
OwnResources = Callable[[Context, Ask], Mapping[str, float]]


def client_app(
    *,
    model: MakeModel,
    batches: Batches,
    train_step: TrainStep | None = None,
    resources: OwnResources = own_resources,
    all_batches: AllBatches | None = None,
    loss_of: Loss | None = None,
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
        many samples of each label they hold (`data.share_labels`): labels are whole numbers then, one a sample. They
        are counted once; an own `resources` may answer them as a list, `label_counts`, in place of that.
    loss_of : the mean loss of a batch, by default the cross-entropy of (samples, labels). FedSAM, MOON and FedLin take
        gradients of it, also beside a `train_step`, with which FedSAM and MOON want it to be given; with MOON it is to
        call the module on the batch, whose features are seen there.
    evaluate : tests the global model on this device's own data, in evaluation mode; gives "accuracy" from 0 to 1 and,
        where it likes, "loss" (`classifier_score` does). Asked for where the server sets `fleet.evaluate_share`.
    """
    node, app = _Node(model, batches, train_step, resources, all_batches, loss_of, evaluate), ClientApp()
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
    own_step: TrainStep | None
    resources: OwnResources
    all_batches: AllBatches | None
    own_loss: Loss | None
    evaluate: Evaluate | None

    @property
    def loss_of(self) -> Loss:
        """The loss of a batch."""
        return mean_cross_entropy if self.own_loss is None else self.own_loss

    def query(self, message: Message, context: Context) -> Message:
        """What this device can do."""
        asked = _read(Ask, message)
        cost = self._cost(asked)
        asked = replace(asked, step_cost=cost, cycles_per_step=asked.cycles_per_step * cost / asked.step_cost)
        ask = replace(asked, speed=partial(self._speed, asked, context))
        answer: dict[str, Any] = dict(self.resources(context, ask))
        if self._must_count(ask, answer, context):
            _count(self.all_batches, context, with_labels=ask.needs_labels)
        if ask.needs_samples and "num_samples" not in answer and _COUNTED in context.state:
            answer["num_samples"] = context.state.metric_records[_COUNTED]["num_samples"]
        if ask.needs_labels and LABEL_COUNTS not in answer:
            answer[LABEL_COUNTS] = context.state.metric_records[_COUNTED][LABEL_COUNTS]
        counts = answer.pop(LABEL_COUNTS, None)
        told = MetricRecord({name: float(value) for name, value in answer.items()})
        if ask.needs_labels:
            told[LABEL_COUNTS] = _numbers(counts)
        return Message(RecordDict({RESOURCES: told}), reply_to=message)

    def _cost(self, asked: Ask | Work) -> float:
        """What a step of the method costs here, as a multiple of a plain one: where features are compared, and the user
        has a step of their own, the second term takes passes beside it, worth a plain step."""
        return asked.step_cost + (1.0 if self.own_step is not None and asked.keeps_model else 0.0)

    def _must_count(self, ask: Ask, answer: Mapping[str, Any], context: Context) -> bool:
        """Whether the node has to go through its data to say what is asked; it does that once in a run."""
        wants_labels = ask.needs_labels and LABEL_COUNTS not in answer
        wants_samples = ask.needs_samples and "num_samples" not in answer and self.all_batches is not None
        known = context.state.metric_records.get(_COUNTED, MetricRecord())
        return (wants_labels and LABEL_COUNTS not in known) or (wants_samples and "num_samples" not in known)

    def _speed(self, ask: Ask, context: Context) -> Speed | None:
        """How fast this node trains; None where it cannot take a step on its own."""
        if known_speed(context) is None:
            try:
                self._warm_up(ask, context)
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
        step = method_step(self.own_step, self.loss_of, module, work, None, None)
        watch.begin_steps()
        for batch in itertools.islice(self.batches(context, work), WARM_UP_STEPS):
            step(batch)
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
        if (work.ascent or work.keeps_model) and self.own_step is not None and self.own_loss is None:
            raise ValueError("this method takes gradients of the loss beside your train_step: give client_app loss_of")
        drift, previous = _drift(message, context, work, module), kept_model(context, work, module)
        step = method_step(self.own_step, self.loss_of, module, work, drift, previous)
        losses = []
        watch.begin_steps()
        with own_draws(work.seed, work.round, work.device):
            for batch in itertools.islice(self.batches(context, work), work.steps):
                losses.append(step(batch))
                watch.step_done(batch)
        if len(losses) < work.steps:
            raise ValueError(f"batches gave {len(losses)} of the {work.steps} batches; give one for each step")
        told: dict[str, float] = {"steps": work.steps}
        told |= {BEYOND: 1.0} if work.ascent or work.contrast else {}
        if work.share_loss:
            told["loss"] = sum(losses) / len(losses)
            told["squared_loss"] = sum(loss * loss for loss in losses) / len(losses)
        keep_model(context, work, module)
        update, sender = difference(module, arrays), Sender.asked(message, context)
        if sender is None:
            content = RecordDict({"arrays": update})
        else:
            content = RecordDict({UPLINK: _coded(sender, work, message, Layout(arrays).flatten(update), told)})
        is_cheaper = work.keeps_model and previous is None  # its steps were plain ones
        watch.keep(context, step_cost=self._cost(work) if is_cheaper else 1.0)
        content["metrics"] = MetricRecord({**told, "work_s": watch.elapsed_s + _gradient_s(context, work)})
        return Message(content, reply_to=message)

    def test(self, message: Message, context: Context) -> Message:
        """What its own test says of the model that it was sent."""
        if self.evaluate is None:
            raise ValueError("fleet.evaluate_share is set, and this node has no test: give client_app evaluate")
        return answer_test(message, context, self.model(context), self.evaluate)


def _count(all_batches: AllBatches | None, context: Context, *, with_labels: bool) -> None:
    """Go through all data, and remember for the run how many samples there are and, where that is asked, how many of
    each label, from label 0 to the greatest; ValueError where labels cannot be counted."""
    if all_batches is None:
        raise ValueError("this run has devices tell their labels (data.share_labels): give client_app all_batches")
    number, counts = 0, torch.zeros(0, dtype=torch.int64)
    for batch in all_batches(context):
        number += len(batch[1])
        if with_labels and len(batch[1]):
            found = torch.bincount(_labels(batch[1]))
            size = max(len(counts), len(found))
            counts = functional.pad(counts, (0, size - len(counts))) + functional.pad(found, (0, size - len(found)))
    if with_labels and number == 0:
        raise ValueError("all_batches gave no sample: this device has no labels to tell")
    labels = {LABEL_COUNTS: counts.tolist()} if with_labels else {}
    context.state[_COUNTED] = MetricRecord({"num_samples": number, **labels})


def _numbers(counts: Any) -> list[float]:
    """Label counts that a user's own resources answer, as they are sent; ValueError where they are no numbers."""
    try:
        return [float(each) for each in counts]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{LABEL_COUNTS} of resources is {counts!r:.40}, and no list of numbers ({error})") from None


def _labels(given: Any) -> Tensor:
    """The labels of a batch, shape (samples,); ValueError where they are not whole numbers, one a sample."""
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"labels are told where they are whole numbers; these cannot be read ({error})") from None
    labels = labels.reshape(-1) if labels.numel() == len(given) else labels
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels are told where they are whole numbers, one a sample; these are {tuple(labels.shape)} of "
            f"{labels.dtype}: give class numbers in all_batches, or leave data.share_labels off"
        )
    labels = labels.long().cpu()
    if not 0 <= int(labels.min()) <= int(labels.max()) < MAX_LABELS:
        raise ValueError(f"labels are told where they are whole numbers from 0 to {MAX_LABELS - 1:,}; these are not")
    return labels


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
        total += len(batch[1]) * flat_gradient(loss_of(module, batch), model.parameters)
        count += len(batch[1])
    return Layout(trained_arrays(module)).arrays(total / count)


def _round_of(message: Message) -> int:
    return int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]


def _read(kind: type[Any], message: Message) -> Any:
    """The dataclass `kind` from the message's configuration; what has a default there may be missing."""
    config = message.content.config_records["config"]
    asked = (each.name for each in fields(kind) if each.name in config or each.default is MISSING)
    return kind(**{name: config[name] for name in asked})
