"""The one function that turns a problem into a schedule: it asks a policy, divides the band, has all checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from flare.scheduling import checks
from flare.scheduling.answers import (
    as_choice,
    checked_memory,
)
from flare.scheduling.bandwidth import Allocation
from flare.scheduling.batches import batches, prepare
from flare.scheduling.certified import Picked, certified, picked_by
from flare.scheduling.checks import NO_DEVICES
from flare.scheduling.division import divide_many
from flare.scheduling.exact import exact, exact_many
from flare.scheduling.hardware import Hardware
from flare.scheduling.history import History
from flare.scheduling.probe import Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import POLICIES, Choice, Memory, Policy, PolicyFunction
from flare.scheduling.schedule import Schedule
from flare.scheduling.terms import (
    Terms,
    agreed_terms,
    divided,
    refuse_late,
    sets_terms,
    with_own_channels,
    with_own_deadline,
)

_T = TypeVar("_T")


def solve(
    problem: RoundProblem,
    policy: str = "exact",
    *,
    rng: np.random.Generator | None = None,
    history: History | None = None,
    memory: Memory | None = None,
    hardware: Hardware | None = None,
    probed: Probed | None = None,
    max_devices: int | None = None,
    **options: Any,
) -> Schedule:
    """Schedule one round by the named policy.

    Parameters
    ----------
    problem : the round.
    policy : a name in `POLICIES`.
    rng : the random stream of policies that draw (`flare.rng.stream`); they refuse to run without.
    history : what is known of the devices from the rounds before, for policies that ask for it; None: nothing is.
    memory : `Schedule.memory` of the round before, for policies that remember; None (or {}) in the first round.
    hardware : processors and radios of the devices; policies that set speeds and powers refuse to run without.
    probed : what devices answered before the selection, for policies that ask them (a run asks them by itself).
    max_devices : how many devices may send at most, as `RoundProblem.max_devices` says (of two, the smaller counts).
    options : options of the policy, such as `num_selected=10` for "ps" or `time_limit_s=1` for "exact".

    Returns a `Schedule` whose devices all finish by the deadline (a policy may set its own, `Schedule.problem` then has
    it), or one of status INFEASIBLE. Raises ValueError for
    an unknown policy or option, and where a policy's answer is none, or its devices do not fit.
    """
    chosen = _asked_policy(policy, options)
    problem = _limited(problem, max_devices)
    arguments = (
        options
        | _asked_for(chosen, problem, rng, history, memory, hardware)
        | _told(chosen, problem, history, probed, options)
    )
    return _schedule(problem, chosen, _answer(chosen, problem, arguments), hardware)


def schedule_of(problem: RoundProblem, policy: str, choice: Choice) -> Schedule:
    """The schedule of a choice that was made elsewhere in the name of a policy: what `solve` makes of its answer."""
    return _schedule(problem, POLICIES.find(policy), choice)


def _schedule(problem: RoundProblem, chosen: Policy, choice: Choice, hardware: Hardware | None = None) -> Schedule:
    """The schedule of what a policy chose."""
    ending = with_own_channels(chosen, with_own_deadline(chosen, problem, choice), choice)
    picked = picked_by(chosen, ending, choice)
    if len(picked.selected) == 0:
        return certified(problem, chosen, choice, picked)
    try:
        terms = agreed_terms(chosen, ending, choice, picked.selected, hardware)
        allocation = divided(chosen, ending, terms, picked.selected)
        schedule = certified(ending, chosen, choice, picked, allocation)
        return _on_terms(schedule, chosen, terms, allocation, hardware) if sets_terms(choice) else schedule
    except ValueError:
        if not (sets_terms(choice) and POLICIES.origin(chosen.name).built_in and _is_beyond_doubles(problem)):
            raise
        return certified(problem, chosen, Choice(memory=choice.memory), Picked(NO_DEVICES))


def _is_beyond_doubles(problem: RoundProblem) -> bool:
    """Whether a round has numbers so large or small that the terms which a policy of ours works out for all devices
    together need not hold to the last digit; then nobody sends."""
    busy_s = problem.compute_s[problem.compute_s > 0.0]
    of_all = (problem.deadline_s, problem.total_bandwidth_hz)
    numbers = np.concatenate((problem.snr_hz, problem.payload_bits, busy_s, of_all))
    return bool(numbers.min() < 1e-30 or numbers.max() > 1e30)


def _on_terms(
    schedule: Schedule, chosen: Policy, terms: Terms, allocation: Allocation, hardware: Hardware | None
) -> Schedule:
    """The schedule with what the policy set beside the devices; ValueError where one of them is late."""
    refuse_late(chosen, schedule.problem, terms, schedule.selected, allocation)
    return replace(
        schedule,
        cpu_hz=terms.cpu_hz,
        power_w=terms.power_w,
        own_division=terms.division is not None,
        hardware=None if terms.cpu_hz is None and terms.power_w is None else hardware,
    )


def solve_many(
    problems: Sequence[RoundProblem],
    policy: str = "exact",
    *,
    rng: Sequence[np.random.Generator] | None = None,
    history: Sequence[History] | None = None,
    memory: Sequence[Memory] | None = None,
    hardware: Sequence[Hardware] | None = None,
    probed: Sequence[Probed] | None = None,
    max_devices: int | None = None,
    **options: Any,
) -> list[Schedule]:
    """Schedule many rounds that do not depend on one another: what `solve` answers to each, to the last bit, sooner.

    The rounds may differ in everything, also in the number of devices. What all have in common is computed for many at
    once: the bandwidths that the deadline asks for, the search of policy `exact`, and the division of the band.

    Parameters
    ----------
    problems : the rounds.
    policy, max_devices, options : as for `solve`, the same for all rounds; a time limit is for each round.
    rng, history, memory, hardware, probed : one entry for each round, for policies that ask for them. The memory of a
        round does not pass to the next one of the batch: rounds of which each needs the schedule of the one before go
        through `solve`.

    Returns one schedule for each problem. Raises ValueError as `solve` does, and says of which problem.
    """
    problems = _listed(problems)
    rngs, histories = _one_each("rng", rng, len(problems)), _one_each("history", history, len(problems))
    memories, hardwares = _one_each("memory", memory, len(problems)), _one_each("hardware", hardware, len(problems))
    answered = _one_each("probed", probed, len(problems))
    chosen = _asked_policy(policy, options)
    arguments = []
    for at, problem in enumerate(problems):
        with _of_problem(at):
            problems[at] = _limited(problem, max_devices)
            own = _asked_for(chosen, problem, rngs[at], histories[at], memories[at], hardwares[at])
            arguments.append(options | own | _told(chosen, problem, histories[at], answered[at], options))
    answers: list[Schedule] = []
    for batch in batches(problems):
        answers += _solve_batch(chosen, problems[batch], arguments[batch], options, batch.start)
    return answers


def _listed(problems: Any) -> list[RoundProblem]:
    """The rounds as a list; ValueError where there is something else among them."""
    if isinstance(problems, RoundProblem) or not isinstance(problems, Iterable):
        raise ValueError(f"problems is a {type(problems).__name__}; give a list of rounds (`solve` takes a single one)")
    rounds = list(problems)
    odd = next((at for at, each in enumerate(rounds) if not isinstance(each, RoundProblem)), None)
    if odd is not None:
        raise ValueError(f"problem {odd} is a {type(rounds[odd]).__name__}; each must be a RoundProblem")
    return rounds


def _one_each(name: str, given: Sequence[_T] | None, number: int) -> Sequence[_T | None]:
    if given is None:
        return [None] * number
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != number:
        raise ValueError(f"{name} must be a list with one entry for each of the {number} problems")
    return given


def _solve_batch(
    chosen: Policy,
    problems: list[RoundProblem],
    arguments: list[dict[str, Any]],
    options: dict[str, Any],
    first: int,
) -> list[Schedule]:
    """The schedules of some rounds, which are counted from `first` in messages."""
    prepare(problems)
    together = _TOGETHER.get(chosen.function)
    given = together(problems, **options) if together else None
    choices, picked = [], []
    for at, problem in enumerate(problems):
        with _of_problem(first + at):
            choices.append(as_choice(chosen, given[at]) if given else _answer(chosen, problem, arguments[at]))
    if any(map(sets_terms, choices)):
        return _each_on_its_terms(chosen, problems, choices, arguments, first)
    for at, problem in enumerate(problems):
        with _of_problem(first + at):
            picked.append(picked_by(chosen, problem, choices[at]))
    allocations = divide_many(problems, [one.selected for one in picked], evenly=chosen.split_evenly)
    answers = []
    for at, (problem, allocation) in enumerate(zip(problems, allocations, strict=True)):
        with _of_problem(first + at):
            answers.append(certified(problem, chosen, choices[at], picked[at], allocation))
    return answers


def _each_on_its_terms(
    chosen: Policy, problems: list[RoundProblem], choices: list[Choice], arguments: list[dict[str, Any]], first: int
) -> list[Schedule]:
    """The schedules of rounds in which the policy sets more than the devices, one after another."""
    answers = []
    for at, problem in enumerate(problems):
        with _of_problem(first + at):
            answers.append(_schedule(problem, chosen, choices[at], arguments[at].get("hardware")))
    return answers


_TOGETHER: dict[PolicyFunction, Callable[..., list[Choice]]] = {exact: exact_many}
"""Policies that choose for many rounds at once, by what they do for one."""


@contextmanager
def _of_problem(number: int) -> Iterator[None]:
    """Name the problem in what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"problem {number}: {error}") from error


def _asked_policy(policy: str, options: dict[str, Any]) -> Policy:
    """The policy of a name, whose options are checked."""
    chosen = POLICIES.find(policy)
    chosen.check_options(options)
    return chosen


def _limited(problem: RoundProblem, max_devices: Any) -> RoundProblem:
    """The problem with a limit on how many devices send."""
    limit = checks.limit(max_devices)
    if limit is None or (problem.max_devices is not None and problem.max_devices <= limit):
        return problem
    return replace(problem, max_devices=limit)


def _answer(chosen: Policy, problem: RoundProblem, arguments: dict[str, Any]) -> Choice:
    """What the policy chooses; it is not asked where the devices that must send cannot, and then keeps its memory."""
    if problem.must.size and not problem.possible and not chosen.own_deadline:
        return Choice(memory=arguments.get("memory", {}))
    given = dict(arguments.get("memory", {}))
    choice = as_choice(chosen, chosen.function(problem, **arguments))
    if isinstance(choice.memory, Mapping) and not choice.memory and _changed(given, arguments.get("memory", {})):
        raise ValueError(
            f"policy '{chosen.name}' wrote into the memory that it was given and returned none, so that nothing would "
            "be kept; return Choice(devices, memory=memory), or Choice(utility=..., memory=memory)"
        )
    return choice


def _changed(before: Memory, after: Memory) -> bool:
    """Whether a dict has other arrays than before."""
    return before.keys() != after.keys() or any(before[name] is not each for name, each in after.items())


def _asked_for(
    chosen: Policy,
    problem: RoundProblem,
    rng: np.random.Generator | None,
    history: History | None,
    memory: Mapping[str, Any] | None,
    hardware: Hardware | None,
) -> dict[str, Any]:
    """What the policy asks for by name, beside its options."""
    arguments: dict[str, Any] = {}
    if chosen.draws:
        if not isinstance(rng, np.random.Generator):
            raise ValueError(
                f"policy '{chosen.name}' draws at random: pass rng=flare.rng.stream(seed, 'policy', round)"
            )
        arguments["rng"] = rng
    if chosen.learns:
        known = History.empty(problem.num_devices) if history is None else history
        if known.num_devices != problem.num_devices:
            raise ValueError(
                f"the history is of {known.num_devices} devices, the round has {problem.num_devices}: pass the rows of "
                "the round's devices (`History.of`), or None where nothing is known"
            )
        arguments["history"] = known
    if chosen.remembers:
        arguments["memory"] = checked_memory(chosen, memory, problem.num_devices)
    if chosen.needs_hardware:
        arguments["hardware"] = _known_hardware(chosen, problem, hardware)
    return arguments


def _known_hardware(chosen: Policy, problem: RoundProblem, hardware: Hardware | None) -> Hardware:
    """The hardware of the round's devices; ValueError where it is not known."""
    if not isinstance(hardware, Hardware):
        raise ValueError(
            f"policy '{chosen.name}' goes by speeds and powers of devices or sets them, and has to know what they "
            "have: pass hardware=flare.scheduling.Hardware(cpu_hz, power_w, cycles, capacitance)"
        )
    if hardware.num_devices != problem.num_devices:
        raise ValueError(
            f"the hardware is of {hardware.num_devices} devices, the round has {problem.num_devices}: pass that of the "
            "round's devices (`Hardware.of`)"
        )
    return hardware


def _told(
    chosen: Policy,
    problem: RoundProblem,
    history: History | None,
    probed: Probed | None,
    options: Mapping[str, Any],
) -> dict[str, Probed]:
    """What devices answered, for a policy that takes it; ValueError where it would ask and nobody did, or where it goes
    by labels that nobody told."""
    if "labels" in chosen.needed(options) and (history is None or history.label_counts is None):
        raise ValueError(
            f"policy '{chosen.name}' goes by how many samples of each label the devices hold, which is not known here: "
            "pass history=History.empty(devices, label_counts=...), or simulate a run with data.share_labels = true"
        )
    if "probed" not in chosen.takes:
        return {}
    if probed is None and chosen.probes(options):
        raise ValueError(
            f"policy '{chosen.name}' asks devices before it selects, and one round alone has nobody to ask: simulate a "
            "run with it (flare run), or pass probed=flare.scheduling.Probed(...)"
        )
    known = Probed.nothing(problem.num_devices) if probed is None else probed
    if known.num_devices != problem.num_devices:
        raise ValueError(f"probed is of {known.num_devices} devices, the round has {problem.num_devices}")
    return {"probed": known}
