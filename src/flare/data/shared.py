"""Data that all devices share (Zhao et al., "Federated Learning with Non-IID Data", 2018, section 4).

Paper -> code: G -> `shared`; D -> what the devices hold of their own; beta = |G| / |D| -> `data.shared_fraction`;
alpha -> `data.shared_part`.

The base station has a set G with equally many samples of every label. Each device gets a random part alpha of it, which
it holds beside its own samples. G is taken out of the training samples that the devices would hold without it, never
out of the test samples, so that all that is learned from stays the same; every device keeps one of its own at least.
Who holds what is divided first: the own samples of a device are those of the same run without G, less what G took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flare.config import DataConfig
from flare.data.dataset import Dataset
from flare.rng import stream
from flare.types import Indices

_PIXEL_BITS, _NUMBER_BITS = 8, 32
_IMAGE_DIMENSIONS = 3  # channels, height, width


def share(config: DataConfig, dataset: Dataset, held: Sequence[Indices], *, seed: int) -> tuple[list[Indices], Indices]:
    """What each device holds with its part of G, and G, all ascending; where nothing is shared, `held` as it is and
    an empty G. ValueError where G would have no sample of a label, or more than the devices can do without."""
    if config.shared_fraction == 0.0:
        return list(held), np.zeros(0, dtype=np.intp)
    shared = _taken_out(config.shared_fraction, dataset, held, stream(seed, "shared"))
    size, is_shared = part_size(config, len(shared)), np.zeros(len(dataset.train_y), dtype=bool)
    is_shared[shared] = True
    with_part = []
    for device, samples in enumerate(held):
        own = samples[~is_shared[samples]]
        part = stream(seed, "shared", device).choice(shared, size, replace=False)
        with_part.append(np.sort(np.concatenate([own, part])))
    return with_part, shared


def part_size(config: DataConfig, shared: int) -> int:
    """How many of so many shared samples each device gets: alpha of them, and one at least."""
    return max(1, _rounded(config.shared_part * shared))


def sample_bits(dataset: Dataset) -> int:
    """What it takes to send a sample: 8 bits for each pixel of an image (samples of three dimensions), 32 for each
    number of other samples, and the bits that number the labels."""
    values = math.prod(dataset.sample_shape)
    each = _PIXEL_BITS if len(dataset.sample_shape) == _IMAGE_DIMENSIONS else _NUMBER_BITS
    return each * values + (dataset.num_classes - 1).bit_length()


def _taken_out(fraction: float, dataset: Dataset, held: Sequence[Indices], rng: np.random.Generator) -> Indices:
    """G: of all samples that are held, equally many of each label, but never a device's last."""
    everything = np.unique(np.concatenate(held))
    kept = [int(rng.choice(samples)) for samples in held]
    free = np.setdiff1d(everything, kept)
    labels = np.unique(dataset.train_y[everything])
    by_label = {int(label): free[dataset.train_y[free] == label] for label in labels}
    each = _rounded(fraction / (1.0 + fraction) * len(everything) / len(labels))
    _refuse_size(fraction, each, {label: len(samples) for label, samples in by_label.items()}, len(everything))
    drawn = [rng.choice(samples, each, replace=False) for samples in by_label.values()]
    return np.sort(np.concatenate(drawn)).astype(np.intp)


def _refuse_size(fraction: float, each: int, free: dict[int, int], samples: int) -> None:
    """ValueError where `each` samples of every label are none, or more than there are `free` of one."""
    scarcest = min(free, key=lambda label: free[label])

    def as_fraction(of_each: int) -> float:
        size = of_each * len(free)
        return size / (samples - size) if size < samples else 1.0

    if each < 1:
        raise ValueError(
            f"data.shared_fraction is {fraction:g}, less than one sample of each of the {len(free)} labels; set it to "
            f"{math.ceil(1000.0 * as_fraction(1)) / 1000.0:g} or more, or to 0 to share nothing"
        )
    if each > free[scarcest]:
        most = math.floor(1000.0 * as_fraction(free[scarcest])) / 1000.0
        raise ValueError(
            f"data.shared_fraction is {fraction:g}, which takes {each} samples of each label, but of label {scarcest} "
            f"there are {free[scarcest]} that devices can do without; set it to "
            + (f"{most:g} or less" if most > 0.0 else "0")
        )


def _rounded(number: float) -> int:
    """To the nearest whole number, halves up."""
    return math.floor(number + 0.5)
