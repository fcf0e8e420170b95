"""How this machine rounds: what is learned has the same last digits only where sums of float32 are cut alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flare.learning.engine.threads import one_thread
from flare.rng import stream

_INPUTS, _CLASSES, _BATCH, _STEPS, _JOBS = 64, 10, 10, 30, 4


@cache
def arithmetic() -> str:
    """A name for the sums that this processor and this PyTorch make: a digest of small trainings by PyTorch alone, of
    one model and of several at once, of the sizes that the runs of `before/` have."""
    draw = stream(0, "arithmetic")
    x = torch.from_numpy(draw.random((_JOBS, _BATCH * _STEPS, _INPUTS), dtype="float32"))
    labels = torch.from_numpy(draw.integers(_CLASSES, size=x.shape[:2]))
    digest = hashlib.sha256(torch.__version__.encode())
    with one_thread(torch.device("cpu")):
        for hidden in ((), (200,)):
            pairs = pairwise((_INPUTS, *hidden, _CLASSES))
            weights = [torch.from_numpy(draw.normal(0.0, 0.1, pair).astype("float32")) for pair in pairs]
            for trained in (
                _trained(weights, x[0], labels[0]),
                _trained([w.repeat(_JOBS, 1, 1) for w in weights], x, labels),
            ):
                digest.update(b"".join(each.numpy().tobytes() for each in trained))
    return digest.hexdigest()[:16]


def _trained(weights: Sequence[Tensor], x: Tensor, labels: Tensor) -> list[Tensor]:
    """The weights after one pass by batches, and what they then answer."""
    for begin in range(0, x.shape[-2], _BATCH):
        now = [each.detach().requires_grad_() for each in weights]
        rows = slice(begin, begin + _BATCH)
        loss = cross_entropy(_answers(now, x[..., rows, :]).flatten(0, -2), labels[..., rows].flatten())
        weights = [each - 0.1 * gradient for each, gradient in zip(now, torch.autograd.grad(loss, now), strict=True)]
    return [each.detach() for each in (*weights, _answers(weights, x))]


def _answers(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    for each in weights[:-1]:
        x = torch.relu(x @ each)
    return x @ weights[-1]
