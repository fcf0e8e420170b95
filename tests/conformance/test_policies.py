"""Every registered policy on every round of the bank, and a policy that a user adds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, History, Memory, RoundProblem, admit, policy, solve
from tests.cells import bank
from tests.conformance.checks import check_policy
from tests.conformance.rounds import made_up_hardware, needed_history, run

BANK = bank()
BLIND = ("random", "grouped", "chen")  # they may draw devices that cannot meet the deadline, or much interference


@pytest.fixture
def fairest_first() -> Iterator[str]:
    """A user's policy with everything a policy may have: a stream, a memory and an option."""

    @policy("fairest-first")
    def fairest_first(problem: RoundProblem, *, rng: np.random.Generator, memory: Memory, number: int = 5) -> Choice:
        """Whoever has sent least often, by lot among equals."""
        sent = memory.get("sent", np.zeros(problem.num_devices))
        listed = np.lexsort((sent, problem.snr_hz, problem.compute_s, problem.tau))  # by what they are, not by listing
        fairest = np.lexsort((rng.random(problem.num_devices), sent[listed]))
        selected = admit(problem, listed[fairest], max_devices=number)
        sent[selected] += 1.0
        rounds = memory.get("rounds", np.zeros((), dtype=np.int32)) + 1
        return Choice(selected, memory={"sent": sent, "rounds": rounds})

    yield "fairest-first"
    del POLICIES["fairest-first"]


@pytest.fixture
def surprising() -> Iterator[str]:
    """A user's policy by utility, in two lines: devices with a large loss and much data, as in Oort."""

    @policy("surprising")
    def surprising(problem: RoundProblem, *, history: History) -> np.ndarray:
        """The devices whose samples are learned worst."""
        squared = np.nan_to_num(history.mean_squared_loss, nan=1.0)  # who has never sent counts as 1
        return history.num_samples * np.sqrt(squared)

    yield "surprising"
    del POLICIES["surprising"]


@pytest.fixture
def patient() -> Iterator[str]:
    """A user's policy by utility that also remembers: a channel against its average, more for who waits; some are not
    wanted."""

    @policy("patient")
    def patient(problem: RoundProblem, *, history: History, memory: Memory, growth: float = 1.5) -> Choice:
        """Whoever waits counts for more, round by round, until it is sent."""
        average = 0.5 * (memory.get("snr_hz", problem.snr_hz) + problem.snr_hz)
        waited = np.minimum(history.rounds_since_sent, 20.0)
        worth = np.log1p(problem.tau) * growth**waited * problem.snr_hz / average
        return Choice(utility=np.where(history.update_norm > 1.8, -1.0, worth), memory={"snr_hz": average})

    yield "patient"
    del POLICIES["patient"]


@pytest.fixture
def strongest_evenly() -> Iterator[str]:
    """A user's policy in three lines that divides the band evenly."""

    @policy("strongest-evenly", split_evenly=True)
    def strongest_evenly(problem: RoundProblem) -> np.ndarray:
        best = problem.reachable[np.argsort(-problem.snr_hz[problem.reachable], kind="stable")]
        return best[:1]

    yield "strongest-evenly"
    del POLICIES["strongest-evenly"]


@pytest.mark.parametrize("problem", BANK.values(), ids=list(BANK))
@pytest.mark.parametrize("name", list(POLICIES))
def test_policy(name: str, problem: RoundProblem) -> None:
    check_policy(name, problem)


@contextmanager
def on(label: str) -> Iterator[None]:
    """Name the round of the bank in what is wrong on it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"on the round '{label}'")
        raise


def test_policy_of_a_user_with_memory(fairest_first: str) -> None:
    for label, problem in BANK.items():
        with on(label):
            check_policy(fairest_first, problem)


def test_policy_of_a_user_by_utility_from_the_history(surprising: str) -> None:
    for label, problem in BANK.items():
        with on(label):
            check_policy(surprising, problem)
            assert (run(surprising, problem).num_selected > 0) == (problem.reachable.size > 0)


def test_policy_of_a_user_by_utility_with_memory(patient: str) -> None:
    for label, problem in BANK.items():
        with on(label):
            check_policy(patient, problem)


def test_policy_of_a_user_that_splits_evenly(strongest_evenly: str) -> None:
    for label, problem in BANK.items():
        if not problem.must.size:
            with on(label):
                check_policy(strongest_evenly, problem)


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in BLIND])
def test_policy_serves_somebody_where_somebody_can_be_served(name: str) -> None:
    for label, problem in BANK.items():
        known = {"history": needed_history(name, problem), "hardware": made_up_hardware(problem)}
        schedule = solve(problem, name, rng=stream(1, "policy", 0), **known)
        if problem.possible or not POLICIES[name].own_deadline:
            assert (schedule.num_selected > 0) == problem.possible, f"on the round '{label}'"


def test_checks_catch_a_policy_that_depends_on_the_listing() -> None:
    @policy("first-listed")
    def first_listed(problem: RoundProblem) -> np.ndarray:
        return admit(problem, range(problem.num_devices))

    try:
        with pytest.raises(AssertionError):
            check_policy("first-listed", BANK["paper, 0.4 s"])
    finally:
        del POLICIES["first-listed"]


def test_checks_catch_a_false_claim_of_optimality() -> None:
    @policy("boaster")
    def boaster(problem: RoundProblem) -> Choice:
        return Choice(solve(problem, "all").selected, proven=True)  # nobody more fits: no device alone tells

    try:
        with pytest.raises(AssertionError):
            check_policy("boaster", BANK["small, gamma 10"])
    finally:
        del POLICIES["boaster"]
