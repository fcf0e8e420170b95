"""The engine for CPUs: the arithmetic of the reference, bit for bit, without the cost around it.

The parameters of the module are views into one vector for good. A job copies its start into the vector; then a step is
a forward and a backward pass as PyTorch does them, the gradients laid side by side in a second vector, and two
operations in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.samples import TensorData, check_job, mean_loss
from flare.learning.flat import own_copy
from flare.learning.job import GradientJob, Job, Score, Update


@final
class SequentialEngine:
    """One device after the other in one set of buffers, each job writing all that the one before left there."""

    def __init__(self, module: nn.Module, dataset: Dataset, *, device: str | torch.device = "cpu") -> None:
        model = own_copy(module, device)
        self._module = model.module
        self._parameters = model.parameters
        self._data = TensorData(dataset, device)
        self._weights = model.flatten()
        self._gradient = torch.empty_like(self._weights)
        for parameter, view in zip(self._parameters, model.views(self._weights).values(), strict=True):
            parameter.data = view

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Carry out the jobs in turn."""
        return [self._train(job) for job in jobs]

    def _train(self, job: Job) -> Update:
        check_job(job, len(self._weights))
        rule, start, weights = job.rule, job.start.to(self._data.device), self._weights
        weights.copy_(start)
        losses = []
        for batch in self._data.indices(job.batches):
            loss, direction = self._loss_and_gradient(*self._data.batch(batch))
            losses.append(loss)
            if rule.drift is not None:
                direction += rule.drift
            if rule.mu != 0.0:
                direction += rule.mu * (weights - start)
            weights -= direction.mul_(rule.lr)
        return Update(delta=weights - start, loss=mean_loss(losses))

    def gradients(self, jobs: Sequence[GradientJob]) -> list[Tensor]:
        """The gradient of the mean loss over all of each job's samples."""
        return [self._gradient_at(job) for job in jobs]

    def _gradient_at(self, job: GradientJob) -> Tensor:
        self._weights.copy_(job.at)
        total = torch.zeros_like(self._weights)
        for x, y in self._data.chunks(job.samples):
            total += self._loss_and_gradient(x, y)[1].mul_(len(y))
        return total.div_(len(job.samples))

    def evaluate(self, weights: Sequence[Tensor]) -> list[Score]:
        """Accuracy and loss on the test samples."""
        return [self._score(each) for each in weights]

    def _score(self, weights: Tensor) -> Score:
        self._weights.copy_(weights)
        return self._data.score(self._module)

    def _loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy over the batch and its gradient, in the engine's buffer, shape (weights,)."""
        loss = functional.cross_entropy(self._module(x), y)
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        torch.cat([each.reshape(-1) for each in gradients], out=self._gradient)
        return loss.detach(), self._gradient
