"""Messages out, answers in, one at a time: Flower's `send_and_receive` gathers all answers before it returns any."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from flare.flower.faults import Faults

# What decoding the answer of a node can raise: it is the node's fault, not that of the connection.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, DecodeError)


@dataclass(frozen=True)
class Answer:
    """A node's answer, and how long after the question it was here."""

    node: int
    message: Message
    after_s: float


def exchange(
    grid: Grid, messages: Sequence[Message], *, when: str, timeout_s: float, poll_s: float, faults: Faults
) -> Iterator[Answer]:
    """Send the messages, at most one to a node, and yield each answer as it comes, until all are here or time is up.

    Answers are fetched singly, so that one that cannot be read costs no other, and so that memory holds one at a time.
    A node counts once, whatever it sends; one that answers with an error, in the name of another, or not in time is
    noted as faulty.
    """
    start = time.monotonic()
    waiting = _sent(grid, messages, when, faults)
    while waiting:
        progress = False
        for message_id in list(waiting):
            answers, trouble = _pulled(grid, message_id)
            if not answers and trouble is None:
                continue
            progress = True
            node = waiting.pop(message_id)
            if len(answers) > 1:
                faults.note(node, when, "it answered more than once; the first answer counts")
            trouble = trouble or _refusal(answers[0], message_id, node)
            if trouble is None:
                yield Answer(node, answers[0], time.monotonic() - start)
            else:
                faults.note(node, when, trouble)
            del answers  # the next comes before this name is set again
            if time.monotonic() - start >= timeout_s:
                break
        left_s = start + timeout_s - time.monotonic()
        if left_s <= 0.0:
            break
        if waiting and not progress:
            time.sleep(min(poll_s, left_s))
    for node in waiting.values():
        faults.note(node, when, f"no answer within {timeout_s:g} s")


def _sent(grid: Grid, messages: Sequence[Message], when: str, faults: Faults) -> dict[str, int]:
    """The node that is asked, by the id of the message."""
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


def _pulled(grid: Grid, message_id: str) -> tuple[list[Message], str | None]:
    """The answers to a message, none while there is none, and why they cannot be read."""
    try:
        return list(grid.pull_messages([message_id])), None
    except _UNREADABLE as error:
        return [], f"its answer cannot be read: {type(error).__name__}: {error}"


def _refusal(answer: Message, message_id: str, node: int) -> str | None:
    """Why an answer does not count."""
    if answer.has_error():
        return f"error {answer.error.code}: {answer.error.reason}"
    if answer.metadata.reply_to_message_id != message_id or answer.metadata.src_node_id != node:
        return f"its answer comes in the name of node {answer.metadata.src_node_id}"
    return None
