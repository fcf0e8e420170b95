"""The plain loop: reads like Algorithm 2, and is what the other engines are measured by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.base import Launched
from flare.learning.engine.tensor_data import TensorData, data_on
from flare.learning.engine.terms import contrast_loss, uphill
from flare.learning.engine.threads import with_gradients
from flare.learning.features import with_features
from flare.learning.flat import own_copy
from flare.learning.job import GradientJob, Job, LocalRule, Score, Update, check_job, make_update


@final
class ReferenceEngine:
    """One device after the other, one step after the other, nothing shared between them."""

    def __init__(self, module: nn.Module, dataset: Dataset | TensorData, *, device: str | torch.device = "cpu") -> None:
        self._model = own_copy(module, device)
        self._data = data_on(device, dataset)

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Alg. 2, lines 7 to 13."""
        with with_gradients(self._data.device):
            return [self._train(job) for job in jobs]

    def launch(self, jobs: Sequence[Job]) -> Launched:
        """The same."""
        return Launched.done(self.train(jobs))

    def _train(self, job: Job) -> Update:
        check_job(job, self._model)
        rule, start = job.rule.on(self._data.device), job.start.to(self._data.device)
        weights, losses = start, []
        for batch in self._data.indices(job.batches):
            x, y = self._data.batch(batch)
            loss, gradient = self._local_gradient(weights, x, y, rule, start)
            losses.append(loss)
            if rule.ascent != 0.0:
                _, gradient = self._local_gradient(weights + uphill(gradient, rule.ascent), x, y, rule, start)
            direction = gradient
            if rule.drift is not None:
                direction = direction + rule.drift
            if rule.mu != 0.0:
                direction = direction + rule.mu * (weights - start)
            if rule.mask is not None:
                direction = torch.where(rule.mask == 0.0, 0.0, direction)
            weights = weights - rule.lr * direction  # Eq. (8)
        return make_update(weights - start, losses)

    def _local_gradient(
        self, weights: Tensor, x: Tensor, y: Tensor, rule: LocalRule, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy over the batch, and the gradient of it and of the contrast, shape (weights,)."""
        mask, contrast = rule.mask, rule.contrast
        if contrast is None:
            return self._loss_and_gradient(weights, x, y, mask)
        with torch.no_grad():
            _, z_start = self._logits_and_features(start, x, mask)
            _, z_previous = self._logits_and_features(contrast.previous, x, mask)
        weights = weights.detach().requires_grad_()
        logits, z = self._logits_and_features(weights, x, mask)
        loss = functional.cross_entropy(logits, y)
        total = loss + contrast.mu * contrast_loss(z, z_start, z_previous, contrast.temperature).mean()
        (gradient,) = torch.autograd.grad(total, weights)
        return loss.detach(), gradient

    def gradients(self, jobs: Sequence[GradientJob]) -> list[Tensor]:
        """The gradient of the mean loss over all of a job's samples."""
        with with_gradients(self._data.device):
            return [self._gradient(job) for job in jobs]

    def _gradient(self, job: GradientJob) -> Tensor:
        total = torch.zeros(self._model.num_weights, device=self._data.device)
        for x, y in self._data.chunks(job.samples):
            total = total + len(y) * self._loss_and_gradient(job.at.to(self._data.device), x, y)[1]
        return total / len(job.samples)

    def losses(self, jobs: Sequence[GradientJob]) -> list[float]:
        """The mean loss over all of a job's samples."""
        with with_gradients(self._data.device):
            return [
                self._data.mean_loss(partial(self._logits, job.at.to(self._data.device)), job.samples) for job in jobs
            ]

    def evaluate(self, weights: Sequence[Tensor]) -> list[Score]:
        """Accuracy and loss on the test samples."""
        with with_gradients(self._data.device):
            return [self._data.score(partial(self._logits, each.to(self._data.device))) for each in weights]

    def _loss_and_gradient(
        self, weights: Tensor, x: Tensor, y: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy over the batch and its gradient, shape (weights,)."""
        weights = weights.detach().requires_grad_()
        loss = functional.cross_entropy(self._logits(weights, x, mask), y)
        (gradient,) = torch.autograd.grad(loss, weights)
        return loss.detach(), gradient

    def _logits_and_features(self, weights: Tensor, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return with_features(self._model.module, lambda x: self._logits(weights, x, mask), x)

    def _logits(self, weights: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            weights = mask * weights
        logits: Tensor = functional_call(self._model.module, self._model.views(weights), (x,))
        return logits  # (batch, classes)
