"""How a node steps: by its user's own step or by gradient descent, and by what the method makes of it.

A step of the user's moves the weights from where they are along a gradient of its own. What a method adds to that
gradient is taken off after it (a drift, a pull back to the start, the gradient of a contrast); and where a gradient is
to be taken uphill, the user's step is taken there, and how far it moved counts from where the weights were. All passes
over a batch in one step draw the same from PyTorch, such as what dropout leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from torch import Tensor, nn
from torch.nn import functional

from flare.flower.arrays import Layout, node_model, set_weights, trained_arrays
from flare.learning.engine.terms import contrast_loss, uphill
from flare.learning.features import last_linear, with_features

Loss = Callable[[nn.Module, Any], Tensor]
TrainStep = Callable[[nn.Module, Any, float], float]
_OWN = "flare.own"
"""Where a node keeps the model with which it ended when it last trained, the one before, and the round of the last."""


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


@dataclass(frozen=True)
class Work:
    """What the server asks of this node in a round: `steps` steps

        w  <-  w - lr (g(w) + drift + mu (w - w_start)).

    `drift` comes with the message; the node's own gradient at the start is taken from it if `subtract_own_gradient`.
    With an `ascent`, g is the gradient at w + ascent g(w) / |g(w)|; with a `contrast`, it is that of a loss with a
    second term, of this weight, which compares features with those of the start and of the node's own last model.
    """

    round: int
    device: int
    steps: int
    lr: float
    mu: float
    subtract_own_gradient: bool
    tau_bar: float
    bandwidth_hz: float
    seed: int
    share_loss: bool = False  # whether the node is to tell its training loss
    ascent: float = 0.0
    contrast: float = 0.0
    temperature: float = 1.0  # of the contrast
    keeps_model: bool = False  # whether the node is to keep the model with which it ends
    step_cost: float = 1.0  # what a step of the method costs, as a multiple of a plain one


def method_step(
    train_step: TrainStep | None,
    loss_of: Loss,
    module: nn.Module,
    work: Work,
    drift: Tensor | None,
    previous: Tensor | None,
) -> Callable[[Any], float]:
    """A step on a batch as the method has it, which answers the loss before it; by gradient descent where the user has
    no step. Features are compared with those of `previous`, where that is there."""
    own = partial(sgd_step, loss_of=loss_of) if train_step is None else train_step
    if drift is None and previous is None and work.mu == 0.0 and work.ascent == 0.0:
        return lambda batch: own(module, batch, work.lr)
    model = node_model(module)
    start = model.flatten()
    constant = torch.zeros_like(start) if drift is None else drift.to(start.device)
    slopes = _Slopes(module, loss_of, work, start, None if previous is None else previous.to(start.device))

    def descend(batch: Any) -> float:
        before = model.flatten()
        if work.ascent == 0.0:
            loss, slope = slopes.of_all(batch)
        else:
            with slopes.same_draws():
                loss, slope = slopes.of_all(batch)
            set_weights(model, before + uphill(slope, work.ascent))
            _, slope = slopes.of_all(batch)
        set_weights(model, before - work.lr * (slope + constant + work.mu * (before - start)))
        return loss

    def around_own(batch: Any) -> float:
        before = here = model.flatten()
        told = None
        if work.ascent != 0.0:
            with slopes.same_draws():
                told, slope = slopes.of_all(batch)
            here = before + uphill(slope, work.ascent)
            set_weights(model, here)
        added = work.mu * (before - start) + constant  # (weights,)
        if previous is not None:
            with slopes.same_draws():
                added = added + slopes.of_contrast(batch)
        loss = own(module, batch, work.lr)
        if work.ascent != 0.0:
            set_weights(model, before + (model.flatten() - here))
        with torch.no_grad():
            for parameter, part in zip(model.parameters, model.views(added).values(), strict=True):
                parameter.sub_(part, alpha=work.lr)
        return loss if told is None else told

    return descend if train_step is None else around_own


class _Slopes:
    """Gradients at the weights that a module has, shape (weights,)."""

    def __init__(self, module: nn.Module, loss_of: Loss, work: Work, start: Tensor, previous: Tensor | None) -> None:
        self._module, self._loss_of, self._work = module, loss_of, work
        self._model = node_model(module)
        self._others = None if previous is None else (start, previous)
        self._gpus = sorted({each.device.index for each in self._model.parameters if each.device.type == "cuda"})

    def of_all(self, batch: Any) -> tuple[float, Tensor]:
        """The loss, and the gradient of it and of the contrast, where there is one."""
        if self._others is None:
            loss = whole = self._loss_of(self._module, batch)
        else:
            z_start, z_previous = self._features_of_others(batch)
            loss, z = self._with_features(batch)
            whole = loss + self._term(z, z_start, z_previous)
        return float(loss.detach()), flat_gradient(whole, self._model.parameters)

    def of_contrast(self, batch: Any) -> Tensor:
        """The gradient of the contrast alone."""
        z_start, z_previous = self._features_of_others(batch)
        with self.same_draws():
            z = self._with_features(batch)[1]
        term = self._term(z, z_start, z_previous)
        if not term.requires_grad:  # no trained weight has a part in the features
            return torch.zeros_like(self._model.flatten())
        return flat_gradient(term, self._model.parameters)

    @contextmanager
    def same_draws(self) -> Iterator[None]:
        """What is drawn in here from PyTorch is drawn once more after it."""
        with torch.random.fork_rng(devices=self._gpus):
            yield

    def _term(self, z: Tensor, z_start: Tensor, z_previous: Tensor) -> Tensor:
        return self._work.contrast * contrast_loss(z, z_start, z_previous, self._work.temperature).mean()

    def _features_of_others(self, batch: Any) -> list[Tensor]:
        """Those of the start and of the node's own last model."""
        assert self._others is not None
        here, found = self._model.flatten(), []
        with torch.no_grad():
            for weights in self._others:
                set_weights(self._model, weights)
                with self.same_draws():
                    found.append(self._with_features(batch)[1])
            set_weights(self._model, here)
        return found

    def _with_features(self, batch: Any) -> tuple[Tensor, Tensor]:
        return with_features(self._module, lambda given: self._loss_of(self._module, given), batch)


def flat_gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The gradient of a loss, shape (weights,)."""
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([(each.to_dense() if each.is_sparse else each).reshape(-1) for each in gradients])


def kept_model(context: Context, work: Work, module: nn.Module) -> Tensor | None:
    """The model with which this node ended when it last trained in an earlier round, shape (weights,), in the order of
    the module's parameters; None: it has none, or the work has no contrast. ValueError where the work may have one in a
    later round, and the module has no features to compare."""
    if work.keeps_model:
        last_linear(module)
    if work.contrast == 0.0:
        return None
    own = context.state.array_records.get(_OWN if _last_round(context) < work.round else f"{_OWN}.before")
    return None if own is None else Layout(trained_arrays(module)).flatten(own)


def keep_model(context: Context, work: Work, module: nn.Module) -> None:
    """Remember the model with which the node ends, where its numbers are finite, and the one before: a server that was
    started again may ask for the same round once more."""
    if not work.keeps_model or not bool(node_model(module).flatten().isfinite().all()):
        return
    last = context.state.array_records.get(_OWN)
    if last is not None and _last_round(context) < work.round:
        context.state[f"{_OWN}.before"] = last
    context.state[_OWN] = trained_arrays(module)
    context.state[f"{_OWN}.round"] = ConfigRecord({"round": work.round})


def _last_round(context: Context) -> int:
    kept = context.state.config_records.get(f"{_OWN}.round")
    return -1 if kept is None else int(kept["round"])  # type: ignore[arg-type]
