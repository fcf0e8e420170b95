"""Samples and labels, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flare.types import Indices

Samples = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification problem.

    train_x, test_x   samples, shape (samples, ...): (features,) for tables, (channels, height, width) for images
    train_y, test_y   labels from 0 to num_classes - 1, shape (samples,)
    owner             the device that each training sample belongs to, where the data come divided; shape (samples,)
    """

    name: str
    train_x: Samples
    train_y: Labels
    test_x: Samples
    test_y: Labels
    num_classes: int
    owner: Indices | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train_x.shape[1:]
