"""Every registered policy on every round of the bank, and a policy that a user adds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, admit, policy, solve
from tests.cells import bank
from tests.conformance.checks import CHECKS, Check, check_policy

BANK = bank()
BLIND = ("random", "grouped")  # they may draw only devices that cannot meet the deadline


@pytest.fixture
def fairest_first() -> Iterator[str]:
    """A user's policy with everything a policy may have: a stream, a memory and an option."""

    @policy("fairest-first")
    def fairest_first(
        problem: RoundProblem, *, rng: np.random.Generator, memory: np.ndarray | None, most: int = 5
    ) -> Choice:
        """Whoever has sent least often, by lot among equals."""
        sent = np.zeros(problem.num_devices) if memory is None else memory.copy()
        listed = np.lexsort((sent, problem.snr_hz, problem.compute_s, problem.tau))  # by what they are, not by listing
        fairest = np.lexsort((rng.random(problem.num_devices), sent[listed]))
        selected = admit(problem, listed[fairest], most=most)
        sent[selected] += 1.0
        return Choice(selected, memory=sent)

    yield "fairest-first"
    del POLICIES["fairest-first"]


@pytest.fixture
def strongest_evenly() -> Iterator[str]:
    """A user's policy in three lines that divides the band evenly."""

    @policy("strongest-evenly", split_evenly=True)
    def strongest_evenly(problem: RoundProblem) -> np.ndarray:
        best = problem.reachable[np.argsort(-problem.snr_hz[problem.reachable], kind="stable")]
        return best[:1]

    yield "strongest-evenly"
    del POLICIES["strongest-evenly"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("problem", BANK.values(), ids=list(BANK))
@pytest.mark.parametrize("name", list(POLICIES))
def test_policy(name: str, problem: RoundProblem, check: Check) -> None:
    check(name, problem)


@pytest.mark.parametrize("problem", BANK.values(), ids=list(BANK))
def test_policy_of_a_user_with_memory(fairest_first: str, problem: RoundProblem) -> None:
    check_policy(fairest_first, problem)


@pytest.mark.parametrize("problem", BANK.values(), ids=list(BANK))
def test_policy_of_a_user_that_splits_evenly(strongest_evenly: str, problem: RoundProblem) -> None:
    check_policy(strongest_evenly, problem)


@pytest.mark.parametrize("problem", BANK.values(), ids=list(BANK))
@pytest.mark.parametrize("name", [name for name in POLICIES if name not in BLIND])
def test_policy_serves_somebody_where_somebody_can_be_served(name: str, problem: RoundProblem) -> None:
    schedule = solve(problem, name, rng=stream(1, "policy", 0))
    assert (schedule.num_selected > 0) == (problem.reachable.size > 0)


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
        return Choice(problem.reachable[:1], proven=True)

    try:
        with pytest.raises(AssertionError):
            check_policy("boaster", BANK["small, gamma 10"])
    finally:
        del POLICIES["boaster"]
