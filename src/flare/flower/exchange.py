"""Messages out, answers in, one at a time and never beyond the timeout.

Flower's `send_and_receive` gathers all answers before it returns any, and its `pull_messages` waits up to hours for a
node that has announced an answer and then does not deliver it. So answers are fetched singly, in threads: one that
cannot be read costs no other, one that does not come holds up the others by half a second (up to as many as there are
threads), and memory holds a few at a time, however many nodes there are.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import grpc  # type: ignore[import-untyped]
from flwr.app import Message
from flwr.serverapp import Grid

from flare.flower.faults import Faults

_CONNECTION = (OSError, grpc.RpcError)  # whatever else fetching an answer raises is the fault of the node that made it
_STUCK_S = 0.5  # when all threads have been fetching for so long, another is started
_MAX_THREADS = 64
_MAX_READY = 4  # answers that wait to be taken


@dataclass(frozen=True)
class Answer:
    """A node's answer, how long after the question it was fetched, and how long after it was made; nan: not known. The
    second is by two clocks, the node's and the server's."""

    node: int
    message: Message
    after_s: float
    delay_s: float = math.nan


@dataclass(frozen=True)
class Found:
    """What came of a node that was sent a message: its answer, None where it is not sound; and when, by the clock."""

    message_id: str
    node: int
    answer: Message | None
    at: float

    @property
    def delay_s(self) -> float:
        """How long after it was made the answer was here."""
        return math.nan if self.answer is None else self.at - self.answer.metadata.created_at


def post(grid: Grid, messages: Sequence[Message], *, when: str, faults: Faults) -> dict[str, int]:
    """Send the messages, at most one to a node; the node of each that was taken, by the id of the message."""
    if not messages:
        return {}
    accepted = {each for each in grid.push_messages(messages) if each}
    waiting = {}
    for message in messages:
        if message.metadata.message_id in accepted:
            waiting[message.metadata.message_id] = message.metadata.dst_node_id
        else:
            faults.note(message.metadata.dst_node_id, when, "the SuperLink took no message for it")
    return waiting


def fetch(
    grid: Grid,
    waiting: dict[str, int],
    aside: Mapping[str, int],
    *,
    when: str,
    end: float,
    poll_s: float,
    faults: Faults,
    leftover: Leftover,
) -> Iterator[Found]:
    """Each answer as it comes, until those in `waiting` are all here or it is `end` by the monotonic clock; those that
    were answered are taken out of `waiting`.

    Answers to messages in `aside`, which gave work, are yielded too, and not waited for. A node counts once, whatever
    it sends; one that answers with an error, or in the name of another, is noted as faulty, and None comes in place of
    its answer. `leftover` has what was found when the last call had ended, and what is found when this one has.
    """
    nodes = {**aside, **waiting}
    fetcher = _Fetcher(grid, poll_s, leftover, dict(nodes))
    try:
        while waiting and (fetched := fetcher.next(end)) is not None:
            node = nodes[fetched.message_id]
            waiting.pop(fetched.message_id, None)
            asked = "train" if fetched.message_id in aside else when
            if len(fetched.answers) > 1:
                faults.note(node, asked, "it answered more than once; the first answer counts")
            trouble = fetched.trouble or refusal(fetched.answers[0], fetched.message_id, node)
            if trouble is not None:
                faults.note(node, asked, trouble)
            yield Found(fetched.message_id, node, None if trouble else fetched.answers[0], fetched.at)
            del fetched  # or it would stay until the next is here
    finally:
        fetcher.stop()


@dataclass(frozen=True)
class _Fetched:
    """What was found for a message: answers, or why they cannot be read, or nothing yet."""

    message_id: str
    answers: list[Message]
    trouble: str | None = None
    error: BaseException | None = None  # of the connection: not the node's fault
    at: float = field(default_factory=time.time)

    @property
    def nothing(self) -> bool:
        return not self.answers and self.trouble is None


@final
@dataclass
class Leftover:
    """What the threads of earlier calls found when nobody waited for them any more, and what they are still fetching.

    The SuperLink gives an answer once, to whoever asks first, also where its arrays take long to come; whoever asks
    again is told that there is no such message. So a message that a thread is at is left to it.
    """

    _answers: deque[_Fetched] = field(default_factory=deque)
    _being_pulled: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._answers)

    def begin(self, message_id: str) -> bool:
        """Whether the answer is to be asked for: not where a thread is at it, or has it. Then `end` is to follow."""
        with self._lock:
            if message_id in self._being_pulled or any(each.message_id == message_id for each in self._answers):
                return False
            self._being_pulled.add(message_id)
            return True

    def end(self, message_id: str) -> None:
        """A thread is no longer at a message."""
        with self._lock:
            self._being_pulled.discard(message_id)

    def keep(self, fetched: _Fetched) -> None:
        """Keep what was found; where that is nothing yet, there is nothing to keep."""
        if not fetched.nothing:
            with self._lock:
                self._answers.append(fetched)

    def take(self, wanted: Collection[str]) -> _Fetched | None:
        """The first that is wanted; others stay."""
        with self._lock:
            for each in self._answers:
                if each.message_id in wanted:
                    self._answers.remove(each)
                    return each
        return None

    def keep_only(self, known: Collection[str]) -> None:
        """Drop the answers to other messages."""
        with self._lock:
            self._answers = deque(each for each in self._answers if each.message_id in known)


@final
@dataclass
class _Fetcher:
    """Looks for answers, in one thread, or in more while some of them wait for a node that does not deliver."""

    grid: Grid
    poll_s: float
    leftover: Leftover
    wanted: dict[str, int]  # the messages whose answers are looked for; what was found is taken out
    _todo: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    _found: deque[_Fetched] = field(default_factory=deque)
    _later: deque[tuple[float, str]] = field(default_factory=deque)  # when to look again, in the order of time
    _changed: threading.Condition = field(default_factory=threading.Condition)  # what was found, or that it is over
    _stopped: bool = False
    _threads: int = 0
    _last: float = 0.0  # when something was fetched, or a thread started

    def __post_init__(self) -> None:
        for each in self.wanted:
            self._todo.put(each)

    def next(self, end: float) -> _Fetched | None:
        """What was found next, once for each message; None when time is up."""
        while (now := time.monotonic()) < end:
            fetched = self.leftover.take(self.wanted) or self._fetched(now, end)
            if fetched is None or fetched.message_id not in self.wanted:
                continue
            if fetched.error is not None:
                raise fetched.error
            if not fetched.nothing:
                del self.wanted[fetched.message_id]
                return fetched
            self._later.append((time.monotonic() + self.poll_s, fetched.message_id))
        return None

    def _fetched(self, now: float, end: float) -> _Fetched | None:
        """What a thread brings; None where none does for as long as a pause."""
        while self._later and self._later[0][0] <= now:
            self._todo.put(self._later.popleft()[1])
        if self._threads == 0 or (not self._todo.empty() and now - self._last > _STUCK_S):
            self._start()
        with self._changed:
            if not self._changed.wait_for(lambda: self._found, timeout=min(self.poll_s, end - now)):
                return None
            self._last = time.monotonic()
            self._changed.notify_all()  # there is room again
            return self._found.popleft()

    def stop(self) -> None:
        """Let the threads end: at once, or when what they wait for is given up. What they have found is left over."""
        with self._changed:
            self._stopped = True
            while self._found:
                self.leftover.keep(self._found.popleft())
            self._changed.notify_all()
        for _ in range(self._threads):
            self._todo.put(None)

    def _start(self) -> None:
        self._last = time.monotonic()
        if self._threads < _MAX_THREADS:
            self._threads += 1
            threading.Thread(target=self._fetch, name=f"flare-fetch-{self._threads}", daemon=True).start()

    def _fetch(self) -> None:
        while (message_id := self._todo.get()) is not None and not self._stopped:
            if message_id not in self.wanted:
                continue
            if not self.leftover.begin(message_id):
                self._bring(_Fetched(message_id, []))
                continue
            try:
                self._bring(_pulled(self.grid, message_id))
            finally:
                self.leftover.end(message_id)

    def _bring(self, fetched: _Fetched) -> None:
        """Hand over what was found when there is room, or leave it over: the one or the other, also where the call
        ends meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._found) < _MAX_READY)
            if self._stopped:
                self.leftover.keep(fetched)
            else:
                self._found.append(fetched)
                self._changed.notify_all()


def _pulled(grid: Grid, message_id: str) -> _Fetched:
    try:
        return _Fetched(message_id, list(grid.pull_messages([message_id])))
    except _CONNECTION as error:
        return _Fetched(message_id, [], error=error)
    except Exception as error:
        return _Fetched(message_id, [], trouble=f"its answer cannot be read: {type(error).__name__}: {error}")
    except BaseException as error:
        return _Fetched(message_id, [], error=error)


def refusal(answer: Message, message_id: str | None = None, node: int | None = None) -> str | None:
    """Why an answer does not count; it must answer the message and come from the node, where they are given."""
    if answer.has_error():
        return f"error {answer.error.code}: {answer.error.reason}"
    if message_id is None:
        return None
    if answer.metadata.reply_to_message_id != message_id or answer.metadata.src_node_id != node:
        return f"its answer comes in the name of node {answer.metadata.src_node_id}"
    return None
