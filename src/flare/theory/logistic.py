"""Softmax regression with a ridge on the devices' own samples: convex, and its constants can be written down.

    f_i(w) = mean over the samples of device i of cross-entropy(W^T x, y) + ridge / 2 ||w||^2

Many independent runs ("chains") go side by side, so that expectations are means over them: weights have the shape
(chains, features, classes). Mini-batches are drawn with replacement, as Assumption 1 wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from flare.types import Floats

DeviceSamples = tuple[NDArray[Any], NDArray[Any]]  # samples, shape (samples, features), and labels, shape (samples,)


@dataclass(frozen=True, eq=False)
class Logistic:
    """Devices with samples; F is the plain mean of their losses."""

    x: list[Floats]  # (samples, features) of each device, a column of ones last
    y: list[Floats]  # (samples, classes), one-hot
    ridge: float

    @classmethod
    def of(cls, devices: Sequence[DeviceSamples], num_classes: int, *, ridge: float, max_samples: int) -> Logistic:
        """From samples and labels; of a device with more than `max_samples` the first."""
        x = [np.column_stack([s[:max_samples], np.ones(len(s[:max_samples]))]).astype(np.float64) for s, _ in devices]
        y = [np.eye(num_classes)[np.asarray(labels[:max_samples], dtype=np.intp)] for _, labels in devices]
        return cls(x, y, ridge)

    @property
    def num_devices(self) -> int:
        """K."""
        return len(self.x)

    @property
    def shape(self) -> tuple[int, int]:
        """Features and classes."""
        return self.x[0].shape[1], self.y[0].shape[1]

    @cached_property
    def smoothness(self) -> float:
        """L for all weights: a softmax bends by at most 1/2, so half the greatest of X^T X / n, and the ridge."""
        return max(float(np.linalg.eigvalsh(x.T @ x / len(x))[-1]) for x in self.x) / 2.0 + self.ridge

    def loss(self, weights: Floats) -> Floats:
        """F, shape (chains,)."""
        total = np.zeros(len(weights))
        for x, y in zip(self.x, self.y, strict=True):
            total -= np.sum(y * log_softmax(x @ weights, axis=2), axis=2).mean(axis=1)
        value: Floats = total / self.num_devices + self.ridge / 2.0 * np.square(weights).sum(axis=(1, 2))
        return value

    def gradient(self, device: int, weights: Floats) -> tuple[Floats, float]:
        """The gradient of f_i, shape (chains, features, classes), and the greatest variance of one sample's."""
        x, y = self.x[device], self.y[device]
        off = softmax(x @ weights, axis=2) - y  # (chains, samples, classes)
        slope: Floats = x.T @ off / len(x)
        second = (np.square(off).sum(axis=2) * np.square(x).sum(axis=1)).mean(axis=1)
        variance = second - np.square(slope).sum(axis=(1, 2))
        return slope + self.ridge * weights, float(variance.max())

    def noisy_gradient(self, device: int, weights: Floats, batch_size: int, rng: np.random.Generator) -> Floats:
        """The gradient of a mini-batch of each chain's own, shape (chains, features, classes)."""
        rows = rng.integers(0, len(self.x[device]), (len(weights), batch_size))
        x, y = self.x[device][rows], self.y[device][rows]  # (chains, batch, features), (chains, batch, classes)
        off = softmax(x @ weights, axis=2) - y
        slope: Floats = np.swapaxes(x, 1, 2) @ off / batch_size + self.ridge * weights
        return slope

    @cached_property
    def least(self) -> float:
        """A lower bound on F, next to its least value: what a solver finds, less ||grad F||^2 / (2 ridge)."""

        def value(flat: Floats) -> tuple[float, Floats]:
            weights = flat.reshape(1, *self.shape)
            slope = np.mean([self.gradient(i, weights)[0] for i in range(self.num_devices)], axis=0)
            return float(self.loss(weights)[0]), slope.ravel()

        found = minimize(value, np.zeros(self.shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return float(found.fun - np.square(found.jac).sum() / (2.0 * self.ridge))


@dataclass(frozen=True, eq=False)
class Way:
    """A device's steps from the global weights."""

    end: Floats  # (chains, features, classes)
    mean_gradient: Floats  # (chains, features, classes), of grad f_i over the steps
    steepest_sq: float  # the greatest mean over the chains of ||grad f_i||^2
    variance: float  # the greatest variance of one sample's gradient


def walk(
    problem: Logistic, device: int, start: Floats, steps: int, lr: float, batch_size: int, rng: np.random.Generator
) -> Way:
    """So many steps of a device in every chain, and what the analysis wants to know of them."""
    here, total, steepest, variance = start, np.zeros_like(start), 0.0, 0.0
    for _ in range(steps):
        slope, spread = problem.gradient(device, here)
        total += slope / steps
        steepest = max(steepest, float(np.square(slope).sum(axis=(1, 2)).mean()))
        variance = max(variance, spread)
        here = here - lr * problem.noisy_gradient(device, here, batch_size, rng)
    return Way(here, total, steepest, variance)
