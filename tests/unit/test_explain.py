"""Why a device does not send: every reason against going through all devices one by one."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from flare import CELLS, Cell, round_problem, stream
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status, policy, solve
from flare.scheduling.explain import LeftOut, explain
from flare.scheduling.problem import SAME
from tests.cells import bank, extreme_rounds, hand_cell, paper_cell
from tests.plugin_files import registries_as_they_were


def one_by_one(problem: RoundProblem, schedule: Schedule) -> list[tuple[LeftOut | None, float]]:
    """Why each device does not send, and what the objective would change by: straight from the definitions."""
    return [_of(problem, schedule, device) for device in range(problem.num_devices)]


def _of(problem: RoundProblem, schedule: Schedule, device: int) -> tuple[LeftOut | None, float]:
    if device in schedule.selected:
        return None, math.nan
    if device in problem.never:
        return LeftOut.NEVER, math.nan
    if problem.compute_s[device] >= min(
        problem.deadline_s, math.inf if problem.due_s is None else problem.due_s[device]
    ):
        return LeftOut.TOO_SLOW, math.nan
    if not problem.fits(np.array([device])):
        return LeftOut.TOO_WEAK, math.nan
    more = np.append(schedule.selected, device)
    fits = problem.fits(more)
    if POLICIES[schedule.policy].split_evenly:
        whole = problem.block_hz or 1.0  # of whole blocks everybody gets as many
        share_hz = problem.total_bandwidth_hz / len(more)
        share_hz = share_hz if problem.block_hz is None else math.floor(share_hz / whole) * whole
        fits = problem.needed_hz[more].max() <= share_hz * (1.0 + 1e-12)
    if not fits:
        return LeftOut.NO_ROOM, math.nan
    if len(more) > problem.device_limit:
        return LeftOut.FULL, math.nan
    if schedule.num_selected == 0:
        return LeftOut.ALONE, math.nan
    change = problem.objective(more) - problem.objective(schedule.selected)
    if abs(change) <= SAME * schedule.objective:
        return LeftOut.EQUAL, change
    return (LeftOut.WORSE if change > 0.0 else LeftOut.BETTER), change


def rounds() -> list[RoundProblem]:
    drawn = [
        paper_cell(seed, num_devices=number, deadline_s=deadline_s, gamma=gamma)
        for number in (1, 3, 40)
        for deadline_s in (0.05, 0.15, 0.4, 2.0)
        for gamma in (0.0, 10.0)
        for seed in range(3)
    ]
    small = [problem for problem in bank().values() if problem.num_devices <= 200]
    return [*drawn, *small, *extreme_rounds(7, 40)]


@pytest.mark.parametrize("name", ["exact", "greedy", "ps", "dm", "all", "random"])
def test_every_reason_is_the_one_found_by_asking_of_each_device(name: str) -> None:
    seen = set()
    for at, problem in enumerate(rounds()):
        schedule = solve(problem, name, rng=stream(at, "explain"))
        detail = explain(schedule)
        for device, (why, change) in enumerate(one_by_one(problem, schedule)):
            assert detail.why[device] is why
            assert detail.objective_change[device] == pytest.approx(
                change, rel=1e-9, abs=1e-12 * schedule.objective, nan_ok=True
            )
            seen.add(why)
        if schedule.status is Status.OPTIMAL:
            assert LeftOut.BETTER not in detail.why
    assert {None, LeftOut.TOO_SLOW, LeftOut.TOO_WEAK, LeftOut.NO_ROOM} <= seen
    assert name not in ("exact", "ps") or LeftOut.WORSE in seen


def test_times_are_those_of_the_devices_that_send() -> None:
    problem = paper_cell(3)
    schedule = solve(problem)
    detail = explain(schedule)
    sends = schedule.bandwidth_hz > 0.0
    rate_bps = schedule.bandwidth_hz[sends] * np.log2(1.0 + problem.snr_hz[sends] / schedule.bandwidth_hz[sends])
    np.testing.assert_allclose(detail.upload_s[sends], problem.payload_bits[sends] / rate_bps, rtol=1e-12)
    np.testing.assert_allclose(detail.finish_s[sends], schedule.latency_s, rtol=1e-9)
    assert np.isnan(detail.finish_s[~sends]).all()


def test_a_device_that_fills_the_band_exactly_fits() -> None:
    # Shares 1/2, 1/4, 1/4: with gamma = 0 one device of tau 4 is best; each other one still fits beside it.
    problem = hand_cell([4.0, 2.0, 2.0], [0.5, 0.25, 0.25], gamma=0.0)
    detail = explain(solve(problem))
    assert detail.why == [None, LeftOut.WORSE, LeftOut.WORSE]
    assert detail.reason[1] == "would worsen the objective by 0.125"  # (1/4 + 1/2)/2 - 1/4


def test_words_say_who_passed_a_device_over_that_would_help() -> None:
    problem = paper_cell(0, deadline_s=2.0)
    schedule = solve(problem, "ps", rng=stream(0, "x"), num_selected=2)
    detail = explain(schedule)
    at = detail.why.index(LeftOut.BETTER)
    assert detail.reason[at] == f"would better the objective by {-detail.objective_change[at]:.3g}; ps passed it over"
    nobody = replace(schedule, selected=np.zeros(0, dtype=np.intp), bandwidth_hz=np.zeros(40), objective=math.inf)
    assert set(explain(nobody).reason) == {"could send alone; ps passed it over"}


def test_a_policy_says_itself_that_it_goes_by_the_objective() -> None:
    assert [name for name, one in POLICIES.items() if one.by_objective] == ["exact", "greedy", "lp"]
    problem = hand_cell([4.0, 2.0, 2.0], [0.5, 0.25, 0.25], gamma=0.0)
    words = "would worsen the objective by 0.125"
    with registries_as_they_were():
        policy("blind")(lambda problem: [0])
        policy("mine", by_objective=True)(lambda problem: [0])
        assert explain(solve(problem, "blind")).reason[1] == f"{words}; blind passed it over"
        assert explain(solve(problem, "mine")).reason[1] == words


def test_words_for_one_and_for_many() -> None:
    assert LeftOut.NO_ROOM.counted(1) == "1 does not fit"
    assert LeftOut.NO_ROOM.counted(35) == "35 do not fit"
    assert LeftOut.TOO_WEAK.counted(2) == "2 channels too weak"
    assert LeftOut.WORSE.counted(2) == "2 would worsen the objective"


def test_a_schedule_as_a_dict_is_json_with_times_reasons_and_certificate() -> None:
    problem = paper_cell(3, deadline_s=0.15)
    schedule = solve(problem)
    text = json.dumps(schedule.to_dict(), allow_nan=False)  # an error where something is no number
    told = json.loads(text)
    detail = explain(schedule)
    for name in ("objective", "lower_bound", "gap", "latency_s", "band_residual", "finish_spread"):
        assert told[name] == getattr(schedule, name)
    assert (told["policy"], told["status"], told["utility"]) == ("exact", "optimal", None)
    assert [device["device"] for device in told["devices"]] == list(range(40))
    assert [device["reason"] for device in told["devices"]] == detail.reason
    assert [device["selected"] for device in told["devices"]] == [not reason for reason in detail.reason]
    finish_s = [device["finish_s"] for device in told["devices"]]
    assert [one for one in finish_s if one is not None] == detail.finish_s[schedule.selected].tolist()
    named = schedule.to_dict([f"phone {i}" for i in range(40)])
    assert named["devices"][7]["device"] == "phone 7"
    with pytest.raises(ValueError, match="names has 1 entries, the round has 40 devices"):
        schedule.to_dict(["phone"])


def test_nobody_as_a_dict_has_no_infinite_numbers() -> None:
    told = solve(paper_cell(3, deadline_s=0.001)).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert (told["status"], told["objective"], told["lower_bound"], told["gap"]) == ("infeasible", None, None, None)


def test_a_schedule_shows_its_senders_and_not_forty_zeros() -> None:
    schedule = solve(round_problem(Cell(CELLS["paper"], 3).draw(0)))
    said = repr(schedule)
    assert "3 of 40 devices send" in said
    for device in schedule.selected:
        assert f"{device}: {schedule.bandwidth_hz[device] / 1e6:.4g} MHz until 365.6 ms" in said
    assert "array" not in said
    many = solve(paper_cell(1, num_devices=300, deadline_s=5.0), "all")
    assert f"and {many.num_selected - 8} more>" in repr(many)
    assert "nobody" not in repr(solve(paper_cell(3, deadline_s=0.001)))


def test_notebooks_get_tables_in_which_no_text_can_do_harm() -> None:
    cell = Cell(CELLS["paper"], 3)
    problem = round_problem(cell.draw(0))
    schedule = solve(problem)
    table = schedule._repr_html_()
    assert table.count("<tr>") == 1 + schedule.num_selected
    assert "35 do not fit, 2 would worsen the objective" in table
    hostile = replace(schedule, policy="<script>alert(1)</script>")
    assert "<script>" not in hostile._repr_html_()
    assert "40 could send alone" in problem._repr_html_()
    assert "10 MHz" in repr(problem)
    assert "array" not in repr(problem)
    assert "seed 3" in repr(cell)
    assert "<td>10 MHz</td>" in cell._repr_html_()
