"""The jobs of many runs as one, so that an engine sees all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


def dealt(work: Callable[[Sequence[Ask]], list[Answer]], piles: Sequence[Sequence[Ask]]) -> list[list[Answer]]:
    """Do all piles of jobs as one, and hand the answers back pile by pile."""
    everything = [job for pile in piles for job in pile]
    answers = iter(work(everything) if everything else [])
    return [[next(answers) for _ in pile] for pile in piles]
