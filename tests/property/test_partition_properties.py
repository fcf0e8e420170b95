"""Whatever the partition, every sample is held exactly once and every device holds one at least."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.config import DataConfig
from flare.data import Dataset, label_counts, partition
from flare.data.partition import _sorting
from flare.rng import stream

DRAWN = ("iid", "shards", "dirichlet", "quantity")


def dataset(labels: np.ndarray, num_classes: int, owner: np.ndarray | None = None) -> Dataset:
    x = np.zeros((len(labels), 1), dtype=np.float32)
    return Dataset("made up", x, labels.astype(np.int64), x[:1], labels[:1].astype(np.int64), num_classes, owner)


def divide(config: DataConfig, data: Dataset, num_devices: int, seed: int = 0) -> list[np.ndarray]:
    return partition(config, data, num_devices, rng=stream(seed, "partition"))


@st.composite
def problems(draw: st.DrawFn) -> tuple[DataConfig, Dataset, int, int]:
    """A configuration, labels (uneven, some absent), as many devices as there may be, and a seed."""
    seed = draw(st.integers(0, 2**32))
    num_classes, samples = draw(st.integers(1, 12)), draw(st.integers(1, 400))
    present = draw(st.integers(1, num_classes))
    labels = stream(seed, "labels").integers(0, present, samples)
    config = DataConfig(
        partition=draw(st.sampled_from(DRAWN)),
        shards_per_device=draw(st.integers(1, 4)),
        dirichlet_alpha=draw(st.floats(1e-300, 1e300)),
        quantity_skew=draw(st.one_of(st.floats(0.0, 5.0), st.floats(0.0, 1e300))),
    )
    most = samples // config.shards_per_device if config.partition == "shards" else samples
    if most == 0:
        config, most = DataConfig(), samples
    return config, dataset(labels, num_classes), draw(st.integers(1, most)), seed


@settings(max_examples=300)
@given(problems())
def test_every_sample_is_held_once_and_nobody_is_left_out(problem: tuple[DataConfig, Dataset, int, int]) -> None:
    config, data, num_devices, seed = problem
    parts = divide(config, data, num_devices, seed)
    assert len(parts) == num_devices
    assert all(part.dtype == np.intp and len(part) > 0 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(data.train_y)))
    again = divide(config, data, num_devices, seed)
    assert all(np.array_equal(one, two) for one, two in zip(parts, again, strict=True))
    counts = label_counts(data, parts)
    assert np.array_equal(counts.sum(axis=1), [len(part) for part in parts])
    assert np.array_equal(counts.sum(axis=0), np.bincount(data.train_y, minlength=data.num_classes))


BALANCED = dataset(np.tile(np.arange(10), 400), 10)  # 4000 samples


@settings(max_examples=50)
@given(st.integers(1, 100), st.integers(0, 1000))
def test_iid_sizes_differ_by_one_at_most(num_devices: int, seed: int) -> None:
    sizes = [len(part) for part in divide(DataConfig(), BALANCED, num_devices, seed)]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=50)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 1000))
def test_a_device_with_n_shards_has_few_labels(num_devices: int, shards: int, seed: int) -> None:
    """A shard no longer than a label's run has two labels at most; so n shards have at most 2 n."""
    parts = divide(DataConfig(partition="shards", shards_per_device=shards), BALANCED, num_devices, seed)
    labels = (label_counts(BALANCED, parts) > 0).sum(axis=1)
    if num_devices * shards >= 10:
        assert labels.max() <= 2 * shards
    if num_devices * shards % 10 == 0 and 4000 % (num_devices * shards) == 0:  # then every shard is of one label
        assert labels.max() <= shards


def test_shards_are_dealt_at_random() -> None:
    config = DataConfig(partition="shards")
    one, other = divide(config, BALANCED, 20, seed=1), divide(config, BALANCED, 20, seed=2)
    assert any(not np.array_equal(mine, yours) for mine, yours in zip(one, other, strict=True))


def test_dirichlet_shares_have_the_variance_of_the_law() -> None:
    """A label's share p of a device has mean 1/K and variance (1/K)(1 - 1/K)/(K alpha + 1); over 400 draws."""
    num_devices, alpha = 5, 0.5
    config = DataConfig(partition="dirichlet", dirichlet_alpha=alpha)
    shares = np.concatenate(
        [label_counts(BALANCED, divide(config, BALANCED, num_devices, seed)) / 400 for seed in range(40)], axis=1
    )  # (devices, labels x seeds)
    variance = (1 / num_devices) * (1 - 1 / num_devices) / (num_devices * alpha + 1)
    assert shares.mean(axis=1) == pytest.approx(1 / num_devices, abs=5 * np.sqrt(variance / 400))
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_dirichlet_goes_from_one_holder_of_a_label_to_even() -> None:
    def counts(alpha: float) -> np.ndarray:
        config = DataConfig(partition="dirichlet", dirichlet_alpha=alpha)
        return label_counts(BALANCED, divide(config, BALANCED, 8, seed=3))

    assert (np.sort(counts(1e-300), axis=0)[-1] >= 400 - 8).all()  # all of a label, but what the others had to get
    assert (np.abs(counts(1e300) - 50) <= 1).all()


def test_quantity_sizes_follow_the_power_law() -> None:
    config = DataConfig(partition="quantity", quantity_skew=1.0)
    sizes = np.sort([len(part) for part in divide(config, BALANCED, 10, seed=1)])[::-1]
    harmonic = (1 / np.arange(1, 11)).sum()
    assert np.abs(sizes - (1 + 3990 / np.arange(1, 11) / harmonic)).max() <= 1.0
    even = [len(part) for part in divide(DataConfig(partition="quantity", quantity_skew=0.0), BALANCED, 10)]
    assert max(even) - min(even) <= 1


def test_natural_is_as_the_data_come() -> None:
    owner = stream(0, "owner").permutation(np.repeat(np.arange(4), [1, 5, 10, 4]))
    data = dataset(np.arange(20) % 2, 2, owner)
    parts = divide(DataConfig(partition="natural"), data, 4)
    assert all((owner[part] == device).all() for device, part in enumerate(parts))
    assert [len(part) for part in parts] == [1, 5, 10, 4]
    for wrong in (3, 5):
        with pytest.raises(ValueError, match=f"among 4 devices, 0 to 3, but there must be {wrong}, 0 to {wrong - 1}, "):
            divide(DataConfig(partition="natural"), data, wrong)
    with pytest.raises(ValueError, match="does not come divided"):
        divide(DataConfig(partition="natural"), BALANCED, 4)


@pytest.mark.parametrize("kind", DRAWN)
def test_more_devices_than_samples_is_an_error(kind: str) -> None:
    data = dataset(np.arange(20) % 4, 4)
    with pytest.raises(ValueError, match="21 devices cannot share the 20 training samples"):
        divide(DataConfig(partition=kind, shards_per_device=1), data, 21)
    with pytest.raises(ValueError, match="num_devices is 0"):
        divide(DataConfig(partition=kind), data, 0)
    if kind == "shards":
        with pytest.raises(ValueError, match="11 devices with 2 shards each need 22 shards"):
            divide(DataConfig(partition=kind, shards_per_device=2), data, 11)


@pytest.mark.parametrize("most", [0, 9, 2**16 - 1, 2**16, 2**40])
def test_numbers_are_sorted_as_they_are_whatever_their_size(most: int) -> None:
    numbers = stream(0, "numbers").integers(0, most, size=500, endpoint=True)
    numbers[7] = most
    for each in (numbers, -numbers, numbers[:0]):
        assert _sorting(each).tolist() == sorted(range(len(each)), key=lambda at: int(each[at]))


def test_labels_that_are_no_whole_numbers_are_sorted_as_they_are() -> None:
    assert _sorting(np.array([0.9, 0.1, 0.5, 0.3])).tolist() == [1, 3, 2, 0]
    assert _sorting(np.array(["b", "a"])).tolist() == [1, 0]
