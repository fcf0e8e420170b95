import math

import numpy as np
import pytest

from flare.rng import stream
from flare.units import db_to_linear, linear_to_db
from flare.wireless.channel import (
    exponent_gain,
    path_gain,
    rayleigh_gain,
    rician_gain,
    shadowing_gain,
    urban_macro_gain,
)
from flare.wireless.geometry import place_devices

MANY = 200_000


def assert_mean(samples, mean, variance):
    """The mean of independent samples is off by four of its deviations at most."""
    assert samples.mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / len(samples)))


def test_exponent_law_is_a_power_of_the_distance():
    # 500 m: 10 x 3.76 x log10(500) = 101.48 dB
    assert linear_to_db(exponent_gain(np.array([500.0]), 3.76))[0] == pytest.approx(-37.6 * math.log10(500.0))
    near, far = exponent_gain(np.array([100.0, 200.0]), 3.76)
    assert near / far == pytest.approx(2**3.76)
    assert exponent_gain(np.array([1.0]), 3.76)[0] == 1.0


def test_urban_macro_law_at_one_kilometre_and_a_decade_nearer():
    loss_db = -linear_to_db(urban_macro_gain(np.array([1000.0, 100.0])))
    assert loss_db == pytest.approx([128.1, 128.1 - 37.6])


def test_urban_macro_law_is_tr_36_942s_general_formula_at_2_ghz_and_15_m():
    # Clause 4.5.2: L = 40 (1 - 4e-3 h) log10(R) - 18 log10(h) + 21 log10(f) + 80, h in m, R in km, f in MHz; the
    # printed 128.1 is its constant, 128.15, to one decimal.
    height_m, carrier_mhz = 15.0, 2000.0
    distance_m = np.array([150.0, 500.0, 2000.0])
    slope = 40 * (1 - 4e-3 * height_m)
    general_db = slope * np.log10(distance_m / 1e3) - 18 * math.log10(height_m) + 21 * math.log10(carrier_mhz) + 80
    assert -linear_to_db(urban_macro_gain(distance_m)) == pytest.approx(general_db, abs=0.06)


def test_path_loss_by_name():
    distance_m = np.array([100.0, 500.0])
    assert np.array_equal(path_gain(distance_m, "exponent", 3.0), distance_m**-3.0)
    assert np.array_equal(path_gain(distance_m, "3gpp-uma", 3.0), urban_macro_gain(distance_m))


def test_shadowing_is_normal_in_db_with_the_given_deviation():
    shadow_db = linear_to_db(shadowing_gain(MANY, 8.0, rng=stream(1, "shadowing")))
    assert_mean(shadow_db, 0.0, 8.0**2)
    assert shadow_db.std() == pytest.approx(8.0, rel=4 / math.sqrt(2 * MANY))  # of a normal: deviation std/sqrt(2n)
    assert np.mean(np.abs(shadow_db) < 8.0) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.005)


def test_no_shadowing_is_a_gain_of_exactly_one():
    assert np.array_equal(shadowing_gain(5, 0.0, rng=stream(1, "shadowing")), np.ones(5))


def test_rayleigh_power_is_exponential_with_mean_one():
    gain = rayleigh_gain(MANY, rng=stream(1, "fading"))
    assert_mean(gain, 1.0, 1.0)
    for level in (0.1, 1.0, 3.0):
        below = 1 - math.exp(-level)
        assert_mean((gain <= level).astype(float), below, below * (1 - below))


@pytest.mark.parametrize("k_db", [-10.0, 0.0, 6.0, 15.0])
def test_rician_power_has_mean_one_and_its_known_variance(k_db):
    k = db_to_linear(k_db)
    gain = rician_gain(MANY, k, rng=stream(1, "fading"))
    # |m + s z|^2 with m^2 = K/(K+1), s^2 = 1/(K+1): variance s^4 + 2 m^2 s^2 = (2K + 1) / (K + 1)^2.
    variance = (2 * k + 1) / (k + 1) ** 2
    assert_mean(gain, 1.0, variance)
    assert gain.var() == pytest.approx(variance, rel=0.05)
    assert (gain >= 0).all()


def test_rician_without_direct_path_is_rayleigh():
    gain = rician_gain(MANY, 0.0, rng=stream(1, "fading"))
    for level in (0.1, 1.0, 3.0):
        below = 1 - math.exp(-level)
        assert_mean((gain <= level).astype(float), below, below * (1 - below))


def test_rician_with_a_direct_path_alone_does_not_fade():
    assert rician_gain(100, 1e12, rng=stream(1, "fading")) == pytest.approx(np.ones(100), abs=1e-4)


def test_places_are_uniform_in_distance_and_angle():
    distance_m, angle_rad = place_devices(MANY, 100.0, 500.0, rng=stream(1, "geometry"))
    assert distance_m.min() >= 100.0
    assert distance_m.max() <= 500.0
    assert_mean(distance_m, 300.0, 400.0**2 / 12)
    # Uniform in distance, half are beyond 300 m; uniform in area, two thirds would be.
    assert_mean((distance_m > 300.0).astype(float), 0.5, 0.25)
    assert_mean(np.cos(angle_rad), 0.0, 0.5)
    assert_mean(np.sin(angle_rad), 0.0, 0.5)
    assert angle_rad.min() >= 0.0
    assert angle_rad.max() < 2 * math.pi
    assert abs(np.corrcoef(distance_m, angle_rad)[0, 1]) < 4 / math.sqrt(MANY)


def test_one_distance_for_all():
    distance_m, _ = place_devices(10, 250.0, 250.0, rng=stream(1, "geometry"))
    assert np.array_equal(distance_m, np.full(10, 250.0))


@pytest.mark.parametrize(
    "draw",
    [
        lambda num, rng: place_devices(num, 100.0, 500.0, rng=rng)[0],
        lambda num, rng: shadowing_gain(num, 8.0, rng=rng),
        lambda num, rng: rayleigh_gain(num, rng=rng),
        lambda num, rng: rician_gain(num, 4.0, rng=rng),
    ],
)
def test_a_device_draws_the_same_however_many_follow(draw):
    assert np.array_equal(draw(5, stream(2, "x")), draw(50, stream(2, "x"))[:5])
