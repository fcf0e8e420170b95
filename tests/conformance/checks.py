"""What every policy owes its caller, one check a promise. `check_policy` puts a policy of your own through all.

A check takes the name of a policy and a round, and asserts. Latencies and rates are computed here from Eqs. (5)-(7),
not by the code under test.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, Memory, Probed, RoundProblem, Schedule, Status
from tests.cells import SAME, alone_s, changed, reordered
from tests.conformance.rounds import (
    all_rounds,
    finish_s,
    first_round,
    made_up_hardware,
    made_up_history,
    min_objective,
    proven,
    run,
)
from tests.oracles import allowed_sets, brute_force_utility, objective_of

CERTIFICATE = 1e-9  # what a schedule promises of the band and of the finishing times
FIELDS = (
    *("selected", "bandwidth_hz", "latency_s", "objective", "lower_bound", "band_residual", "finish_spread"),
    *("utility", "utility_bound"),
)

Check = Callable[[str, RoundProblem], None]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def check_policy(policy: str, problem: RoundProblem) -> None:
    """Put one policy through every check on one round."""
    for one in CHECKS:
        one(policy, problem)


@check
def selects_devices_of_the_round_once_and_in_order(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    assert np.issubdtype(schedule.selected.dtype, np.integer)
    assert schedule.selected.tolist() == sorted(set(schedule.selected.tolist()) & set(range(problem.num_devices)))
    assert schedule.num_selected == len(schedule.selected)
    assert schedule.policy == policy


@check
def gives_bandwidth_to_the_selected_alone(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    assert schedule.bandwidth_hz.shape == (problem.num_devices,)
    assert np.flatnonzero(schedule.bandwidth_hz).tolist() == schedule.selected.tolist()
    assert (schedule.bandwidth_hz >= 0.0).all()


@check
def stays_within_the_band(policy: str, problem: RoundProblem) -> None:
    total = math.fsum(first_round(policy, problem).bandwidth_hz)
    assert total <= problem.total_bandwidth_hz * (1.0 + CERTIFICATE)


@check
def everybody_finishes_by_the_deadline(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    assert POLICIES[policy].own_deadline or schedule.problem.deadline_s == problem.deadline_s
    assert (finish_s(problem, schedule) <= due_s(schedule.problem)[schedule.selected] * (1.0 + CERTIFICATE)).all()


@check
def nobody_is_given_a_speed_or_power_that_it_has_not(policy: str, problem: RoundProblem) -> None:
    schedule, has = first_round(policy, problem), made_up_hardware(problem)
    others = np.setdiff1d(np.arange(problem.num_devices), schedule.selected)
    for given, most in ((schedule.cpu_hz, has.cpu_hz), (schedule.power_w, has.power_w)):
        if given is not None:
            assert POLICIES[policy].needs_hardware
            assert ((given > 0.0) & (given <= most)).all()
            np.testing.assert_array_equal(given[others], most[others])


def due_s(problem: RoundProblem) -> np.ndarray:
    """When each device has to be done: by the deadline of the round, or by its own."""
    own = np.inf if problem.due_s is None else problem.due_s
    return np.minimum(own, np.full(problem.num_devices, problem.deadline_s))


@check
def keeps_what_the_round_asks_for(policy: str, problem: RoundProblem) -> None:
    selected = set(first_round(policy, problem).selected.tolist())
    assert not selected or selected >= set(problem.must.tolist())
    assert not selected & set(problem.never.tolist())
    assert problem.max_devices is None or len(selected) <= problem.max_devices


@check
def gives_whole_blocks(policy: str, problem: RoundProblem) -> None:
    if problem.block_hz is not None:
        blocks = first_round(policy, problem).bandwidth_hz / problem.block_hz
        np.testing.assert_allclose(blocks, np.rint(blocks), rtol=1e-14)


@check
def latency_is_the_last_finish(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    if schedule.num_selected == 0:
        assert math.isnan(schedule.latency_s)
    else:
        assert schedule.latency_s <= schedule.problem.deadline_s
        assert math.isclose(schedule.latency_s, finish_s(problem, schedule).max(), rel_tol=CERTIFICATE)


@check
def objective_is_that_of_p2(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    number = schedule.num_selected
    if number == 0:
        assert schedule.objective == math.inf
    else:
        assert math.isclose(schedule.objective, objective_of(problem, schedule.selected.tolist()), rel_tol=1e-13)


@check
def the_division_of_the_band_is_certified(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    if schedule.num_selected == 0:
        return
    whole = problem.block_hz or problem.total_bandwidth_hz
    band_hz = math.floor(problem.total_bandwidth_hz / whole * (1.0 + 1e-12)) * whole
    residual = abs(math.fsum(schedule.bandwidth_hz) / band_hz - 1.0)
    assert residual <= CERTIFICATE or schedule.own_division
    assert abs(schedule.band_residual - residual) <= 1e-12
    evenly = POLICIES[policy].split_evenly
    if schedule.own_division:
        finish = finish_s(problem, schedule)
        spread = float((finish.max() - finish.min()) / finish.max())
    else:
        spread = certificate(problem, schedule, evenly=evenly)
    assert abs(schedule.finish_spread - spread) <= 1e-11
    if evenly:
        share, own_hz = band_hz / schedule.num_selected, schedule.bandwidth_hz[schedule.selected]
        np.testing.assert_allclose(
            own_hz, share, rtol=1e-12, atol=0.0 if problem.block_hz is None else problem.block_hz
        )
    elif not schedule.own_division:
        assert spread <= CERTIFICATE


def certificate(problem: RoundProblem, schedule: Schedule, *, evenly: bool) -> float:
    """What `finish_spread` is said to be, from the finishing times."""
    finish = finish_s(problem, schedule)
    if problem.block_hz is not None:
        fewer = replace(schedule, bandwidth_hz=schedule.bandwidth_hz - problem.block_hz)
        with np.errstate(divide="ignore", invalid="ignore"):
            with_one_less = np.nan_to_num(finish_s(problem, fewer), nan=math.inf, posinf=math.inf)
        with_one_less[schedule.bandwidth_hz[schedule.selected] < 1.5 * problem.block_hz] = math.inf
        own = np.full(problem.num_devices, math.inf) if problem.due_s is None else problem.due_s
        spare = np.where(with_one_less <= own[schedule.selected], finish.max() - with_one_less, 0.0)
        return float(max(spare.max(), 0.0) / finish.max())
    if problem.due_s is not None and not evenly:
        meant = np.minimum(finish.max(), problem.due_s[schedule.selected])
        return float(np.abs(finish - meant).max() / finish.max())
    return float((finish.max() - finish.min()) / finish.max())


@check
def infeasible_means_that_nobody_sends(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    assert (schedule.status is Status.INFEASIBLE) == (schedule.num_selected == 0)


@check
def an_infinite_bound_means_that_nobody_can(policy: str, problem: RoundProblem) -> None:
    plain = problem.block_hz is None and problem.due_s is None and not (problem.must.size or problem.never.size)
    if not plain:
        nobody_can = next(allowed_sets(problem), None) is None
    else:
        nobody_can = bool((alone_s(problem) > problem.deadline_s * (1.0 + CERTIFICATE)).all())
    schedule = first_round(policy, problem)
    if schedule.problem.deadline_s == problem.deadline_s:  # otherwise the policy has made another round of it
        assert (schedule.lower_bound == math.inf) == nobody_can


@check
def objective_is_not_under_the_proven_bound(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    asked = problem if schedule.problem.deadline_s == problem.deadline_s else schedule.problem
    assert schedule.objective >= proven(asked).lower_bound * (1.0 - SAME)
    if not math.isnan(schedule.lower_bound):
        assert schedule.lower_bound <= proven(asked).objective * (1.0 + SAME)


@check
def optimal_means_the_least_over_all_subsets(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    if schedule.status is Status.OPTIMAL:
        assert schedule.lower_bound == schedule.objective
        if problem.num_devices <= 10:
            assert math.isclose(schedule.objective, min_objective(problem), rel_tol=SAME)


@check
def the_same_stream_gives_the_same_schedule_and_what_is_passed_in_stays_as_it_is(
    policy: str, problem: RoundProblem
) -> None:
    memory: Memory | None = None
    for turn, (one, schedule) in enumerate(all_rounds(policy, problem)):
        given = {name: np.array(getattr(one, name)) for name in ("tau", "compute_s", "snr_hz", "payload_bits")}
        fresh, history = changed(one, **given), made_up_history(one, turn)
        passed_in = (given, {name: getattr(fresh, name) for name in given}, memory or {}, vars(history))
        before = copy.deepcopy(passed_in)
        again = run(policy, fresh, turn=turn, memory=memory, history=history)
        for name in FIELDS:
            assert same(getattr(schedule, name), getattr(again, name)), name
        assert all_same(schedule.memory, again.memory)
        assert all(map(all_same, passed_in, before))
        untouched = changed(one)
        assert same(fresh.needed_hz, untouched.needed_hz)
        assert same(fresh.canonical_order, untouched.canonical_order)
        memory = again.memory


def same(one: object, other: object) -> bool:
    """Whether two are equal to the last bit; nan is nan."""
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)


def all_same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """The same of all that two dicts hold; None is None."""
    if one.keys() != other.keys():
        return False
    return all(other[name] is None if each is None else same(each, other[name]) for name, each in one.items())


@check
def the_order_of_the_devices_does_not_matter(policy: str, problem: RoundProblem) -> None:
    memory = None
    for turn, (one, schedule) in enumerate(all_rounds(policy, problem)):
        for seed in range(3) if turn == 0 else [2 + turn]:  # another order in each round
            order = np.random.default_rng(seed).permutation(problem.num_devices)
            other = reordered(one, order)
            moved = None if memory is None else moved_along(memory, order)
            _assert_alike(one, schedule, other, run(policy, other, turn=turn, memory=moved))
        memory = schedule.memory


def moved_along(memory: Memory, order: np.ndarray) -> Memory:
    """The memory of the same devices listed in another order: arrays with a row for each device follow them."""
    return {name: array[order] if array.shape[:1] == order.shape else array for name, array in memory.items()}


def _assert_alike(problem_1: RoundProblem, schedule_1: Schedule, problem_2: RoundProblem, schedule_2: Schedule) -> None:
    """Equal up to the listing; identical devices may stand in for one another."""
    selected_1, bandwidth_1 = _selection(problem_1, schedule_1)
    selected_2, bandwidth_2 = _selection(problem_2, schedule_2)
    assert selected_1 == selected_2
    assert all(math.isclose(*both, rel_tol=CERTIFICATE) for both in zip(bandwidth_1, bandwidth_2, strict=True))
    assert schedule_1.objective == schedule_2.objective
    assert schedule_1.status is schedule_2.status
    assert same(schedule_1.utility, schedule_2.utility)
    if selected_1:
        assert math.isclose(schedule_1.latency_s, schedule_2.latency_s, rel_tol=1e-12)
    else:
        assert same(schedule_1.latency_s, schedule_2.latency_s)
    assert _remembered(problem_1, schedule_1) == _remembered(problem_2, schedule_2)


def _selection(problem: RoundProblem, schedule: Schedule) -> tuple[list[tuple[float, float, float]], list[float]]:
    at = schedule.selected
    columns = (problem.tau[at], problem.compute_s[at], problem.snr_hz[at], schedule.bandwidth_hz[at])
    rows = sorted(zip(*(column.tolist() for column in columns), strict=True))
    return [row[:3] for row in rows], [row[3] for row in rows]


def _remembered(problem: RoundProblem, schedule: Schedule) -> list[tuple[float, ...]]:
    own = [array for array in schedule.memory.values() if array.shape == problem.tau.shape]
    columns = (problem.tau, problem.compute_s, problem.snr_hz, *own)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@check
def every_round_of_a_run_is_feasible(policy: str, problem: RoundProblem) -> None:
    for one, schedule in all_rounds(policy, problem):
        assert (schedule.status is Status.INFEASIBLE) == (schedule.num_selected == 0)
        assert (finish_s(one, schedule) <= due_s(schedule.problem)[schedule.selected] * (1.0 + CERTIFICATE)).all()
        assert math.fsum(schedule.bandwidth_hz) <= one.total_bandwidth_hz * (1.0 + CERTIFICATE)
        own = schedule.problem.deadline_s != one.deadline_s  # otherwise what is proven of the round is known already
        in_time = replace(one, deadline_s=schedule.problem.deadline_s) if own else one
        assert schedule.objective >= proven(in_time).lower_bound * (1.0 - SAME)


@check
def a_memory_is_made_of_finite_numbers_by_name(policy: str, problem: RoundProblem) -> None:
    for _, schedule in all_rounds(policy, problem):
        assert bool(schedule.memory) == POLICIES[policy].remembers
        for name, array in schedule.memory.items():
            assert isinstance(name, str)
            assert np.isfinite(array).all()


@check
def utilities_are_chosen_by_a_knapsack_with_proof(policy: str, problem: RoundProblem) -> None:
    schedule = first_round(policy, problem)
    if math.isnan(schedule.utility):
        assert math.isnan(schedule.utility_bound)
        return
    assert schedule.utility >= 0.0 or problem.must.size
    assert schedule.utility_bound == schedule.utility
    assert schedule.status is not Status.OPTIMAL
    answer = POLICIES[policy].function(problem, **asked_for(policy, problem))
    utility = np.asarray(answer.utility if isinstance(answer, Choice) else answer, dtype=float)
    assert (utility[np.setdiff1d(schedule.selected, problem.must)] > 0.0).all()
    assert math.isclose(schedule.utility, math.fsum(utility[schedule.selected]), rel_tol=1e-15)
    if problem.num_devices <= 10:
        assert math.isclose(schedule.utility, brute_force_utility(problem, utility), rel_tol=SAME)


def asked_for(policy: str, problem: RoundProblem) -> dict[str, object]:
    """What `run` hands to a policy in the first round."""
    all_there_is = {
        **{"rng": stream(7, "policy", 0), "history": made_up_history(problem, 0), "memory": {}},
        **{"hardware": made_up_hardware(problem), "probed": Probed.nothing(problem.num_devices)},
    }
    return {name: value for name, value in all_there_is.items() if name in POLICIES[policy].takes}
