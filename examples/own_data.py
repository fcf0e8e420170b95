"""Your own arrays (or two torch Datasets, by `from_torch`) and your own torch module, trained over the paper's cell."""

import numpy as np
from torch import nn

import flare
from flare.config import Config, override
from flare.data import from_arrays, label_counts, partition

config = override(
    Config(), ["wireless.num_devices=6", "data.partition=dirichlet", "run.rounds=20", "wireless.deadline_s=1.0"]
)

draw = flare.stream(5, "example")
y = draw.integers(0, 3, size=600)  # three kinds of things,
x = draw.normal(size=(600, 8)) + y[:, np.newaxis]  # told apart by eight measurements
data = from_arrays(x[:500], y[:500], x[500:], y[500:], name="measurements")
held = partition(config.data, data, 6, rng=flare.stream(5, "partition"))
for device, counts in enumerate(label_counts(data, held)):
    print(f"device {device}: {counts.sum():3} samples, of each label {counts}")


def model() -> nn.Module:
    """Built anew for each run, so that its seed draws the start weights."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


run = flare.simulate(config, dataset=data, held=held, module=model)
print(f"accuracy {run.accuracy:.2f} after {run.num_rounds} rounds and {run.clock_s:.1f} simulated seconds")
