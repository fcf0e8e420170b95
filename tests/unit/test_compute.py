import numpy as np
import pytest

from flare.wireless.compute import compute_energy_j, compute_s


def test_three_steps_of_the_papers_mnist_device():
    # Eq. (4): 3 steps x 40 samples x 110 cycles/bit x 6272 bit on 2 GHz; 6272 bit = 28 x 28 pixels of one byte.
    assert 28 * 28 * 8 == 6272
    cycles = 3 * 40 * 110 * 6272
    assert cycles == 82_790_400
    assert compute_s(np.array([3.0]), 110.0 * 6272.0, 40, np.array([2e9]))[0] == pytest.approx(cycles / 2e9, rel=1e-15)
    # Effective capacitance: 1e-28 x cycles x (2e9)^2.
    energy = compute_energy_j(np.array([3.0]), 110.0 * 6272.0, 40, np.array([2e9]), 1e-28)
    assert energy[0] == pytest.approx(cycles * 4e-10, rel=1e-14)


def test_time_falls_with_speed_and_energy_grows_with_its_square():
    tau, cpu_hz = np.array([1.0, 5.0]), np.array([2e9, 3e9])
    assert compute_s(tau, 1e6, 40, 2 * cpu_hz) == pytest.approx(compute_s(tau, 1e6, 40, cpu_hz) / 2)
    energy_j = compute_energy_j(tau, 1e6, 40, cpu_hz, 1e-28)
    assert compute_energy_j(tau, 1e6, 40, 2 * cpu_hz, 1e-28) == pytest.approx(4 * energy_j)
    # At a given speed, energy is power x time with power capacitance x f^3.
    assert energy_j == pytest.approx(1e-28 * cpu_hz**3 * compute_s(tau, 1e6, 40, cpu_hz))


def test_each_device_may_have_its_own_cycles():
    cycles = np.array([1e6, 2e6])
    seconds = compute_s(np.array([1.0, 1.0]), cycles, 10, np.array([1e9, 1e9]))
    assert seconds == pytest.approx([0.01, 0.02])
