"""Data of your own: arrays (or two torch Datasets, by `from_torch`) become a data set that devices share."""

import numpy as np

from flare import stream
from flare.config import DataConfig
from flare.data import from_arrays, label_counts, partition

draw = stream(5, "example")
y = draw.integers(0, 3, size=600)  # three kinds of things,
x = draw.normal(size=(600, 8)) + y[:, np.newaxis]  # told apart by eight measurements

data = from_arrays(x[:500], y[:500], x[500:], y[500:], name="measurements")
parts = partition(DataConfig(partition="dirichlet", dirichlet_alpha=0.3), data, 6, rng=stream(5, "partition"))

for device, counts in enumerate(label_counts(data, parts)):
    print(f"device {device}: {counts.sum():3} samples, of each label {counts}")
