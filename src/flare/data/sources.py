"""Data sets by name, and the one function that loads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flare.config import DataConfig
from flare.data import embedded
from flare.data.catalogue import CATALOGUE, FetchedSet
from flare.data.dataset import Dataset, Labels, Samples
from flare.data.fetch import obtain
from flare.data.files import Bytes, DataFile, read_cifar10, read_idx_pair
from flare.data.origins import Progress
from flare.data.partition import partition
from flare.rng import stream
from flare.text import did_you_mean
from flare.types import Indices


@dataclass(frozen=True)
class Request:
    """What a data set may depend on."""

    config: DataConfig
    num_devices: int
    seed: int
    progress: Progress | None


@dataclass(frozen=True)
class Source:
    """A data set that can be asked for by name."""

    name: str
    title: str
    load: Callable[[Request], Dataset]


SOURCES: dict[str, Source] = {}
"""Every data set by its name in `data.name`."""


def load_dataset(config: DataConfig, *, num_devices: int, seed: int, progress: Progress | None = None) -> Dataset:
    """The data set that the configuration names.

    Only "synthetic" depends on the number of devices and the seed: it is drawn, and comes divided among the devices.
    The others are the same for everyone. ValueError for a name that does not exist and for files that are damaged or
    cannot be had.
    """
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; there must be at least one device to learn")
    return get_source(config.name).load(Request(config, num_devices, seed, progress))


def load_divided(
    config: DataConfig, *, num_devices: int, seed: int, progress: Progress | None = None
) -> tuple[Dataset, list[Indices]]:
    """The data set and the training samples of each device, as every run with this seed has them."""
    dataset = load_dataset(config, num_devices=num_devices, seed=seed, progress=progress)
    return dataset, partition(config, dataset, num_devices, rng=stream(seed, "partition"))


def get_source(name: str) -> Source:
    """The data set of that name; ValueError with the nearest name and the whole list where there is none."""
    if name in SOURCES:
        return SOURCES[name]
    raise ValueError(f"there is no data set '{name}'{did_you_mean(name, SOURCES)} Data sets: {', '.join(SOURCES)}")


def _digits(request: Request) -> Dataset:
    return embedded.digits()


def _synthetic(request: Request) -> Dataset:
    alpha, beta = request.config.synthetic_alpha, request.config.synthetic_beta
    return embedded.synthetic(alpha, beta, num_devices=request.num_devices, seed=request.seed)


def _fetched(request: Request) -> Dataset:
    name = request.config.name
    known = CATALOGUE[name]
    content = obtain(name, folder=request.config.folder, progress=request.progress)
    train_x, train_y = _read(known, known.train, content, f"{name} train")
    test_x, test_y = _read(known, known.test, content, f"{name} test")
    return Dataset(name, train_x, train_y, test_x, test_y, num_classes=known.num_classes)


def _read(
    known: FetchedSet, files: tuple[DataFile, ...], content: dict[str, bytes], where: str
) -> tuple[Samples, Labels]:
    if known.layout == "idx":
        images, labels = (content[file.name] for file in files)
        parts = [read_idx_pair(images, labels, where, num_classes=known.num_classes)]
    else:
        parts = [read_cifar10(content[file.name], file.name, num_classes=known.num_classes) for file in files]
    x = np.concatenate([_standardised(pixels, known) for pixels, _ in parts])
    return x, np.concatenate([labels for _, labels in parts])


def _standardised(pixels: Bytes, known: FetchedSet) -> Samples:
    """Pixels scaled to [0, 1], then to zero mean and unit variance of each channel; shape (samples, channels, h, w)."""
    x = pixels.astype(np.float32)
    x /= np.float32(255.0)
    x -= np.array(known.mean, dtype=np.float32)[:, np.newaxis, np.newaxis]
    x /= np.array(known.std, dtype=np.float32)[:, np.newaxis, np.newaxis]
    return x


SOURCES["digits"] = Source("digits", "handwritten digits of 8 x 8 pixels, in scikit-learn", _digits)
SOURCES["synthetic"] = Source("synthetic", "logistic regression, drawn for each device (FedProx)", _synthetic)
SOURCES |= {name: Source(name, known.title, _fetched) for name, known in CATALOGUE.items()}
