"""Answers that come when nobody waits for them any more: none is lost, none is asked for twice."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict

from flare.flower import enquiry
from flare.flower.faults import Faults
from flare.flower.mailbox import AskedGradient, Mailbox
from tests.fleets import FakeGrid


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def answered_at_once(message: Message) -> list[Message]:
    return [Message(RecordDict(), reply_to=message)]


@pytest.mark.parametrize("keeps_late", [False, True])
def test_an_answer_that_is_fetched_too_late_is_not_lost(keeps_late: bool) -> None:
    """The SuperLink gives an answer once: what a thread holds when its round ends comes in the next, also when other
    nodes were asked something in between."""

    class Slow(FakeGrid):
        go = threading.Event()

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            self.go.wait(30)
            return super().pull_messages(message_ids)

    grid, mail = Slow(dict.fromkeys((1, 2), answered_at_once)), Mailbox(0.002, Faults(), keeps_late=keeps_late)
    work = AskedGradient(round=0, device=0)
    mail.send(grid, [Message(RecordDict(), 1, "train", ttl=60)], {1: work})
    now = time.monotonic()
    assert list(mail.collect(grid, [1], began=now, end=now + 0.05)) == []
    grid.go.set()
    while any(each.name.startswith("flare-fetch") for each in threading.enumerate()):
        time.sleep(0.002)
    assert grid.answers == {}  # it was given
    assert list(mail.busy) == [1]
    if keeps_late:
        questions = [Message(RecordDict(), 2, "query", ttl=60)]
        assert [each.node for each in mail.ask(grid, questions, when="query", timeout_s=30)] == [2]
    (came,) = mail.collect(grid, [1], began=now, end=time.monotonic() + 30)
    assert came.node == 1
    assert mail.busy == {}
    assert not mail._leftover


def test_an_answer_whose_arrays_are_still_coming_is_not_asked_for_again() -> None:
    """The usual late device: a thread of the round that is over still has its answer on the way."""

    class Coming(FakeGrid):
        arrays = threading.Event()

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            given = super().pull_messages(message_ids)
            if given and not given[0].has_error():
                self.arrays.wait(30)
            return given

    faults = Faults()
    grid, mail = Coming({1: answered_at_once}), Mailbox(0.002, faults)
    mail.send(grid, [Message(RecordDict(), 1, "train", ttl=60)], {1: AskedGradient(round=0, device=0)})
    now = time.monotonic()
    for _ in range(2):
        assert list(mail.collect(grid, [1], began=now, end=time.monotonic() + 0.05)) == []
    assert list(mail.busy) == [1]
    threading.Timer(0.05, grid.arrays.set).start()
    (came,) = mail.collect(grid, [1], began=now, end=time.monotonic() + 30)
    assert (came.node, faults.take(), mail.busy) == (1, [], {})


def test_a_message_is_looked_for_again_where_a_thread_came_back_without_an_answer() -> None:
    class Stuck(FakeGrid):
        looks, go = 0, threading.Event()

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            self.looks += 1
            if self.looks > 1:
                return super().pull_messages(message_ids)
            self.go.wait(30)
            return []

    grid, mail = Stuck({1: answered_at_once}), Mailbox(0.002, Faults())
    mail.send(grid, [Message(RecordDict(), 1, "train", ttl=60)], {1: AskedGradient(round=0, device=0)})
    now = time.monotonic()
    assert list(mail.collect(grid, [1], began=now, end=now + 0.03)) == []
    threading.Timer(0.03, grid.go.set).start()
    assert [each.node for each in mail.collect(grid, [1], began=now, end=time.monotonic() + 30)] == [1]


def test_no_answer_is_lost_where_a_round_ends_while_many_are_ready() -> None:
    """More than wait to be taken at once, of which one is taken when the round ends; twenty times."""
    nodes, names = range(1, 13), "flare-fetch"
    for _ in range(20):
        faults = Faults()
        grid, mail = FakeGrid(dict.fromkeys(nodes, answered_at_once)), Mailbox(0.002, faults)
        messages = [Message(RecordDict(), node, "train", ttl=60) for node in nodes]
        mail.send(grid, messages, {node: AskedGradient(round=0, device=node) for node in nodes})
        now = time.monotonic()
        collected = mail.collect(grid, nodes, began=now, end=now + 30)
        first = next(collected).node
        while len(grid.given) < 6:  # a thread waits for room
            time.sleep(0.001)
        collected.close()  # type: ignore[attr-defined]
        while any(each.name.startswith(names) for each in threading.enumerate()):
            time.sleep(0.001)
        rest = [each.node for each in mail.collect(grid, mail.busy, began=now, end=time.monotonic() + 5)]
        assert sorted([first, *rest]) == list(nodes)
        assert faults.take() == []


def test_too_few_nodes_are_waited_for_without_asking_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of two is there, and computes across rounds: a look a second, until the other comes or time is up."""
    clock = Clock()
    monkeypatch.setattr(enquiry, "time", clock)

    class Counted(FakeGrid):
        comes_at, looks = math.inf, 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            assert self.looks < 50, "it asks all the time"
            return [1, 2] if clock.monotonic() >= self.comes_at else [1]

    grid, mail = Counted({1: lambda message: []}), Mailbox(0.25, Faults(), keeps_late=True)
    mail.send(grid, [Message(RecordDict(), 1, "train", ttl=60)], {1: AskedGradient(round=0, device=0)})
    enquiry.wait_for_nodes(grid, mail, 2, 6.0)
    assert (clock.now, grid.looks) == (106.0, 6)
    grid.comes_at, grid.looks = 108.5, 0
    enquiry.wait_for_nodes(grid, mail, 2, 60.0)
    assert (clock.now, grid.looks) == (109.0, 4)
    enquiry.wait_for_nodes(grid, mail, 1, 60.0)  # all that are needed are there, if at work
    assert clock.now == 109.0
