"""What was sent to nodes and is not answered yet, over the rounds of a run.

A question waits for its answers up to a timeout, and nodes that have not answered by then are faulty. Work may take
longer than the round that sent it: where a deadline ends rounds in real time, or devices compute across rounds, the
nodes stay busy, and are asked nothing until they have answered or their time is up. What comes of such a node is

    late     in synchronous rounds: fetched as soon as it is there, told in the record of the round, and dropped
    kept     where devices compute across rounds: it stays with the SuperLink until the device is to send.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from flwr.app import Message
from flwr.serverapp import Grid

from flare.flower.exchange import Answer, Found, Leftover, fetch, post
from flare.flower.faults import Faults
from flare.flower.stepping import Work


@dataclass(frozen=True)
class AskedGradient:
    """A node that is one of the devices is to tell its gradient in a round."""

    round: int
    device: int


@dataclass(frozen=True)
class Posted:
    """What a node was sent, and since when its time counts, by the monotonic clock."""

    message_id: str
    what: Work | AskedGradient
    since: float


@dataclass(frozen=True)
class Late:
    """An update that came after its round: of which device, from which round, how long after its time began."""

    device: int
    round: int
    after_s: float


@final
@dataclass
class Mailbox:
    """Sends and fetches for a run; `keeps_late` where late updates are kept for a later round."""

    poll_s: float
    faults: Faults
    keeps_late: bool = False
    busy: dict[int, Posted] = field(default_factory=dict)  # by node
    came_late: list[Late] = field(default_factory=list)  # since they were last taken
    _leftover: Leftover = field(default_factory=Leftover)

    def ask(self, grid: Grid, messages: Sequence[Message], *, when: str, timeout_s: float) -> Iterator[Answer]:
        """Send the messages, at most one to a node, and yield each sound answer as it comes, until all are here or
        time is up; the nodes without one are noted as faulty."""
        start = time.monotonic()
        waiting = post(grid, messages, when=when, faults=self.faults)
        for found in self._fetch(grid, waiting, self._others(()), when=when, end=start + timeout_s):
            if found.answer is not None:
                yield Answer(found.node, found.answer, time.monotonic() - start, found.delay_s)
            del found  # or its answer would stay until the next is here
        for node in waiting.values():
            self.faults.note(node, when, f"no answer within {timeout_s:g} s")

    def send(
        self,
        grid: Grid,
        messages: Sequence[Message],
        what: Mapping[int, Work | AskedGradient],
        *,
        since: float | None = None,
    ) -> None:
        """Send nodes their work, at most one message to each; `what` has that of each node, which is busy from now
        on. Its time counts from `since` by the monotonic clock, where that is not now."""
        since = time.monotonic() if since is None else since
        for message_id, node in post(grid, messages, when="train", faults=self.faults).items():
            self.busy[node] = Posted(message_id, what[node], since)

    def collect(self, grid: Grid, nodes: Collection[int], *, began: float, end: float) -> Iterator[Answer]:
        """The answers of busy nodes as they come, until all are here or it is `end` by the monotonic clock.

        How long an answer was on its way is known of work that was sent since `began`; other work may have been done,
        and its answer have lain with the SuperLink, for long. Nodes that have not answered stay busy.
        """
        waiting = {self.busy[node].message_id: node for node in nodes if node in self.busy}
        for found in self._fetch(grid, waiting, self._others(nodes), when="train", end=end):
            posted = self.busy.pop(found.node)
            if found.answer is not None:
                delay_s = math.nan if posted.since < began else found.delay_s
                yield Answer(found.node, found.answer, time.monotonic() - posted.since, delay_s)
            del found  # or its answer would stay until the next is here

    def look(self, grid: Grid, seconds: float) -> None:
        """Wait for so long at most until a late update has come. Not where late updates are kept: nothing is fetched
        then, and this would return at once."""
        for found in self._found(grid, self._others(()), {}, when="train", end=time.monotonic() + seconds):
            self._drop(found)
            return

    def give_up(self, nodes: Collection[int], why: str) -> None:
        """Wait no longer for busy nodes, which are noted as faulty."""
        for node in nodes:
            if self.busy.pop(node, None) is not None:
                self.faults.note(node, "train", why)

    def give_up_old(self, connected: Collection[int], timeout_s: float) -> None:
        """Wait no longer for nodes that are gone, or have been busy for longer than work may take."""
        here, now = set(connected), time.monotonic()
        self.give_up([node for node in self.busy if node not in here], "it left while it was at work")
        old = [node for node, posted in self.busy.items() if now - posted.since > timeout_s]
        self.give_up(old, f"no answer within {timeout_s:g} s")

    def at_work(self, devices: Collection[int]) -> list[int]:
        """Those of the devices whose nodes have not answered."""
        return [posted.what.device for posted in self.busy.values() if posted.what.device in devices]

    def take_late(self) -> list[Late]:
        """Those that came late since they were last taken."""
        late, self.came_late = self.came_late, []
        return late

    def _others(self, nodes: Collection[int]) -> dict[str, int]:
        """The messages to other busy nodes, whose answers are to be dropped when they come."""
        if self.keeps_late:
            return {}
        return {posted.message_id: node for node, posted in self.busy.items() if node not in nodes}

    def _fetch(
        self, grid: Grid, waiting: dict[str, int], aside: Mapping[str, int], *, when: str, end: float
    ) -> Iterator[Found]:
        """What comes of the nodes that are waited for; what comes of those that were put aside is dropped."""
        for found in self._found(grid, waiting, aside, when=when, end=end):
            if found.message_id in aside:
                self._drop(found)
            else:
                yield found
            del found

    def _found(
        self, grid: Grid, waiting: dict[str, int], aside: Mapping[str, int], *, when: str, end: float
    ) -> Iterator[Found]:
        known = {posted.message_id for posted in self.busy.values()} | waiting.keys()
        self._leftover.keep_only(known)  # nobody waits any more for the others
        return fetch(
            grid,
            waiting,
            aside,
            when=when,
            end=end,
            poll_s=self.poll_s,
            faults=self.faults,
            leftover=self._leftover,
        )

    def _drop(self, found: Found) -> None:
        """Take note of an update that came too late; of one that is not sound there is nothing more to say."""
        posted = self.busy.pop(found.node)
        if found.answer is not None and isinstance(posted.what, Work):
            self.came_late.append(Late(posted.what.device, posted.what.round, time.monotonic() - posted.since))
