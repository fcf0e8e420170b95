"""Who holds which training samples. Every sample is held by exactly one device, and every device holds one at least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flare.config import DataConfig
from flare.data.dataset import Dataset, Labels
from flare.types import Indices

Counts = NDArray[np.intp]

_MIN_ALPHA, _MAX_ALPHA = 1e-6, 1e9  # beyond these a Dirichlet draw is one-hot, or even, to the last digit
_MAX_SMALL = np.iinfo(np.uint16).max


def partition(config: DataConfig, dataset: Dataset, num_devices: int, *, rng: np.random.Generator) -> list[Indices]:
    """The training samples of each device, as sorted indices, by the partition that the configuration names.

    ValueError where there are fewer samples (or shards) than devices, or the data do not come divided as asked.
    """
    samples = len(dataset.train_y)
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; there must be at least one device to hold the samples")
    if samples < num_devices:
        raise ValueError(
            f"{num_devices} devices cannot share the {samples} training samples of data set '{dataset.name}': every "
            "device needs at least one; take fewer devices (wireless.num_devices) or a larger data set"
        )
    match config.partition:
        case "iid":
            owner = _even(samples, num_devices, rng)
        case "shards":
            owner = _shards(dataset.train_y, num_devices, config.shards_per_device, rng)
        case "dirichlet":
            owner = _dirichlet(dataset.train_y, num_devices, config.dirichlet_alpha, rng)
        case "quantity":
            owner = _quantity(samples, num_devices, config.quantity_skew, rng)
        case "natural":
            owner = _natural(dataset, num_devices)
        case unknown:
            raise ValueError(
                f"there is no partition '{unknown}'; data.partition must be one of iid, shards, dirichlet, quantity, "
                "natural"
            )
    return _grouped(owner, num_devices)


def label_counts(dataset: Dataset, parts: Sequence[Indices]) -> Counts:
    """How many training samples of each label each device holds, shape (devices, classes)."""
    return np.array([np.bincount(dataset.train_y[part], minlength=dataset.num_classes) for part in parts])


def _even(samples: int, num_devices: int, rng: np.random.Generator) -> Indices:
    """At random, equally many each (or one more): the samples are i.i.d. over the devices."""
    return rng.permutation(np.arange(samples) % num_devices)


def _shards(labels: Labels, num_devices: int, shards_per_device: int, rng: np.random.Generator) -> Indices:
    """Sorted by label, cut into equal shards, and these dealt at random, the same number to each (section V-A)."""
    num_shards = num_devices * shards_per_device
    if num_shards > len(labels):
        raise ValueError(
            f"{num_devices} devices with {shards_per_device} shards each need {num_shards} shards, but there are only "
            f"{len(labels)} training samples; take fewer devices (wireless.num_devices) or fewer shards "
            "(data.shards_per_device)"
        )
    holder = rng.permutation(num_shards) // shards_per_device  # (shards,)
    owner = np.empty(len(labels), dtype=np.intp)
    for device, shard in zip(holder, np.array_split(_sorting(labels), num_shards), strict=True):
        owner[shard] = device
    return owner


def _dirichlet(labels: Labels, num_devices: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Each label's samples divided by shares from Dirichlet(alpha, ..., alpha) over the devices (Hsu et al., 2019).

    A device left without any takes a random sample from the one that holds most.
    """
    concentration = np.full(num_devices, np.clip(alpha, _MIN_ALPHA, _MAX_ALPHA))
    owner = np.empty(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        held = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.floor(np.cumsum(rng.dirichlet(concentration))[:-1] * len(held) + 0.5).astype(np.intp)
        for device, part in enumerate(np.split(held, cuts)):
            owner[part] = device
    sizes = np.bincount(owner, minlength=num_devices)
    for needy in np.flatnonzero(sizes == 0):
        richest = int(np.argmax(sizes))
        owner[rng.choice(np.flatnonzero(owner == richest))] = needy
        sizes[richest] -= 1
        sizes[needy] = 1
    return owner


def _quantity(samples: int, num_devices: int, skew: float, rng: np.random.Generator) -> Indices:
    """Sizes that fall with the rank as rank^-skew, ranks dealt at random; the samples themselves i.i.d."""
    weight = np.arange(1, num_devices + 1, dtype=np.float64) ** -skew
    shared = np.floor(np.cumsum(weight) / weight.sum() * (samples - num_devices) + 0.5).astype(np.intp)
    sizes = 1 + np.diff(shared, prepend=0)
    sizes[0] += samples - sizes.sum()  # what rounding lost
    return rng.permutation(np.repeat(rng.permutation(num_devices), sizes))


def _natural(dataset: Dataset, num_devices: int) -> Indices:
    """As the data come divided."""
    if dataset.owner is None:
        raise ValueError(
            f"data set '{dataset.name}' does not come divided among devices; data.partition must be another than "
            '"natural"'
        )
    holders = np.unique(dataset.owner)
    if not np.array_equal(holders, np.arange(num_devices)):
        raise ValueError(
            f"data set '{dataset.name}' comes divided among {len(holders)} devices, {holders[0]} to {holders[-1]}, but "
            f"there must be {num_devices}, 0 to {num_devices - 1}, each with a sample: number the owners from 0, set "
            "wireless.num_devices to how many there are, or choose another data.partition"
        )
    return dataset.owner


def _grouped(owner: Indices, num_devices: int) -> list[Indices]:
    by_device = _sorting(owner)
    return np.split(by_device, np.cumsum(np.bincount(owner, minlength=num_devices))[:-1])


def _sorting(numbers: Labels | Indices) -> Indices:
    """The places of numbers from the smallest on, equal ones in their order. Numbers of two bytes are sorted by their
    digits, in a fraction of the time."""
    is_whole = len(numbers) > 0 and numbers.dtype.kind in "iub"
    is_small = is_whole and numbers.min() >= 0 and numbers.max() <= _MAX_SMALL
    return np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable").astype(np.intp)
