"""The jobs of many runs as one, so that an engine sees all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


def dealt(work: Callable[[Sequence[Ask]], list[Answer]], piles: Sequence[Sequence[Ask]]) -> list[list[Answer]]:
    """Do all piles of jobs as one, and hand the answers back pile by pile."""
    everything = as_one(piles)
    return dealt_out(work(everything) if everything else [], piles)


def as_one(piles: Sequence[Sequence[Ask]]) -> list[Ask]:
    """All jobs, pile after pile."""
    return [job for pile in piles for job in pile]


def dealt_out(answers: Iterable[Answer], piles: Sequence[Sequence[object]]) -> list[list[Answer]]:
    """The answers to all jobs, pile by pile."""
    in_turn = iter(answers)
    return [[next(in_turn) for _ in pile] for pile in piles]
