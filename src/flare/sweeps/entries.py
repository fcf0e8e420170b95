"""What is compared with what: pairs of method and policy, each with the options that are its own, and what a run of one
is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flare.config import Config, Options


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
