"""Rounds of a run that are prepared a few at once, before their time: what is drawn and scheduled for them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, final

MADE = TypeVar("MADE")
Make = Callable[[Sequence[int]], Sequence[MADE]]
"""Makes rounds of some numbers, which follow one another: many at once in less time than one by one."""
MAX_ROUNDS, _MAX_S = 32, 0.02
_turns = itertools.count()


@final
class RoundsAhead(Generic[MADE]):
    """Hands out the rounds of a run by their number; with the one that is asked for it makes those that come next, as
    many as take little time together, but for the first time: a round may be all that somebody wants. The second time
    it makes more or fewer than the last run did: runs in lockstep shall not all need new ones in the same round. What
    becomes of a run depends neither on how many these are nor on when."""

    def __init__(self, num_rounds: int) -> None:
        self._num_rounds = num_rounds
        self._made: dict[int, MADE] = {}
        self._size, self._growth = 1, 2
        self._at_once = iter((1, 1 + next(_turns) % MAX_ROUNDS))

    def round(self, index: int, make: Make[MADE]) -> MADE:
        """The round of this number."""
        self.prepare(index, make)
        if index not in self._made:  # it could not be made: this says why
            self._made = {index: make([index])[0]}
        return self._made[index]

    def prepare(self, index: int, make: Make[MADE], *, alone: bool = False) -> None:
        """Make the round of this number, and some that come next, unless it is made; `alone`: none that come next."""
        if index not in self._made:
            rounds = 1 if alone else min(MAX_ROUNDS, next(self._at_once, MAX_ROUNDS))
            self._made = dict(self._from(index, make, rounds))

    def made(self, index: int) -> MADE | None:
        """The round of this number, where it is made."""
        return self._made.get(index)

    def _from(self, index: int, make: Make[MADE], rounds: int) -> Iterator[tuple[int, MADE]]:
        """Some rounds at once, and again, until they have taken long enough: first one, then twice as many each time,
        as long as that takes little time."""
        begin_s, end = time.perf_counter(), min(index + rounds, self._num_rounds)
        now_s = begin_s
        while index < end and now_s - begin_s <= _MAX_S:
            numbers = range(index, min(index + self._size, end))
            try:
                made = make(numbers)
            except Exception:  # as where a trace ends: raised again when the run comes to that round, if it does
                if len(numbers) == 1:
                    return
                self._size = self._growth = 1  # those before it one by one
                continue
            yield from zip(numbers, made, strict=True)
            index, before_s, now_s = numbers.stop, now_s, time.perf_counter()
            if now_s - before_s >= 0.25 * _MAX_S:
                self._size = max(1, self._size // 2)
            elif len(numbers) == self._size:
                self._size = min(MAX_ROUNDS, self._growth * self._size)
