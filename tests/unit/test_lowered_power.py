"""The energy of sending slowly, against Lambert's function of scipy, numerical slopes and a plain minimiser."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import lambertw

from flare.scheduling.systems.best_group import best_group
from flare.scheduling.systems.lowered_power import Senders, least_energy, log_phi, nats_at, whole_blocks
from flare.wireless.rate import bandwidth_for, upload_s


def senders(seed: int, number: int, *, alike: bool = False) -> Senders:
    """Devices with much and little time, power, channel and cost; `alike` ones differ in channel and cost alone, and
    have power to spare."""
    rng = np.random.default_rng([seed, number])
    send_s = np.full(number, 0.2) if alike else rng.uniform(0.05, 0.4, number)
    bits = np.full(number, 1e6) * (1.0 if alike else rng.uniform(0.5, 1.5, number))
    power_w = np.full(number, 1e9) if alike else rng.uniform(0.05, 0.2, number)
    snr_hz = 10.0 ** (rng.uniform(7.6, 8.6, number) + (10.0 if alike else 0.0))
    least_hz = np.full(number, 1e3) if alike else bandwidth_for(bits, send_s, snr_hz)
    return Senders(bits, send_s, snr_hz, power_w, 10.0 ** rng.uniform(-3.0, 1.0, number), least_hz)


def test_u_is_that_of_lamberts_function() -> None:
    log_y = np.linspace(-2.0, 600.0, 500)
    expected = 1.0 + lambertw((np.exp(log_y) - 1.0) / math.e).real
    np.testing.assert_allclose(nats_at(log_y), expected, rtol=1e-13)
    np.testing.assert_allclose(nats_at(log_y, guess=np.full(500, 1e-3)), expected, rtol=1e-13)
    small = np.array([1e-3, 1e-8, 1e-50])  # phi(u) = u^2 / 2 (1 + 2 u / 3 + ...), where W0 has no digits left
    np.testing.assert_allclose(nats_at(np.log(small**2 / 2.0 * (1.0 + 2.0 * small / 3.0))), small, rtol=1e-6)
    np.testing.assert_allclose(log_phi(nats_at(log_y)), log_y, rtol=1e-13, atol=1e-13)


def test_the_power_is_what_the_time_takes() -> None:
    devices = senders(0, 6)
    band_hz = 2.0 * devices.least_hz
    share = devices.power_share(band_hz)
    assert (share < 1.0).all()
    np.testing.assert_allclose(
        upload_s(devices.payload_bits, band_hz, devices.snr_hz * share), devices.send_s, rtol=1e-12
    )
    np.testing.assert_allclose(devices.power_share(devices.least_hz), 1.0, rtol=1e-9)
    step_hz = 1e-4 * band_hz
    saved = devices.cost * (devices.energy_j(band_hz - step_hz) - devices.energy_j(band_hz + step_hz)) / (2.0 * step_hz)
    np.testing.assert_allclose(np.exp(devices.log_slope(band_hz)), saved, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_division_takes_the_least_energy(seed: int) -> None:
    devices, total_hz = senders(seed, 5), 6e7
    found = least_energy(devices, total_hz)
    np.testing.assert_allclose(math.fsum(found), total_hz, rtol=1e-12)
    assert (found >= devices.least_hz * (1.0 - 1e-12)).all()

    def cost(shares: np.ndarray) -> float:
        return float((devices.cost * devices.energy_j(shares * total_hz)).sum())

    start = devices.least_hz / total_hz
    start += (1.0 - start.sum()) / 5.0
    slow = minimize(
        cost,
        start,
        method="SLSQP",
        bounds=[(least / total_hz, 1.0) for least in devices.least_hz],
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1.0},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert cost(found / total_hz) <= slow.fun * (1.0 + 1e-9)


def test_whole_blocks_are_the_best_of_all_divisions() -> None:
    devices = senders(1, 3)
    block_hz = float(devices.least_hz.sum() / 4.0)
    devices = Senders(*list(vars(devices).values())[:5], np.ceil(devices.least_hz / block_hz) * block_hz)
    least, total = np.rint(devices.least_hz / block_hz).astype(int), 12
    found = whole_blocks(devices, least_energy(devices, total * block_hz), block_hz, total)
    every = [
        (first, second, total - first - second)
        for first, second in itertools.product(range(least[0], total), range(least[1], total))
        if total - first - second >= least[2]
    ]
    costs = [(devices.cost * devices.energy_j(np.array(each) * block_hz)).sum() for each in every]
    assert tuple(np.rint(found / block_hz).astype(int)) == every[int(np.argmin(costs))]


def worth_of(devices: Senders, worth: float, members: tuple[int, ...], total_hz: float) -> float:
    group = devices.of(np.array(members))
    if group.least_hz.sum() > total_hz:
        return -math.inf
    return len(members) * worth - float((group.cost * group.energy_j(least_energy(group, total_hz))).sum())


def brute_force(devices: Senders, worth: float, total_hz: float, most: int, *, first_is_forced: bool) -> float:
    """What the best of all sets is worth; the empty one is a set where nobody is forced."""
    number = devices.num_devices
    sets = (set_ for size in range(1, most + 1) for set_ in itertools.combinations(range(number), size))
    values = [worth_of(devices, worth, each, total_hz) for each in sets if not first_is_forced or 0 in each]
    return max(values if first_is_forced else [*values, 0.0])


@pytest.mark.parametrize("seed", range(12))
def test_the_best_group_is_that_of_brute_force(seed: int) -> None:
    total_hz, worth = 2e7, 10.0 ** np.random.default_rng(seed).uniform(-3.0, -1.0)
    devices = senders(seed, 7)
    devices = devices.of(np.flatnonzero(devices.least_hz <= total_hz))
    number, most = devices.num_devices, 3 if seed % 3 == 0 else 7
    forced = np.zeros(number, dtype=bool)
    forced[0] = seed % 4 == 0
    best = brute_force(devices, worth, total_hz, most, first_is_forced=bool(forced[0]))
    found = best_group(devices, np.full(number, worth), total_hz, forced=forced, max_devices=most)
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.bound >= best - 1e-9 * abs(best)
    assert not forced[0] or 0 in found.members


def test_a_search_that_ends_early_bounds_what_it_may_have_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, total_hz, worth, nobody = senders(9, 5), 5e6, 0.01, np.zeros(5, dtype=bool)
    best = brute_force(devices, worth, total_hz, 5, first_is_forced=False)
    whole = best_group(devices, np.full(5, worth), total_hz, forced=nobody, max_devices=5)
    assert whole.value == whole.bound == pytest.approx(best, rel=1e-9)
    monkeypatch.setattr("flare.scheduling.systems.best_group.MAX_TRIED", 1)
    short = best_group(devices, np.full(5, worth), total_hz, forced=nobody, max_devices=5)
    assert short.value < 0.99 * best < best < short.bound


def test_where_devices_differ_in_cost_and_channel_alone_it_is_the_first_few_of_ocean_p() -> None:
    for seed in range(5):
        devices, total_hz, worth = senders(seed, 30, alike=True), 2e7, 3e-3
        order = np.argsort(devices.cost / devices.snr_hz)
        ocean_p = max(worth_of(devices, worth, tuple(order[:size].tolist()), total_hz) for size in range(1, 31))
        nobody_forced = np.zeros(30, dtype=bool)
        found = best_group(devices, np.full(30, worth), total_hz, forced=nobody_forced, max_devices=30)
        assert found.value == pytest.approx(ocean_p, rel=1e-9)
        assert found.bound == found.value  # proven
        assert 1 < found.members.size < 30
        assert set(found.members.tolist()) == set(order[: found.members.size].tolist())
