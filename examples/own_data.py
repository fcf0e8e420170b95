"""Your own arrays (or two torch Datasets, by `from_torch`) and your own torch module, trained over the paper's cell."""

import numpy as np
from torch import nn

from flare import stream
from flare.config import Config, override
from flare.data import from_arrays, label_counts, partition
from flare.simulation import Member, Simulation, drive

config = override(
    Config(), ["wireless.num_devices=6", "data.partition=dirichlet", "run.rounds=20", "wireless.deadline_s=1.0"]
)

draw = stream(5, "example")
y = draw.integers(0, 3, size=600)  # three kinds of things,
x = draw.normal(size=(600, 8)) + y[:, np.newaxis]  # told apart by eight measurements
data = from_arrays(x[:500], y[:500], x[500:], y[500:], name="measurements")
held = partition(config.data, data, 6, rng=stream(5, "partition"))
for device, counts in enumerate(label_counts(data, held)):
    print(f"device {device}: {counts.sum():3} samples, of each label {counts}")

module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
run = Member(Simulation(config, dataset=data, held=held, module=module))
accuracies: list[float] = []
drive([run], callback=lambda _, record: accuracies.append(record.test_accuracy or 0.0))
print(
    f"accuracy {accuracies[-1]:.2f} after {run.state.rounds_done} rounds and {run.state.clock_s:.1f} simulated seconds"
)
