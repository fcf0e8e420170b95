"""Why nobody can send: what is said to help does help, and a little less does not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from flare.config.guard import Guard
from flare.scheduling import RoundProblem
from flare.scheduling.nobody import Advice, obstacle, why_nobody
from flare.units import parse, quantity_of
from tests.cells import paper_cell


def changed(problem: RoundProblem, **changes: float) -> RoundProblem:
    return replace(problem, **changes)


def hopeless(seed: int) -> RoundProblem:
    """The paper's cell with updates of 68 Mbit."""
    return changed(paper_cell(seed), payload_bits=68e6)


def test_where_somebody_can_send_there_is_no_obstacle() -> None:
    assert obstacle(paper_cell(0)) is None
    assert "policy 'random' chose none of them" in why_nobody(paper_cell(0), "random")


@pytest.mark.parametrize("seed", range(5))
def test_what_is_said_to_help_helps_and_a_little_less_does_not(seed: int) -> None:
    problem = hopeless(seed)
    found = obstacle(problem)
    assert found is not None
    assert found.deadline_s == pytest.approx(found.compute_s + found.upload_s, rel=1e-12)
    for name, better in (("deadline_s", 1.0), ("total_bandwidth_hz", 1.0), ("payload_bits", -1.0)):
        limit = getattr(found, name)
        assert changed(problem, **{name: limit * (1.0 + better * 1e-6)}).reachable.size > 0
        assert changed(problem, **{name: limit * (1.0 - better * 1e-6)}).reachable.size == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_rounded_numbers_of_the_sentence_are_enough(seed: int) -> None:
    problem = hopeless(seed)
    said = why_nobody(problem, "exact")
    assert "68 Mbit" in said
    assert "400 ms" in said
    numbers = {
        "deadline_s": re.search(r"a deadline of at least (\S+ \w+) \(wireless\.deadline_s\)", said),
        "total_bandwidth_hz": re.search(r"a band of at least (\S+ \w+) \(wireless\.total_bandwidth_hz\)", said),
        "payload_bits": re.search(r"updates of at most (\S+ \w+) \(wireless\.payload_bits\)", said),
    }
    for name, match in numbers.items():
        assert match is not None
        value = parse(match[1], quantity_of(name) or "")
        assert changed(problem, **{name: value}).reachable.size > 0


def test_where_no_band_is_wide_enough_and_no_update_small_enough_only_the_deadline_helps() -> None:
    problem = changed(paper_cell(0), deadline_s=1e-3)
    assert (problem.compute_s >= problem.deadline_s).all()
    said = why_nobody(problem, "exact")
    assert "a band of at least" not in said
    assert "updates of at most" not in said
    assert re.search(r"it would take a deadline of at least \S+ m?s \(wireless\.deadline_s\)$", said)


def test_a_channel_beyond_any_use_is_told_of_too() -> None:
    problem = RoundProblem(np.ones(2), np.zeros(2), np.full(2, 1e-90), 1e7, 1e7, 0.4)
    assert "a deadline of at least 6.94e+96 s" in why_nobody(problem, "exact")


@pytest.mark.parametrize("guard_share", [0.0, 0.2])
@pytest.mark.parametrize("guard_s", [0.0, 0.3])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("step_s", [0.01, 0.4, 3.0])
def test_where_devices_choose_their_steps_by_the_deadline_what_is_said_is_enough(
    guard_share: float, guard_s: float, share: float, step_s: float
) -> None:
    def with_deadline(deadline_s: float) -> RoundProblem:
        steps = max(1.0, share * deadline_s // step_s)
        return RoundProblem(
            tau=np.full(2, steps),
            compute_s=np.full(2, steps * step_s),
            snr_hz=np.full(2, 1e7),  # 1 bit/s for each Hz
            payload_bits=4e7,
            total_bandwidth_hz=1e7,
            deadline_s=deadline_s * (1.0 - guard_share) - guard_s,
        )

    found = obstacle(with_deadline(4.05), Advice(Guard(guard_share, guard_s), compute_share=np.full(2, share)))
    fixed = obstacle(with_deadline(4.05), Advice(Guard(guard_share, guard_s), compute_share=np.array([np.nan, share])))
    assert found is not None
    assert fixed is not None
    assert with_deadline(1.0001 * found.deadline_s).reachable.size == 2
    assert with_deadline(fixed.deadline_s - 1e-6).reachable.size == 0  # the least that can be, with the steps of now
    assert fixed.deadline_s <= found.deadline_s


def test_a_rate_that_is_told_is_not_helped_by_a_wider_band() -> None:
    problem = RoundProblem(np.ones(2), np.full(2, 0.1), np.full(2, 1e9), 4e7, 1e6, 0.5)
    assert "a band of at least" in why_nobody(problem, "exact")
    said = why_nobody(problem, "exact", advice=Advice(rate_is_told=np.array([True, True])))
    assert "a band of at least" not in said
    assert "an uplink of at least 101 Mbit/s (uplink-bps" in said  # 40 Mbit in 0.4 s, rounded up
    assert "a band of at least" in why_nobody(problem, "exact", advice=Advice(rate_is_told=np.array([True, False])))
