"""The noise of the receiver: its law, and that nothing but seed, round, vector and place enter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flare.uplink.air import air_key, normal
from flare.uplink.air.noise import _table

KEYS = torch.tensor([air_key(seed, 4) for seed in (0, 1)])


def test_numbers_alone_and_in_company_and_in_portions() -> None:
    both = normal(KEYS, 1001)
    assert both.dtype == torch.float32
    assert torch.equal(normal(KEYS[1:], 1001)[0], both[1])
    assert torch.equal(normal(KEYS, 501, begin=500), both[:, 500:])
    assert torch.equal(normal(KEYS, 7), both[:, :7])
    with pytest.raises(ValueError, match="even"):
        normal(KEYS, 7, begin=3)


def test_seed_round_and_vector_each_give_other_noise() -> None:
    keys = {air_key(0, 0), air_key(1, 0), air_key(0, 1), air_key(0, 0, part=1)}
    assert len(keys) == 4
    assert air_key(5, 6, part=7) == air_key(5, 6, part=7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_same_on_a_gpu() -> None:
    assert torch.equal(normal(KEYS.cuda(), 100_001).cpu(), normal(KEYS, 100_001))


def test_the_law_is_normal() -> None:
    """A million numbers, five deviations of each statistic; Kolmogorov's distance 1.95 / sqrt(n) has p = 0.001."""
    from scipy import stats  # here, because it takes its time to import

    drawn = normal(KEYS, 500_000).double().numpy().ravel()
    n = drawn.size
    assert abs(drawn.mean()) < 5 / math.sqrt(n)
    assert drawn.var() == pytest.approx(1.0, abs=5 * math.sqrt(2 / n))
    assert np.mean(drawn**3) == pytest.approx(0.0, abs=5 * math.sqrt(15 / n))
    assert np.mean(drawn**4) == pytest.approx(3.0, abs=5 * math.sqrt(96 / n))
    assert stats.kstest(drawn, "norm").statistic < 1.95 / math.sqrt(n)
    assert np.mean(np.abs(drawn) > 4.0) == pytest.approx(2 * stats.norm.sf(4.0), rel=0.7)
    for lag in (1, 2, 3):
        assert abs(np.mean(drawn[:-lag] * drawn[lag:])) < 5 / math.sqrt(n)


def test_moments_of_the_law_by_its_table() -> None:
    """Sums of two entries of the table, drawn independently: what the docstring says of them."""
    table = _table(torch.device("cpu")).double().numpy()
    second, fourth = np.mean(table**2), np.mean(table**4)
    assert table.sum() == 0.0
    assert 2 * second == pytest.approx(1.0, abs=1e-8)
    assert 2 * fourth + 6 * second**2 == pytest.approx(3.0 - 8.4e-5, abs=1e-6)
    assert 6.20 < 2 * table.max() < 6.21
