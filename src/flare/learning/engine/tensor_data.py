"""A data set as tensors on an engine's device: batches of it, and the score of a model on its test samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from flare.data.dataset import Dataset
from flare.learning.job import Score
from flare.types import Indices

CHUNK = 1000
"""How many samples pass through the model at once where the number is not the batch size."""


class TensorData:
    """The samples and labels of a data set on a device."""

    def __init__(self, dataset: Dataset, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self.train_x, self.train_y = self._copied(dataset.train_x), self._copied(dataset.train_y)
        self.test_x, self.test_y = self._copied(dataset.test_x), self._copied(dataset.test_y)

    def _copied(self, array: NDArray[Any]) -> Tensor:
        """On a GPU a copy without gaps, as kernels read it; on a CPU the array itself."""
        tensor = _tensor(array).to(self.device)
        return tensor if self.device.type == "cpu" else tensor.contiguous()

    def indices(self, samples: Indices) -> Tensor:
        """Indices of samples as a tensor, of the same shape."""
        return onto(torch.tensor(samples, dtype=torch.int64), self.device)

    def batch(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples and their labels."""
        return self.train_x.index_select(0, samples), self.train_y.index_select(0, samples)

    def chunks(self, samples: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        """The same, `CHUNK` samples at a time."""
        return (self.batch(part) for part in torch.split(self.indices(samples), CHUNK))

    def mean_loss(self, logits_of: Callable[[Tensor], Tensor], samples: Indices) -> float:
        """The mean cross-entropy on training samples of a model, given as a function."""
        parts = [right_and_loss(logits_of, x, y)[1] for x, y in self.chunks(samples)]
        return torch.stack(parts).double().sum().item() / len(samples)

    def test_chunks(self) -> list[tuple[Tensor, Tensor]]:
        """All test samples and their labels, `CHUNK` at a time."""
        if len(self.test_y) == 0:
            raise ValueError("the data set has no test samples to evaluate on: give it test_x and test_y")
        return list(zip(torch.split(self.test_x, CHUNK), torch.split(self.test_y, CHUNK), strict=True))

    def score(self, logits_of: Callable[[Tensor], Tensor]) -> Score:
        """Accuracy and mean cross-entropy on the test samples of a model, given as a function."""
        return self.total([right_and_loss(logits_of, x, y) for x, y in self.test_chunks()])

    def total(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Score:
        """The score from what `right_and_loss` says of each of the test chunks, in their order."""
        right = torch.stack([each for each, _ in parts]).sum()
        loss = torch.stack([each for _, each in parts]).double().sum()
        return Score(accuracy=right.item() / len(self.test_y), loss=loss.item() / len(self.test_y))


def data_on(device: str | torch.device, dataset: Dataset | TensorData) -> TensorData:
    """A data set on a device; one that is there already may be shared by many engines."""
    return dataset if isinstance(dataset, TensorData) else TensorData(dataset, device)


def onto(made: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device. A GPU takes it from pinned memory when its turn comes: with an ordinary copy the
    program would wait until all is done that the GPU is at work on."""
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made.to(device)


def numbers_onto(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Numbers as float32 on a device; what is too large for that is infinite."""
    with np.errstate(over="ignore"):
        return onto(torch.from_numpy(np.array(numbers, dtype=np.float32)), device)


def right_and_loss(logits_of: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the samples a model gets right, and the sum of their cross-entropies."""
    with torch.inference_mode():
        logits = logits_of(x)  # (samples, classes)
        return (logits.argmax(dim=1) == y).sum(), functional.cross_entropy(logits, y, reduction="sum")


def _tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor, sharing its memory where that may be written to, as torch wants it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
