"""What a policy may set beside the devices: refused with words where it cannot be, and followed where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, Hardware, RoundProblem, Schedule, Status, policy, solve, solve_many
from flare.scheduling.explain import LeftOut, explain

# Three devices that compute for 0.1 s. With snr_hz equal to its band a device sends band bits a second.
CELL = RoundProblem(np.ones(3), [0.1] * 3, [1e6] * 3, 2e5, 3e6, 1.0)
HAS = Hardware([1e9] * 3, [0.2] * 3, [1e8] * 3, 1e-28)


@pytest.fixture
def asked() -> Iterator[Callable[..., Schedule]]:
    """Solves with a policy that answers a given `Choice`."""

    def ask(choice: Choice, problem: RoundProblem = CELL, hardware: Hardware | None = HAS) -> Schedule:
        @policy("setting")
        def setting(problem: RoundProblem, *, hardware: Hardware) -> Choice:
            return choice

        return solve(problem, "setting", hardware=hardware)

    yield ask
    del POLICIES["setting"]


def test_times_and_energies_follow_what_was_set(asked: Callable[..., Schedule]) -> None:
    # Listed as (2, 0): device 2 at half speed computes 0.2 s, with half the power snr_hz is 5e5: on 5e5 Hz it sends
    # 5e5 bit/s, for 0.4 s. Device 0 as it is sends 1e6 bit/s on 1e6 Hz, for 0.2 s after 0.1 s.
    schedule = asked(Choice([2, 0], bandwidth_hz=[5e5, 1e6], cpu_hz=[5e8, 1e9], power_w=[0.1, 0.2]))
    assert schedule.selected.tolist() == [0, 2]
    assert schedule.bandwidth_hz.tolist() == [1e6, 0.0, 5e5]
    np.testing.assert_allclose(schedule.compute_s, [0.1, 0.1, 0.2])
    np.testing.assert_allclose(schedule.upload_s[[0, 2]], [0.2, 0.4])
    np.testing.assert_allclose(schedule.latency_s, 0.6)
    np.testing.assert_allclose(schedule.finish_spread, 0.5)
    np.testing.assert_allclose(schedule.band_residual, 0.5)
    np.testing.assert_allclose(schedule.compute_energy_j(HAS.compute_energy_j), [1e-2, 1e-2, 2.5e-3])
    np.testing.assert_allclose(explain(schedule).finish_s[[0, 2]], [0.3, 0.6])
    told = schedule.to_dict()["devices"]
    assert [device["cpu_hz"] for device in told] == [1e9, 1e9, 5e8]
    assert [device["power_w"] for device in told] == [0.2, 0.2, 0.1]
    assert told[2]["compute_s"] == pytest.approx(0.2)


def test_without_a_division_the_band_is_divided_by_what_was_set(asked: Callable[..., Schedule]) -> None:
    schedule = asked(Choice([0, 1, 2], cpu_hz=[1e9, 5e8, 2.5e8]))
    finish_s = schedule.compute_s + schedule.upload_s
    np.testing.assert_allclose(finish_s, schedule.latency_s, rtol=1e-9)
    assert schedule.bandwidth_hz[0] < schedule.bandwidth_hz[1] < schedule.bandwidth_hz[2]
    assert not schedule.own_division


def test_a_policy_may_end_the_round_later_or_sooner(asked: Callable[..., Schedule]) -> None:
    late = RoundProblem(np.ones(3), [0.1] * 3, [1e6] * 3, 2e5, 3e6, 0.05)
    assert solve(late, "exact").num_selected == 0
    schedule = asked(Choice([0, 1, 2], deadline_s=0.5), late)
    assert schedule.num_selected == 3
    assert schedule.problem.deadline_s == 0.5
    with pytest.raises(ValueError, match=r"chose 3 devices that need .* Hz to meet the deadline"):
        asked(Choice([0, 1, 2], deadline_s=0.11))


def test_reasons_are_of_the_speed_and_power_that_devices_have(asked: Callable[..., Schedule]) -> None:
    # Slowed down until the deadline nobody fits beside the two; as they could be, the third does.
    schedule = asked(Choice([0, 1], bandwidth_hz=[1.5e6, 1.5e6], power_w=[0.04, 0.04], cpu_hz=[5e8, 5e8]))
    assert explain(schedule).why == [None, None, LeftOut.BETTER]


@pytest.mark.parametrize(
    ("choice", "match"),
    [
        (Choice([0, 1], bandwidth_hz=[1e6]), "set bandwidth_hz of 1 devices and selected 2; give one for each"),
        (Choice([0], bandwidth_hz=[4e6]), "gave its devices 4e.06 Hz, of 3e.06 Hz there are"),
        (Choice([0], bandwidth_hz=[0.0]), "set bandwidth_hz of device 0 to 0; it must be more than 0"),
        (Choice([0], bandwidth_hz=[np.nan]), "bandwidth_hz of policy 'setting' of device 0 is nan"),
        (Choice([2], cpu_hz=[2e9]), "set cpu_hz of device 2 to 2e.09, and the device has no more than 1e.09"),
        (Choice([2], power_w=[0.3]), "set power_w of device 2 to 0.3, and the device has no more than 0.2"),
        (
            Choice([1], bandwidth_hz=[1e4]),
            "device 1 would finish after .* on the bandwidth, speed and power that it set",
        ),
        (Choice([0], deadline_s=-1.0), "set the end of the round: deadline_s is -1"),
        (Choice(utility=np.ones(3), power_w=[0.1]), "gave utilities and bandwidth_hz, snr_hz, cpu_hz, power_w"),
    ],
)
def test_what_cannot_be_is_refused(asked: Callable[..., Schedule], choice: Choice, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        asked(choice)


def test_other_than_whole_blocks_is_refused(asked: Callable[..., Schedule]) -> None:
    blocks = RoundProblem(np.ones(3), [0.1] * 3, [1e6] * 3, 2e5, 3e6, 1.0, block_hz=2e5)
    with pytest.raises(ValueError, match="otherwise than in whole blocks of 200000 Hz"):
        asked(Choice([0], bandwidth_hz=[1.1e6]), blocks)
    assert asked(Choice([0], bandwidth_hz=[1e6]), blocks).own_division


def test_hardware_that_is_not_known_or_of_others_is_refused(asked: Callable[..., Schedule]) -> None:
    with pytest.raises(ValueError, match="policy 'setting' goes by speeds and powers of devices or sets them"):
        asked(Choice([0]), hardware=None)
    with pytest.raises(ValueError, match="the hardware is of 2 devices, the round has 3"):
        asked(Choice([0]), hardware=HAS.of(np.array([0, 1])))
    with pytest.raises(ValueError, match="power_w of the hardware has 1 devices, cpu_hz has 2"):
        Hardware([1.0, 1.0], [1.0], [1.0, 1.0], 1e-28)
    with pytest.raises(ValueError, match="cpu_hz of device 1 is 0"):
        Hardware([1.0, 0.0], [1.0, 1.0], [1.0, 1.0], 1e-28)


def test_many_rounds_are_answered_as_each_alone(asked: Callable[..., Schedule]) -> None:
    alone = asked(Choice([0, 1], bandwidth_hz=[1e6, 2e6], cpu_hz=[5e8, 1e9]))
    together = solve_many([CELL, CELL], "setting", hardware=[HAS, HAS])
    for one in together:
        np.testing.assert_array_equal(one.bandwidth_hz, alone.bandwidth_hz)
        np.testing.assert_array_equal(one.compute_s, alone.compute_s)
        assert one.latency_s == alone.latency_s


@pytest.mark.parametrize("selected", [None, [None], [2**64], [0.5, 1.5], [[0, 1]], [7], [-1]])
def test_own_channels_of_what_are_no_devices_are_refused(asked: Callable[..., Schedule], selected: Any) -> None:
    with pytest.raises(ValueError, match="policy 'setting'"):
        asked(Choice(selected, snr_hz=[1.0, 1.0]))


def test_a_band_too_narrow_for_numbers_is_refused(asked: Callable[..., Schedule]) -> None:
    with pytest.raises(ValueError, match=r"set bandwidth_hz of device 0 to 1e-300; it must be more than 0 \(at least"):
        asked(Choice([0, 1], bandwidth_hz=[1e-300, 1e6]))


@pytest.mark.parametrize("name", ["luo", "ren"])
@pytest.mark.parametrize("wait", [True, False])
def test_devices_that_must_send_and_cannot_end_in_nobody(name: str, wait: bool) -> None:
    cell = replace(CELL, must=np.array([1]), due_s=np.array([1e9, 1e-9, 1e9]))
    schedule = solve(cell, name, rng=stream(0), wait=wait)
    assert (schedule.num_selected, schedule.status) == (0, Status.INFEASIBLE)
