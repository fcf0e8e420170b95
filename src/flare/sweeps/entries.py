"""What is compared with what: pairs of method and policy, each with the options that are its own, and what a run of one
is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flare.config import Config, Options
from flare.scheduling import get_policy
from flare.scheduling.options import split_options


def run_name(method: str, policy: str, seed: int) -> str:
    """What a run is called."""
    return f"{method}-{policy}-seed{seed}"


def name_of(whole: Config) -> str:
    """What a run with these settings is called."""
    return run_name(whole.learning.method, whole.scheduling.policy, whole.seed)


def pair_of(entry: str, where: str = "") -> tuple[str, str]:
    """Method and policy of "METHOD:POLICY"; ValueError, which names `where`, for other texts."""
    method, colon, policy = entry.partition(":")
    if not colon or not method or not policy:
        raise ValueError(f"{where}'{entry}' is not of the form METHOD:POLICY, such as flare:greedy")
    return method, policy


def refuse_twins(pairs: Sequence[tuple[str, str]]) -> None:
    """ValueError where a pair is there twice."""
    if len(set(pairs)) < len(pairs):
        raise ValueError("a pair of method and policy is given twice; each is run once")


def with_pair(whole: Config, method: str, policy: str, options: Options) -> Config:
    """The settings with that method and policy, whose options are these."""
    return replace(
        whole,
        learning=replace(whole.learning, method=method),
        scheduling=replace(whole.scheduling, policy=policy, options=options),
    )


def options_of(policies: Sequence[str], given: Options, texts: Sequence[str] = ()) -> dict[str, Options]:
    """The options of each policy of a comparison: those given, changed by texts `name=value`.

    A policy gets those of the options that it has; ValueError for an option that none of the policies has. All get
    `max_devices`, since some limited and some not would be no comparison: a policy that knows no limit refuses it.
    """
    known, named = {name: get_policy(name) for name in policies}, split_options(texts)
    unknown = next((name for name in (*given, *named) if not any(one.may_have(name) for one in known.values())), None)
    if unknown is not None:
        listed = "; ".join(f"{name}: {', '.join(one.options) or 'none'}" for name, one in known.items())
        raise ValueError(f"none of the policies has an option {unknown!r:.80} (their options: {listed})")
    return {
        name: changed_options(
            given.only(filter(one.may_have, given)),
            one.read_options([text for option, text in zip(named, texts, strict=True) if one.may_have(option)]),
        )
        for name, one in known.items()
    }


def changed_options(options: Options, values: Mapping[str, Any]) -> Options:
    """Options with some of them changed. One that shall be none is left out: none is what it is then."""
    return Options({name: value for name, value in {**options, **values}.items() if value is not None})
