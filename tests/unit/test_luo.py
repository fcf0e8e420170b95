"""Luo's probabilities by hand and against perturbations, the unbiased sum, and pilots that are paid for."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import flare
from flare.research.pilots import estimate, luo_pilots
from flare.rng import stream
from flare.scheduling import History, RoundProblem, solve
from flare.scheduling.systems.luo import picked, probabilities
from flare.types import Floats
from tests.cells import changed, paper_cell
from tests.conformance.rounds import made_up_history
from tests.small_runs import SMALL


def test_probabilities_by_hand() -> None:
    # beta / alpha = 0: p G / sqrt(t) is 1/1, 4/2 and 3/3.
    likely = probabilities(np.array([1.0, 4.0, 3.0]), np.array([1.0, 4.0, 9.0]), 0.0)
    np.testing.assert_allclose(likely, [0.25, 0.5, 0.25], rtol=1e-14)
    # c = 0.75: t - c is 0.25 and 1, Z = 1 / 0.5 + 2 / 1 = 4, c Z^2 = 12; both are 2 / 4.
    np.testing.assert_allclose(probabilities(np.array([1.0, 2.0]), np.array([1.0, 1.75]), 12.0), [0.5, 0.5], rtol=1e-12)


def expected_time(likely: Floats, size: Floats, time_s: Floats, beta_over_alpha: float) -> float:
    """What is minimised, divided by alpha: sum q t (sum p^2 G^2 / q + beta / alpha)."""
    rounds = float((size**2 / likely).sum()) + beta_over_alpha
    return float((likely * time_s).sum()) * rounds


@pytest.mark.parametrize("ratio", [0.0, 1e-3, 1.0, 1e4])
def test_no_other_probabilities_are_better(ratio: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        size, time_s = rng.exponential(size=6), rng.exponential(size=6)
        best = probabilities(size, time_s, ratio)
        assert math.isclose(best.sum(), 1.0, rel_tol=1e-12)
        least = expected_time(best, size, time_s, ratio)
        for step in (1e-3, 0.1, 1.0):
            other = best * np.exp(step * rng.normal(size=6))
            assert expected_time(other / other.sum(), size, time_s, ratio) >= least * (1.0 - 1e-12)


def test_sizes_may_be_far_apart() -> None:
    """As long as waiting is dear enough, the quicker device is drawn nearly always, however small its updates are."""
    for size in (1e-150, 1e-160, 1e-300):
        likely = probabilities(np.array([size, 1.0]), np.array([1.0, 2.0]), 1e6)
        np.testing.assert_allclose(likely, [0.999, 0.001], rtol=1e-5)


def test_more_draws_than_can_be_made_are_refused() -> None:
    problem = RoundProblem([1.0], [0.1], [1e8], 1e6, 1e7, 1.0)
    with pytest.raises(ValueError, match="draws at most 1,000,000 times a round"):
        solve(problem, "luo", history=History.empty(1), rng=stream(0, "test"), num_selected=3_000_000_000)


def test_a_device_without_updates_is_never_drawn() -> None:
    assert probabilities(np.array([0.0, 1.0]), np.array([0.1, 1.0]), 2.0).tolist() == [0.0, 1.0]
    assert probabilities(np.zeros(2), np.ones(2), 2.0).tolist() == [0.0, 0.0]


def test_the_sum_is_unbiased_over_all_draws() -> None:
    # Every sequence of 3 draws of 3 devices, as the policy draws and weighs them.
    share, likely, draws = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2]), 3
    mean = np.zeros(3)
    for sequence in itertools.product(range(3), repeat=draws):
        for device in sequence:
            mean[device] += math.prod(likely[list(sequence)]) * share[device] / (draws * likely[device])
    np.testing.assert_allclose(mean, share, rtol=1e-12)


def test_draws_go_up_a_ladder_of_probabilities() -> None:
    class Told:
        def random(self, number: int) -> np.ndarray:
            return np.array([0.0, 0.249, 0.251, 0.999])[:number]

    order, likely = np.array([2, 0, 1]), np.array([0.5, 0.25, 0.25])  # the ladder: 2 to 0.25, 0 to 0.75, 1 to 1
    assert picked(order, likely, 4, Told()).tolist() == [2, 2, 0, 1]  # type: ignore[arg-type]


def test_a_device_drawn_twice_counts_twice() -> None:
    cell = RoundProblem(np.ones(2), np.zeros(2), np.full(2, 1e7), 1e4, 1e6, 10.0)
    totals = set()
    for turn in range(20):
        schedule = solve(cell, "luo", rng=stream(turn, "policy"), num_selected=4)
        assert schedule.weights is not None
        # All alike: p / (K q) = 0.5 / (4 x 0.5) for each of the 4 draws.
        assert set(np.rint(schedule.weights / 0.25).tolist()) <= {1.0, 2.0, 3.0, 4.0}
        np.testing.assert_allclose(schedule.weights / 0.25, np.rint(schedule.weights / 0.25), rtol=1e-12)
        assert schedule.weights.sum() == pytest.approx(1.0)
        totals.add(tuple(schedule.weights.tolist()))
    assert len(totals) > 2


@pytest.mark.parametrize(("sampling", "shares"), [("uniform", [0.5, 0.5]), ("samples", [0.25, 0.75])])
def test_other_ways_to_draw(sampling: str, shares: list[float]) -> None:
    cell = RoundProblem(np.ones(2), np.zeros(2), np.array([1e6, 1e7]), 1e4, 1e6, 10.0)
    told = flare.scheduling.History.empty(2, num_samples=[10.0, 30.0])
    first = np.mean(
        [
            solve(cell, "luo", rng=stream(turn, "p"), history=told, num_selected=1, sampling=sampling).selected[0] == 0
            for turn in range(400)
        ]
    )
    assert abs(first - shares[0]) < 4.0 * math.sqrt(0.25 / 400)


def test_the_round_waits_for_everybody_drawn() -> None:
    cell = paper_cell(4)
    waits = solve(cell, "luo", rng=stream(0, "policy"), history=made_up_history(cell, 0), num_selected=15)
    assert waits.latency_s > cell.deadline_s
    leaves = solve(cell, "luo", rng=stream(0, "policy"), history=made_up_history(cell, 0), num_selected=15, wait=False)
    assert leaves.latency_s <= cell.deadline_s
    assert 0 < leaves.num_selected < waits.num_selected


def test_no_more_are_drawn_than_may_send() -> None:
    cell = changed(paper_cell(4), max_devices=3)
    for turn in range(5):
        schedule = solve(cell, "luo", rng=stream(turn, "policy"))
        assert 1 <= schedule.num_selected <= 3


def small(**options: Any) -> dict[str, Any]:
    luo = {"scheduling.policy": "luo", "scheduling.options": {"num_selected": 3} | options, "run.rounds": 3}
    return {**{name: value for name, value in SMALL.items() if name != "run"}, **luo, "learning.device": "cpu"}


PAID = {"pilot_s": 50.0, "pilot_j": 8.0, "pilot_bits": 3e6}


def test_pilots_are_paid_before_the_first_round() -> None:
    free, paid = (flare.simulate(small(**each), progress=False) for each in ({}, PAID))
    for one, other in zip(free.records, paid.records, strict=True):
        assert other.clock_s == pytest.approx(one.clock_s + 50.0, rel=1e-12)
        assert other.selected == one.selected
        assert other.train_loss == one.train_loss
    assert [each.pilot_s for each in paid.records] == [50.0, 0.0, 0.0]
    assert [each.pilot_energy_j for each in paid.records] == [8.0, 0.0, 0.0]
    spent = paid.numbers.round_energy_j() - free.numbers.round_energy_j()
    np.testing.assert_allclose(spent, [8.0, 0.0, 0.0], atol=1e-12)
    assert [each.control_bits for each in paid.records] == [3e6, 0.0, 0.0]
    sent = paid.numbers.round_sent_bits() - free.numbers.round_sent_bits()
    assert sent.tolist() == [3e6, 0.0, 0.0]


def test_beta_over_alpha_by_hand() -> None:
    # p = 1/4, 3/4 and G = 1: A_u = 2 x 10/16 = 1.25, A_s = 1. With beta / alpha = 1.5: 2.75 / 2.5 = 1.1.
    share, norm = np.array([0.25, 0.75]), np.ones(2)
    assert estimate(share, norm, 110, 100) == pytest.approx(1.5)
    assert estimate(share, norm, 130, 100) == 0.0  # beyond 1.25: alpha alone
    # Not slower at all: as if by one round of 100, (1.25 - 1.01) / 0.01.
    assert estimate(share, norm, 90, 100) == pytest.approx(24.0)
    with pytest.raises(ValueError, match="cannot be told from pilot runs"):
        estimate(np.array([0.5, 0.5]), norm, 110, 100)


def test_pilot_runs_estimate_what_a_run_then_uses() -> None:
    drawn = flare.stream(1, "pilots")
    x, y = drawn.normal(size=(300, 4)), drawn.integers(0, 2, 300)
    x[:, 0] += 2.0 * y
    held = [range(0, 10), range(10, 20), range(20, 100), range(100, 240)]
    own = {"dataset": (x[:240], y[:240], x[240:], y[240:]), "held": held, "module": "logistic"}
    config = small() | {"wireless.num_devices": 4, "wireless.deadline_s": 1.0}
    pilots = luo_pilots(config, rounds=6, num_losses=3, progress=False, **own)  # type: ignore[arg-type]
    assert pilots.beta_over_alpha >= 0.0
    ways = [{**config, "run.rounds": 6, "scheduling.options.sampling": each} for each in ("uniform", "samples")]
    whole = [flare.simulate(way, progress=False, **own) for way in ways]  # type: ignore[arg-type]
    assert pilots.rounds[0][-1] < 6 or pilots.rounds[1][-1] < 6  # one was at the last loss before its end
    assert pilots.pilot_s == pytest.approx(sum(each.records[-1].clock_s for each in whole), rel=1e-12)
    assert pilots.pilot_j == pytest.approx(sum(each.numbers.round_energy_j().sum() for each in whole), rel=1e-12)
    sent_bits = sum(sum(record.payload_bits) for each in whole for record in each.records)  # type: ignore[arg-type]
    assert pilots.pilot_bits == pytest.approx(sent_bits, rel=1e-12)
    assert len(pilots.losses) == 3
    assert all(list(each) == sorted(each) and each[0] >= 1 and each[-1] <= 6 for each in pilots.rounds)
    run = flare.simulate(config | {"scheduling.options": pilots.options}, progress=False, **own)
    assert run.records[0].pilot_s == pilots.pilot_s
