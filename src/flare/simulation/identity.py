"""What a run is: fingerprints of its data and its model.

They are written into the run folder. A run can be continued where they come out the same, and nowhere else: settings
alone do not say what a Python program handed to `Simulation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from flare.data.dataset import Dataset
from flare.types import Indices

_DIGITS = 16  # of a checksum


def dataset_words(dataset: Dataset, held: Sequence[Indices], *, own: bool) -> str:
    """The data and who holds them, such as "digits, 1437 samples, 10 classes (3f...)"."""
    whose = "own data" if own else dataset.name
    sizes = f"{len(dataset.train_y)} samples, {dataset.num_classes} classes"
    return f"{whose}, {sizes} ({_samples_checksum(dataset)}, held {_checksum(*held)})"


def model_words(module: nn.Module, start: Tensor, name: str, *, own: bool) -> str:
    """The model with its start weights and constant buffers."""
    whose = f"own model {type(module).__name__}" if own else name
    buffers = [each.detach().cpu().numpy() for _, each in sorted(module.named_buffers())]
    layers = str(module).encode()
    return (
        f"{whose}, {len(start)} weights ({_checksum(start.cpu().numpy(), np.frombuffer(layers, np.uint8), *buffers)})"
    )


@lru_cache(maxsize=4)
def _samples_checksum(dataset: Dataset) -> str:
    return _checksum(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)


def _checksum(*arrays: NDArray[Any]) -> str:
    """Of the numbers, types and shapes of arrays."""
    sha256 = hashlib.sha256()
    for each in arrays:
        sha256.update(f"{each.dtype.str}{each.shape}".encode())
        sha256.update(np.ascontiguousarray(each).data)
    return sha256.hexdigest()[:_DIGITS]
