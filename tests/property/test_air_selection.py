"""Who is to send over the air: the best set against every set there is."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flare.uplink.air import air_objective, best_senders

LEVELS = st.sampled_from([1e-3, 0.1, 0.5, 1.0, 2.0, 10.0, 1e3])  # ties are the hard case
CASES = st.integers(1, 7).flatmap(
    lambda k: st.tuples(
        st.lists(LEVELS, min_size=k, max_size=k),
        st.lists(st.one_of(LEVELS, st.floats(0.05, 1.0)), min_size=k, max_size=k),
        st.lists(st.booleans(), min_size=k, max_size=k),
    )
)


def plain_cost(devices: tuple[int, ...], snr: np.ndarray, cost: np.ndarray, gamma: float, noise: float) -> float:
    m = len(devices)
    weakest = min(snr[i] for i in devices)
    return (1 / m + gamma / m**2) * sum(cost[i] for i in devices) + gamma / m**2 * noise / weakest


@given(CASES, st.sampled_from([0.0, 0.3, 10.0]), st.sampled_from([0.0, 0.01, 1.0, 50.0]), st.integers(1, 8))
def test_no_set_is_better(
    case: tuple[list[float], list[float], list[bool]], gamma: float, noise: float, max_devices: int
) -> None:
    snr, cost, allowed = (np.array(each) for each in case)
    there = np.flatnonzero(allowed)
    sets = [s for m in range(1, min(len(there), max_devices) + 1) for s in combinations(there.tolist(), m)]
    chosen = best_senders(snr, cost, gamma=gamma, noise=noise, allowed=allowed, max_devices=max_devices)
    if not sets:
        assert len(chosen.selected) == 0
        assert chosen.objective == math.inf
        return
    least = min(plain_cost(each, snr, cost, gamma, noise) for each in sets)
    assert tuple(chosen.selected.tolist()) in sets
    assert chosen.objective == pytest.approx(least, rel=1e-12)
    assert plain_cost(tuple(chosen.selected.tolist()), snr, cost, gamma, noise) == pytest.approx(least, rel=1e-12)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.floats(0.0, 20.0), st.floats(0.0, 50.0))
def test_with_equal_costs_a_prefix_by_channel_is_best(snr: list[float], gamma: float, noise: float) -> None:
    quality, cost = np.array(snr), np.full(len(snr), 0.4)
    order = np.argsort(-quality)
    prefixes = [air_objective(order[:m], quality, cost, gamma=gamma, noise=noise) for m in range(1, len(snr) + 1)]
    chosen = best_senders(quality, cost, gamma=gamma, noise=noise)
    assert chosen.objective == pytest.approx(min(prefixes), rel=1e-12)


def test_a_weak_device_is_left_out_where_noise_counts() -> None:
    """Equal costs 1, gamma 10: two devices with q = 1 and a third with q = 0.1. Without noise three are best: 13/3;
    with noise 1, two cost 6 + 2.5 = 8.5 and three 13/3 + 10/9 x 10 = 15.4."""
    quality, cost = np.array([1.0, 0.1, 1.0]), np.ones(3)
    assert best_senders(quality, cost, gamma=10.0, noise=0.0).selected.tolist() == [0, 1, 2]
    chosen = best_senders(quality, cost, gamma=10.0, noise=1.0)
    assert chosen.selected.tolist() == [0, 2]
    assert chosen.objective == pytest.approx(8.5)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="snr of device 1 is -1"):
        best_senders([1.0, -1.0], [1.0, 1.0], gamma=1.0, noise=1.0)
    with pytest.raises(ValueError, match="cost has the shape"):
        best_senders([1.0, 1.0], [1.0], gamma=1.0, noise=1.0)
    with pytest.raises(ValueError, match="max_devices is 0"):
        best_senders([1.0], [1.0], gamma=1.0, noise=1.0, max_devices=0)
    with pytest.raises(ValueError, match="noise is nan"):
        best_senders([1.0], [1.0], gamma=1.0, noise=math.nan)
