"""HeteroFL: FedAvg whose devices train models of different widths (Diao, Ding and Tarokh, ICLR 2021, Alg. 1).

Paper -> code: r -> a number of `rates`, K^l -> outputs of a layer (`flare.learning.widths`), W_g -> the global weights.

    device of rate r    the first ceil(r K^l) channels of every hidden layer l; input and output are whole
    scaler              what a hidden layer gives is divided by r, before its ReLU, while devices train; with
                        `scaler = false` it is not
    base station        each weight moves by the mean of the updates of those devices that hold it; a weight that none
                        of them holds stays

The scaler is a mask with 1 / r on the weights and biases of hidden layers (`LocalRule.mask`); the evaluated model is
the whole one, without it. A device sends the weights of its own model and no others, and a step costs it the share that
its multiply-adds are of the whole model's: in time, energy and bits (`sizes`).

Decided here:

- Who gets which rate: `assign = "number"` goes round the rates by the numbers of the devices, device i has
  rates[i mod n] all run; `assign = "cpu"` ranks the devices that are there by the speed of their processors, and the
  fastest n-th of them gets the largest rate, the next n-th the next. Where the cell draws speeds every round
  (`wireless.cpu_every_round`), devices change their rates with them, which is the authors' dynamic mode.
- The broadcast is the whole model: all devices hear the same, and each takes its part.
- Models are chains of layers whose channels can be followed, others are refused. So there is no batch normalisation
  (the authors' "static" one), which this package refuses for all methods. Where nothing is normalised, the scaler makes
  narrow models step far: not only what a hidden layer gives is divided by r, its gradient is, too, so that the weights
  that count, w / r, move as at the local rate over r^2.
- The authors also leave classes that a device does not hold out of its loss (the masked cross-entropy); here every
  method has the same loss.

With rates = [1] it is FedAvg, to the last bit and on the clock.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from flare.config import setting
from flare.learning.aggregate import move
from flare.learning.job import LocalRule, Update
from flare.learning.kept import KeptWith
from flare.learning.methods.base import MeanReducer, Method, MethodState, PlainMethod, Reducer, Round, Sizes
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates
from flare.learning.widths import Widths
from flare.types import Floats, Indices

BY_NUMBER, BY_CPU = "number", "cpu"


@final
@dataclass(frozen=True, eq=False)
class _Part:
    """The model of a rate within one of these widths."""

    widths: Widths
    rate: float
    scaler: bool

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Of its layers."""
        return self.widths.at(self.rate)

    @cached_property
    def mask(self) -> Tensor | None:
        """Shape (weights,) of the whole model, with the scaler if there is one; None: it is the whole model."""
        scale = 1.0 / self.rate if self.scaler else 1.0
        return None if self.rate == 1.0 else self.widths.numbers(self.outputs, scale=scale)

    def rule(self, plain: LocalRule) -> LocalRule:
        """The rule of a device that holds this model, from that of one with the whole model."""
        return plain if self.mask is None else replace(plain, mask=self.mask, widths=self.outputs)


_held = KeptWith(lambda mask, where: (mask != 0.0).to(where))


@method("heterofl")
@final
@dataclass(frozen=True)
class HeteroFl(PlainMethod):
    """HeteroFL: devices train the leading channels of the model, each as many as it can; the mean of what they hold."""

    rates: tuple[float, ...] = setting(
        (1.0, 0.5, 0.25, 0.125, 0.0625),
        "shares of the channels that devices hold",
        of=float,
        at_least=1e-6,
        at_most=1.0,
    )
    assign: str = setting(
        BY_NUMBER,
        "who gets which: by the number of the device, or the fastest the largest",
        choices=(BY_NUMBER, BY_CPU),
    )
    scaler: bool = setting(True, "divide what hidden layers give by the rate while devices train, as the authors do")
    _parts: ClassVar[tuple[_Part, ...]] = ()  # of an object that was fitted: one for each of the rates

    def __post_init__(self) -> None:
        """ValueError where there are no rates."""
        if not self.rates:
            raise ValueError("option 'rates' of method 'heterofl' is empty; give one at least, such as [1, 0.5]")

    @property
    def needs_widths(self) -> bool:
        """Unless everybody has the whole model."""
        return any(rate != 1.0 for rate in self.rates)

    def fitted(self, widths: Widths) -> Method:
        """The method with the narrower models of a model; ValueError where it has no hidden layer."""
        if len(widths.layers) < 2 and self.needs_widths:
            raise ValueError(
                "method 'heterofl' gives devices fewer channels of the hidden layers, and the model has none (such as "
                "logistic); take a model with a hidden layer, such as mlp, or set learning.options.rates to [1]"
            )
        made = copy(self)
        object.__setattr__(made, "_parts", tuple(_Part(widths, rate, self.scaler) for rate in self.rates))
        return made

    def sizes(self, devices: Indices, cpu_hz: Floats) -> Sizes | None:
        """The weights and the multiply-adds of each device's model."""
        if not self.needs_widths:
            return None
        parts, which = self._known_parts(), self._which(devices, cpu_hz)
        num_weights = np.array([part.widths.num_weights(part.outputs) for part in parts], dtype=np.intp)
        work = np.array([part.widths.work(part.outputs) for part in parts])
        return Sizes(num_weights[which], work[which])

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent with the device's part of the model."""
        rules = equal_rates(now)
        if not self.needs_widths:
            return rules
        parts, which = self._known_parts(), self._of_selected(now).tolist()
        alike: dict[tuple[int, int], LocalRule] = {}  # devices of one rate that do as many steps have the same rule
        for k, rule in zip(which, rules, strict=True):
            if (k, rule.steps) not in alike:
                alike[k, rule.steps] = parts[k].rule(rule)
        return [alike[k, rule.steps] for k, rule in zip(which, rules, strict=True)]

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """For each weight the mean over those that hold it."""
        return _HolderMean(now, state) if self.needs_widths else MeanReducer(now, state)

    def _known_parts(self) -> tuple[_Part, ...]:
        if not self._parts:
            raise ValueError("method 'heterofl' goes by the widths of the model: call fitted(read_widths(...)) first")
        return self._parts

    def _of_selected(self, now: Round) -> Indices:
        """Which of the rates each selected device has."""
        if self.assign == BY_NUMBER:
            return self._which(now.selected, np.ones(len(now.selected)))
        if now.cpu_hz is None:
            raise ValueError("method 'heterofl' with assign = \"cpu\" goes by Round.cpu_hz, which is not given")
        there = np.flatnonzero(now.cpu_hz > 0.0)
        everyone = np.zeros(len(now.cpu_hz), dtype=np.intp)
        everyone[there] = self._which(there, now.cpu_hz[there])
        return everyone[now.selected]

    def _which(self, devices: Indices, cpu_hz: Floats) -> Indices:
        """Which of the rates each of the devices has that are there, shape (devices,)."""
        count = len(self.rates)
        if self.assign == BY_NUMBER:
            return np.asarray(devices, dtype=np.intp) % count
        fastest_first = np.argsort(-cpu_hz, kind="stable")
        largest_first = np.argsort([-rate for rate in self.rates], kind="stable")
        which = np.empty(len(devices), dtype=np.intp)
        which[fastest_first] = largest_first[np.arange(len(devices)) * count // len(devices)]
        return which


class _HolderMean:
    """w + eta_g mean(delta_i) weight by weight, over the devices that hold it; in float64, as every mean."""

    def __init__(self, now: Round, state: MethodState) -> None:
        self._now, self._state = now, state
        self._total = torch.zeros_like(now.weights, dtype=torch.float64)
        self._whole = 0  # devices that hold every weight
        self._others: dict[int, tuple[Tensor, int]] = {}  # masks by their ids, and how many devices have each

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """An update is zero outside the device's own model."""
        self._total += update.delta
        if rule.mask is None:
            self._whole += 1
        else:
            _, before = self._others.get(id(rule.mask), (rule.mask, 0))
            self._others[id(rule.mask)] = rule.mask, before + 1

    def end(self) -> tuple[Tensor, MethodState]:
        """Weights that nobody holds stay."""
        if not self._others:
            return move(self._now.weights, self._now.global_lr, self._total / self._whole), self._state
        holders = torch.full_like(self._total, float(self._whole))  # (weights,), how many hold each
        for mask, number in self._others.values():
            holders.add_(_held(mask, holders.device), alpha=number)
        mean = self._total / holders.clamp_min_(1.0)
        return move(self._now.weights, self._now.global_lr, mean), self._state
