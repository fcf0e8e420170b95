"""What the testbed learns: handwritten digits, with a network as large as the update is to be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from flare.config import Config
from flare.data import partition
from flare.data.dataset import Dataset
from flare.data.sources import load_dataset
from flare.learning.batches import draw_batches
from flare.learning.models import make_model
from flare.rng import stream

_INPUTS, _CLASSES = 64, 10


def hidden_units(update_bits: float) -> int:
    """The width of the hidden layer with which an update of float32 weights has about so many bits.

    The network has (64 + 1) h + (h + 1) 10 weights.
    """
    return max(1, round((update_bits / 32.0 - _CLASSES) / (_INPUTS + 1 + _CLASSES)))


def model_of(config: Config) -> nn.Module:
    """The network with its first weights."""
    data, learning = _data(config), config.learning
    options = learning.model_options
    return make_model(learning.model, data.sample_shape, data.num_classes, seed=config.seed, options=options)


def batches(config: Config, index: int, device: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of each of a device's steps in a round: those of the simulator."""
    data, devices = _data(config), config.wireless.num_devices
    held = partition(config.data, data, devices, rng=stream(config.seed, "partition"))[device]
    drawn = draw_batches(held, steps, config.wireless.batch_size, rng=stream(config.seed, "batch", index, device))
    for samples in drawn:
        yield torch.from_numpy(data.train_x[samples]), torch.from_numpy(data.train_y[samples])


@lru_cache(maxsize=1)
def _data(config: Config) -> Dataset:
    return load_dataset(config.data, num_devices=config.wireless.num_devices, seed=config.seed)
