"""What a rule may add to plain gradients (`flare.learning.job`), as functions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import functional

MIN_NORM = 1e-12
"""What the norm of a gradient is taken for at the least, so that a gradient of zero leads nowhere and not to nan."""
MIN_LENGTH = 1e-8  # of a vector in a cosine: PyTorch's


def uphill(gradient: Tensor, ascent: float) -> Tensor:
    """The way of length `ascent` along the gradient, ascent g / |g|, shape (weights,)."""
    norm: Tensor = vector_norm(gradient)
    return ascent * (gradient / norm.clamp_min(MIN_NORM))


def row_norms(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of each job's gradient, given by parameter, each of shape (jobs, ...); shape (jobs,)."""
    return torch.stack([each.reshape(len(each), -1).square().sum(1) for each in gradients]).sum(0).sqrt()


_ROWS_AT_ONCE = 32


def update_norms(deltas: Tensor) -> Tensor:
    """The length of each job's update, shape (jobs,), from updates of shape (jobs, weights), summed in float64.

    How a GPU cuts a sum depends on the number of rows: always the same number at once, so that company changes no bit.
    """
    blocks = [functional.pad(rows, (0, 0, 0, _ROWS_AT_ONCE - len(rows))) for rows in torch.split(deltas, _ROWS_AT_ONCE)]
    return torch.cat([vector_norm(rows, dim=1, dtype=torch.float64) for rows in blocks])[: len(deltas)]


def contrast_loss(z: Tensor, z_start: Tensor, z_previous: Tensor, temperature: float | Tensor) -> Tensor:
    """-log(e^near / (e^near + e^far)) of every sample, as `flare.learning.job.Contrast` says, shape (samples,).

    Features have the shape (samples, features). The fraction is 1 / (1 + e^(far - near)).
    """
    near = functional.cosine_similarity(z, z_start, dim=1, eps=MIN_LENGTH) / temperature
    far = functional.cosine_similarity(z, z_previous, dim=1, eps=MIN_LENGTH) / temperature
    return functional.softplus(far - near)


class Anchors(NamedTuple):
    """What the features of a stack of jobs are compared with; features in the arrangement of a program."""

    z_start: Tensor
    z_previous: Tensor
    mu: Tensor  # (jobs,)
    temperature: Tensor  # (jobs,)


def contrast_gradient(z: Tensor, anchors: Anchors, shares: Tensor) -> Tensor:
    """The gradient, with respect to z, of mu times the sum of `contrast_loss` by the samples' shares, for every job.

    Features have the shape (jobs, features, samples), shares (jobs, samples). With u = z / |z|, and u_start, u_previous
    in the same way,

        d contrast_loss / dz  =  sigmoid(far - near) / (temperature |z|) (v - (v . u) u),     v = u_previous - u_start.
    """
    length = _length(z)
    divisor = length.clamp_min(MIN_LENGTH)
    u = z / divisor
    u_start, u_previous = (each / _length(each).clamp_min(MIN_LENGTH) for each in anchors[:2])
    v = u_previous - u_start
    along = (v * u).sum(1, keepdim=True)  # temperature (far - near), (jobs, 1, samples)
    temperature = anchors.temperature[:, None, None]
    slope = torch.sigmoid(along / temperature) / (temperature * divisor)
    turn = v - torch.where(length < MIN_LENGTH, 0.0, along * u)  # below, the divisor does not depend on z
    return (anchors.mu[:, None] * shares)[:, None, :] * slope * turn


def _length(z: Tensor) -> Tensor:
    length: Tensor = vector_norm(z, dim=1, keepdim=True)
    return length  # (jobs, 1, samples)
