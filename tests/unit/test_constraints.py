"""What a network asks for beside the band: unequal payloads, weights, own deadlines, must, never, limits, blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, RoundProblem, Status, solve, solve_many
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.greedy import _Probes
from flare.scheduling.nobody import why_nobody
from flare.scheduling.utility_knapsack import best_utility
from flare.wireless.rate import bandwidth_for, upload_s
from tests.cells import SAME, changed, hand_cell, network_cell, paper_cell, reordered
from tests.conformance.rounds import made_up_hardware, needed_history
from tests.oracles import brute_force, brute_force_utility, greedy_literal, min_latency_by_bisection, objective_of

SEEDS = range(120)


@pytest.mark.parametrize("start", [0, 40, 80])
def test_exact_is_the_least_over_all_sets_that_the_round_allows(start: int) -> None:
    kinds = set()
    for seed in range(start, start + 40):
        problem = network_cell(seed)
        schedule = solve(problem)
        least = brute_force(problem)
        kinds.add(schedule.status)
        if math.isinf(least):
            assert schedule.status is Status.INFEASIBLE
            assert schedule.lower_bound == math.inf
            continue
        assert schedule.status is Status.OPTIMAL
        assert schedule.objective == pytest.approx(objective_of(problem, schedule.selected.tolist()), rel=1e-13)
        assert schedule.objective == pytest.approx(least, rel=SAME)
    assert Status.OPTIMAL in kinds


@pytest.mark.parametrize("gamma", [0.0, 1.0, 100.0])
def test_exact_is_the_least_with_coding_noise_that_decides(gamma: float) -> None:
    for seed in range(25):
        noise = stream(seed, "noise").exponential(1.0, 10)
        problem = paper_cell(seed, num_devices=10, gamma=gamma, deadline_s=0.6)
        loud = changed(problem, coding_noise=noise, must=[3] if problem.needed_hz[3] <= 1e7 else [])
        assert solve(loud).objective == pytest.approx(brute_force(loud), rel=SAME)
        silent = changed(problem, coding_noise=np.zeros(10))
        assert solve(silent).selected.tolist() == solve(problem).selected.tolist()


def test_coding_noise_by_hand() -> None:
    # Two devices of tau 1 that both fit. gamma = 2: alone 3 / 1 + 2 n; both (1/2 + 2/4) 2 + (2/4) (n_1 + n_2).
    problem = hand_cell([1.0, 1.0], [0.5, 0.5], gamma=2.0)
    loud, quiet = (solve(changed(problem, coding_noise=[0.0, noise])) for noise in (3.0, 1.0))
    assert (loud.selected.tolist(), loud.objective) == ([0], pytest.approx(3.0))  # both: 2 + 1.5
    assert (quiet.selected.tolist(), quiet.objective) == ([0, 1], pytest.approx(2.0 + 0.5))


@pytest.mark.parametrize("start", [0, 20, 40])
def test_greedy_is_algorithm_1_line_by_line(start: int) -> None:
    for seed in range(start, start + 20):
        problem = network_cell(seed, num_devices=8)
        assert solve(problem, "greedy").selected.tolist() == greedy_literal(problem).tolist(), seed


def crossing_thrice(seed: int) -> RoundProblem | None:
    """A first device, and two more whose needs cross three times, the band such that the wanted time lies between two
    of the crossings; None where the draw gives no such pair.

    On equal bandwidth b the two finish at c_y + u_y(b) and c_z + u_z(b). With S_y > S_z and the better channel for y,
    u_y - u_z falls, rises and falls again in b: any difference of the computing times between the turns makes three
    crossings.
    """
    rng = stream(seed, "crossing")
    bits = np.array([rng.uniform(1e5, 1e6), 1e6 * rng.uniform(1.1, 2.0), 1e6])
    snr_hz = 10.0 ** rng.uniform((6.0, 5.3, 5.0), (9.0, 8.5, 7.0))
    b = snr_hz[2] * np.logspace(-6.0, 4.0, 2000)
    apart_s = upload_s(bits[1], b, snr_hz[1]) - upload_s(bits[2], b, snr_hz[2])
    turns = np.flatnonzero(np.diff(np.sign(np.diff(apart_s)))) + 1
    if len(turns) < 2:
        return None
    later_s = rng.uniform(*np.sort(apart_s[turns[:2]]))  # by so much z computes longer than y
    crossings = b[np.flatnonzero(np.diff(np.sign(apart_s - later_s)))]
    compute_s = np.array([0.0, max(-later_s, 0.0), max(later_s, 0.0)])
    wanted_hz = math.sqrt(crossings[0] * crossings[1])
    wanted_s = compute_s[1] + float(upload_s(bits[1], np.array(wanted_hz), snr_hz[1]))
    band_hz = wanted_hz + float(bandwidth_for(bits[0], np.array(wanted_s), snr_hz[0]))
    if len(crossings) < 3 or not band_hz < 1e12:
        return None
    return RoundProblem([3, 2, 2], compute_s, snr_hz, bits, band_hz, 3.0 * wanted_s, 100.0, max_devices=2)


def test_greedy_is_algorithm_1_where_needs_cross_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [problem for seed in range(60) if (problem := crossing_thrice(seed)) and problem.reachable.size == 3]
    literal = [greedy_literal(problem).tolist() for problem in rounds]
    assert [solve(problem, "greedy").selected.tolist() for problem in rounds] == literal
    # What relies on one crossing takes the wrong device in some of them.
    monkeypatch.setattr("flare.scheduling.greedy._candidates", _Probes)
    assert [solve(problem, "greedy").selected.tolist() for problem in rounds] != literal


def test_utilities_are_the_greatest_over_all_sets_that_the_round_allows() -> None:
    for seed in SEEDS:
        problem = network_cell(seed, coding_noise=None)
        utility = stream(seed, "utility").normal(size=problem.num_devices)
        best = best_utility(problem, utility)
        if problem.must.size and not problem.possible:
            assert best.selected.size == 0
            continue
        assert problem.fits(best.selected)
        assert best.bound == best.utility == math.fsum(utility[best.selected])
        assert math.isclose(best.utility, brute_force_utility(problem, utility), rel_tol=SAME, abs_tol=1e-15)


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_keeps_what_the_round_asks_for(name: str) -> None:
    served = 0
    for seed in range(25):
        problem = network_cell(seed, num_devices=14, must=[1, 5] if seed % 2 else [], never=[2, 7], max_devices=4)
        known = {"history": needed_history(name, problem), "hardware": made_up_hardware(problem)}
        schedule = solve(problem, name, rng=stream(seed, "policy"), **known)
        if schedule.num_selected == 0:
            assert schedule.status is Status.INFEASIBLE
            continue
        served += 1
        selected = set(schedule.selected.tolist())
        assert set(problem.must.tolist()) <= selected
        assert not selected & {2, 7}
        assert len(selected) <= 4
        detail = explain(schedule)
        due_s = np.broadcast_to(problem.finish_by(schedule.problem.deadline_s), 14)
        assert (detail.finish_s[schedule.selected] <= due_s[schedule.selected] * (1.0 + 1e-9)).all()
        assert {detail.why[device] for device in (2, 7)} == {LeftOut.NEVER}
    assert served > 5


@pytest.mark.parametrize("name", ["exact", "greedy", "dm", "cm", "lp"])
def test_the_order_of_the_devices_does_not_matter(name: str) -> None:
    for seed in range(30):
        problem = network_cell(seed)
        order = np.random.default_rng(seed).permutation(problem.num_devices)
        one, other = solve(problem, name), solve(reordered(problem, order), name)
        assert sorted(order[other.selected].tolist()) == one.selected.tolist()


def test_many_rounds_at_once_are_those_one_by_one() -> None:
    problems = [network_cell(seed) for seed in range(40)]
    for policy in ("exact", "greedy"):
        for problem, schedule in zip(problems, solve_many([changed(one) for one in problems], policy), strict=True):
            alone = solve(changed(problem), policy)
            assert schedule.selected.tolist() == alone.selected.tolist()
            assert schedule.bandwidth_hz.tobytes() == alone.bandwidth_hz.tobytes()
            assert (schedule.latency_s, schedule.objective) == (alone.latency_s, alone.objective) or (
                alone.num_selected == 0
            )


def test_own_deadlines_are_kept_at_the_least_latency() -> None:
    held = 0
    for seed in range(40):
        problem = changed(
            paper_cell(seed, num_devices=8, deadline_s=2.0),
            payload_bits=stream(seed, "bits").uniform(1e6, 1e7, 8),
            due_s=stream(seed, "due").uniform(0.3, 2.5, 8),
        )
        schedule = solve(problem, "all")
        if schedule.num_selected == 0:
            continue
        assert problem.due_s is not None
        at, finish_s = schedule.selected, explain(schedule).finish_s
        due_s = problem.due_s[at]
        assert (finish_s[at] <= np.minimum(due_s, 2.0) * (1.0 + 1e-9)).all()
        assert schedule.latency_s == pytest.approx(min_latency_by_bisection(problem, at.tolist()), rel=1e-9)
        assert max(schedule.band_residual, schedule.finish_spread) <= 1e-9
        held += bool((due_s < schedule.latency_s * 0.999).any())
    assert held > 5


def test_a_weight_counts_a_device_more() -> None:
    # Shares 1/2 each, gamma 0: the least weight / tau alone. tau 2 with weight 1 beats tau 4 with weight 3.
    problem = hand_cell([4.0, 2.0], [0.5, 0.5], gamma=0.0)
    assert solve(problem).selected.tolist() == [0]
    heavy = solve(changed(problem, weight=[3.0, 1.0]))
    assert heavy.selected.tolist() == [1]
    assert heavy.objective == pytest.approx(0.5)


def test_reasons_name_limits() -> None:
    problem = hand_cell([4.0, 4.0, 4.0, 4.0], [0.2, 0.2, 0.2, 0.2], gamma=10.0)
    detail = explain(solve(changed(problem, max_devices=2, never=[3])))
    assert detail.why[2:] == [LeftOut.FULL, LeftOut.NEVER]
    assert detail.reason[2:] == ["would be one too many", "must not send"]
    assert np.isnan(detail.objective_change[2:]).all()


# Shares of the band that devices need: 0.6, 0.6, 0.3 and twice the band.
ASKED = hand_cell([4.0, 3.0, 2.0, 1.0], [0.6, 0.6, 0.3, 2.0], gamma=1.0)


def test_a_device_that_must_and_cannot_is_named() -> None:
    schedule = solve(changed(ASKED, must=[3, 0]))
    assert schedule.status is Status.INFEASIBLE
    assert schedule.lower_bound == math.inf
    said = why_nobody(schedule.problem, "exact")
    assert said.startswith("device 3 must send and cannot: an update of 1.2 Mbit takes it ")
    assert "a band of at least 2.01 MHz" in said  # 2 MHz, rounded up
    assert why_nobody(schedule.problem, "exact", called=["a", "b", "c", "d"]).startswith("device d must send")
    assert explain(schedule).why == [LeftOut.HELD_UP, LeftOut.HELD_UP, LeftOut.HELD_UP, LeftOut.TOO_WEAK]


def test_devices_that_must_and_cannot_together_are_named_with_what_they_need() -> None:
    schedule = solve(changed(ASKED, must=[0, 1]), "round-robin", rng=stream(0, "policy"), memory={})
    assert schedule.status is Status.INFEASIBLE
    said = why_nobody(schedule.problem, "round-robin")
    assert said.startswith(
        "the devices that must send (0, 1) together need 1.2 MHz of 1 MHz to meet the deadline of 1 s"
    )


def test_a_policy_that_is_not_asked_keeps_its_memory() -> None:
    memory = solve(ASKED, "round-robin", rng=stream(0, "policy")).memory
    schedule = solve(changed(ASKED, must=[0, 1]), "round-robin", rng=stream(1, "policy"), memory=memory)
    np.testing.assert_equal(schedule.memory, memory)


def test_nobody_may() -> None:
    schedule = solve(changed(ASKED, never=[0, 1, 2, 3]))
    assert schedule.lower_bound == math.inf
    assert why_nobody(schedule.problem, "exact") == "no device may send: all of them are among those that must not"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"must": [1], "never": [1, 2]}, "device 1 is in must and in never; leave it in one of them"),
        ({"must": [0, 1], "max_devices": 1}, "2 devices must send, and max_devices is 1"),
        ({"must": [4]}, "must names device 4; the devices of the round are 0 to 3"),
        ({"never": [-1]}, "never names device -1"),
        ({"must": [1, 1]}, "must names device 1 twice"),
        ({"must": [0.5]}, r"must is \[0.5\]; it must be a list of devices"),
        ({"must": 3}, "must is 3; it must be a list of devices"),
        ({"never": "12"}, "never is '12'; it must be a list of devices"),
        ({"weight": [1.0, 1.0, 0.0, 1.0]}, "weight of device 2 is 0; it must be greater than 0"),
        ({"weight": [1.0]}, "weight has 1 devices, tau has 4"),
        ({"due_s": [1.0, 1.0, 1.0, -1.0]}, "due_s of device 3 is -1; it must be greater than 0"),
        ({"coding_noise": [0.0, 0.0, 0.0, -1.0]}, "coding_noise of device 3 is -1; it must be at least 0"),
        ({"payload_bits": [1.0, 2.0]}, "payload_bits has 2 devices, tau has 4"),
        ({"payload_bits": [1.0, 2.0, 0.0, 1.0]}, "payload_bits of device 2 is 0"),
        ({"block_hz": 2e6}, r"block_hz is 2e\+06, more than the whole band of 1e\+06 Hz"),
        ({"block_hz": 1e-6}, "would have more than 1,000,000,000 blocks"),
        ({"block_hz": 0.0}, "block_hz is 0; it must be greater than 0"),
        ({"max_devices": 0}, "max_devices is 0; it must be a whole number of at least 1"),
    ],
)
def test_what_contradicts_itself_is_refused(asked: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        changed(ASKED, **asked)


def test_a_payload_for_all_is_one_for_each() -> None:
    assert paper_cell(0, num_devices=3).payload_bits.tolist() == [1e7] * 3
    assert not paper_cell(0).payload_bits.flags.writeable
