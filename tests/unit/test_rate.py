from __future__ import annotations

import math

import numpy as np
import pytest

from flare.wireless.rate import bandwidth_and_slope, bandwidth_for, rate_bps, snr_hz, upload_energy_j, upload_s


def test_rate_on_the_bandwidth_of_unit_snr_is_one_bit_a_hertz() -> None:
    assert float(rate_bps(np.array(1e6), np.array(1e6))) == pytest.approx(1e6, rel=1e-15)


def test_rate_on_zero_bandwidth_is_zero() -> None:
    assert rate_bps(np.array([0.0, 1e6]), np.array([1e9, 3e6])).tolist() == [0.0, pytest.approx(2e6, rel=1e-15)]


def test_rate_on_endless_bandwidth_tends_to_snr_over_ln2() -> None:
    assert float(rate_bps(np.array(1e18), np.array(1e3))) == pytest.approx(1e3 / math.log(2.0), rel=1e-14)


def test_upload_takes_payload_over_rate() -> None:
    assert float(upload_s(6e6, np.array(1e6), np.array(7e6))) == pytest.approx(2.0, rel=1e-15)  # log2(8) = 3


def test_upload_on_zero_bandwidth_never_ends() -> None:
    assert float(upload_s(1.0, np.array(0.0), np.array(1.0))) == math.inf


def test_snr_is_power_times_gain_over_noise() -> None:
    assert float(snr_hz(np.array(0.1), np.array(1e-8), 4e-21)) == pytest.approx(2.5e11, rel=1e-15)


def test_energy_of_an_upload_is_power_times_time() -> None:
    assert float(upload_energy_j(np.array(0.1), np.array(3.0))) == pytest.approx(0.3, rel=1e-15)


@pytest.mark.parametrize("bits_a_hertz", [1e-3, 0.5, 1.0, 2.0, 3.0, 10.0, 30.0])
def test_bandwidth_is_exact_where_the_rate_is_known(bits_a_hertz: float) -> None:
    # On b = 1 kHz with SNR 2^k - 1, k kbit take one second.
    needed = bandwidth_for(1e3 * bits_a_hertz, np.array(1.0), np.array(1e3 * math.expm1(bits_a_hertz * math.log(2.0))))
    v = bits_a_hertz * math.log(2.0) / math.expm1(bits_a_hertz * math.log(2.0))
    assert float(needed) == pytest.approx(1e3, rel=1e-15 / (1.0 - v) + 1e-14)


def test_bandwidth_is_computed_for_each_device_alike() -> None:
    slack_s, channel = np.geomspace(0.01, 10.0, 50), np.geomspace(1e12, 1e5, 50)
    together = bandwidth_for(1e6, slack_s, channel)
    assert together.shape == (50,)
    for one, slack, snr in zip(together, slack_s, channel, strict=True):
        assert float(bandwidth_for(1e6, np.array(slack), np.array(snr))) == pytest.approx(one, rel=1e-14)


def test_bandwidth_and_slope_are_infinite_where_the_deadline_is_out_of_reach() -> None:
    slack_s = np.array([-1.0, 0.0, 1e-3, 1.0])
    bandwidth, slope = bandwidth_and_slope(1e6, slack_s, np.full(4, 1e7))  # least slack: ln2 / 10 s
    assert np.isinf(bandwidth).tolist() == [True, True, True, False]
    assert (slope == -np.inf).tolist() == [True, True, True, False]
