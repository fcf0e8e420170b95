"""Amiri's four rules by hand, and what compression leaves of an update by counting."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from flare.config import Config, override
from flare.rng import stream
from flare.rounds.base_station import policy_options
from flare.scheduling import POLICIES, History, Probed, RoundProblem, solve
from flare.scheduling.systems.amiri import energy_share, kept_entries, kept_norm
from tests.cells import hand_cell

NAN = float("nan")
CELL = hand_cell([1.0] * 5, [0.1, 0.15, 0.2, 0.25, 0.3], gamma=1.0)  # the first has the best channel; all fit


def choose(name: str, last: list[float], problem: RoundProblem = CELL, **options: object) -> list[int]:
    """Who sends, by the norms of the last updates; the same whatever is drawn."""
    known = replace(History.empty(len(last)), update_norm=np.array(last))
    answers = {
        tuple(solve(problem, name, rng=stream(seed), history=known, **options).selected.tolist()) for seed in range(10)
    }
    (only,) = answers
    return list(only)


def test_the_four_rules_by_hand() -> None:
    norms = [1.0, 5.0, 2.0, 4.0, 9.0]
    assert choose("amiri-bc", norms, num_selected=2) == [0, 1]
    assert choose("amiri-bn2", norms, num_selected=2) == [1, 4]
    assert choose("amiri-bc-bn2", norms, num_selected=2, num_candidates=3) == [1, 2]
    assert choose("amiri-bc-bn2", norms, num_selected=2) == [1, 3]  # of the four best channels
    assert choose("amiri-bn2-c", norms, num_selected=2) == [1, 4]  # on half the band each carries all of its update


@pytest.mark.parametrize("name", ["amiri-bn2", "amiri-bc-bn2", "amiri-bn2-c"])
def test_a_device_of_unknown_norm_comes_first(name: str) -> None:
    assert choose(name, [1.0, 5.0, NAN, 4.0, 3.0], num_selected=2) == [1, 2]


@pytest.mark.parametrize("name", ["amiri-bn2", "amiri-bc-bn2", "amiri-bn2-c"])
def test_devices_of_unknown_norm_are_drawn_by_lot(name: str) -> None:
    first = {int(solve(CELL, name, rng=stream(seed), num_selected=3).selected[0]) for seed in range(30)}
    assert len(first) == 3


def test_present_norms_count_where_devices_are_asked() -> None:
    last, norms = [9.0, 8.0, 7.0, 6.0, 5.0], np.array([1.0, 5.0, 2.0, 4.0, 9.0])
    probed = Probed(np.full(5, NAN), norms)
    assert choose("amiri-bn2", last, num_selected=2, norms="all", probed=probed) == [1, 4]
    assert choose("amiri-bn2-c", last, num_selected=2, norms="batch", probed=probed) == [1, 4]
    best_channels = POLICIES["amiri-bc-bn2"].probe
    assert best_channels is not None
    asked = best_channels(CELL, norms="all", num_selected=2, num_candidates=3)
    assert asked is not None
    assert (asked.devices.tolist(), asked.kind, asked.samples, asked.tells) == ([0, 1, 2], "gradient", "all", "norms")
    told = Probed(np.full(5, NAN), np.where(np.arange(5) < 3, norms, NAN))
    assert choose("amiri-bc-bn2", last, num_selected=2, num_candidates=3, norms="all", probed=told) == [1, 2]


def test_one_that_does_not_fit_makes_place_for_the_next() -> None:
    cell = hand_cell([1.0] * 3, [0.5, 0.6, 0.3], gamma=1.0)
    assert choose("amiri-bn2", [2.0, 3.0, 1.0], cell, num_selected=2) == [1, 2]
    assert choose("amiri-bc", [2.0, 3.0, 1.0], cell, num_selected=3) == [0, 2]


def test_fewer_candidates_than_devices_to_send_are_refused() -> None:
    with pytest.raises(ValueError, match=r"policy 'amiri-bc-bn2' is to choose num_selected = 3 .* num_candidates = 2"):
        solve(CELL, "amiri-bc-bn2", rng=stream(0), num_selected=3, num_candidates=2)


def counted(bits: float, entries: int) -> int:
    """The most entries that fit, tried one by one."""
    fitting = [q for q in range(entries + 1) if math.log2(math.comb(entries, q)) + 33 * q <= bits]
    return max(fitting)


def test_kept_entries_are_the_most_that_fit() -> None:
    bits = np.array([0.0, 36.0, 38.0, 70.0, 333.3, 659.0, 660.0, 5000.0])
    found = kept_entries(bits, np.full(bits.size, 20.0))
    # One entry of twenty takes log2(20) + 33 = 37.3 bits, all of them 660.
    assert found[:3].tolist() == [0.0, 0.0, 1.0]
    assert found[-2:].tolist() == [20.0, 20.0]
    assert found.tolist() == [counted(each, 20) for each in bits]


def test_in_a_run_with_coded_updates_the_entries_are_those_of_the_model() -> None:
    plain = override(Config(), ["scheduling.policy=amiri-bn2-c"])
    coded = override(plain, ["uplink.codec=qsgd", "run.payload=model"])
    assert policy_options(plain, 77) == {}
    assert policy_options(coded, 77) == {"num_entries": 77}
    assert policy_options(override(coded, ["scheduling.options.num_entries=5"]), 77) == {"num_entries": 5}


def test_the_energy_of_the_largest_entries() -> None:
    # Beyond one standard deviation: 2 (phi(1) + Phi(-1)) = 2 (0.2419707 + 0.1586553), held by 2 Phi(-1) of the entries.
    kept = np.array([0.0, 2.0 * NormalDist().cdf(-1.0), 1.0])
    np.testing.assert_allclose(energy_share(kept), [0.0, 0.8012520, 1.0], atol=5e-8)


def test_the_energy_of_the_largest_entries_of_a_drawn_update() -> None:
    squared = np.sort(stream(1).standard_normal(200_000) ** 2)[::-1]
    for share in (0.01, 0.1, 0.5):
        held = squared[: int(share * squared.size)].sum() / squared.sum()
        assert float(energy_share(np.array(share))) == pytest.approx(held, rel=0.02)


def test_a_far_device_loses_the_part_of_its_norm_that_its_channel_does_not_carry() -> None:
    # Four share the band: 2.5 kHz each, for 1 s. The last needs 8 kHz for the 4000 bits of d = 125 entries.
    wide = hand_cell([1.0] * 4, [0.1, 0.12, 0.14, 0.8], gamma=1.0)
    cell = RoundProblem(wide.tau, wide.compute_s, wide.snr_hz / 100.0, 4000.0, 1e4, 1.0)
    bits = 2500.0 * math.log2(1.0 + float(cell.snr_hz[3]) / 2500.0)
    kept = counted(bits, 125) / 125
    above = -NormalDist().inv_cdf(kept / 2.0)
    left = math.sqrt(2.0 * (above * NormalDist().pdf(above) + NormalDist().cdf(-above)))
    assert 0.9 < left < 0.999
    np.testing.assert_allclose(kept_norm(cell, 4), [1.0, 1.0, 1.0, left], rtol=1e-9)
    between = 0.5 * (1.0 + left)
    # An update of as many entries that is coded, and so takes fewer bits, is compressed as much in the rule.
    coded = RoundProblem(wide.tau, wide.compute_s, wide.snr_hz / 100.0, 500.0, 1e4, 1.0)
    np.testing.assert_allclose(kept_norm(coded, 4, 125), kept_norm(cell, 4), rtol=1e-12)
    norms = [0.9999 * between, between, 0.99995 * between, 1.0]
    assert choose("amiri-bn2", norms, cell, num_selected=4) == [1, 3]  # 0.8 and 0.12 of the band: no third fits
    assert choose("amiri-bn2-c", norms, cell, num_selected=4) == [0, 1, 2]
