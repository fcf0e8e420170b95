"""Data sets by name, and the one function that loads them.

    @dataset("two-moons")
    def two_moons(*, seed, noise=0.1):
        ...
        return from_arrays(train_x, train_y, test_x, test_y)

The function may ask by name for `folder` (the setting data.folder, "" where there is none), `seed`, `num_devices` and
`progress`. What else it takes are options, each with a default value: `[data.options]` of a configuration sets them.
One that asks for the seed or the number of devices is called for every run, others once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from flare.config import DataConfig, Limits
from flare.config.declared import Interface, Kind
from flare.data import embedded
from flare.data.catalogue import CATALOGUE, FetchedSet
from flare.data.dataset import Dataset, Labels, Samples
from flare.data.fetch import obtain
from flare.data.files import Bytes, DataFile, read_cifar10, read_idx_pair
from flare.data.origins import Progress
from flare.data.own import checked
from flare.data.partition import partition
from flare.data.shared import share
from flare.registry import Registry, first_line
from flare.rng import stream
from flare.types import Indices

DatasetFunction = Callable[..., Dataset]
_AT_ONCE = 100  # samples that are scaled together: they stay in the processor's caches
INTERFACE = Interface("data set", handed=("folder", "seed", "num_devices", "progress"))


@dataclass(frozen=True, eq=False)
class Source(Kind):
    """A data set that can be asked for by name: the function that loads it, what it asks for, and its options."""

    interface: ClassVar = INTERFACE
    load: DatasetFunction
    takes: frozenset[str]

    @property
    def of_run(self) -> bool:
        """Whether every run has data of its own: they depend on its seed or on the number of its devices."""
        return bool(self.takes & {"seed", "num_devices"})


SOURCES: Registry[Source] = Registry("data set", "data sets")
"""Every data set by its name in `data.name`."""


def dataset(name: str) -> Callable[[DatasetFunction], DatasetFunction]:
    """Register the decorated function, which returns a `Dataset`, as the data set `name`."""

    SOURCES.refuse_bare(name, "flare.dataset")

    def register(load: DatasetFunction) -> DatasetFunction:
        _add(name, load, first_line(load))
        return load

    return register


def _add(name: str, load: DatasetFunction, summary: str) -> None:
    code = load.func if isinstance(load, partial) else load
    SOURCES.add(Source(name, summary, INTERFACE.options_of(name, load), load, INTERFACE.takes(load)), code)


def load_dataset(config: DataConfig, *, num_devices: int, seed: int, progress: Progress | None = None) -> Dataset:
    """The data set that the configuration names.

    "synthetic" depends on the number of devices and the seed: it is drawn, and comes divided among the devices. The
    others of flare's own are the same for everyone. ValueError for a name or an option that does not exist and for
    files that are damaged or cannot be had.
    """
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; there must be at least one device to learn")
    source = SOURCES.find(config.name)
    there_is = {"folder": config.folder, "seed": seed, "num_devices": num_devices, "progress": progress}
    asked_for: dict[str, Any] = {name: value for name, value in there_is.items() if name in source.takes}
    loaded = source.load(**asked_for, **source.check_options(config.options))
    if not isinstance(loaded, Dataset):
        raise ValueError(
            f"data set '{source.name}' returned a {type(loaded).__name__}; it must return a flare.data.Dataset: "
            "flare.data.from_arrays makes one, and checks it"
        )
    return loaded if SOURCES.origin(source.name).built_in else _checked(source.name, loaded)


def _checked(name: str, loaded: Dataset) -> Dataset:
    try:
        return checked(loaded)
    except ValueError as error:
        raise ValueError(f"data set '{name}': {error}") from None


def load_divided(
    config: DataConfig, *, num_devices: int, seed: int, progress: Progress | None = None
) -> tuple[Dataset, list[Indices]]:
    """The data set and the training samples of each device, as every run with this seed has them."""
    dataset = load_dataset(config, num_devices=num_devices, seed=seed, progress=progress)
    held = partition(config, dataset, num_devices, rng=stream(seed, "partition"))
    return dataset, share(config, dataset, held, seed=seed)[0]


@dataset("digits")
def _digits() -> Dataset:
    """Handwritten digits of 8 x 8 pixels, in scikit-learn."""
    return embedded.digits()


_SPREAD = Limits(at_least=0.0, at_most=1e6)


@dataset("synthetic")
def _synthetic(
    *,
    num_devices: int,
    seed: int,
    alpha: Annotated[float, "how much the devices' models differ", _SPREAD] = 1.0,
    beta: Annotated[float, "how much the devices' samples differ", _SPREAD] = 1.0,
) -> Dataset:
    """Logistic regression, drawn for each device (FedProx)."""
    return embedded.synthetic(alpha, beta, num_devices=num_devices, seed=seed)


def _fetched(name: str, *, folder: str, progress: Progress | None) -> Dataset:
    known = CATALOGUE[name]
    content = obtain(name, folder=folder, progress=progress)
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
    x = _standardised([pixels for pixels, _ in parts], known)
    return x, np.concatenate([labels for _, labels in parts])


def _standardised(parts: Sequence[Bytes], known: FetchedSet) -> Samples:
    """The pixels of all parts, one after the other, scaled to [0, 1], then to zero mean and unit variance of each
    channel; shape (samples, channels, h, w)."""
    mean, std = (np.array(each, dtype=np.float32)[:, np.newaxis, np.newaxis] for each in (known.mean, known.std))
    x = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=np.float32)
    pieces = (pixels[at : at + _AT_ONCE] for pixels in parts for at in range(0, len(pixels), _AT_ONCE))
    end = 0
    for piece in pieces:
        scaled = x[end : end + len(piece)]
        np.divide(piece, np.float32(255.0), out=scaled)
        scaled -= mean
        scaled /= std
        end += len(piece)
    return x


for _name, _known in CATALOGUE.items():
    _add(_name, partial(_fetched, _name), _known.title)
