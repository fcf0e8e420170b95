"""A short image of a vector, from which its length and its distance to others follow, nearly.

The vector is shuffled, the signs of its entries are changed at random, and so many of them are summed that `NUMBERS`
are left. All vectors of a run go the same way, so that the image of a difference is the difference of the images. The
square of a distance between images is right in the mean; where the entries are spread, its standard deviation is
sqrt(2 / NUMBERS) of it, 9 %: that of the distance is half as much.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from flare.rng import stream
from flare.types import Floats

NUMBERS = 256


def sketch_of(seed: int, vector: Tensor) -> Floats:
    """The image of a vector (weights,) in the run of a seed, shape (NUMBERS,), summed in float64."""
    order, signs = _ways(seed, len(vector), vector.device)
    shuffled = vector.double().index_select(0, order) * signs
    rows = functional.pad(shuffled, (0, -len(vector) % NUMBERS)).view(-1, NUMBERS)
    found: Floats = rows.sum(0).cpu().numpy()
    return found


@lru_cache(maxsize=8)
def _ways(seed: int, num_weights: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How entries are shuffled, and their signs, of all vectors of a run."""
    rng = stream(seed, "sketch")
    order = torch.from_numpy(rng.permutation(num_weights)).to(device)
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], num_weights)).to(device)
    return order, signs
