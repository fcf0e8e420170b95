"""Data files are read exactly, and refused where a byte is missing, left over or wrong."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from flare.data.files import DataFile, read_cifar10, read_idx, read_idx_pair, spelled, unpacked
from tests.made_up_data import idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([7, 2], dtype=np.uint8)


def test_an_idx_file_is_read_by_its_definition() -> None:
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])  # by hand: 2 x 3 bytes
    assert read_idx(content, "here", axes=2).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_images_get_one_channel_and_labels_become_whole_numbers() -> None:
    x, y = read_idx_pair(idx(IMAGES), idx(LABELS), "here", num_classes=10)
    assert x.shape == (2, 1, 3, 4)
    assert np.array_equal(x[:, 0], IMAGES)
    assert y.dtype == np.int64
    assert y.tolist() == [7, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "begins with nothing"),
        (idx(IMAGES)[:10], "not an idx file"),
        (b"\x00\x00\x0d" + idx(IMAGES)[3:], "not an idx file"),  # floats
        (idx(LABELS), "with 3 axes"),
        (idx(IMAGES)[:-1], "2 x 3 x 4 values, but 23 follow"),
        (idx(IMAGES) + b"\x00", "2 x 3 x 4 values, but 25 follow"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "4294967295 x 4294967295 x 4294967295 values, but 0 follow"),
    ],
)
def test_a_broken_idx_file_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        read_idx(content, "some/file", axes=3)
    assert str(error.value).startswith("some/file: ")


def test_images_and_labels_must_be_equally_many_and_labels_in_range() -> None:
    with pytest.raises(ValueError, match="2 images, but 1 labels"):
        read_idx_pair(idx(IMAGES), idx(LABELS[:1]), "here", num_classes=10)
    with pytest.raises(ValueError, match="sample 0 has the label 7; labels go to 6"):
        read_idx_pair(idx(IMAGES), idx(LABELS), "here", num_classes=7)


def test_a_cifar_batch_is_planes_of_red_green_and_blue_after_the_label() -> None:
    planes = bytes([10]) * 1024 + bytes([20]) * 1024 + bytes(range(32)) * 32
    x, y = read_cifar10(bytes([3]) + planes + bytes([9]) + planes, "batch")
    assert y.tolist() == [3, 9]
    assert (x[:, 0] == 10).all()
    assert (x[:, 1] == 20).all()
    assert x[1, 2, 5].tolist() == list(range(32))  # a row of the image, from left to right


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "0 bytes"), (b"\x01" * 3072, "3072 bytes"), (b"\x0a" * 3073, "10")]
)
def test_a_broken_cifar_batch_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_cifar10(content, "batch")


def test_a_file_is_known_by_size_and_checksum() -> None:
    file = DataFile("name", 5, hashlib.sha256(b"right").hexdigest())
    file.check(b"right", "here")
    with pytest.raises(ValueError, match="here: has 4 bytes in place of 5"):
        file.check(b"righ", "here")
    with pytest.raises(ValueError, match="here: is damaged or another file"):
        file.check(b"wrong", "here")


def test_gzip_is_unpacked_up_to_the_size_a_file_should_have() -> None:
    assert unpacked(gzip.compress(b"x" * 100), 100, "here") == b"x" * 100
    assert unpacked(b"plain", 100, "here") == b"plain"
    with pytest.raises(ValueError, match="more than the 99 bytes"):
        unpacked(gzip.compress(b"x" * 100), 99, "here")
    with pytest.raises(ValueError, match="damaged gzip"):
        unpacked(gzip.compress(b"x" * 100)[:8] + b"\xff" * 20, 100, "here")


def test_file_names_are_known_in_both_spellings() -> None:
    assert set(spelled("t10k-labels-idx1-ubyte")) == {
        "t10k-labels-idx1-ubyte",
        "t10k-labels-idx1-ubyte.gz",
        "t10k-labels.idx1-ubyte",
        "t10k-labels.idx1-ubyte.gz",
    }
    assert list(spelled("test_batch.bin")) == ["test_batch.bin", "test_batch.bin.gz"]
