"""A data set as tensors on an engine's device, and what every engine does with it alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.job import Job, Score
from flare.scheduling.problem import Indices

CHUNK = 1000
"""How many samples pass through the model at once where the number is not the batch size."""


class TensorData:
    """The samples and labels of a data set on a device."""

    def __init__(self, dataset: Dataset, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self.train_x = _tensor(dataset.train_x).to(self.device)
        self.train_y = _tensor(dataset.train_y).to(self.device)
        self.test_x = _tensor(dataset.test_x).to(self.device)
        self.test_y = _tensor(dataset.test_y).to(self.device)

    def indices(self, samples: Indices) -> Tensor:
        """Indices of samples as a tensor, of the same shape."""
        return torch.tensor(samples, dtype=torch.int64, device=self.device)

    def batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples and their labels."""
        return self.train_x.index_select(0, samples), self.train_y.index_select(0, samples)

    def chunks(self, samples: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, `CHUNK` samples at a time."""
        return (self.batch(part) for part in torch.split(self.indices(samples), CHUNK))

    def score(self, logits_of: Callable[[Tensor], Tensor]) -> Score:
        """Accuracy and mean cross-entropy on the test samples of a model, given as a function."""
        num_samples = len(self.test_y)
        if num_samples == 0:
            raise ValueError("the data set has no test samples to evaluate on: give it test_x and test_y")
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.inference_mode():
            for x, y in zip(torch.split(self.test_x, CHUNK), torch.split(self.test_y, CHUNK), strict=True):
                logits = logits_of(x)  # (chunk, classes)
                right += (logits.argmax(dim=1) == y).sum()
                loss += functional.cross_entropy(logits, y, reduction="sum")
        return Score(accuracy=right.item() / num_samples, loss=loss.item() / num_samples)


def check_job(job: Job, num_weights: int) -> None:
    """Refuse a job that cannot be carried out as it is written."""
    steps = job.rule.steps
    if steps < 1 or len(job.batches) != steps:
        raise ValueError(f"a job asks for {steps} steps and has {len(job.batches)} batches: give one for each step")
    if job.start.shape != (num_weights,):
        raise ValueError(f"a job starts from weights of shape {tuple(job.start.shape)}; the model has {num_weights}")


def mean_loss(losses: list[Tensor]) -> float:
    """The mean of the losses of a device's steps."""
    return float(torch.stack(losses).double().mean())


def _tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor, sharing its memory where that may be written to, as torch wants it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
