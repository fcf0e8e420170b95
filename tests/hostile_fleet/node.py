"""Nodes, each of them one process: the connection of Flower's SuperNode, and the app in the same process, so that it
can fail at any moment of an exchange.

    python node.py [--app FOLDER:MODULE] ADDRESS DEVICE DOES [DEVICE DOES ...]

They run the app of the hostile fleet, or the one that is given. What the nodes import is imported once, before they
part; what each says is in `node-DEVICE.log`.
In round 4 a node that `does` so dies when it is asked, while it trains or after it has sent, is late, or announces an
answer and never delivers it; in round 3 it may send what cannot be read; and it may send every answer twice. One that
does "...@4e6" sends at 4 Mbit/s.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Array, Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

given = sys.argv[1:]
folder, module = str(Path(__file__).parent), "hostile.client_app"
if given[0] == "--app":
    folder, _, module = given[1].partition(":")
    given = given[2:]
sys.path.insert(0, folder)
app = importlib.import_module(module).app

LATE_S = 18.0  # of one that "is late", and does not say by how many seconds: "is late by 10"
POLL_S = 0.5 if len(given) < 10 else 1.0  # between two looks for a message: many nodes keep a SuperLink busy
LONGEST_POLL_S = 3.0  # of a node for which there has been nothing for long


def die() -> None:
    """As when the power fails."""
    os.kill(os.getpid(), signal.SIGKILL)


class Unreadable(Array):
    """An array whose description is nonsense under a sound head, which is all that a SuperLink looks at."""

    def deflate(self) -> bytes:
        head, _, body = super().deflate().partition(b"\0")
        return head + b"\0" + body.replace(b"arraychunk_ids", b"ARRAYCHUNK_IDS")


Unreadable.__qualname__ = "Array"


def main(address: str, device: int, does: str) -> None:
    with http_request_response(address, True) as (node, receive, send, _, _, pull, push, confirm):
        print("node", node, flush=True)
        config = {"partition-id": device, "does": does}
        context = Context(run_id=0, node_id=node, node_config=config, state=RecordDict(), run_config={})
        pause_s = POLL_S
        while True:
            if (received := receive()) is None:
                time.sleep(pause_s)
                pause_s = min(1.2 * pause_s, LONGEST_POLL_S)
                continue
            pause_s = POLL_S
            message = whole(*received, pull, confirm)
            kind, number = message.metadata.message_type, message.content.config_records["config"]["round"]
            before(does, kind, number)
            answer = app(message, context)
            if does == "is unreadable" and (kind, number) == ("train", 3):
                answer.content.array_records["arrays"]["b"].__class__ = Unreadable
            hollow = does == "never delivers" and (kind, number) == ("train", 4)
            deliver(answer, send, push, hollow=hollow, rate_bps=float(does.partition("@")[2] or math.inf))
            if does == "answers twice":
                try:
                    deliver(answer, send, push)
                except Exception as error:  # the SuperLink may refuse it
                    print("refused:", error, flush=True)
                print("answered twice", flush=True)
            if does == "dies later" and (kind, number) == ("train", 4):
                die()


def before(does: str, kind: str, number: int) -> None:
    if number == 4 and (does, kind) in {("dies asked", "query"), ("dies training", "train")}:
        die()
    if does.startswith("is late") and (kind, number) == ("train", 4):
        time.sleep(float(does.partition(" by ")[2] or LATE_S))


def whole(message: Message, tree: Any, pull: Callable[..., bytes], confirm: Callable[..., None]) -> Message:
    """The message with its content."""
    run, name = message.metadata.run_id, message.metadata.message_id
    contents = pull_objects([each.object_id for each in iterate_object_tree(tree)], lambda each: pull(run, each))
    inflated = inflate_object_from_contents(name, contents)
    assert isinstance(inflated, Message)
    inflated.metadata.__dict__["_message_id"] = name
    confirm(run, name)
    return inflated


def deliver(
    answer: Message,
    send: Callable[..., Any],
    push: Callable[..., None],
    *,
    hollow: bool = False,
    rate_bps: float = math.inf,
) -> None:
    answer.metadata.__dict__["_message_id"] = answer.object_id
    wanted, session = send(answer, get_object_tree(answer), 0.1)
    for name, each in get_all_nested_objects(answer).items():
        if name in wanted and not hollow:
            content = each.deflate()
            time.sleep(8 * len(content) / rate_bps)
            push(answer.metadata.run_id, session, name, content)


def begin(address: str, device: int, does: str) -> int:
    """Start a node in a process of its own; the id of that."""
    if pid := os.fork():
        return pid
    log = os.open(f"node-{device}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        main(address, device, does)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def end_all(*_: object) -> None:
    for pid in begun:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


address, *nodes = given
begun = [begin(address, int(device), does) for device, does in zip(nodes[::2], nodes[1::2], strict=True)]
signal.signal(signal.SIGTERM, end_all)
for pid in begun:
    os.waitpid(pid, 0)
