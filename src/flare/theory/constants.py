"""Estimates of the constants of the analysis from a loss and its samples.

A loss is a function of flat weights, shape (weights,), and of indices of samples, shape (samples,), that gives the mean
loss over them as a scalar torch can differentiate. A device is the indices of its samples; F is the plain mean of the
devices' losses, unless `shares` says otherwise. All is computed in the precision of the weights: give float64 for exact
constants.

What is true of all weights cannot be seen at some of them: each estimate is the least constant that holds at the given
points, which is the constant itself where it is the same everywhere (a quadratic), or where the points hold the worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flare.theory.conditions import Form, Rates
from flare.types import Floats

Loss = Callable[[Tensor, Tensor], Tensor]
_CHUNK = 64  # per-sample gradients held at once


def gradient(loss: Loss, weights: Tensor, samples: Tensor) -> Tensor:
    """The gradient of the mean loss over the samples, shape (weights,)."""
    at = weights.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(at, samples), at)
    return slope


def hessian_product(loss: Loss, weights: Tensor, samples: Tensor, vector: Tensor) -> Tensor:
    """The Hessian of the mean loss times a vector, by differentiating twice; shape (weights,)."""
    at = weights.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(at, samples), at, create_graph=True)
    if not slope.requires_grad:  # a linear loss
        return torch.zeros_like(vector)
    (product,) = torch.autograd.grad(slope, at, vector, materialize_grads=True)
    return product


def smoothness_at(
    loss: Loss, weights: Tensor, samples: Tensor, *, start: Tensor, tolerance: float = 1e-4, max_products: int = 100
) -> float:
    """The greatest size of an eigenvalue of the Hessian, by power iteration from `start`, shape (weights,).

    The vectors v, H v, H^2 v, ... are kept, made orthonormal, and the answer is sought among all they span (Lanczos),
    which takes a tenth of the products that the last one alone would. The estimate grows from product to product and
    never exceeds the eigenvalue; the iteration ends when it grows by less than the tolerance. ValueError where the
    loss is not finite.
    """
    basis, size = [start / start.norm()], 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(max_products, len(start))):
        image = hessian_product(loss, weights, samples, basis[-1])
        diagonal.append(float(image @ basis[-1]))
        spanned = torch.stack(basis)
        for _ in range(2):  # once is not enough in floating point
            image = image - spanned.T @ (spanned @ image)
        before, size = size, _greatest(diagonal, beside)
        beside.append(float(image.norm()))
        if size <= before * (1.0 + tolerance) or beside[-1] <= torch.finfo(image.dtype).eps * size:
            break
        basis.append(image / beside[-1])
    return size


def _greatest(diagonal: list[float], beside: list[float]) -> float:
    """The greatest size of an eigenvalue of the tridiagonal matrix that the Hessian is among the kept vectors."""
    from scipy.linalg import eigvalsh_tridiagonal  # here, because it takes its time to import

    if not math.isfinite(sum(diagonal) + sum(beside)):
        raise ValueError(
            "the Hessian of the loss is not finite at the given weights; start from smaller weights or scale the "
            "samples"
        )
    return float(np.abs(eigvalsh_tridiagonal(diagonal, beside)).max())


def smoothness(
    loss: Loss,
    points: Iterable[Tensor],
    devices: Sequence[Tensor],
    *,
    rng: np.random.Generator,
    tolerance: float = 1e-4,
    max_products: int = 100,
) -> float:
    """L of Assumption 2: the greatest `smoothness_at` of any device's loss at any of the points."""
    greatest = 0.0
    for weights in points:
        for samples in devices:
            start = torch.as_tensor(rng.standard_normal(len(weights))).to(weights)
            found = smoothness_at(loss, weights, samples, start=start, tolerance=tolerance, max_products=max_products)
            greatest = max(greatest, found)
    return greatest


def along(start: Tensor, end: Tensor, num_points: int) -> list[Tensor]:
    """Points at equal distances on the way from one to the other, both included."""
    return [torch.lerp(start, end, float(share)) for share in np.linspace(0.0, 1.0, num_points)]


def sigma_sq(
    loss: Loss, points: Iterable[Tensor], devices: Sequence[Tensor], batch_size: int, *, replacement: bool = True
) -> float:
    """sigma^2 of Assumption 1: the greatest variance of the gradient of a mini-batch, of any device at any point.

    Without replacement a batch of all samples has none, and a larger one counts as that.
    """
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), chunk_size=_CHUNK)
    greatest = 0.0
    for weights in points:
        for samples in devices:
            gradients = per_sample(weights.detach(), samples.unsqueeze(1))  # (samples, weights)
            one = float((gradients - gradients.mean(dim=0)).square().sum(dim=1).mean())
            greatest = max(greatest, one * _batch_share(len(samples), batch_size, replacement))
    return greatest


def _batch_share(num_samples: int, batch_size: int, replacement: bool) -> float:
    """The variance of the mean of a batch over that of one sample."""
    if replacement:
        return 1.0 / batch_size
    batch_size = min(batch_size, num_samples)
    return (num_samples - batch_size) / (batch_size * max(num_samples - 1, 1))


def device_gradients(loss: Loss, points: Iterable[Tensor], devices: Sequence[Tensor]) -> Floats:
    """Each device's gradient at each point, shape (points, devices, weights)."""
    rows = [torch.stack([gradient(loss, weights, samples) for samples in devices]) for weights in points]
    gradients: Floats = torch.stack(rows).double().cpu().numpy()
    return gradients


@dataclass(frozen=True)
class Dissimilarity:
    """G and H of Assumption 3."""

    g_const: float
    h_const: float


def dissimilarity(gradients: Floats, *, h_const: float | None = None, shares: Floats | None = None) -> Dissimilarity:
    """The least G for a given H >= 1; without one, the pair that minimises the mean of G^2 + H^2 ||grad F||^2.

    `gradients` has shape (points, devices, weights), as from `device_gradients`. The second is a linear program in
    G^2 and H^2: the pair that makes Assumption 3 as tight as it can be on average.
    """
    from scipy.optimize import linprog  # here, because it takes its time to import

    local_sq = np.square(gradients).sum(axis=2)  # (points, devices)
    weight = np.full(gradients.shape[1], 1.0 / gradients.shape[1]) if shares is None else shares
    global_sq = np.square(np.einsum("pkw,k->pw", gradients, weight)).sum(axis=1)  # (points,)
    steepest = local_sq.max(axis=1)
    if h_const is None:
        unit = max(float(steepest.max()), np.finfo(np.float64).tiny)
        rows = np.stack([np.ones_like(global_sq), global_sq / unit], axis=1)
        answer = linprog(
            [1.0, float(global_sq.mean()) / unit], A_ub=-rows, b_ub=-steepest / unit, bounds=[(0.0, None), (1.0, None)]
        )
        h_const = math.sqrt(answer.x[1])
    if h_const < 1.0:
        raise ValueError(f"h_const is {h_const:g}; Assumption 3 wants at least 1")
    g_sq = max(0.0, float((steepest - h_const**2 * global_sq).max()))
    return Dissimilarity(math.sqrt(g_sq), h_const)


def rho(
    loss: Loss,
    points: Iterable[Tensor],
    devices: Sequence[Tensor],
    *,
    rates: Rates,
    tau: Sequence[int],
    selected: Sequence[int] | None = None,
    form: Form = Form.CORRECTED,
) -> float:
    """The greatest rho that holds at the points in a round of the selected devices (all, unless given).

    It is ||grad F(w_r)|| over the norm of the mean, over the selected and their steps, of grad f_i(w_i^j), where the
    devices step along their full gradients: `tau` steps each, shape (devices,). PRINTED takes the inequality that the
    paper writes for rho, Eq. (33), instead: the gradients at w_r, that of device i over tau_i.
    """
    chosen = range(len(devices)) if selected is None else selected
    least = math.inf
    for weights in points:
        whole = torch.stack([gradient(loss, weights, samples) for samples in devices]).mean(dim=0)
        local = torch.stack([_local_gradient(loss, weights, devices[i], rates, tau[i], form) for i in chosen])
        norm = float(local.mean(dim=0).norm())
        least = min(least, float(whole.norm()) / norm if norm > 0.0 else math.inf)
    return least


def _local_gradient(loss: Loss, weights: Tensor, samples: Tensor, rates: Rates, tau: int, form: Form) -> Tensor:
    if form is Form.PRINTED:
        return gradient(loss, weights, samples) / tau
    here, total = weights, torch.zeros_like(weights)
    for _ in range(tau):
        slope = gradient(loss, here, samples)
        total = total + slope / tau
        here = here - rates.local_lr * rates.tau_bar / tau * slope
    return total
