"""How a node steps: by its user's own step, and by what the method makes of it.

A step of the user's moves the weights from where they are along a gradient of its own. What a method adds to that
gradient is taken off after it (a drift, a pull back to the start, the gradient of a contrast); and where a gradient is
to be taken uphill, the user's step is taken there, and how far it moved counts from where the weights were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord, Context
from torch import Tensor, nn

from flare.flower.arrays import Layout, node_model, trained_arrays
from flare.learning.engine.terms import contrast_loss, uphill
from flare.learning.features import with_features
from flare.learning.flat import FlatModel

Loss = Callable[[nn.Module, Any], Tensor]
TrainStep = Callable[[nn.Module, Any, float], float]
_OWN = "flare.own"
"""Where a node keeps the model with which it ended when it last trained, the one before, and the round of the last."""


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


def method_step(
    train_step: TrainStep, loss_of: Loss, module: nn.Module, work: Work, drift: Tensor | None, previous: Tensor | None
) -> Callable[[Any], float]:
    """A step on a batch as the method has it, which answers the loss before it. Features are compared with those of
    `previous`, where that is there."""
    if drift is None and work.mu == 0.0 == work.ascent and previous is None:
        return lambda batch: train_step(module, batch, work.lr)
    model = node_model(module)
    start = model.flatten()
    constant = torch.zeros_like(start) if drift is None else drift.to(start.device)
    term = None if previous is None else _Contrast(model, loss_of, work, start, previous.to(start.device))

    def step(batch: Any) -> float:
        before = here = model.flatten()
        told = None
        if work.ascent != 0.0:
            told, slope = _loss_and_gradient(model, loss_of, batch)
            here = before + uphill(slope if term is None else slope + term.gradient(batch), work.ascent)
            _set(model, here)
        added = work.mu * (before - start) + constant  # (weights,)
        if term is not None:
            added = added + term.gradient(batch)
        loss = train_step(module, batch, work.lr)
        if work.ascent != 0.0:
            _set(model, before + (model.flatten() - here))
        with torch.no_grad():
            for parameter, part in zip(model.parameters, model.views(added).values(), strict=True):
                parameter.sub_(part, alpha=work.lr)
        return loss if told is None else told

    return step


class _Contrast:
    """The second term of a loss: features are compared with those of the start and of the node's own last model."""

    def __init__(self, model: FlatModel, loss_of: Loss, work: Work, start: Tensor, previous: Tensor) -> None:
        self._model, self._loss_of, self._work = model, loss_of, work
        self._others = (start, previous)

    def gradient(self, batch: Any) -> Tensor:
        """That of the term alone at the weights that the module has, shape (weights,)."""
        model, here = self._model, self._model.flatten()
        with torch.no_grad():
            z_start, z_previous = (self._features(batch, weights) for weights in self._others)
            _set(model, here)
        z = self._features(batch)
        each = contrast_loss(z, z_start, z_previous, self._work.temperature)
        return _flat(torch.autograd.grad(self._work.contrast * each.mean(), model.parameters, materialize_grads=True))

    def _features(self, batch: Any, weights: Tensor | None = None) -> Tensor:
        if weights is not None:
            _set(self._model, weights)
        module = self._model.module
        return with_features(module, lambda given: self._loss_of(module, given), batch)[1]


def kept_model(context: Context, work: Work, module: nn.Module) -> Tensor | None:
    """The model with which this node ended when it last trained in an earlier round, shape (weights,), in the order of
    the module's parameters; None: it has none, or the work has no contrast."""
    if work.contrast == 0.0:
        return None
    own = context.state.array_records.get(_OWN if _last_round(context) < work.round else f"{_OWN}.before")
    return None if own is None else Layout(trained_arrays(module)).flatten(own)


def keep_model(context: Context, work: Work, module: nn.Module) -> None:
    """Remember the model with which the node ends, and the one before: a server that was started again may ask for the
    same round once more."""
    if not work.keeps_model:
        return
    last = context.state.array_records.get(_OWN)
    if last is not None and _last_round(context) < work.round:
        context.state[f"{_OWN}.before"] = last
    context.state[_OWN] = trained_arrays(module)
    context.state[f"{_OWN}.round"] = ConfigRecord({"round": work.round})


def _last_round(context: Context) -> int:
    kept = context.state.config_records.get(f"{_OWN}.round")
    return -1 if kept is None else int(kept["round"])  # type: ignore[arg-type]


def _loss_and_gradient(model: FlatModel, loss_of: Loss, batch: Any) -> tuple[float, Tensor]:
    loss = loss_of(model.module, batch)
    return float(loss.detach()), _flat(torch.autograd.grad(loss, model.parameters, materialize_grads=True))


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in parts])


def _set(model: FlatModel, weights: Tensor) -> None:
    """Give the module these weights, in place."""
    with torch.no_grad():
        for parameter, part in zip(model.parameters, model.views(weights).values(), strict=True):
            parameter.copy_(part)
