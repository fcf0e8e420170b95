"""Theorem 3 and P3 over random devices: digits, derivative, certificate, monotonicity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flare.scheduling.bandwidth import even_split, optimal_split
from flare.scheduling.problem import RoundProblem
from flare.wireless.rate import bandwidth_and_slope, bandwidth_for, rate_bps, upload_s
from tests.cells import changed, random_rounds, uploads
from tests.oracles import bandwidth_50_digits, min_latency_by_bisection, slope_50_digits

Upload = tuple[float, float, float]


def relative_error(value: float, exact: object) -> float:
    return float(abs((value - exact) / exact))  # type: ignore[operator]


@settings(max_examples=250)
@given(uploads())
def test_bandwidth_has_the_digits_that_the_condition_allows(upload: Upload) -> None:
    payload_bits, slack_s, snr_hz = upload
    exact, v = bandwidth_50_digits(payload_bits, slack_s, snr_hz)
    bandwidth = float(bandwidth_for(payload_bits, np.array(slack_s), np.array(snr_hz)))
    assert relative_error(bandwidth, exact) <= 1e-13 / float(1 - v)


@pytest.mark.parametrize("ends", [(-9.0, -8.9), (-6.0, -5.9), (-0.1, 0.1), (11.9, 12.0)])
@settings(max_examples=25)
@given(st.data())
def test_bandwidth_keeps_its_digits_at_both_ends_of_the_range(ends: tuple[float, float], data: st.DataObject) -> None:
    payload_bits, slack_s, snr_hz = data.draw(uploads(*ends))
    exact, v = bandwidth_50_digits(payload_bits, slack_s, snr_hz)
    bandwidth = float(bandwidth_for(payload_bits, np.array(slack_s), np.array(snr_hz)))
    assert relative_error(bandwidth, exact) <= 1e-13 / float(1 - v)


@settings(max_examples=120)
@given(uploads())
def test_slope_is_the_derivative_of_the_bandwidth(upload: Upload) -> None:
    payload_bits, slack_s, snr_hz = upload
    _, v = bandwidth_50_digits(payload_bits, slack_s, snr_hz)
    _, slope = bandwidth_and_slope(payload_bits, np.array(slack_s), np.array(snr_hz))
    # b / slack x s / (s - 1 + e^-s): near v = 1 both b and the last factor go as 1/s, so the error of s counts twice.
    assert relative_error(float(slope), slope_50_digits(payload_bits, slack_s, snr_hz)) <= 2e-13 / float(1 - v)


@settings(max_examples=100)
@given(uploads(-2.0, 12.0))
def test_slope_agrees_with_a_central_difference(upload: Upload) -> None:
    payload_bits, slack_s, snr_hz = upload
    step = 1e-5 * slack_s
    around = bandwidth_for(payload_bits, np.array([slack_s - step, slack_s + step]), np.array(snr_hz))
    _, v = bandwidth_50_digits(payload_bits, slack_s, snr_hz)
    _, slope = bandwidth_and_slope(payload_bits, np.array(slack_s), np.array(snr_hz))
    # Truncation: b ~ 1/(slack - least slack), whose third derivative is 6 slope / (slack (1 - v))^2.
    truncation = 1e-5**2 / float(1 - v) ** 2
    assert float((around[1] - around[0]) / (2 * step)) == pytest.approx(float(slope), rel=2 * truncation + 1e-8)


@settings(max_examples=200)
@given(st.floats(2.0, 10.0), st.floats(0.0, 14.0), st.floats(-12.0, 6.0), st.booleans())
def test_bandwidth_is_infinite_exactly_where_the_rate_is_out_of_reach(
    payload_exponent: float, snr_exponent: float, distance_exponent: float, within_reach: bool
) -> None:
    payload_bits, snr_hz = 10.0**payload_exponent, 10.0**snr_exponent
    distance = 10.0**distance_exponent
    min_slack_s = payload_bits * math.log(2.0) / snr_hz  # on infinite bandwidth: v = 1
    slack_s = min_slack_s * (1.0 + distance) if within_reach else min_slack_s / (1.0 + distance)
    bandwidth, slope = bandwidth_and_slope(payload_bits, np.array(slack_s), np.array(snr_hz))
    assert (float(bandwidth) < math.inf) == within_reach
    assert float(bandwidth) > 0.0
    assert (float(slope) > -math.inf) == within_reach


@settings(max_examples=100)
@given(st.floats(2.0, 10.0), st.floats(0.0, 14.0), st.floats(0.0, 1e6))
def test_bandwidth_is_infinite_without_slack(payload_exponent: float, snr_exponent: float, late_s: float) -> None:
    bandwidth, slope = bandwidth_and_slope(10.0**payload_exponent, np.array(-late_s), np.array(10.0**snr_exponent))
    assert float(bandwidth) == math.inf
    assert float(slope) == -math.inf


@settings(max_examples=200)
@given(uploads())
def test_bandwidth_inverts_the_rate(upload: Upload) -> None:
    payload_bits, slack_s, snr_hz = upload
    bandwidth = bandwidth_for(payload_bits, np.array(slack_s), np.array(snr_hz))
    assert float(upload_s(payload_bits, bandwidth, np.array(snr_hz))) == pytest.approx(slack_s, rel=2e-13)


@settings(max_examples=200)
@given(uploads(), st.floats(-6.0, 3.0))
def test_bandwidth_falls_in_the_slack(upload: Upload, longer_exponent: float) -> None:
    payload_bits, slack_s, snr_hz = upload
    slacks = slack_s * np.array([1.0, 1.0 + 10.0**longer_exponent])
    shorter, longer = bandwidth_for(payload_bits, slacks, np.array(snr_hz))
    assert longer < shorter


@settings(max_examples=200)
@given(st.floats(0.0, 12.0), st.floats(0.0, 12.0), st.floats(-6.0, 3.0))
def test_rate_rises_in_the_bandwidth_and_stays_under_its_limit(
    snr_exponent: float, bandwidth_exponent: float, wider_exponent: float
) -> None:
    bandwidths = 10.0**bandwidth_exponent * np.array([1.0, 1.0 + 10.0**wider_exponent])
    narrow, wide = rate_bps(bandwidths, np.array(10.0**snr_exponent))
    elasticity = 1e-6 * min(1.0, 10.0 ** (snr_exponent - bandwidth_exponent)) / 3
    assert wide > narrow if elasticity > 1e-15 else wide >= narrow * (1 - 1e-15)
    assert wide <= 10.0**snr_exponent / math.log(2.0) * (1 + 1e-15)


@st.composite
def device_sets(draw: st.DrawFn) -> RoundProblem:
    """Sets of devices spread over many decades of channel, computing time, payload and band."""
    number = draw(st.integers(1, 12))
    band_hz = 10.0 ** draw(st.floats(3.0, 10.0))
    numbers = st.lists(st.floats(-9.0, 12.0), min_size=number, max_size=number)
    computing = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=number, max_size=number)
    return RoundProblem(
        tau=np.ones(number),
        compute_s=draw(computing),
        snr_hz=band_hz * 10.0 ** np.array(draw(numbers)),
        payload_bits=10.0 ** draw(st.floats(1.0, 9.0)),
        total_bandwidth_hz=band_hz,
        deadline_s=1.0,
        gamma=1.0,
    )


@settings(max_examples=200)
@given(device_sets())
def test_optimal_split_is_certified(devices: RoundProblem) -> None:
    split = optimal_split(devices.compute_s, devices.snr_hz, devices.payload_bits, devices.total_bandwidth_hz)
    rate = split.bandwidth_hz * np.log1p(devices.snr_hz / split.bandwidth_hz) / math.log(2.0)
    finish = devices.compute_s + devices.payload_bits / rate
    assert (split.bandwidth_hz > 0.0).all()
    assert math.fsum(split.bandwidth_hz) == pytest.approx(devices.total_bandwidth_hz, rel=1e-9)
    np.testing.assert_allclose(finish, split.latency_s, rtol=1e-9)
    assert split.band_residual <= 1e-9
    assert split.finish_spread <= 1e-9


@settings(max_examples=60)
@given(device_sets())
def test_latency_agrees_with_the_binary_search(devices: RoundProblem) -> None:
    everyone = list(range(devices.num_devices))
    assert devices.min_latency(np.array(everyone)) == pytest.approx(
        min_latency_by_bisection(devices, everyone), rel=1e-12
    )


@settings(max_examples=100)
@given(device_sets())
def test_no_other_division_ends_earlier(devices: RoundProblem) -> None:
    arguments = (devices.compute_s, devices.snr_hz, devices.payload_bits, devices.total_bandwidth_hz)
    best, even = optimal_split(*arguments), even_split(*arguments)
    for part in (0.5, 0.1, 1e-3):  # the even split, and steps from the best division towards it
        bandwidth = (1 - part) * best.bandwidth_hz + part * even.bandwidth_hz
        finish = devices.compute_s + upload_s(devices.payload_bits, bandwidth, devices.snr_hz)
        assert finish.max() >= best.latency_s * (1 - 1e-9)
    assert even.latency_s >= best.latency_s * (1 - 1e-9)


@settings(max_examples=100)
@given(device_sets(), st.floats(1e-6, 10.0))
def test_latency_falls_with_the_band(devices: RoundProblem, wider: float) -> None:
    everyone = np.arange(devices.num_devices)
    wide = changed(devices, total_bandwidth_hz=devices.total_bandwidth_hz * (1.0 + wider))
    assert wide.min_latency(everyone) <= devices.min_latency(everyone) * (1 + 1e-15)


@settings(max_examples=100)
@given(device_sets())
def test_latency_grows_with_the_set(devices: RoundProblem) -> None:
    everyone = np.arange(devices.num_devices)
    for number in range(1, devices.num_devices):
        assert devices.min_latency(everyone[:number]) <= devices.min_latency(everyone[: number + 1]) * (1 + 1e-15)


def sign_changes(values: np.ndarray) -> int:
    signs = np.sign(values[values != 0.0])
    return int(np.count_nonzero(np.diff(signs)))


def difference_of_curves(problem: RoundProblem, times_s: np.ndarray) -> np.ndarray:
    """b_0(t) - b_1(t) where it is more than rounding, shape (times,)."""
    first, second = np.array([problem.min_bandwidth_hz(t) for t in times_s]).T
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isinf(first) & np.isinf(second), 0.0, first - second)
    return np.where(np.abs(difference) > 1e-9 * np.minimum(first, second), difference, 0.0)


@settings(max_examples=100)
@given(random_rounds(2, min_devices=2))
def test_two_bandwidth_curves_cross_at_most_once(problem: RoundProblem) -> None:
    times_s = problem.compute_s.max() + np.geomspace(1e-6, 1e3, 300)
    assert sign_changes(difference_of_curves(problem, times_s)) <= 1


def test_bandwidth_curves_of_a_fast_weak_and_a_slow_strong_device_do_cross() -> None:
    pair = RoundProblem([1, 1], [0.0, 0.1], [1e9, 1e11], 1e7, 1e7, 1.0)
    assert sign_changes(difference_of_curves(pair, 0.1 + np.geomspace(1e-6, 1e3, 300))) == 1


@settings(max_examples=100)
@given(st.floats(3.0, 13.0), st.floats(3.0, 13.0))
def test_upload_times_on_equal_bandwidth_differ_monotonically(weak: float, strong: float) -> None:
    bandwidth = np.geomspace(1e3, 1e9, 400)
    weak, strong = sorted((weak, strong))
    weak_s, strong_s = (upload_s(1e7, bandwidth, np.array(10.0**snr)) for snr in (weak, strong))
    growth = np.diff(weak_s - strong_s)
    # The advantage of the stronger channel shrinks or grows in b throughout: d2u / (d snr d b) has one sign.
    clear = np.abs(growth) > 1e-12 * weak_s[1:]
    assert len(set(np.sign(growth[clear]))) <= 1
