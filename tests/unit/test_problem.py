from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from flare.scheduling import RoundProblem
from tests.cells import changed, hand_cell, network_cell, paper_cell, reordered

GOOD = {
    "tau": [3.0, 1.0, 2.0],
    "compute_s": [0.1, 0.0, 0.2],
    "snr_hz": [1e9, 1e10, 1e11],
    "payload_bits": 1e7,
    "total_bandwidth_hz": 1e7,
    "deadline_s": 0.5,
    "gamma": 10.0,
}
VECTORS = ("tau", "compute_s", "snr_hz")
SCALARS = ("payload_bits", "total_bandwidth_hz", "deadline_s", "gamma")


def refusal(**changes: object) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is what the tests look at)
        RoundProblem(**{**GOOD, **changes})
    return str(caught.value)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200])
def test_a_number_that_is_not_finite_is_refused_with_its_device(name: str, value: float) -> None:
    values = list(GOOD[name])
    values[1] = value
    assert refusal(**{name: values}).startswith(f"{name} of device 1 is {value:g}; it must be finite")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("tau", 0.0, "tau of device 2 is 0; it must be at least 1"),
        ("tau", 0.99, "tau of device 2 is 0.99; it must be at least 1"),
        ("tau", -3.0, "tau of device 2 is -3; it must be at least 1"),
        ("compute_s", -1e-9, "compute_s of device 2 is -1e-09; it must be at least 0"),
        ("snr_hz", 0.0, "snr_hz of device 2 is 0; it must be greater than 0"),
        ("snr_hz", -1.0, "snr_hz of device 2 is -1; it must be greater than 0"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_device(name: str, value: float, reason: str) -> None:
    assert refusal(**{name: [*GOOD[name][:2], value]}) == reason


def test_the_first_bad_device_is_named() -> None:
    assert "device 0" in refusal(tau=[0.0, 0.0, 5.0])


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize(("values", "shape"), [([], "(0,)"), (3.0, "()"), ([[1.0, 2.0, 3.0]], "(1, 3)")])
def test_what_is_not_one_number_a_device_is_refused(name: str, values: object, shape: str) -> None:
    message = refusal(**{name: values})
    assert message.startswith(f"{name} must hold one number for each of at least one device")
    assert shape in message


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("values", [["a", "b", "c"], [1.0, None, object()], [[1.0], [1.0, 2.0], [3.0]], [1j, 2j, 3j]])
def test_what_is_not_numbers_is_refused(name: str, values: object) -> None:
    assert refusal(**{name: values}).startswith(f"{name} must be numbers, one for each device")


@pytest.mark.parametrize("name", ["compute_s", "snr_hz"])
@pytest.mark.parametrize("number", [2, 4])
def test_a_different_number_of_devices_is_refused(name: str, number: int) -> None:
    assert refusal(**{name: [1.0] * number}) == f"{name} has {number} devices, tau has 3: give one value a device"


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e200])
def test_a_scalar_out_of_range_is_refused(name: str, value: float) -> None:
    assert refusal(**{name: value}).startswith(f"{name} is {value:g}; it must be ")


@pytest.mark.parametrize("name", SCALARS[:3])
def test_a_zero_payload_band_or_deadline_is_refused(name: str) -> None:
    message = refusal(**{name: 0.0})
    assert message.startswith(f"{name} is 0")
    assert "greater than 0" in message


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("value", ["ten", None, {1.0: 2.0}])
def test_a_scalar_that_is_not_a_number_is_refused(name: str, value: object) -> None:
    assert refusal(**{name: value}) == f"{name} must be a number, got {value!r}"


def test_gamma_may_be_zero_and_is_10_by_default() -> None:
    assert RoundProblem(**{**GOOD, "gamma": 0}).gamma == 0.0
    assert RoundProblem(**{name: GOOD[name] for name in GOOD if name != "gamma"}).gamma == 10.0


def test_the_problem_keeps_its_own_copy_that_cannot_be_written_to() -> None:
    tau = np.array([3.0, 1.0, 2.0])
    problem = RoundProblem(**{**GOOD, "tau": tau})
    tau[0] = 99.0
    assert problem.tau[0] == 3.0
    for array in (problem.tau, problem.compute_s, problem.snr_hz, problem.needed_hz):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_the_problem_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RoundProblem(**GOOD).gamma = 1.0  # type: ignore[misc]


def test_weight_and_objective_are_those_of_p2() -> None:
    problem = RoundProblem(**GOOD)
    assert problem.participation(4) == pytest.approx(1 / 4 + 10 / 16, rel=1e-15)
    assert problem.objective(np.array([0, 2])) == pytest.approx((1 / 2 + 10 / 4) * (1 / 3 + 1 / 2), rel=1e-15)
    assert problem.objective(np.zeros(0, dtype=int)) == math.inf


def test_objective_does_not_depend_on_the_order_of_the_devices() -> None:
    cell = paper_cell(0)
    rng = np.random.default_rng(0)
    assert len({cell.objective(rng.permutation(40)) for _ in range(50)}) == 1


def test_least_bandwidth_at_another_deadline() -> None:
    problem = RoundProblem(**GOOD)
    np.testing.assert_array_equal(problem.min_bandwidth_hz(), problem.needed_hz)
    np.testing.assert_array_equal(problem.min_bandwidth_hz(0.5), problem.needed_hz)
    later, earlier = problem.min_bandwidth_hz(1.0), problem.min_bandwidth_hz(0.15)
    assert (later < problem.needed_hz).all()
    assert (earlier > problem.needed_hz).all()
    assert earlier[2] == math.inf  # it computes for 0.2 s


def test_least_bandwidth_of_some_devices_and_for_other_payloads() -> None:
    seen = 0
    for seed in range(12):  # with and without deadlines of devices, blocks, devices that must not send
        problem = network_cell(seed, **({"must": [], "never": [4]} if seed % 2 else {}))
        some, time_s = np.array([5, 0, 3, 4]), 0.9 * problem.deadline_s
        np.testing.assert_array_equal(problem.min_bandwidth_hz(devices=some), problem.needed_hz[some])
        np.testing.assert_array_equal(problem.min_bandwidth_hz(time_s, some), problem.min_bandwidth_hz(time_s)[some])
        seen += 4 in problem.never and problem.block_hz is not None and problem.due_s is not None
        choices = np.array([problem.payload_bits, 0.5 * problem.payload_bits])
        np.testing.assert_array_equal(
            problem.min_bandwidth_hz(payload_bits=choices),
            [problem.needed_hz, changed(problem, payload_bits=choices[1]).needed_hz],
        )
    assert seen


def test_a_set_fits_up_to_the_rounding_tolerance_and_no_further() -> None:
    for over, fits in ((0.0, True), (5e-13, True), (2e-12, False), (1e-6, False)):
        problem = hand_cell([1.0, 1.0], [0.5 * (1 + over), 0.5 * (1 + over)], gamma=1.0)
        assert problem.fits(np.array([0, 1])) is fits
        assert problem.fits(np.array([0]))


def test_reachable_devices_are_those_that_meet_the_deadline_alone() -> None:
    assert hand_cell([1.0] * 4, [1.1, 0.9, 1.5, 0.2], gamma=1.0).reachable.tolist() == [1, 3]


def test_canonical_order_sorts_by_what_the_devices_are() -> None:
    cell = paper_cell(0)
    order = cell.canonical_order
    assert (np.diff(cell.tau[order]) <= 0.0).all()
    same_tau = np.diff(cell.tau[order]) == 0.0
    assert (np.diff(cell.needed_hz[order])[same_tau] >= 0.0).all()
    shuffle = np.random.default_rng(1).permutation(40)
    np.testing.assert_array_equal(shuffle[reordered(cell, shuffle).canonical_order], order)


def test_where_devices_stand_is_checked_like_the_rest() -> None:
    known = {"tau": [1, 2], "compute_s": [0.1, 0.1], "snr_hz": [1e7, 1e7], "payload_bits": 1e6}
    known |= {"total_bandwidth_hz": 1e6, "deadline_s": 1.0}
    stands = RoundProblem(**known, distance_m=[0.0, 20.0], angle_rad=[-1.0, 9.0])
    assert stands.distance_m is not None
    assert stands.angle_rad is not None
    assert (stands.distance_m.tolist(), stands.angle_rad.tolist()) == ([0.0, 20.0], [-1.0, 9.0])
    assert dataclasses.replace(stands, gamma=1.0).distance_m is not None
    with pytest.raises(ValueError, match="distance_m of device 1 is -3; it must be at least 0"):
        RoundProblem(**known, distance_m=[1.0, -3.0])
    with pytest.raises(ValueError, match="angle_rad has 1 devices, tau has 2"):
        RoundProblem(**known, angle_rad=[1.0])
