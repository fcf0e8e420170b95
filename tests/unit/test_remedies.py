"""What is said to bring a device in does bring it in, and a little less does not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from flare import CELLS, Cell
from flare.scheduling import RoundProblem, solve
from flare.scheduling.cells import round_problem
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.remedies import MAX_TIMED, remedies
from flare.units import parse
from tests.cells import hand_cell


def told(words: str | None, what: str, quantity: str) -> float:
    """The number that a remedy names."""
    assert words is not None
    found = re.search(rf"([\d.]+ \w+) more {what}", words)
    assert found, words
    return parse(found[1], quantity)


def cell(seed: int, **settings: float) -> RoundProblem:
    return round_problem(Cell(replace(CELLS["paper"], **settings), seed).draw(0))


@pytest.mark.parametrize("policy", ["exact", "greedy", "cp"])
def test_so_much_more_band_or_time_makes_room(policy: str) -> None:
    checked = 0
    for seed in range(4):
        problem = cell(seed, deadline_s=0.7)
        schedule = solve(problem, policy)
        detail = explain(schedule)
        for device, words in enumerate(remedies(schedule, detail)):
            if detail.why[device] is not LeftOut.NO_ROOM:
                continue
            beside = np.append(schedule.selected, device)
            more_hz = told(words, "band", "bandwidth")
            for share, fits in ((1.0, True), (0.98, False)):
                wider = replace(problem, total_bandwidth_hz=problem.total_bandwidth_hz + share * more_hz)
                even = wider.needed_hz[beside].max() <= wider.even_share_hz(len(beside))
                assert (even if schedule.split_evenly else wider.fits(beside)) == fits
            if not schedule.split_evenly:
                later_s = told(words, "time", "time")
                assert replace(problem, deadline_s=problem.deadline_s + later_s).fits(beside)
                assert not replace(problem, deadline_s=problem.deadline_s + 0.98 * later_s).fits(beside)
            checked += 1
    assert checked > 10


def test_so_many_steps_would_help() -> None:
    checked = 0
    for seed in range(6):
        problem = cell(seed, deadline_s=1.0)
        schedule = solve(problem)
        detail = explain(schedule)
        for device, words in enumerate(remedies(schedule, detail)):
            found = re.search(r"from ([\d,]+) local steps", words or "")
            if found:
                for steps, helps in (
                    (int(found[1].replace(",", "")), True),
                    (int(found[1].replace(",", "")) - 1, False),
                ):
                    tau = problem.tau.copy()
                    tau[device] = max(steps, 1)
                    same_time = replace(problem, tau=tau)
                    both = same_time.objective(np.append(schedule.selected, device))
                    assert (both < same_time.objective(schedule.selected) * (1.0 - 1e-12)) == helps
                checked += 1
    assert checked > 3


def test_a_device_that_is_too_weak_or_too_slow_is_told_what_it_lacks_alone() -> None:
    problem = cell(1, deadline_s=0.4, power_dbm=-20.0)
    schedule = solve(problem)
    detail = explain(schedule)
    weak = [device for device, why in enumerate(detail.why) if why is LeftOut.TOO_WEAK]
    assert weak
    for device in weak[:5]:
        words = remedies(schedule, detail)[device]
        later_s = told(words, "time", "time")
        assert replace(problem, deadline_s=problem.deadline_s + later_s).fits(np.array([device]))
        assert not replace(problem, deadline_s=problem.deadline_s + 0.98 * later_s).fits(np.array([device]))
    slow = hand_cell([4.0, 1.0], [0.5, 0.5], gamma=10.0)
    slow = replace(slow, compute_s=[2.0 * slow.deadline_s, 0.0])
    words = remedies(solve(slow), explain(solve(slow)))[0]
    assert words is not None
    assert "at most 1 of its 4 steps" in words  # 2 of them take until the deadline, and leave no time to send


def test_of_many_devices_only_those_in_focus_are_told_of_time() -> None:
    problem = cell(0, num_devices=200, deadline_s=0.5)
    schedule = solve(problem, "greedy")
    detail = explain(schedule)
    crowd = [device for device, why in enumerate(detail.why) if why is LeftOut.NO_ROOM]
    assert len(crowd) > MAX_TIMED
    words = remedies(schedule, detail, focus=[crowd[3]])
    assert [device for device in crowd if "more time" in (words[device] or "")] == [crowd[3]]
