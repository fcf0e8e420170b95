"""A short image of a vector, from which its length and its distance to others follow, nearly.

The vector is shuffled, the signs of its entries are changed at random, and so many of them are summed that `NUMBERS`
are left. All vectors of a run go the same way, so that the image of a difference is the difference of the images. The
square of a distance between images is right in the mean; where the entries are spread, its standard deviation is
sqrt(2 / NUMBERS) of it, 9 %: that of the distance is half as much.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from flare.rng import stream
from flare.types import Floats

NUMBERS = 256


@final
class Sketches:
    """Makes the images of a run, the one of a seed. It keeps how entries are shuffled and their signs, 5 bytes a
    weight, where the vectors are: for as long as the run keeps it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ways: tuple[Tensor, Tensor] | None = None

    def __call__(self, vector: Tensor) -> Floats:
        """The image of a vector (weights,), shape (NUMBERS,), summed in float64; all have as many weights."""
        if self._ways is None or self._ways[0].device != vector.device:
            self._ways = _ways(self._seed, len(vector), vector.device)
        order, signs = self._ways
        shuffled = vector.double().index_select(0, order) * signs
        rows = functional.pad(shuffled, (0, -len(vector) % NUMBERS)).view(-1, NUMBERS)
        found: Floats = rows.sum(0).cpu().numpy()
        return found


def _ways(seed: int, num_weights: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How entries are shuffled, and their signs, of all vectors of a run."""
    rng = stream(seed, "sketch")
    order = torch.from_numpy(rng.permutation(num_weights)).to(device, torch.int32)
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], num_weights)).to(device, torch.int8)
    return order, signs
