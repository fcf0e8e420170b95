"""A data set of your own: one function.

flare run --plugin examples/plugins/rings.py --set data.name=rings
"""

import numpy as np

import flare
from flare.data import Dataset, from_arrays


@flare.dataset("rings")
def rings(*, seed: int, samples: int = 2000, noise: float = 0.1) -> Dataset:
    """Three rings around each other, drawn with the seed of the run."""
    rng = flare.stream(seed, "rings")
    label = rng.integers(0, 3, samples)
    angle, radius = rng.uniform(0.0, 2.0 * np.pi, samples), 1.0 + label + rng.normal(0.0, noise, samples)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    test = samples // 5
    return from_arrays(points[test:], label[test:], points[:test], label[:test], num_classes=3, name="rings")
