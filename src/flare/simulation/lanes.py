"""Lanes: runs in lockstep, in parts that take turns, so that a GPU is at work on one while the program sees to another.

A lane alone begins a round and finishes it. Two lanes A and B on a GPU, each line a turn:

    begin A             begin B   finish A
    begin A   finish B  begin B   finish A
    ...

After A has begun a round, and before it is waited for, the program finishes the round of B and begins its next one: the
GPU is at work for A meanwhile.

Streams. All that a GPU does for a lane it does in the lane's stream, one thing after the other: to read a number is to
wait for that stream alone, and memory that is free again goes to the same stream, after all that was to be done with
it. For that, a lane has an engine of its own, whose buffers are its alone; what lanes share, the data, nobody writes.
What a run computes does not depend on its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import final

import torch

from flare.learning.engine import compute_device, make_engines
from flare.learning.engine.base import Engine
from flare.simulation.dealing import dealt
from flare.simulation.member import Callback, Member, going
from flare.simulation.turn import Begun, begin

_LEAST_DIVIDED = 4
"""Runs from which on a GPU has two lanes of them; fewer are rather one batch."""


@final
class Lane:
    """Runs that an engine of their own carries out, in a stream of their own where there is one."""

    def __init__(
        self, engine: Engine, members: Sequence[Member], stream: torch.cuda.Stream | None, device: str
    ) -> None:
        self._engine, self._members, self._stream = engine, members, stream
        self._begun: Begun | None = None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # data are copied there
        with self._in_stream():
            _place(members, device)
            _warm_up(engine, members)

    def begin(self) -> None:
        """Begin a round of each run that goes on, if there are any."""
        members = list(going(self._members))
        if members:
            with self._in_stream():
                self._begun = begin(self._engine, members)

    def finish(self, callback: Callback | None) -> None:
        """Finish the round that was begun, if one was; waits for it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            with self._in_stream():
                begun.finish(callback)

    def join(self) -> None:
        """Let the stream that is in use outside wait for this one."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _in_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def take_turn(lanes: Sequence[Lane], callback: Callback | None) -> None:
    """A round of each run: each lane begins one, and then the lane after it, at work the longest, finishes its own."""
    for lane, following in zip(lanes, [*lanes[1:], lanes[0]], strict=True):
        lane.begin()
        following.finish(callback)


@contextmanager
def joined(lanes: Sequence[Lane]) -> Iterator[None]:
    """What a GPU is given after this waits for all that these lanes have begun."""
    try:
        yield
    finally:
        for lane in lanes:
            lane.join()


def num_lanes(members: Sequence[Member]) -> int:
    """Of runs that can share an engine: two, where there are enough of them for a GPU."""
    on_gpu = compute_device(members[0].simulation.config.learning) == "cuda"
    return 2 if on_gpu and len(members) >= _LEAST_DIVIDED else 1


def one_lane(members: Sequence[Member]) -> int:
    """However many members there are."""
    return 1


def lanes_of(
    members: Sequence[Member],
    num_lanes: Callable[[Sequence[Member]], int] = num_lanes,
    *,
    shares_gpu: bool = False,
) -> list[list[Lane]]:
    """The lanes of members by what an engine is made for: the data, the architecture and where it computes. Members are
    dealt out to the lanes of their group, as many as `num_lanes` says; `shares_gpu` as for their engines."""
    groups: dict[tuple[object, ...], list[Member]] = {}
    for member in going(members):
        groups.setdefault(member.simulation.engine_key, []).append(member)
    return [_divided(group, num_lanes(group), shares_gpu=shares_gpu) for group in groups.values()]


def _divided(members: Sequence[Member], number: int, *, shares_gpu: bool) -> list[Lane]:
    """Members that can share an engine in so many lanes."""
    first = members[0].simulation
    learning = first.config.learning
    device = compute_device(learning)
    engines = make_engines(first.module, first.dataset, learning, number, shares_gpu=shares_gpu)
    streams = _streams(device, number)
    parts = [members[at::number] for at in range(number)]
    return [Lane(*each, device) for each in zip(engines, parts, streams, strict=True)]


def _streams(device: str, number: int) -> list[torch.cuda.Stream | None]:
    """One for each of so many lanes; none on a CPU, and where a lane is alone."""
    if device != "cuda" or number == 1:
        return [None] * number
    return [_stream(torch.cuda.current_device(), at) for at in range(number)]


@cache
def _stream(device: int, number: int) -> torch.cuda.Stream:
    """The same for each drive: the memory that one left free is the next one's."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _place(members: Sequence[Member], device: str) -> None:
    """Put the weights of runs where their engine computes."""
    for member in members:
        state = member.state
        underway = None if state.underway is None else state.underway.on(device)
        member.state = replace(state, weights=state.weights.to(device), underway=underway)


def _warm_up(engine: Engine, members: Sequence[Member]) -> None:
    """Train the start models of runs that are at their beginning and warm theirs up."""
    updates = dealt(engine.train, [member.simulation.warm_up_jobs(member.state) for member in members])
    for member, made in zip(members, updates, strict=True):
        member.state = member.simulation.warmed_up(member.state, made)
