"""Every data set by name: shapes, labels, scales, and what the synthetic family is defined to be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flare.config import DataConfig
from flare.data import SOURCES, Dataset, load_dataset, load_divided
from flare.data.catalogue import CATALOGUE
from flare.data.embedded import synthetic
from flare.data.fetch import cache_state
from flare.rng import stream
from tests import made_up_data


def load(name: str, num_devices: int = 8, seed: int = 0, **settings: float) -> Dataset:
    return load_dataset(DataConfig(name=name, **settings), num_devices=num_devices, seed=seed)


def check_form(data: Dataset) -> None:
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert len(x) == len(y) > 0
        assert x.shape[1:] == data.sample_shape
        assert np.isfinite(x).all()
        assert 0 <= y.min() <= y.max() < data.num_classes


def test_digits_are_standardised_and_divided_once_for_all() -> None:
    data, other = load("digits", seed=0), load("digits", num_devices=3, seed=7)
    check_form(data)
    assert data.sample_shape == (1, 8, 8)
    assert (len(data.train_y), len(data.test_y)) == (1437, 360)
    assert np.array_equal(data.train_x, other.train_x)
    assert np.array_equal(data.test_y, other.test_y)
    assert data.train_x.mean() == pytest.approx(0.0, abs=1e-3)
    assert data.train_x.std() == pytest.approx(1.0, abs=1e-3)
    assert set(data.test_y) == set(range(10))


def test_train_and_test_digits_are_all_of_them() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert np.array_equal(np.bincount(data.train_y) + np.bincount(data.test_y), np.bincount(load_digits().target))
    pixels = np.concatenate([data.train_x, data.test_x]).reshape(1797, 64) * 0.3761 + 0.3053
    assert sorted(map(tuple, np.round(pixels * 16))) == sorted(map(tuple, load_digits().data))


def test_synthetic_data_come_divided_and_a_device_keeps_its_own_in_any_company() -> None:
    data, fewer = load("synthetic", 8, seed=3), load("synthetic", 5, seed=3)
    check_form(data)
    assert data.sample_shape == (60,)
    assert data.owner is not None
    assert fewer.owner is not None
    for device in range(5):
        assert np.array_equal(data.train_x[data.owner == device], fewer.train_x[fewer.owner == device])
    assert not np.array_equal(data.train_x[:50], load("synthetic", 8, seed=4).train_x[:50])


def test_synthetic_sizes_are_fifty_and_lognormal() -> None:
    data = synthetic(1.0, 1.0, num_devices=300, seed=1)
    train = np.bincount(data.owner)
    drawn = np.array([int(stream(1, "synthetic", device).lognormal(4.0, 2.0)) for device in range(300)])
    total = drawn + 50  # each device's first draw is its size; a tenth of it is for the test
    assert np.array_equal(train, [size - max(1, round(size * 0.1)) for size in total])
    assert np.log(drawn + 0.5).mean() == pytest.approx(4.0, abs=4 * 2.0 / math.sqrt(300))


def test_synthetic_features_have_variances_that_fall_as_j_to_the_minus_1_2() -> None:
    data = synthetic(0.0, 0.0, num_devices=30, seed=2)
    device = np.bincount(data.owner).argmax()
    x = data.train_x[data.owner == device]
    expected = np.arange(1, 61) ** -1.2
    assert np.allclose(x.var(axis=0) / expected, 1.0, atol=6 * math.sqrt(2 / len(x)))  # six standard errors


def test_synthetic_labels_are_linear_for_one_device_and_differ_between_devices() -> None:
    """A device's labels follow one linear rule, redrawn here by hand; beta moves its samples away from zero."""
    data = synthetic(0.5, 2.0, num_devices=2, seed=9)
    for device in range(2):
        rng = stream(9, "synthetic", device)
        rng.lognormal(4.0, 2.0)
        u, big_b = rng.normal(0.0, 0.5), rng.normal(0.0, 2.0)
        weights, bias, centre = rng.normal(u, 1.0, (60, 10)), rng.normal(u, 1.0, 10), rng.normal(big_b, 1.0, 60)
        x, y = data.train_x[data.owner == device], data.train_y[data.owner == device]
        scores = np.sort(x @ weights + bias, axis=1)
        clear = scores[:, -1] - scores[:, -2] > 1e-4  # float32 samples could turn a tie
        assert clear.mean() > 0.99
        assert np.array_equal(np.argmax(x @ weights + bias, axis=1)[clear], y[clear])
        assert centre.mean() == pytest.approx(big_b, abs=6 / math.sqrt(60))


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_files_become_standardised_images_with_the_channel_first(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = made_up_data.use(monkeypatch, tmp_path)
    made_up_data.write(cache / name, name)
    data = load(name)
    check_form(data)
    assert data.sample_shape == shape
    assert np.bincount(data.train_y).tolist() == [len(data.train_y) // 10] * 10
    known = CATALOGUE[name]
    mean, std = (np.array(values)[:, np.newaxis, np.newaxis] for values in (known.mean, known.std))
    first = data.train_x[0] * std + mean  # back to [0, 1]
    raw = next(iter(made_up_data.FILES[name].values()))
    pixels = np.frombuffer(raw, np.uint8)[16 : 16 + 784] if name == "mnist" else np.frombuffer(raw, np.uint8)[1:3073]
    assert np.allclose(first, pixels.reshape(shape) / 255.0, atol=1e-6)
    if name == "cifar10":
        assert len(data.train_y) == 100  # five batches of twenty
        assert len(data.test_y) == 20


def test_a_file_with_the_right_checksum_is_still_read_strictly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = made_up_data.use(monkeypatch, tmp_path)
    made_up_data.write(cache / "mnist", "mnist")
    content = made_up_data.FILES["mnist"]["train-labels-idx1-ubyte"][:-1]
    known = CATALOGUE["mnist"]
    cut = made_up_data.pinned(known.train[1], content)
    monkeypatch.setitem(CATALOGUE, "mnist", replace(known, train=(known.train[0], cut)))
    (cache / "mnist" / cut.name).write_bytes(content)
    with pytest.raises(ValueError, match="60 values, but 59 follow"):
        load("mnist")


def test_a_wrong_name_is_answered_with_the_nearest_and_the_list() -> None:
    with pytest.raises(ValueError, match="did you mean 'cifar10'") as error:
        load("cifar-10")
    assert all(name in str(error.value) for name in SOURCES)
    with pytest.raises(ValueError, match="num_devices is 0"):
        load("digits", num_devices=0)


def test_a_division_is_that_of_the_seed() -> None:
    config = DataConfig(partition="dirichlet")
    _, parts = load_divided(config, num_devices=6, seed=1)
    _, again = load_divided(config, num_devices=6, seed=1)
    _, other = load_divided(config, num_devices=6, seed=2)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))
    assert any(not np.array_equal(one, two) for one, two in zip(parts, other, strict=True))


REAL = {
    "mnist": ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 10_000),
    "fashion-mnist": ([6000] * 10, 10_000),
    "cifar10": ([5000] * 10, 10_000),
}


@pytest.mark.parametrize("name", list(REAL))
def test_the_real_files_hold_what_their_authors_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the files are cached on this machine; they are not fetched for a test."""
    monkeypatch.setenv("FLARE_OFFLINE", "1")
    monkeypatch.delenv("FLARE_DATA", raising=False)
    if cache_state(name) != "cached":
        pytest.skip(f"{name} is not cached; flare data fetch {name}")
    data = load(name)
    check_form(data)
    labels, tests = REAL[name]
    assert np.bincount(data.train_y).tolist() == labels
    assert len(data.test_y) == tests
    for channel in range(data.sample_shape[0]):
        assert data.train_x[:, channel].mean(dtype=np.float64) == pytest.approx(0.0, abs=1e-3)
        assert data.train_x[:, channel].std(dtype=np.float64) == pytest.approx(1.0, abs=1e-3)
