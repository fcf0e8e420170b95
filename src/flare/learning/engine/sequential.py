"""The engine for CPUs: the arithmetic of the reference, bit for bit, without the cost around it.

Each core works for one device at a time, which takes the steps one after the other; an operation has one thread, so the
answers do not depend on the number of cores. The parameters of a worker's module are views into one vector for good. A
job copies its start into the vector; then a step is a forward and a backward pass with PyTorch's kernels (`blocked`),
the gradients laid side by side in a second vector, and two operations in place. Rules that take gradients elsewhere
than at the device's weights (an ascent, a mask, a contrast) keep these in a vector of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.engine.base import Launched
from flare.learning.engine.blocked import BlockedLogits
from flare.learning.engine.tensor_data import TensorData, data_on, right_and_loss
from flare.learning.engine.terms import contrast_loss, uphill
from flare.learning.engine.threads import with_gradients
from flare.learning.features import with_features
from flare.learning.flat import own_copy
from flare.learning.job import GradientJob, Job, LocalRule, Score, Update, check_job, make_update

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")


@final
class SequentialEngine:
    """Devices in turn on each of the workers, by default one for each of torch's threads (on a GPU: one)."""

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset | TensorData,
        *,
        device: str | torch.device = "cpu",
        workers: int | None = None,
    ) -> None:
        self._data = data_on(device, dataset)
        on_cpu = self._data.device.type == "cpu"
        count = workers or (torch.get_num_threads() if on_cpu else 1)
        self._workers = [_Worker(module, self._data) for _ in range(count)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Carry out the jobs."""
        return self._share(_Worker.train, jobs)

    def launch(self, jobs: Sequence[Job]) -> Launched:
        """The same."""
        return Launched.done(self.train(jobs))

    def gradients(self, jobs: Sequence[GradientJob]) -> list[Tensor]:
        """The gradient of the mean loss over all of each job's samples."""
        return self._share(_Worker.gradient, jobs)

    def losses(self, jobs: Sequence[GradientJob]) -> list[float]:
        """The mean loss over all of each job's samples."""
        return self._share(_Worker.loss, jobs)

    def evaluate(self, weights: Sequence[Tensor]) -> list[Score]:
        """Accuracy and loss on the test samples."""
        chunks = self._data.test_chunks()
        parts = self._share(_Worker.score, [(each, *chunk) for each in weights for chunk in chunks])
        return [self._data.total(parts[k * len(chunks) : (k + 1) * len(chunks)]) for k in range(len(weights))]

    def _share(self, work: Callable[[_Worker, _Task], _Answer], tasks: Sequence[_Task]) -> list[_Answer]:
        """The answers in the order of the tasks, each of which the next free worker does."""

        def do(task: _Task) -> _Answer:
            worker = self._free.get()
            try:
                return work(worker, task)
            finally:
                self._free.put(worker)

        with with_gradients(self._data.device):
            if self._pool is None or len(tasks) < 2:
                return [do(task) for task in tasks]
            return list(self._pool.map(do, tasks))


class _Worker:
    """One set of buffers, in which each task writes all that the one before left there."""

    def __init__(self, module: nn.Module, data: TensorData) -> None:
        self._model = model = own_copy(module, data.device)
        self._module = model.module
        self._parameters = model.parameters
        self._data = data
        self._weights = model.flatten()
        self._gradient = torch.empty_like(self._weights)
        for parameter, view in zip(self._parameters, model.views(self._weights).values(), strict=True):
            parameter.data = view
        self._logits = BlockedLogits(self._module, self._weights)

    def train(self, job: Job) -> Update:
        check_job(job, self._model)
        rule, start = job.rule.on(self._data.device), job.start.to(self._data.device)
        weights = torch.empty_like(self._weights) if any(rule.kind) else self._weights
        weights.copy_(start)
        outside = None if rule.mask is None else rule.mask == 0.0
        losses = []
        for batch in self._data.indices(job.batches):
            x, y = self._data.batch(batch)
            loss, direction = self._local_gradient(weights, x, y, rule, start)
            losses.append(loss)
            if rule.ascent != 0.0:
                above = weights + uphill(direction, rule.ascent)
                _, direction = self._local_gradient(above, x, y, rule, start)
            if rule.drift is not None:
                direction += rule.drift
            if rule.mu != 0.0:
                direction += rule.mu * (weights - start)
            if outside is not None:
                direction.masked_fill_(outside, 0.0)
            weights -= direction.mul_(rule.lr)
        return make_update(weights - start, losses)

    def gradient(self, job: GradientJob) -> Tensor:
        self._weights.copy_(job.at)
        total = torch.zeros_like(self._weights)
        for x, y in self._data.chunks(job.samples):
            total += self._loss_and_gradient(x, y)[1].mul_(len(y))
        return total.div_(len(job.samples))

    def loss(self, job: GradientJob) -> float:
        self._weights.copy_(job.at)
        return self._data.mean_loss(self._logits, job.samples)

    def score(self, task: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        weights, x, y = task
        self._weights.copy_(weights)
        return right_and_loss(self._logits, x, y)

    def _local_gradient(
        self, weights: Tensor, x: Tensor, y: Tensor, rule: LocalRule, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As in the reference; the gradient is in the worker's buffer."""
        contrast = rule.contrast
        if contrast is None:
            self._load(weights, rule)
            loss, gradient = self._loss_and_gradient(x, y)
        else:
            with torch.no_grad():
                z_start = self._features(start, x, rule)
                z_previous = self._features(contrast.previous, x, rule)
            self._load(weights, rule)
            logits, z = with_features(self._module, self._logits, x)
            loss = functional.cross_entropy(logits, y)
            term = contrast_loss(z, z_start, z_previous, contrast.temperature).mean()
            gradient = self._gradient_of(loss + contrast.mu * term)
        if rule.mask is not None:
            gradient *= rule.mask
        return loss.detach(), gradient

    def _features(self, weights: Tensor, x: Tensor, rule: LocalRule) -> Tensor:
        self._load(weights, rule)
        return with_features(self._module, self._logits, x)[1]

    def _load(self, weights: Tensor, rule: LocalRule) -> None:
        """Let the module compute with these weights, masked where the rule has a mask."""
        if rule.mask is not None:
            torch.mul(weights, rule.mask, out=self._weights)
        elif weights is not self._weights:
            self._weights.copy_(weights)

    def _loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean cross-entropy over the batch and its gradient, in the worker's buffer, shape (weights,)."""
        loss = functional.cross_entropy(self._logits(x), y)
        return loss.detach(), self._gradient_of(loss)

    def _gradient_of(self, loss: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        return torch.cat([each.reshape(-1) for each in gradients], out=self._gradient)
