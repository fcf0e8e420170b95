from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from flare import CELLS, Cell, round_problem
from flare.config.declared import read, split_options
from flare.rng import stream
from flare.scheduling import POLICIES, Choice, History, Memory, RoundProblem, Status, admit, policy, solve
from flare.scheduling.registry import OF_DEVICES
from tests.cells import changed, hand_cell, paper_cell
from tests.conformance.rounds import made_up_hardware

CELL = hand_cell([4.0, 3.0, 2.0, 1.0], [0.5, 0.5, 0.4, 0.1], gamma=10.0)


@pytest.fixture(autouse=True)
def _registry_as_it_was() -> Iterator[None]:
    kept = set(POLICIES)
    yield
    for name in set(POLICIES) - kept:
        del POLICIES[name]


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
        *("amiri-bc", "amiri-bn2", "amiri-bc-bn2", "amiri-bn2-c", "fedcs", "oort", "power-of-choice"),
        *("divfl", "fedcgd"),
        *("chen", "luo", "ren", "hu", "tran", "xu"),
    }


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_says_what_it_does_in_a_line(name: str) -> None:
    assert POLICIES.find(name).name == name
    assert 20 < len(POLICIES.find(name).summary) < 120


def test_a_name_registered_again_from_the_same_file_is_replaced() -> None:
    answering([0])
    assert solve(CELL, "fixed").selected.tolist() == [0]
    answering([1])
    assert solve(CELL, "fixed").selected.tolist() == [1]


@pytest.mark.parametrize(("wrong", "near"), [("greddy", "greedy"), ("exakt", "exact"), ("roundrobin", "round-robin")])
def test_an_unknown_policy_is_refused_with_the_nearest_name(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"there is no policy '{wrong}'; did you mean '{near}'\?") as caught:
        solve(CELL, wrong)
    assert all(name in str(caught.value) for name in POLICIES)


def test_an_unknown_policy_unlike_any_other_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"there is no policy 'zzz'\. Policies: ") as caught:
        POLICIES.find("zzz")
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


@pytest.mark.parametrize("name", [name for name, one in POLICIES.items() if one.remembers and name != "luo"])
def test_a_memory_of_another_cell_is_refused(name: str) -> None:
    three = hand_cell([1.0] * 3, [0.1] * 3, gamma=1.0)
    memory = solve(three, name, rng=stream(0), hardware=made_up_hardware(three)).memory
    if not any(each.startswith(OF_DEVICES) for each in memory):  # it remembers nothing of single devices
        return
    with pytest.raises(ValueError, match=r"memory '\w+' of policy '[\w-]+' has shape \(3,\), the round has 4 devices"):
        solve(CELL, name, rng=stream(0), memory=memory, hardware=made_up_hardware(CELL))


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
        np.array([1.0, 2.5, np.nan, 1.0]),
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
    def first(
        problem: RoundProblem, *, rng: np.random.Generator, memory: Memory, history: History, most: int = 1
    ) -> Choice:
        """The first few."""
        return Choice(np.arange(most), memory=memory)

    assert list(POLICIES.find("first").options) == ["most"]
    assert POLICIES.find("first").draws
    assert POLICIES.find("first").remembers
    assert POLICIES.find("first").learns
    assert POLICIES.find("first").summary == "The first few."
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
    assert admit(CELL, [3, 2, 1, 0], max_devices=2).tolist() == [3, 2]


def test_admit_passes_over_devices_out_of_reach_even_if_it_stops_at_the_first() -> None:
    cell = hand_cell([1.0, 1.0, 1.0], [1.2, 0.5, 0.4], gamma=1.0)
    assert admit(cell, [0, 1, 2], stop_at_first=True).tolist() == [1, 2]


def test_admit_of_nobody_is_nobody() -> None:
    assert admit(CELL, []).tolist() == []
    assert admit(paper_cell(0, deadline_s=0.01), range(40)).tolist() == []


# Options.


@pytest.mark.parametrize("name", ["problem", "policy", "rng", "memory", "history"])
@pytest.mark.parametrize("policy_name", ["ps", "exact", "round-robin"])
def test_an_option_with_a_name_of_the_interface_is_refused(policy_name: str, name: str) -> None:
    for refuse in (
        lambda: POLICIES.find(policy_name).check_options({name: 1}),
        lambda: read(POLICIES.find(policy_name), split_options([f"{name}=1"])),
    ):
        with pytest.raises(ValueError, match=f"'{name}' is no option of policy '{policy_name}'"):
            refuse()


@pytest.mark.parametrize("text", ["abc", "1.5", "true", "1e3", "nan", "[1]", "9" * 5000])
def test_an_option_of_the_wrong_type_is_refused_with_policy_and_option(text: str) -> None:
    for name in ("ps", "round-robin"):
        with pytest.raises(
            ValueError, match=rf"option 'num_selected' of policy '{name}' is .*; it must be a whole num"
        ):
            read(POLICIES.find(name), split_options([f"num_selected={text}"]))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("whole=3", 3),
        ("part=3", 3.0),
        ("part=0.5", 0.5),
        ("rate=0.5", 0.5),
        ("yes=true", True),
        ("yes=False", False),
        ("word=5", "5"),
        ("word=a=b", "a=b"),
        ("perhaps=none", None),
        ("perhaps=7", 7),
    ],
)
def test_texts_are_read_by_the_type_of_the_option(given: str, value: object) -> None:
    @policy("typed")
    def typed(
        problem: RoundProblem,
        *,
        whole: int = 1,
        part: float = 1.0,
        rate: float = 1,
        yes: bool = False,
        word: str = "x",
        perhaps: int | None = None,
    ) -> list[int]:
        return []

    (value_read,) = read(POLICIES.find("typed"), split_options([given])).values()
    assert value_read == value
    assert type(value_read) is type(value)


@pytest.mark.parametrize("given", ["whole=0.5", "yes=1", "whole=true", "part=true", "part=x", "perhaps=0.5"])
def test_texts_of_another_type_are_refused(given: str) -> None:
    @policy("typed")
    def typed(
        problem: RoundProblem, *, whole: int = 1, part: float = 1.0, yes: bool = False, perhaps: int | None = None
    ) -> list[int]:
        return []

    with pytest.raises(ValueError, match=f"option '{given.partition('=')[0]}' of policy 'typed' is "):
        read(POLICIES.find("typed"), split_options([given]))


@pytest.mark.parametrize("given", ["num_selected", "=3", "num_selected="])
def test_a_text_that_is_no_option_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form name=value"):
        read(POLICIES.find("ps"), split_options([given]))


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'num_selected' is given twice"):
        read(POLICIES.find("ps"), split_options(["num_selected=1", "num_selected=2"]))


def test_a_function_that_cannot_be_a_policy_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ValueError, match="its option 'most' has no default value"):
        policy("one")(lambda problem, most: [])
    with pytest.raises(ValueError, match="must take the problem as its first argument"):
        policy("two")(lambda: [])
    with pytest.raises(ValueError, match="name its options"):
        policy("three")(lambda problem, **options: [])
    with pytest.raises(ValueError, match="no option can have the name 'policy'"):
        policy("four")(lambda problem, policy=1: [])
    assert not {"one", "two", "three", "four"} & set(POLICIES)


# Utilities.


def test_whole_numbers_are_devices_and_floats_are_utilities() -> None:
    assert solve(CELL, answering(np.array([0, 3]))).selected.tolist() == [0, 3]
    # Shares 0.5, 0.5, 0.4, 0.1: of the pairs with 0, {0, 1} has utility 5 and {0, 2, 3} has 4.5.
    schedule = solve(CELL, answering(np.array([3.0, 2.0, 1.0, 0.5])))
    assert schedule.selected.tolist() == [0, 1]
    assert schedule.utility == schedule.utility_bound == 5.0
    assert schedule.status is Status.FEASIBLE  # OPTIMAL is a proof about P2
    assert np.isnan(schedule.lower_bound)
    assert schedule.objective == pytest.approx((1 / 2 + 10 / 4) * (1 / 4 + 1 / 3), rel=1e-14)


def test_a_choice_may_give_utilities_and_a_memory() -> None:
    kept = np.arange(6).reshape(2, 3)
    schedule = solve(CELL, answering(Choice(utility=[0, 0, 1, 1], memory={"table": kept})))
    assert schedule.selected.tolist() == [2, 3]
    np.testing.assert_array_equal(schedule.memory["table"], kept)


@pytest.mark.parametrize("utility", [np.zeros(4), np.full(4, -1.0)])
def test_devices_of_no_utility_never_send(utility: np.ndarray) -> None:
    schedule = solve(CELL, answering(utility))
    assert schedule.status is Status.INFEASIBLE
    assert schedule.utility == schedule.utility_bound == 0.0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (np.array([1.0, np.nan, 1.0, 1.0]), "gave device 1 the utility nan; it must be finite"),
        (np.array([1.0, 1.0, -np.inf, 1.0]), "gave device 2 the utility -inf; it must be finite"),
        (np.array([1.0, 1.0, 1.0]), r"gave utilities of shape \(3,\)"),
        (np.ones((4, 1)), r"gave utilities of shape \(4, 1\)"),
        (Choice(utility=["a", "b", "c", "d"]), r"gave utilities of shape \(4,\) and type <U1"),
        (Choice(utility=[True, False, True, True]), r"gave utilities of shape \(4,\) and type bool"),
        (Choice([0], utility=np.ones(4)), "gave devices and utilities; a Choice has one of the two"),
        ([[1.0], [1.0, 2.0]], "cannot be read as an array"),
    ],
)
def test_utilities_that_are_none_are_refused(answer: object, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        solve(CELL, answering(answer))
    assert "fixed" in str(caught.value)


def test_max_devices_limits_policies_that_give_utilities() -> None:
    name = answering(np.array([1.0, 1.0, 0.9, 0.8]))
    assert solve(CELL, name).selected.tolist() == [0, 2, 3]
    assert solve(CELL, name, max_devices=2).selected.tolist() == [0, 1]
    assert solve(CELL, name, max_devices=1).num_selected == 1


def test_max_devices_of_solve_is_that_of_the_problem() -> None:
    name = answering([0, 1])
    assert solve(CELL, name).num_selected == 2
    for limited in (lambda: solve(CELL, name, max_devices=1), lambda: solve(changed(CELL, max_devices=1), name)):
        with pytest.raises(ValueError, match=r"named 2 devices, and at most 1 may send \(max_devices\)"):
            limited()
    assert solve(changed(CELL, max_devices=1), "exact", max_devices=3).problem.max_devices == 1
    assert solve(changed(CELL, max_devices=3), "exact", max_devices=1).problem.max_devices == 1


def test_no_policy_has_an_option_of_the_name_max_devices() -> None:
    with pytest.raises(ValueError, match="policy 'limited': no option can have the name 'max_devices'"):

        @policy("limited")
        def limited(problem: RoundProblem, *, max_devices: int = 1) -> np.ndarray:
            return admit(problem, range(problem.num_devices), max_devices=max_devices)


def test_answers_that_the_round_forbids_are_refused() -> None:
    name = answering([0, 2])
    with pytest.raises(ValueError, match="named device 2, which must not send: build the choice with"):
        solve(changed(CELL, never=[2]), name)
    with pytest.raises(ValueError, match="left out device 1, which must send: build the choice with"):
        solve(changed(CELL, must=[1]), name)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_a_max_devices_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(ValueError, match=r"max_devices is .*; it must be a whole number of at least 1"):
        solve(CELL, answering(np.ones(4)), max_devices=limit)


# Memory and history.


def test_memory_is_an_empty_dict_at_first_and_what_was_returned_after_that() -> None:
    seen = []

    @policy("notes")
    def notes(problem: RoundProblem, *, memory: Memory) -> Choice:
        seen.append({name: array.tolist() for name, array in memory.items()})
        rounds = memory.get("rounds", np.zeros(1, dtype=np.int64))
        rounds += 1  # its own copy
        return Choice([0], memory={"rounds": rounds, "table": np.ones((3, 2), dtype=bool)})

    first = solve(CELL, "notes")
    solve(CELL, "notes", memory=first.memory)
    assert seen == [{}, {"rounds": [1], "table": [[True, True]] * 3}]
    assert first.memory["rounds"].tolist() == [1]
    assert first.memory["rounds"].dtype == np.int64


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (np.zeros(4), "is a ndarray; it must be a dict of arrays by name"),
        ({3: np.zeros(1)}, "has an array under 3; a name is a word"),
        ({"a": np.array(["x"])}, "'a' of policy 'fixed' is of type <U1; it must be an array of numbers"),
        ({"a": np.array([object()])}, "is of type object"),
        ({"a": np.array([1j])}, "is of type complex128"),
        ({"a": [[1.0], [1.0, 2.0]]}, "'a' of policy 'fixed' cannot be read as an array"),
        ({str(i): np.zeros(1) for i in range(65)}, "has 65 arrays; 64 are the limit"),
        ({"a": np.broadcast_to(np.int8(0), (10**4, 10**4 + 1))}, "holds over 100,000,000 numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_memory_that_is_none_is_refused_with_the_policy(memory: object, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        solve(CELL, answering(Choice([0], memory=memory)))  # type: ignore[arg-type]
    assert "'fixed'" in str(caught.value)


def test_a_history_is_empty_where_none_is_given_and_must_be_of_the_rounds_devices() -> None:
    seen = []

    @policy("learner")
    def learner(problem: RoundProblem, *, history: History) -> list[int]:
        seen.append(history.times_sent.tolist())
        return []

    solve(CELL, "learner")
    solve(CELL, "learner", history=History.empty(9).of(np.arange(4)))
    assert seen == [[0.0] * 4, [0.0] * 4]
    with pytest.raises(ValueError, match="the history is of 9 devices, the round has 4"):
        solve(CELL, "learner", history=History.empty(9))


@pytest.mark.parametrize("claim", [{"proven": True}, {"lower_bound": 0.1}])
def test_utilities_prove_nothing_of_p2(claim: dict[str, float]) -> None:
    name = answering(Choice(utility=np.array([0.0, 0.0, 0.0, 1.0]), **claim))
    with pytest.raises(ValueError, match=r"'fixed' gave utilities with `proven` or `lower_bound`.*leave them out"):
        solve(CELL, name)


def always(answer: Choice) -> Callable[[RoundProblem], Choice]:
    return lambda problem: answer


def test_a_false_proof_is_refused() -> None:
    problem = round_problem(Cell(replace(CELLS["paper"], deadline_s=2.0), seed=3).draw(0))
    answers = {
        "first alone": (Choice(selected=[0], proven=True), "says proven=True, and with device 2 beside its own the"),
        "far above": (Choice(selected=[0], lower_bound=1e9, proven=True), "gave the lower bound 1e\\+09, above the"),
    }
    for name, (answer, words) in answers.items():
        policy(name)(always(answer))
        try:
            with pytest.raises(ValueError, match=words):
                solve(problem, name)
        finally:
            del POLICIES[name]
