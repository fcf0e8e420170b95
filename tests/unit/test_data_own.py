"""Arrays and torch Datasets of the user's become data sets, or are refused with the sample at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from flare.config import DataConfig
from flare.data import from_arrays, from_torch, partition
from flare.rng import stream

X, Y = np.arange(24.0).reshape(6, 4), np.array([0, 1, 2, 0, 1, 2])


class Pairs(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Flow(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.from_numpy(row), int(label)) for row, label in zip(X, Y, strict=True))


def test_arrays_become_a_data_set() -> None:
    data = from_arrays(X, Y, X[:2].tolist(), Y[:2].astype(np.uint8), name="mine")
    assert (data.name, data.num_classes, data.sample_shape, data.owner) == ("mine", 3, (4,), None)
    assert data.train_x.dtype == data.test_x.dtype == np.float32
    assert data.train_y.dtype == data.test_y.dtype == np.int64
    assert np.array_equal(data.train_x, X)
    assert np.array_equal(data.test_y, [0, 1])


def test_images_of_bytes_keep_their_shape_and_values() -> None:
    images = np.full((2, 3, 5, 5), 255, dtype=np.uint8)
    data = from_arrays(images, [0, 1], images, [1, 0], num_classes=7)
    assert data.sample_shape == (3, 5, 5)
    assert (data.train_x == 255.0).all()
    assert data.num_classes == 7


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train_x": X[:, 0]}, r"train_x has shape \(6,\)"),
        ({"train_x": X[:0]}, "at least one sample"),
        ({"test_x": X[:, :3]}, r"shape \(4,\), of test_x \(3,\)"),
        ({"train_x": X[:5]}, "train_x has 5 samples, train_y 6 labels"),
        ({"test_y": Y[:5]}, "test_x has 6 samples, test_y 5 labels"),
        ({"train_x": np.where(X == 9.0, np.nan, X)}, "train_x: sample 2 has a value that is not finite"),
        ({"test_x": np.where(X == 9.0, 1e39, X)}, "test_x: sample 2 has a value that is not finite in float32"),
        ({"train_x": X.astype(str)}, "train_x holds str"),
        ({"train_x": X + 1j}, "train_x holds complex128"),
        ({"train_x": [[1.0, 2.0], [3.0]]}, "train_x is no array"),
        ({"train_y": Y.astype(float)}, "train_y holds float64; it must hold whole numbers"),
        ({"train_y": np.eye(3)[Y].astype(int)}, "argmax"),
        ({"train_y": Y - 1}, "train_y: sample 0 has the label -1; labels must go from 0"),
        ({"num_classes": 2}, "train_y: sample 2 has the label 2; labels must go from 0 to 1"),
        ({"test_y": Y + 3, "num_classes": 3}, "test_y: sample 0 has the label 3"),
        ({"train_y": Y * 0, "test_y": Y * 0}, "at least 2"),
        ({"owner": [0, 1]}, r"owner has shape \(2,\)"),
        ({"owner": [0, 1, 2, 0, 1, -1]}, "a device from 0"),
        ({"owner": [0.5] * 6}, "owner holds float64"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    arguments = {"train_x": X, "train_y": Y, "test_x": X, "test_y": Y} | change
    with pytest.raises(ValueError, match=says):
        from_arrays(**arguments)


def test_an_owner_is_the_natural_partition() -> None:
    data = from_arrays(X, Y, X, Y, owner=[1, 0, 1, 2, 2, 2])
    parts = partition(DataConfig(partition="natural"), data, 3, rng=stream(0, "partition"))
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(torch.from_numpy(X).double().requires_grad_(), torch.from_numpy(Y)),
        Pairs([(row, label) for row, label in zip(X, Y, strict=True)]),
        Pairs([(torch.from_numpy(row).bfloat16(), torch.tensor(label)) for row, label in zip(X, Y, strict=True)]),
        Flow(),
    ],
    ids=["tensors", "arrays", "bfloat16", "iterable"],
)
def test_torch_datasets_of_every_kind_give_the_same(given: Any) -> None:
    data = from_torch(given, given)
    assert np.array_equal(data.train_x, X)
    assert np.array_equal(data.test_y, Y)
    assert data.num_classes == 3


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "the train data are empty"),
        ([torch.zeros(3)], "item 0 of the train data is no pair"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 1)], r"sample 1 of the train data has shape \(4,\), sample 0 \(3,\)"),
        ([(object(), 0)], "sample 0 of the train data is a object"),
        ([(torch.zeros(3), "cat")], "label 0 of the train data is a str"),
        ([(torch.zeros(3), 0.5)], "train_y holds float64"),
    ],
)
def test_items_that_are_no_samples_are_refused(items: list[Any], says: str) -> None:
    good = TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=says):
        from_torch(Pairs(items), good)


def test_labels_that_begin_at_1_are_refused_with_the_remedy() -> None:
    x, y = np.zeros((6, 2)), np.array([1, 2, 3, 1, 2, 3])
    with pytest.raises(ValueError, match="the labels begin at 1; they are counted from 0: subtract 1"):
        from_arrays(x, y, x, y)
    assert from_arrays(x, y, x, y, num_classes=4).num_classes == 4
    assert from_arrays(x, y - 1, x, y - 1).num_classes == 3


@pytest.mark.parametrize("given", [3.5, True, 1, 10**9, "3"])
def test_a_number_of_classes_that_cannot_be_is_refused(given: object) -> None:
    x, y = np.zeros((6, 2)), np.arange(6) % 3
    with pytest.raises(ValueError, match=r"num_classes is .*; it must be a whole number from 2 to 1000000"):
        from_arrays(x, y, x, y, num_classes=given)  # type: ignore[arg-type]


def test_absurd_labels_and_masked_arrays_are_refused() -> None:
    x, y = np.zeros((6, 2)), np.arange(6) % 3
    with pytest.raises(ValueError, match="the greatest label is 4611686018427387906; there can be at most 1000000"):
        from_arrays(x, np.append(y[:-1], 2**62 + 2), x, y)
    with pytest.raises(ValueError, match="train_x is a masked array; fill what is masked"):
        from_arrays(np.ma.masked_all((6, 2)), y, x, y)
