"""Rounds of methods: on quadratic losses in one weight, and of real training on tiny data.

Device i has the loss (w - b_i)^2 / 2 and so the gradient w - b_i, with b = (0, 4, 10, 10); devices 0 and 1 are selected
and do 1 and 2 steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from flare.config import LearningConfig
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.flat import FlatModel
from flare.learning.job import GradientJob, Job, LocalRule, Update
from flare.learning.methods import METHODS, Method, Round, make_method
from flare.learning.widths import read_widths
from flare.rng import stream
from tests.reducing import common, reduced, resolved
from tests.tiny import tiny_data, tiny_module

TARGETS = np.array([0.0, 4.0, 10.0, 10.0])
ONE = torch.tensor([1.0])
NOW = Round(ONE, selected=np.array([0, 1]), tau=np.array([1.0, 2.0, 7.0, 7.0]), local_lr=0.5, global_lr=1.0)

OF_ANY_MODEL = [name for name in METHODS if not make_method(LearningConfig(method=name)).needs_widths]
"""The methods that need not know the layers of the model."""


def fitted(method: Method, module: nn.Module, sample_shape: tuple[int, ...] = (1, 8, 8)) -> Method:
    """The method for a model, where it goes by its widths."""
    return method.fitted(read_widths(module, sample_shape)) if method.needs_widths else method


def descend(device: int, start: Tensor, rule: LocalRule) -> Update:
    weight = start
    for _ in range(rule.steps):
        gradient = weight - float(TARGETS[device])
        gradient = gradient + rule.ascent * gradient.sign()  # that at w + ascent g / |g|
        direction = gradient + rule.mu * (weight - start)
        weight = weight - rule.lr * (direction if rule.drift is None else direction + rule.drift)
    return Update(delta=weight - start, loss=0.0)


def one_round(method: Method, now: Round = NOW, weights: Tensor = ONE, state: dict[str, Tensor] | None = None):
    """The new weights and state, and the rules, on the quadratic losses."""
    now = replace(now, weights=weights)
    state = method.start(len(weights), len(TARGETS)) if state is None else state
    gradients = [weights - float(TARGETS[i]) for i in now.selected] if method.needs_gradients else []
    rules = method.rules(state, now, common(gradients))
    own = gradients or [None] * len(rules)
    updates = [
        descend(i, weights, resolved(rule, each)) for i, rule, each in zip(now.selected, rules, own, strict=True)
    ]
    return *reduced(method, state, now, rules, updates), rules


def train(method: Method, taus: list[np.ndarray], *, local_lr: float = 0.3) -> list[Tensor]:
    """The weights after each round of real training on tiny data."""
    module, samples = tiny_module("mlp"), tiny_data()
    method = fitted(method, module)
    engine, weights = SequentialEngine(module, samples), FlatModel(module).flatten()
    state, history = method.start(len(weights), 6), []
    for number, tau in enumerate(taus):
        draw = stream(number, "batches")
        selected = np.sort(draw.choice(6, 3, replace=False))
        now = Round(weights, selected, tau, local_lr=local_lr, global_lr=1.0)
        own = [np.arange(i, 60, 6) for i in now.selected]
        gradients = engine.gradients([GradientJob(weights, each) for each in own]) if method.needs_gradients else []
        rules = method.rules(state, now, common(gradients))
        batches = [draw.choice(each, (rule.steps, 5)) for rule, each in zip(rules, own, strict=True)]
        followed = [resolved(*each) for each in zip(rules, gradients or [None] * len(rules), strict=True)]
        updates = engine.train([Job(weights, *each) for each in zip(followed, batches, strict=True)])
        weights, state = reduced(method, state, now, rules, updates)
        history.append(weights)
    return history


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(first, second, strict=True))
