"""A model of your own: one function.

flare run --plugin examples/plugins/deep.py --set learning.model=deep
"""

import math
from itertools import pairwise

from torch import nn

import flare


@flare.model("deep")
def deep(sample_shape: tuple[int, ...], num_classes: int, *, width: int = 32, depth: int = 2) -> nn.Module:
    """Some hidden layers of one width on the flattened sample."""
    sizes = [math.prod(sample_shape), *[width] * depth]
    layers = [layer for into, out in pairwise(sizes) for layer in (nn.Linear(into, out), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))
