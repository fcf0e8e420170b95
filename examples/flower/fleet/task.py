"""The model, the data of a device and the test: replace these by your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn
from torch.nn import functional

from flare.config import Config, DataConfig
from flare.data import partition
from flare.data.dataset import Dataset
from flare.data.sources import load_dataset
from flare.flower import Work, load_arrays
from flare.learning.batches import draw_batches
from flare.learning.models import make_model
from flare.rng import stream
from flare.types import Indices


def named(config: Config) -> Config:
    """The settings with the names by which reports call data and model. Those of this file are the ones that the
    settings choose; with your own, return `override(config, ["data.name=photos", "learning.model=unet"])`."""
    return config


def model(config: Config) -> nn.Module:
    """A module with its first weights."""
    dataset = data(config.data, config.wireless.num_devices, config.seed)
    learning = config.learning
    shape, classes = dataset.sample_shape, dataset.num_classes
    return make_model(learning.model, shape, classes, seed=config.seed, options=learning.model_options)


def batches(config: Config, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of each of a device's steps."""
    rng = stream(work.seed, "batch", work.round, work.device)
    drawn = draw_batches(held(config, work.device), work.steps, config.wireless.batch_size, rng=rng)
    return taken(config, drawn)


def all_batches(config: Config, device: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All samples of a device, once."""
    return taken(config, [held(config, device)])


def test_batches(config: Config, device: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A device's share of the test samples."""
    dataset = data(config.data, config.wireless.num_devices, config.seed)
    every = slice(device % config.wireless.num_devices, None, config.wireless.num_devices)
    yield torch.from_numpy(dataset.test_x[every]), torch.from_numpy(dataset.test_y[every])


def held(config: Config, device: int) -> Indices:
    """The samples that a device holds."""
    dataset = data(config.data, config.wireless.num_devices, config.seed)
    shares = partition(config.data, dataset, config.wireless.num_devices, rng=stream(config.seed, "partition"))
    return shares[device]


def taken(config: Config, drawn: Iterable[Indices]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of samples and labels."""
    dataset = data(config.data, config.wireless.num_devices, config.seed)
    for samples in drawn:
        yield torch.from_numpy(dataset.train_x[samples]), torch.from_numpy(dataset.train_y[samples])


def score(config: Config, arrays: ArrayRecord) -> MetricRecord:
    """How good a global model is."""
    dataset = data(config.data, config.wireless.num_devices, config.seed)
    module = model(config).eval()
    load_arrays(module, arrays)
    y = torch.from_numpy(dataset.test_y)
    with torch.inference_mode():
        logits = module(torch.from_numpy(dataset.test_x))
        accuracy, loss = (logits.argmax(dim=1) == y).float().mean(), functional.cross_entropy(logits, y)
    return MetricRecord({"accuracy": float(accuracy), "loss": float(loss)})


@lru_cache(maxsize=1)
def data(config: DataConfig, num_devices: int, seed: int) -> Dataset:
    """All samples; a real device would have its own only."""
    return load_dataset(config, num_devices=num_devices, seed=seed)
