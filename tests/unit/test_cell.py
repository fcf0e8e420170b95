import dataclasses
import math

import numpy as np
import pytest

from flare.config import WirelessConfig
from flare.scheduling.cells import round_problem
from flare.units import db_to_linear
from flare.wireless.cell import CELLS, Cell
from flare.wireless.rate import upload_s

ALL_RANDOM = WirelessConfig(shadowing_db=8.0, fading="rician")
DRAWN = ("gain_db", "cpu_hz", "tau", "compute_s", "snr_hz", "compute_energy_j")


def assert_same(one, other):
    assert one.config == other.config
    for name in ("distance_m", "angle_rad", "power_w", *DRAWN):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_device_at_500_m_in_the_papers_cell():
    config = WirelessConfig(min_distance_m=500.0, max_distance_m=500.0)
    drawn = Cell(config, seed=0).draw(0)
    # p h^2 / N_0 = 0.1 W x 500^-3.76 / 10^-20.4 W/Hz = 1.79e9 Hz: 22.5 dB over the whole 10 MHz.
    assert drawn.snr_hz == pytest.approx(np.full(40, 0.1 * 500.0**-3.76 / 10.0**-20.4), rel=1e-12)
    assert drawn.snr_hz[0] == pytest.approx(1.79e9, rel=0.01)
    assert drawn.gain_db == pytest.approx(np.full(40, -37.6 * math.log10(500.0)), rel=1e-12)
    assert drawn.power_w == pytest.approx(np.full(40, 0.1))


def test_a_device_at_1_km_under_the_3gpp_law():
    drawn = Cell(WirelessConfig(min_distance_m=1e3, max_distance_m=1e3, path_loss="3gpp-uma"), seed=0).draw(0)
    # 20 dBm - 128.1 dB - (-114 dBm/MHz) = 5.9 dB over 1 MHz
    assert drawn.snr_hz == pytest.approx(np.full(40, 10**0.59 * 1e6), rel=1e-12)


def test_computing_follows_eq_4_and_the_capacitance_model():
    drawn = Cell(WirelessConfig(), seed=1).draw(2)
    cycles = drawn.tau * 689920 * 40
    assert drawn.compute_s == pytest.approx(cycles / drawn.cpu_hz, rel=1e-14)
    assert drawn.compute_energy_j == pytest.approx(1e-28 * cycles * drawn.cpu_hz**2, rel=1e-14)


def test_upload_energy_is_power_x_time():
    drawn = Cell(WirelessConfig(), seed=1).draw(0)
    seconds = upload_s(1e7, np.full(40, 1e6), drawn.snr_hz)
    assert drawn.upload_energy_j(seconds) == pytest.approx(0.1 * seconds)


@pytest.mark.parametrize("config", [WirelessConfig(), ALL_RANDOM, WirelessConfig(num_devices=1, fading="rayleigh")])
def test_every_array_has_one_number_a_device(config):
    drawn = Cell(config, seed=0).draw(0)
    for name in ("distance_m", "angle_rad", "power_w", *DRAWN):
        assert getattr(drawn, name).shape == (config.num_devices,)
        assert np.isfinite(getattr(drawn, name)).all()


def test_same_seed_same_rounds_in_whatever_order():
    one, other = Cell(ALL_RANDOM, seed=3), Cell(ALL_RANDOM, seed=3)
    forward = [one.draw(round) for round in range(5)]
    backward = [other.draw(round) for round in reversed(range(5))][::-1]
    for left, right in zip(forward, backward, strict=True):
        assert_same(left, right)


def test_another_seed_is_another_cell():
    one, other = Cell(ALL_RANDOM, seed=3).draw(0), Cell(ALL_RANDOM, seed=4).draw(0)
    for name in ("distance_m", "angle_rad", *DRAWN):
        assert not np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("fading", ["rician", "rayleigh"])
def test_another_round_draws_fading_speeds_and_steps_anew_at_the_same_places(fading):
    cell = Cell(WirelessConfig(shadowing_db=8.0, fading=fading), seed=3)
    first, second = cell.draw(0), cell.draw(1)
    for name in DRAWN:
        assert not np.array_equal(getattr(first, name), getattr(second, name)), name
    assert np.array_equal(first.distance_m, second.distance_m)
    assert np.array_equal(first.angle_rad, second.angle_rad)


def test_without_fading_the_channel_stays():
    cell = Cell(WirelessConfig(shadowing_db=8.0), seed=3)
    assert np.array_equal(cell.draw(0).snr_hz, cell.draw(1).snr_hz)


def test_fixed_processors_stay_and_lie_between_the_limits():
    cell = Cell(WirelessConfig(cpu_every_round=False), seed=3)
    first, second = cell.draw(0), cell.draw(1)
    assert np.array_equal(first.cpu_hz, second.cpu_hz)
    assert not np.array_equal(first.tau, second.tau)
    assert len(np.unique(first.cpu_hz)) == 40
    assert 2e9 <= first.cpu_hz.min() < first.cpu_hz.max() <= 4e9


def test_one_setting_does_not_disturb_the_draws_of_another():
    plain, rich = Cell(WirelessConfig(), seed=3).draw(5), Cell(ALL_RANDOM, seed=3).draw(5)
    for name in ("distance_m", "angle_rad", "cpu_hz", "tau"):
        assert np.array_equal(getattr(plain, name), getattr(rich, name)), name


def test_fading_multiplies_the_mean_gain_and_keeps_its_mean():
    cell = Cell(WirelessConfig(num_devices=20_000, shadowing_db=8.0, fading="rician", rician_k_db=6.0), seed=3)
    drawn = cell.draw(0)
    fading = db_to_linear(drawn.gain_db) / cell.mean_gain
    k = 10**0.6
    variance = (2 * k + 1) / (k + 1) ** 2
    assert fading.mean() == pytest.approx(1.0, abs=4 * math.sqrt(variance / 20_000))
    assert fading.var() == pytest.approx(variance, rel=0.1)
    assert drawn.snr_hz == pytest.approx(0.1 * db_to_linear(drawn.gain_db) / 10.0**-20.4, rel=1e-12)


def test_shadowing_has_its_deviation_around_the_path_loss():
    drawn = Cell(WirelessConfig(num_devices=20_000, shadowing_db=8.0), seed=3).draw(0)
    shadow_db = drawn.gain_db + 37.6 * np.log10(drawn.distance_m)
    assert shadow_db.std() == pytest.approx(8.0, rel=4 / math.sqrt(2 * 20_000))
    assert shadow_db.mean() == pytest.approx(0.0, abs=4 * 8.0 / math.sqrt(20_000))


def test_local_steps_are_the_rounded_exponential():
    tau = Cell(WirelessConfig(num_devices=100_000), seed=3).draw(0).tau
    # P(tau = 1) = P(Exp < 1.5) = 1 - exp(-1.5/3); P(tau = n) = exp(-(n - 0.5)/3) - exp(-(n + 0.5)/3) for n > 1.
    probabilities = {1: 1 - math.exp(-0.5)}
    probabilities |= {n: math.exp(-(n - 0.5) / 3) - math.exp(-(n + 0.5) / 3) for n in range(2, 8)}
    for steps, probability in probabilities.items():
        deviation = math.sqrt(probability * (1 - probability) / len(tau))
        assert np.mean(tau == steps) == pytest.approx(probability, abs=4 * deviation), steps
    assert np.array_equal(tau, np.rint(tau))
    assert tau.min() == 1.0


def test_local_steps_from_a_list():
    cell = Cell(WirelessConfig(num_devices=3, tau_law="list", tau_values=(5, 1, 9)), seed=0)
    for round in range(2):
        assert np.array_equal(cell.draw(round).tau, [5, 1, 9])


def test_local_steps_of_the_three_groups_of_fig_3():
    tau = Cell(WirelessConfig(num_devices=60, tau_law="groups", tau_values=(12, 6, 3)), seed=0).draw(4).tau
    assert np.array_equal(tau, [12] * 20 + [6] * 20 + [3] * 20)


def test_what_rounds_share_cannot_be_written():
    drawn = Cell(WirelessConfig(cpu_every_round=False, tau_law="groups", tau_values=(3,)), seed=0).draw(0)
    for name in ("distance_m", "angle_rad", "gain_db", "cpu_hz", "tau", "power_w"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(drawn, name)[0] = 1.0


def test_negative_round_is_refused():
    with pytest.raises(ValueError, match="round is -1; rounds are counted from 0"):
        Cell(WirelessConfig(), seed=0).draw(-1)


def test_the_named_cells():
    assert CELLS["paper"] == WirelessConfig()
    cifar = CELLS["paper-cifar10"]
    assert cifar.cycles_per_sample == 85 * 32 * 32 * 3 * 8  # cycles/bit x bits of a sample
    assert (cifar.payload_bits, cifar.deadline_s) == (6.4e7, 1.5)


def test_round_problem_carries_the_round_and_the_settings():
    config = WirelessConfig(deadline_s=0.7, payload_bits=3e6, total_bandwidth_hz=5e6)
    drawn = Cell(config, seed=0).draw(0)
    problem = round_problem(drawn, gamma=2.5)
    for name in ("tau", "compute_s", "snr_hz"):
        assert np.array_equal(getattr(problem, name), getattr(drawn, name))
    assert (problem.payload_bits == 3e6).all()
    settings = (problem.deadline_s, problem.total_bandwidth_hz, problem.gamma)
    assert settings == (0.7, 5e6, 2.5)


@pytest.fixture
def trace(tmp_path):
    def written(**arrays):
        path = tmp_path / "trace.npz"
        np.savez(path, **arrays)
        return str(path)

    return written


RECORDED = {
    "gain_db": np.array([[-90.0, -100.0], [-95.0, -105.0]]),
    "cpu_hz": np.array([[1e9, 2e9], [3e9, 4e9]]),
    "tau": np.array([[1.0, 2.0], [3.0, 4.0]]),
}


def test_a_full_trace_is_what_the_rounds_are(trace):
    cell = Cell(WirelessConfig(num_devices=2, trace=trace(**RECORDED), fading="rayleigh", shadowing_db=8.0), seed=0)
    for round in range(2):
        drawn = cell.draw(round)
        for name, values in RECORDED.items():
            assert np.array_equal(getattr(drawn, name), values[round])
        assert drawn.snr_hz == pytest.approx(0.1 * 10 ** (RECORDED["gain_db"][round] / 10) / 10.0**-20.4, rel=1e-12)
        assert drawn.compute_s == pytest.approx(drawn.tau * 689920 * 40 / drawn.cpu_hz)


@pytest.mark.parametrize("name", list(RECORDED))
def test_what_a_trace_leaves_out_is_drawn_as_without_it(trace, name):
    config = WirelessConfig(num_devices=2, fading="rayleigh")
    plain = Cell(config, seed=5).draw(1)
    traced = Cell(dataclasses.replace(config, trace=trace(**{name: RECORDED[name]})), seed=5).draw(1)
    for each in RECORDED:
        expected = RECORDED[each][1] if each == name else getattr(plain, each)
        assert np.array_equal(getattr(traced, each), expected), each


def test_a_round_beyond_the_trace_is_refused_or_starts_it_again(trace):
    config = WirelessConfig(num_devices=2, trace=trace(tau=RECORDED["tau"]))
    with pytest.raises(ValueError, match=r"trace\.npz: round 2 is not in the trace.*wireless\.trace_repeat = true"):
        Cell(config, seed=0).draw(2)
    cell = Cell(dataclasses.replace(config, trace_repeat=True), seed=0)
    assert np.array_equal(cell.draw(2).tau, RECORDED["tau"][0])
    assert not np.array_equal(cell.draw(2).cpu_hz, cell.draw(0).cpu_hz)  # what is drawn does not repeat


def test_a_trace_of_another_number_of_devices_says_what_to_set(trace):
    config = WirelessConfig(trace=trace(**RECORDED))
    with pytest.raises(ValueError, match=r"trace\.npz: the trace has 2 devices.*is 40; set wireless.num_devices = 2"):
        Cell(config, seed=0)
    with pytest.raises(ValueError, match=r"set wireless\.num_devices = 3, or transpose the trace: a row is a round"):
        Cell(WirelessConfig(num_devices=5, trace=trace(tau=np.ones((5, 3)))), seed=0)
