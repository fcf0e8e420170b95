"""Data of the user's own: a pair of arrays, or a torch Dataset, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from flare.data.dataset import Dataset, Labels, Samples

MAX_CLASSES = 1_000_000

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset


def from_arrays(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    num_classes: int | None = None,
    owner: ArrayLike | None = None,
    name: str = "own",
) -> Dataset:
    """A data set from arrays.

    Parameters
    ----------
    train_x, test_x : samples, shape (samples, ...): (features,) for tables, (channels, height, width) for images. They
        become float32; their values stay as they are, so scale pixels before.
    train_y, test_y : labels, whole numbers from 0, shape (samples,).
    num_classes : how many labels there are; None takes the greatest label and one.
    owner : the device that each training sample belongs to, from 0, for the partition "natural".

    Raises ValueError that names the array, the first sample at fault and what would be right.
    """
    x = [_samples(train_x, "train_x"), _samples(test_x, "test_x")]
    y = [_labels(train_y, "train_y"), _labels(test_y, "test_y")]
    if x[0].shape[1:] != x[1].shape[1:]:
        raise ValueError(f"a sample of train_x has shape {x[0].shape[1:]}, of test_x {x[1].shape[1:]}; make them alike")
    _check_num_classes(num_classes)
    lowest = int(min(y[0].min(), y[1].min()))
    if num_classes is None and lowest > 0:
        raise ValueError(
            f"the labels begin at {lowest}; they are counted from 0: subtract {lowest}, or give num_classes where the "
            "labels below are only missing"
        )
    classes = int(max(y[0].max(), y[1].max())) + 1 if num_classes is None else num_classes
    for part, samples, labels in zip(("train", "test"), x, y, strict=True):
        if len(samples) != len(labels):
            raise ValueError(f"{part}_x has {len(samples)} samples, {part}_y {len(labels)} labels; give one for each")
        _check_range(labels, f"{part}_y", classes)
    if classes > MAX_CLASSES:
        raise ValueError(f"the greatest label is {classes - 1}; there can be at most {MAX_CLASSES} classes, from 0 on")
    if classes < 2:
        raise ValueError(f"there is {classes} class; a classification problem has at least 2 (labels 0 and 1)")
    holders = None if owner is None else _owners(owner, len(y[0]))
    return Dataset(name, x[0], y[0], x[1], y[1], num_classes=classes, owner=holders)


def checked(dataset: Dataset) -> Dataset:
    """A data set that somebody built by hand; ValueError where `from_arrays` would not have made it."""
    parts = (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
    return from_arrays(*parts, num_classes=dataset.num_classes, owner=dataset.owner, name=dataset.name)


def _check_num_classes(given: Any) -> None:
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or not 2 <= given <= MAX_CLASSES:
        raise ValueError(f"num_classes is {given!r:.80}; it must be a whole number from 2 to {MAX_CLASSES}")


def from_torch(
    train: TorchDataset[Any], test: TorchDataset[Any], *, num_classes: int | None = None, name: str = "own"
) -> Dataset:
    """A data set from two torch Datasets of (sample, label) pairs; each is read once, so random transforms freeze."""
    (train_x, train_y), (test_x, test_y) = _pairs(train, "train"), _pairs(test, "test")
    return from_arrays(train_x, train_y, test_x, test_y, num_classes=num_classes, name=name)


def _pairs(given: Any, part: str) -> tuple[ArrayLike, ArrayLike]:
    """All samples and all labels of a torch Dataset."""
    tensors = getattr(given, "tensors", None)  # a TensorDataset has them stacked already
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return _array(tensors[0], f"the {part} samples"), _array(tensors[1], f"the {part} labels")
    items = given if hasattr(given, "__iter__") else (given[index] for index in range(len(given)))
    samples, labels = [], []
    for index, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"item {index} of the {part} data is no pair (sample, label); give a Dataset of such pairs"
            )
        samples.append(_array(item[0], f"sample {index} of the {part} data"))
        labels.append(_array(item[1], f"label {index} of the {part} data"))
        if samples[index].shape != samples[0].shape:
            raise ValueError(
                f"sample {index} of the {part} data has shape {samples[index].shape}, sample 0 {samples[0].shape}; "
                "bring all to one shape"
            )
    if not samples:
        raise ValueError(f"the {part} data are empty; give at least one sample")
    return np.stack(samples), np.array(labels)


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    import torch  # here, because it takes its time to import

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return np.asarray(value.float() if value.is_floating_point() else value)
    array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise ValueError(f"{where} is a {type(value).__name__}, not a tensor of numbers; transform it into one")
    return array


def _samples(given: ArrayLike, where: str) -> Samples:
    array = _numbers(given, where, "buif")
    if array.ndim < 2 or array.size == 0:
        raise ValueError(
            f"{where} has shape {array.shape}; it must be (samples, ...) with at least one sample and value"
        )
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
    if bad.size:
        raise ValueError(
            f"{where}: sample {bad[0]} has a value that is not finite in float32 ({bad.size} samples do); clean or "
            "leave them out"
        )
    return x


def _labels(given: ArrayLike, where: str) -> Labels:
    array = _numbers(given, where, "bui")
    if array.ndim != 1 or array.size == 0:
        hint = "; of one-hot rows take argmax(axis=1)" if array.ndim == 2 else ""
        raise ValueError(f"{where} has shape {array.shape}; it must be (samples,) with at least one label{hint}")
    return array.astype(np.int64)


def _owners(given: ArrayLike, samples: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    array = _numbers(given, "owner", "ui")
    if array.shape != (samples,) or array.min() < 0:
        raise ValueError(f"owner has shape {array.shape}; it must name a device from 0 for each of {samples} samples")
    return array.astype(np.intp)


def _numbers(given: ArrayLike, where: str, kinds: str) -> np.ndarray[Any, Any]:
    if isinstance(given, np.ma.MaskedArray):
        raise ValueError(f"{where} is a masked array; fill what is masked (.filled(0)), or leave those samples out")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{where} is no array: {error}; bring its rows to one shape") from None
    if array.dtype.kind not in kinds:
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise ValueError(f"{where} holds {array.dtype.name}; it must hold {wanted}")
    return array


def _check_range(labels: Labels, where: str, num_classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        raise ValueError(
            f"{where}: sample {wrong[0]} has the label {labels[wrong[0]]}; labels must go from 0 to {num_classes - 1}"
        )
