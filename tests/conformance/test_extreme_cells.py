"""A hundred thousand rounds at the ends of what is accepted: every policy comes to an end and keeps its promises."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, Hardware, RoundProblem, Schedule, Status, solve, solve_many
from tests.cells import changed, extreme_rounds, extreme_rounds_in_blocks
from tests.conformance.checks import CERTIFICATE, certificate, due_s
from tests.conformance.rounds import finish_s, made_up_hardware, needed_history

OF_OTHER_AUTHORS = [
    name for name, one in POLICIES.items() if one.function.__module__.startswith("flare.scheduling.systems")
]
# `lp` calls a solver that takes milliseconds; the systems of other authors end as the usual policies do, in `admit`.
NUM_ROUNDS = dict.fromkeys(POLICIES, 7_800) | {"lp": 1_000} | dict.fromkeys(OF_OTHER_AUTHORS, 1_000)
NUM_ROUNDS |= {"xu": 300, "tran": 40}  # they search for milliseconds, and here longer
PATIENCE_S = 5.0  # of computing; rounds of a few devices take a millisecond or less, those of `tran` half a second
LOT = 300  # so many rounds are solved together
ALONE = 30  # so many of each lot are solved once more, each alone


def described(problem: RoundProblem) -> str:
    names = (
        "tau",
        "compute_s",
        "snr_hz",
        "payload_bits",
        "total_bandwidth_hz",
        "deadline_s",
        "gamma",
        "block_hz",
        "due_s",
    )
    return ", ".join(f"{name}={np.asarray(getattr(problem, name)).tolist()!r}" for name in names)


@contextmanager
def watchdog(policy: str, *problems: RoundProblem, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Fail, with the round's numbers, where a round takes longer than it possibly can; or raises anything."""

    def where() -> str:
        rounds = [f"RoundProblem({described(problem)})" for problem in problems]
        return f"policy {policy}, {rounds[0] if len(rounds) == 1 else rounds}"

    def bark(*_: object) -> None:
        pytest.fail(f"no end after {patience_s:g} s: {where()}")

    before = signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, patience_s)
    try:
        yield
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error}: {where()}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def solved(policy: str, problem: RoundProblem, turn: int) -> Schedule:
    """The round by the policy, with no more than it asks for: here, what is made up takes longer than many a policy."""
    asked = POLICIES[policy]
    return solve(
        problem,
        policy,
        rng=stream(turn, "policy") if asked.draws else None,
        history=needed_history(policy, problem),
        hardware=made_up_hardware(problem) if asked.needs_hardware else None,
    )


def solved_together(policy: str, problems: list[RoundProblem], turn: int) -> list[Schedule]:
    """The same of some rounds, the first of which has the number `turn`."""
    asked, labels = POLICIES[policy], "labels" in POLICIES[policy].needed({})
    return solve_many(
        problems,
        policy,
        rng=[stream(turn + at, "policy") for at in range(len(problems))] if asked.draws else None,
        history=[needed_history(policy, problem) for problem in problems] if labels else None,
        hardware=[made_up_hardware(problem) for problem in problems] if asked.needs_hardware else None,
    )


def schedules(policy: str, problems: list[RoundProblem]) -> Iterator[Schedule]:
    """Every round by the policy, under the eyes of a watchdog: in lots, and some of each lot alone, which must be the
    same. A lot that fails is solved again round by round, so that the message is of the round that fails."""
    for turn in range(0, len(problems), LOT):
        lot = problems[turn : turn + LOT]
        try:
            with watchdog(policy, *lot):
                answers = solved_together(policy, lot, turn)
        except pytest.fail.Exception:
            _alone(policy, lot, turn)
            raise
        for one, other in zip(_alone(policy, lot[:ALONE], turn), answers, strict=False):
            same = one.latency_s == other.latency_s or one.num_selected == other.num_selected == 0
            same = same and np.array_equal(one.selected, other.selected)
            same = same and np.array_equal(one.bandwidth_hz, other.bandwidth_hz)
            assert same, f"alone another schedule: policy {policy}, RoundProblem({described(one.problem)})"
        yield from answers


def _alone(policy: str, problems: list[RoundProblem], turn: int) -> list[Schedule]:
    """The schedules of some rounds, each solved alone, as if nothing were known of it yet."""
    made = []
    for at, problem in enumerate(map(changed, problems)):
        with watchdog(policy, problem):
            made.append(solved(policy, problem, turn + at))
    return made


def assert_promises(policy: str, problem: RoundProblem, schedule: Schedule) -> None:
    if schedule.num_selected == 0:
        return
    evenly = POLICIES[policy].split_evenly or schedule.own_division
    finish = finish_s(problem, schedule)
    last = finish.max()
    kept = {
        "everybody gets a band": bool((schedule.bandwidth_hz[schedule.selected] > 0.0).all()),
        "deadlines are met": bool((finish <= due_s(schedule.problem)[schedule.selected] * (1.0 + CERTIFICATE)).all()),
        "the latency is the last finish": math.isclose(schedule.latency_s, last, rel_tol=CERTIFICATE),
        "the band is used up": schedule.own_division
        or abs(math.fsum(schedule.bandwidth_hz) / problem.usable_hz - 1.0) <= CERTIFICATE,
        "no division ends sooner": evenly or certificate(problem, schedule, evenly=False) <= CERTIFICATE,
        "the certificate says so": (schedule.own_division or schedule.band_residual <= CERTIFICATE)
        and (evenly or schedule.finish_spread <= CERTIFICATE),
    }
    for promise, is_kept in kept.items():
        assert is_kept, f"{promise}: not by policy {policy} in RoundProblem({described(problem)})"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", list(POLICIES))
def test_policy_ends_and_keeps_its_promises_in_extreme_rounds(name: str) -> None:
    served, number = 0, NUM_ROUNDS[name]
    problems = list(extreme_rounds(list(POLICIES).index(name), number))
    made = schedules(name, problems) if number > LOT else _alone(name, problems, 0)
    for problem, schedule in zip(problems, made, strict=True):
        assert_promises(name, problem, schedule)
        served += schedule.num_selected > 0
    assert served > min(100, number // 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", list(POLICIES))
def test_policy_ends_and_keeps_its_promises_in_extreme_rounds_of_whole_blocks(name: str) -> None:
    served = 0
    number = min(NUM_ROUNDS[name], 80)
    for turn, problem in enumerate(extreme_rounds_in_blocks(list(POLICIES).index(name), number)):
        with watchdog(name, problem):
            schedule = solved(name, problem, turn)
        assert_promises(name, problem, schedule)
        served += schedule.num_selected > 0
    least = 10 if name == "chen" else 15  # who has one block alone is late more often
    assert served > least * number // 80


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("policy", ["exact", "greedy", "dm"])
@pytest.mark.parametrize(
    ("payload_bits", "num_blocks"),
    [
        pytest.param(1e-20, 10, id="an upload is less than a rounding of the computing time"),
        pytest.param(1e-14, 10**6, id="an upload is a few roundings of the computing time"),
        pytest.param(1e-14, 10**9, id="the same, and as many blocks as there may be"),
        pytest.param(1.0, 10**9, id="the rate no longer grows with the bandwidth"),
    ],
)
def test_whole_blocks_where_doubles_are_too_coarse(payload_bits: float, num_blocks: int, policy: str) -> None:
    problem = RoundProblem(
        tau=[2.0, 2.0, 3.0],
        compute_s=[1.0, 1.0, 0.5],
        snr_hz=[3.0, 4.0, 3.0],
        payload_bits=payload_bits,
        total_bandwidth_hz=float(num_blocks),
        deadline_s=2.0,
        block_hz=1.0,
    )
    with watchdog(policy, problem, patience_s=1.0):
        schedule = solve(problem, policy)
    assert schedule.num_selected == 3
    assert schedule.bandwidth_hz.sum() == num_blocks
    assert_promises(policy, problem, schedule)


@pytest.mark.filterwarnings("error")
def test_greedy_chooses_the_same_in_windows_in_extreme_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = list(extreme_rounds(99, 1_000))
    chosen = []
    for large in (1, math.inf):
        monkeypatch.setattr("flare.scheduling.greedy._LARGE", large)
        for problem in rounds:
            with watchdog("greedy", problem):
                chosen.append(solve(problem, "greedy").selected.tolist())
    assert chosen[: len(rounds)] == chosen[len(rounds) :]


def test_they_are_a_hundred_thousand() -> None:
    assert sum(NUM_ROUNDS.values()) >= 100_000


def test_the_watchdog_barks_at_an_endless_loop() -> None:
    def loop() -> None:
        with watchdog("none", next(extreme_rounds(0, 1)), patience_s=0.05):
            while True:
                pass

    with pytest.raises(pytest.fail.Exception, match=r"no end after 0\.05 s: policy none, RoundProblem"):
        loop()


def test_greedy_ends_where_uploads_are_negligible_beside_computing() -> None:
    # The doubles near the wanted time are 4.5e-13 s apart; between two of them a need falls from infinite to 1e8 Hz.
    problem = RoundProblem(
        tau=[469723.05, 518682.21],
        compute_s=[2207.975, 0.0],
        snr_hz=[0.0087868653, 9.7992084e-06],
        payload_bits=1.0107894e-4,
        total_bandwidth_hz=6.1177539e14,
        deadline_s=80553.03,
    )
    with watchdog("greedy", problem):
        assert solve(problem, "greedy").selected.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("policy", "snr_hz", "payload_bits", "band_hz", "deadline_s"),
    [
        ("tran", (3e16, 7e-13, 3e-25), (2e-40, 1e-19, 3e34), 5e-38, 2e4),
        ("xu", (1e10, 1e29, 6e-25), (8e34, 4e-68, 1e-17), 2e-13, 2e47),
    ],
)
def test_where_numbers_are_too_far_apart_for_its_terms_nobody_sends(
    policy: str, snr_hz: tuple[float, ...], payload_bits: tuple[float, ...], band_hz: float, deadline_s: float
) -> None:
    """The bands that these policies divide themselves were too narrow to be any, and the round an error."""
    problem = RoundProblem(np.ones(3), np.zeros(3), np.array(snr_hz), np.array(payload_bits), band_hz, deadline_s)
    hardware = Hardware(np.full(3, 1e9), np.full(3, 0.1), np.zeros(3), 1e-28)
    schedule = solve(problem, policy, hardware=hardware)
    assert schedule.status is Status.INFEASIBLE
    assert schedule.num_selected == 0
    assert solve_many([problem, problem], policy, hardware=[hardware] * 2)[1].status is Status.INFEASIBLE
