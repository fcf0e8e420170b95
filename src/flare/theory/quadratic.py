"""Quadratic losses, on which every constant and every expectation of the analysis has a closed form.

    f_i(w) = 1/2 (w - b_i)^T A_i (w - b_i),      g = A_i (w - b_i) + n,   n ~ N(0, sigma^2 / d I)

A round of FLARE maps w to an affine function of it plus Gaussian noise, so that mean and covariance of the global
weights say all; no sampling is needed. F is the plain mean of the f_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flare.rng import stream
from flare.theory.conditions import Rates
from flare.types import Floats, Indices


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean, shape (weights,), and covariance, shape (weights, weights), of global weights."""

    mean: Floats
    covariance: Floats

    @classmethod
    def at(cls, weights: Floats) -> Moments:
        """Weights that are known."""
        return cls(weights, np.zeros((weights.size, weights.size)))


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Devices with quadratic losses; A_i symmetric, their mean invertible (positive definite: F has a minimum)."""

    hessian: Floats  # A_i, (devices, weights, weights)
    minimum: Floats  # (devices, weights)
    sigma_sq: float

    @property
    def num_devices(self) -> int:
        """K."""
        return len(self.minimum)

    @property
    def num_weights(self) -> int:
        """d."""
        return int(self.minimum.shape[1])

    @cached_property
    def mean_hessian(self) -> Floats:
        """The Hessian of F."""
        mean: Floats = self.hessian.mean(axis=0)
        return mean

    @cached_property
    def optimum(self) -> Floats:
        """w*, where the gradient of F is zero; a saddle or maximum where the mean Hessian is not positive definite."""
        pull = np.einsum("kij,kj->i", self.hessian, self.minimum) / self.num_devices
        best: Floats = np.linalg.solve(self.mean_hessian, pull)
        return best

    @cached_property
    def smoothness(self) -> float:
        """L: the greatest size of an eigenvalue of any A_i."""
        return float(np.abs(np.linalg.eigvalsh(self.hessian)).max())

    def gradients(self, weights: Floats) -> Floats:
        """The gradient of every f_i, shape (devices, weights)."""
        each: Floats = np.einsum("kij,kj->ki", self.hessian, weights - self.minimum)
        return each

    def gap(self, moments: Moments) -> float:
        """E F(w) - F(w*)."""
        away = moments.mean - self.optimum
        return float(away @ self.mean_hessian @ away + np.trace(self.mean_hessian @ moments.covariance)) / 2.0

    def gradient_sq(self, moments: Moments) -> float:
        """E||grad F(w)||^2."""
        gradient = self.mean_hessian @ (moments.mean - self.optimum)
        spread = self.mean_hessian @ moments.covariance @ self.mean_hessian
        return float(gradient @ gradient + np.trace(spread))

    def dissimilarity(self, slack: float = 1.5) -> tuple[float, float]:
        """G and H of Assumption 3, for all weights: the least G for H^2 = max(1, slack x the least H^2 there is).

        With u = grad F(w), grad f_i = B u + g, B = A_i mean(A)^-1 and g = grad f_i(w*). The greatest of
        ||B u + g||^2 - H^2 ||u||^2 over u is ||g||^2 + g^T B (H^2 - B^T B)^-1 B^T g, finite where H exceeds ||B||.
        """
        ratios = self.hessian @ np.linalg.inv(self.mean_hessian)  # B, (devices, weights, weights)
        at_optimum = self.gradients(self.optimum)  # g
        h_sq = max(1.0, slack * float(np.linalg.norm(ratios, ord=2, axis=(1, 2)).max()) ** 2)
        inner = h_sq * np.eye(self.num_weights) - np.swapaxes(ratios, 1, 2) @ ratios
        pulled = np.einsum("kij,ki->kj", ratios, at_optimum)  # B^T g
        more = np.einsum("ki,ki->k", pulled, np.linalg.solve(inner, pulled[..., np.newaxis])[..., 0])
        g_sq = float((np.sum(at_optimum**2, axis=1) + more).max())
        return float(np.sqrt(max(g_sq, 0.0))), float(np.sqrt(h_sq))


@dataclass(frozen=True, eq=False)
class LocalMaps:
    """What the devices' steps make of the global weights: w_i = w + change_i (w - b_i) + noise."""

    change: Floats  # (devices, weights, weights), (I - eta~ A)^tau - I
    noise: Floats  # (devices, weights, weights), covariance
    gradient_noise: Floats  # (devices,), variance of the mean of grad f_i over the device's way


def local_maps(problem: Quadratic, rates: Rates, tau: Floats) -> LocalMaps:
    """The maps of every device for `tau` steps at eta_l tau_bar / tau, shape (devices,)."""
    identity = np.eye(problem.num_weights)
    each_sq = problem.sigma_sq / problem.num_weights
    lr = rates.local_lr * rates.tau_bar / tau  # (devices,)
    step = identity - lr[:, np.newaxis, np.newaxis] * problem.hessian
    power = np.broadcast_to(identity, step.shape).copy()  # step^j of those devices that still go on
    spread, gradient_noise = np.zeros_like(step), np.zeros(len(tau))
    for j in range(int(tau.max())):
        going = j < tau
        spread[going] += power[going] @ power[going]
        gradient_noise[going] += np.sum((identity - power[going]) ** 2, axis=(1, 2))
        power[going] = power[going] @ step[going]
    return LocalMaps(
        power - identity, (lr**2 * each_sq)[:, np.newaxis, np.newaxis] * spread, each_sq * gradient_noise / tau**2
    )


@dataclass(frozen=True, eq=False)
class RoundMoments:
    """A round in expectation."""

    after: Moments
    local_gradient_sq: float  # E||mean over the selected and their steps of grad f_i(w_i^j)||^2, what rho is about
    selection_sq: float  # E||grad F(w_r) - mean of grad f_i(w_r) over the selected||^2


def flare_round(problem: Quadratic, rates: Rates, tau: Floats, selected: Indices, before: Moments) -> RoundMoments:
    """A round of the selected devices; `tau` has shape (devices,)."""
    chosen = Quadratic(problem.hessian[selected], problem.minimum[selected], problem.sigma_sq)
    maps = local_maps(chosen, rates, tau[selected])
    change, shift = maps.change.mean(axis=0), -np.einsum("kij,kj->i", maps.change, chosen.minimum) / len(selected)
    progress = change @ before.mean + shift  # E of the mean update
    whole = np.eye(problem.num_weights) + rates.global_lr * change
    noise = rates.global_lr**2 * maps.noise.sum(axis=0) / len(selected) ** 2
    after = Moments(before.mean + rates.global_lr * progress, whole @ before.covariance @ whole.T + noise)
    moved_sq = progress @ progress + np.trace(change @ before.covariance @ change.T)
    local_sq = moved_sq / (rates.local_lr * rates.tau_bar) ** 2 + maps.gradient_noise.sum() / len(selected) ** 2
    return RoundMoments(after, float(local_sq), _selection_sq(problem, selected, before))


def sampled_round(problem: Quadratic, rates: Rates, tau: Floats, num_selected: int) -> Callable[[Moments], Moments]:
    """A round of so many devices, drawn at random without replacement, in expectation over the draw as well."""
    maps = local_maps(problem, rates, tau)
    change, shifts = maps.change.mean(axis=0), -np.einsum("kij,kj->ki", maps.change, problem.minimum)
    whole, turned = np.eye(problem.num_weights) + rates.global_lr * change, maps.change - change
    share = (problem.num_devices - num_selected) / max(problem.num_devices - 1, 1)  # drawn without replacement
    noise = maps.noise.sum(axis=0)

    def step(before: Moments) -> Moments:
        progress = maps.change @ before.mean + shifts  # (devices, weights)
        mean = progress.mean(axis=0)
        apart = progress - mean
        between = apart.T @ apart + (turned @ before.covariance @ np.swapaxes(turned, 1, 2)).sum(axis=0)
        drawn = (share * between + noise) / (problem.num_devices * num_selected)
        covariance = whole @ before.covariance @ whole.T + rates.global_lr**2 * drawn
        return Moments(before.mean + rates.global_lr * mean, covariance)

    return step


def approximation_error(
    problem: Quadratic, device: int, rates: Rates, tau: int, weights: Floats
) -> tuple[float, float]:
    """Theorem 1 on one device: E||w~ - w||^2 for independent mini-batches, and the g of both ways."""
    alone = Quadratic(problem.hessian[[device]], problem.minimum[[device]], problem.sigma_sq)
    ends, steepest = [], 0.0
    for steps in (float(tau), rates.tau_bar):
        way = list(_step_by_step(alone, rates.local_lr * rates.tau_bar / steps, int(steps), weights))
        for at in way[:-1]:  # the weights at which a gradient is taken, E||grad f||^2 at each
            steepest = max(steepest, alone.gradient_sq(at))
        ends.append(way[-1])
    apart = ends[0].mean - ends[1].mean
    return float(apart @ apart + np.trace(ends[0].covariance) + np.trace(ends[1].covariance)), steepest


def _step_by_step(alone: Quadratic, lr: float, steps: int, weights: Floats) -> Iterator[Moments]:
    """A device's own weights after 0 to `steps` steps: what `local_maps` says of each number of them."""
    identity, each_sq = np.eye(alone.num_weights), alone.sigma_sq / alone.num_weights
    step = identity - lr * alone.hessian[0]
    power, spread = identity, np.zeros_like(identity)
    yield Moments.at(weights)
    for _ in range(steps):
        spread, power = spread + power @ power, power @ step
        yield Moments(weights + (power - identity) @ (weights - alone.minimum[0]), lr**2 * each_sq * spread)


def _selection_sq(problem: Quadratic, selected: Indices, before: Moments) -> float:
    turned = problem.mean_hessian - problem.hessian[selected].mean(axis=0)
    gradients = problem.gradients(before.mean)
    apart = gradients.mean(axis=0) - gradients[selected].mean(axis=0)
    return float(apart @ apart + np.trace(turned @ before.covariance @ turned.T))


def random_quadratic(
    seed: int,
    *,
    num_devices: int = 10,
    num_weights: int = 6,
    spread: float = 1.0,
    sigma_sq: float = 1.0,
    least: float = 0.2,
    convex: bool = True,
) -> Quadratic:
    """Devices with Hessians of eigenvalues between `least` and 1 (negative: saddles) and minima N(0, spread^2).

    L is 1. Where the mean Hessian is not positive definite as drawn, all are moved up and scaled back, unless `convex`
    is false.
    """
    rng = stream(seed, "quadratic")
    turns = np.linalg.qr(rng.standard_normal((num_devices, num_weights, num_weights)))[0]
    values = rng.uniform(least, 1.0, (num_devices, num_weights))
    hessian = np.einsum("kij,kj,klj->kil", turns, values, turns)
    if convex:
        lowest = float(np.linalg.eigvalsh(hessian.mean(axis=0)).min())
        hessian = hessian + max(0.0, 0.1 - lowest) * np.eye(num_weights)
    hessian /= np.abs(np.linalg.eigvalsh(hessian)).max()
    return Quadratic(hessian, spread * rng.standard_normal((num_devices, num_weights)), sigma_sq)
