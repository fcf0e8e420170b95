from __future__ import annotations

import numpy as np
import pytest

from flare.scheduling import even_split, optimal_split
from tests.cells import paper_cell


def split_of(devices: list[int]) -> tuple[np.ndarray, np.ndarray, float, float]:
    cell = paper_cell(0)
    return cell.compute_s[devices], cell.snr_hz[devices], cell.payload_bits[devices], cell.total_bandwidth_hz


def test_one_device_gets_the_whole_band() -> None:
    for split in (optimal_split, even_split):
        allocation = split(*split_of([3]))
        np.testing.assert_allclose(allocation.bandwidth_hz, [10e6], rtol=1e-15)
        assert allocation.latency_s == pytest.approx(float(paper_cell(0).min_latency(np.array([3]))), rel=1e-15)


def test_identical_devices_get_equal_shares() -> None:
    optimal, even = optimal_split(*split_of([5, 5, 5, 5])), even_split(*split_of([5, 5, 5, 5]))
    np.testing.assert_allclose(optimal.bandwidth_hz, 2.5e6, rtol=1e-12)
    assert optimal.latency_s == pytest.approx(even.latency_s, rel=1e-14)


def test_even_split_reports_its_spread() -> None:
    compute_s, snr_hz, payload_bits, band_hz = split_of([0, 1, 2])
    allocation = even_split(compute_s, snr_hz, payload_bits, band_hz)
    finish = compute_s + payload_bits / (band_hz / 3 * np.log2(1 + snr_hz / (band_hz / 3)))
    np.testing.assert_allclose(allocation.bandwidth_hz, band_hz / 3, rtol=1e-15)
    assert allocation.latency_s == pytest.approx(finish.max(), rel=1e-13)
    assert allocation.finish_spread == pytest.approx((finish.max() - finish.min()) / finish.max(), rel=1e-11)
    assert allocation.finish_spread > 1e-3


def test_optimal_split_gives_more_to_whoever_has_less_time() -> None:
    compute_s, snr_hz = np.array([0.0, 0.1, 0.2]), np.full(3, 1e10)
    bandwidth = optimal_split(compute_s, snr_hz, 1e7, 1e7).bandwidth_hz
    assert (np.diff(bandwidth) > 0.0).all()


def test_a_long_computing_time_leaves_the_certificate_intact() -> None:
    # A step of t by one ulp at 1e4 s is a millionth of the upload: the rest of the band is dealt out by the slopes.
    allocation = optimal_split(np.array([1e4, 1e4, 0.0]), np.array([1e12, 1e9, 1e10]), 1e2, 1e7)
    assert allocation.band_residual <= 1e-9
    assert allocation.finish_spread <= 1e-9
    assert (allocation.bandwidth_hz > 0.0).all()


def test_many_devices_share_the_band() -> None:
    rng = np.random.default_rng(0)
    allocation = optimal_split(rng.uniform(0, 0.3, 5000), 10.0 ** rng.uniform(7, 12, 5000), 1e6, 1e9)
    assert allocation.band_residual <= 1e-9
    assert allocation.finish_spread <= 1e-9


def test_channels_weaker_than_rounding_still_get_a_number() -> None:
    # SNR 1e-19 on the band: log(1 + SNR) is SNR to the last bit, and every bandwidth of the order of the band will do.
    allocation = optimal_split(np.zeros(2), np.full(2, 1e-12), 1e7, 1e7)
    assert allocation.latency_s == pytest.approx(1e7 * np.log(2.0) / 1e-12, rel=1e-9)
    np.testing.assert_allclose(allocation.bandwidth_hz, 5e6, rtol=1e-9)


def test_the_certificate_holds_where_a_need_jumps_between_two_neighbouring_times() -> None:
    # Uploads of 8 ms after 2208 s of computing: the times a double can tell apart there lie 4.5e-13 s from each other,
    # and between two of them the need of the first device falls from infinite to 1e8 Hz, of a band of 6e14 Hz.
    for compute_s in (np.array([2207.975, 0.0]), np.array([2207.975, 2207.975]), np.array([0.0, 2207.975])):
        split = optimal_split(compute_s, np.array([0.0087868653, 0.0079]), 1.0107894e-4, 6.1177539e14)
        finish = compute_s + 1.0107894e-4 / (
            split.bandwidth_hz * np.log1p(np.array([0.0087868653, 0.0079]) / split.bandwidth_hz) / np.log(2.0)
        )
        assert (split.bandwidth_hz > 0.0).all()
        assert split.band_residual <= 1e-9
        assert split.finish_spread <= 1e-9
        assert split.finish_spread == pytest.approx((finish.max() - finish.min()) / finish.max(), abs=1e-15)
        assert split.latency_s == pytest.approx(finish.max(), rel=1e-9)
