"""A small data set, jobs on it and modules of different kinds, for the tests of learning."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.dataset import Dataset
from flare.learning.job import Job, LocalRule
from flare.rng import stream, torch_stream


def tiny_data(shape: tuple[int, ...] = (1, 8, 8), num_train: int = 60, num_test: int = 30) -> Dataset:
    """Random samples of three classes."""
    draw = stream(0, "tiny")
    x = draw.standard_normal((num_train + num_test, *shape)).astype(np.float32)
    y = draw.integers(0, 3, num_train + num_test)
    return Dataset("tiny", x[:num_train], y[:num_train], x[num_train:], y[num_train:], num_classes=3)


class Residual(nn.Module):
    """A module as users write them: a scale without axes, a shared layer, a constant, a frozen and an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(2))
        self.enter = nn.Linear(64, 7)
        self.shared = nn.Linear(7, 7)
        self.norm = nn.GroupNorm(1, 7)
        self.leave = nn.Linear(7, 3)
        self.leave.bias.requires_grad_(False)
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, 7))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x.flatten(1)) + self.shift
        hidden = hidden + self.scale * torch.tanh(self.shared(self.shared(hidden)))
        return self.leave(self.norm(hidden))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))


MODULES = {"mlp": small_mlp, "cnn": small_cnn, "user": Residual}


def tiny_module(kind: str) -> nn.Module:
    with torch_stream(0, "tiny"):
        return MODULES[kind]()


def job(start: Tensor, rule: LocalRule, seed: int, *, batch_size: int = 8, num_train: int = 60) -> Job:
    """A job on random batches."""
    return Job(start, rule, stream(seed, "batches").integers(0, num_train, (rule.steps, batch_size)))
