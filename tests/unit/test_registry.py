from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, Status, admit, get_policy, policy, solve
from tests.cells import hand_cell, paper_cell

CELL = hand_cell([4.0, 3.0, 2.0, 1.0], [0.5, 0.5, 0.4, 0.1], gamma=10.0)


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    kept = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(kept)


def answering(answer: object) -> str:
    """Register a policy that always gives the same answer."""

    @policy("fixed")
    def fixed(problem: RoundProblem) -> object:
        return answer

    return "fixed"


def test_the_policies_of_the_paper_and_the_usual_ones_are_registered() -> None:
    assert set(POLICIES) == {
        *("exact", "greedy", "lp", "ps", "cp", "dm", "cm"),
        *("random", "grouped", "round-robin", "proportional-fair", "all"),
    }


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_says_what_it_does_in_a_line(name: str) -> None:
    assert get_policy(name).name == name
    assert 20 < len(get_policy(name).summary) < 120


def test_a_name_is_given_once() -> None:
    answering([0])
    with pytest.raises(ValueError, match="there is already a policy 'fixed'; choose another name"):
        answering([1])


@pytest.mark.parametrize(("wrong", "near"), [("greddy", "greedy"), ("exakt", "exact"), ("roundrobin", "round-robin")])
def test_an_unknown_policy_is_refused_with_the_nearest_name(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"there is no policy '{wrong}'; did you mean '{near}'\?") as caught:
        solve(CELL, wrong)
    assert all(name in str(caught.value) for name in POLICIES)


def test_an_unknown_policy_unlike_any_other_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"there is no policy 'zzz'\. Policies: ") as caught:
        get_policy("zzz")
    assert "did you mean" not in str(caught.value)


def test_an_unknown_option_is_refused_with_the_options_there_are() -> None:
    with pytest.raises(ValueError, match=r"policy 'ps' has no option 'num_select' .*num_selected"):
        solve(CELL, "ps", rng=stream(0), num_select=3)
    with pytest.raises(ValueError, match=r"policy 'greedy' has no option 'num_selected' \(its options: none\)"):
        solve(CELL, "greedy", num_selected=3)


@pytest.mark.parametrize("name", [name for name, one in POLICIES.items() if one.draws])
def test_a_policy_that_draws_refuses_to_run_without_a_stream(name: str) -> None:
    with pytest.raises(ValueError, match=f"policy '{name}' draws at random: pass rng="):
        solve(CELL, name)


@pytest.mark.parametrize("name", [name for name, one in POLICIES.items() if one.remembers])
def test_a_memory_of_another_cell_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"memory of policy '{name}' has shape \(3,\), the round has 4 devices"):
        solve(CELL, name, rng=stream(0), memory=np.zeros(3))


def test_a_device_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="policy 'fixed' named a device twice"):
        solve(CELL, answering([1, 2, 1]))


@pytest.mark.parametrize("device", [-1, 4, 1000])
def test_a_device_that_does_not_exist_is_refused(device: int) -> None:
    with pytest.raises(ValueError, match="policy 'fixed' named a device outside 0 to 3"):
        solve(CELL, answering([0, device]))


def test_devices_that_do_not_fit_are_refused_with_what_they_need() -> None:
    with pytest.raises(ValueError, match=r"policy 'fixed' chose 3 devices that need 1\.4e\+06 Hz .* of 1e\+06 Hz"):
        solve(CELL, answering([0, 1, 2]))


def test_a_device_out_of_reach_is_refused() -> None:
    cell = RoundProblem([1, 1], [2.0, 0.0], [1e9, 1e9], 1e6, 1e6, 1.0)
    with pytest.raises(ValueError, match="policy 'fixed' chose 1 devices that need inf Hz"):
        solve(cell, answering([0]))


def test_devices_that_miss_the_deadline_on_an_even_share_are_refused() -> None:
    @policy("even", split_evenly=True)
    def even(problem: RoundProblem) -> list[int]:
        return [0, 1]

    cell = hand_cell([1.0, 1.0], [0.7, 0.3], gamma=1.0)
    with pytest.raises(ValueError, match="policy 'even' chose devices that miss the deadline when the band is split"):
        solve(cell, "even")


@pytest.mark.parametrize(
    "answer",
    [
        np.array([True, False, False, True]),
        np.array([True, False, False, False]),
        [True, False],
        [0.7],
        np.array([1.0, 2.5]),
        ["0"],
        "0",
        None,
        [[0, 1], [2, 3]],
    ],
    ids=str,
)
def test_an_answer_that_is_not_a_list_of_devices_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="policy 'fixed'"):
        solve(CELL, answering(answer))


@pytest.mark.parametrize("answer", [[2, 0], (0, 2), np.array([0, 2], dtype=np.uint8), Choice([2, 0])], ids=str)
def test_the_devices_may_come_in_any_integer_form_and_order(answer: object) -> None:
    schedule = solve(CELL, answering(answer))
    assert schedule.selected.tolist() == [0, 2]
    assert schedule.status is Status.FEASIBLE


@pytest.mark.parametrize("answer", [[], (), np.zeros(0), Choice([])], ids=str)
def test_an_empty_answer_is_a_round_in_which_nobody_sends(answer: object) -> None:
    schedule = solve(CELL, answering(answer))
    assert schedule.status is Status.INFEASIBLE
    assert np.isnan(schedule.lower_bound)  # others could have sent: nothing is proven
    assert np.isnan(schedule.gap)


def test_options_reach_the_policy_and_are_listed() -> None:
    @policy("first")
    def first(problem: RoundProblem, *, rng: np.random.Generator, memory: np.ndarray | None, most: int = 1) -> Choice:
        """The first few."""
        return Choice(np.arange(most), memory=memory)

    assert get_policy("first").options == ("most",)
    assert get_policy("first").draws
    assert get_policy("first").remembers
    assert get_policy("first").summary == "The first few."
    assert solve(CELL, "first", rng=stream(0), most=2).selected.tolist() == [0, 1]


def test_a_bound_of_a_choice_reaches_the_schedule() -> None:
    schedule = solve(CELL, answering(Choice([0], lower_bound=1.1)))
    assert schedule.lower_bound == 1.1
    assert schedule.objective == pytest.approx(11 / 4, rel=1e-15)
    assert schedule.gap == pytest.approx(11 / 4 / 1.1 - 1.0, rel=1e-14)


def test_admit_takes_those_that_still_fit_and_passes_over_the_others() -> None:
    # Shares 0.5, 0.5, 0.4, 0.1.
    assert admit(CELL, [0, 2, 1, 3]).tolist() == [0, 2, 3]


def test_admit_may_stop_at_the_first_that_does_not_fit() -> None:
    assert admit(CELL, [0, 2, 1, 3], stop_at_first=True).tolist() == [0, 2]


def test_admit_takes_at_most_so_many() -> None:
    assert admit(CELL, [3, 2, 1, 0], most=2).tolist() == [3, 2]


def test_admit_passes_over_devices_out_of_reach_even_if_it_stops_at_the_first() -> None:
    cell = hand_cell([1.0, 1.0, 1.0], [1.2, 0.5, 0.4], gamma=1.0)
    assert admit(cell, [0, 1, 2], stop_at_first=True).tolist() == [1, 2]


def test_admit_of_nobody_is_nobody() -> None:
    assert admit(CELL, []).tolist() == []
    assert admit(paper_cell(0, deadline_s=0.01), range(40)).tolist() == []
