"""Fleets without a network: a Grid of Flower whose nodes are functions in this process, and a cell as its nodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from flare.data.dataset import Dataset
from flare.flower import Work, cell_resources, client_app
from flare.learning.batches import draw_batches
from flare.learning.engine.threads import one_thread
from flare.rng import stream
from flare.types import Indices
from flare.wireless.cell import Cell

Node = Callable[[Message], "list[Message]"]  # the answers to a message: one, none, or too many


@pytest.fixture
def node_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is that of a node, as far as Flower looks. Imported where it is used."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def node_context(**config: Any) -> Context:
    """What Flower gives an app on a node with this node-config, whose names are written with underscores here."""
    named = {name.replace("_", "-"): value for name, value in config.items()}
    return Context(run_id=1, node_id=5, node_config=named, state=RecordDict(), run_config={})


class FakeGrid(Grid):
    """Every node answers at once, or never. The same interface as Flower's, and its rules: an answer is given once, and
    whoever asks for it again is told that there is no such message."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.answers: dict[str, list[Message]] = {}  # those that were not given yet
        self.given: set[str] = set()
        self.pushed: list[Message] = []
        self._ids = itertools.count()
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as in the process of a ServerApp

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self._ids)}"
            ids.append(message.metadata.message_id)
            self.pushed.append(message)
            if message.metadata.dst_node_id in self.nodes:
                self.answers[message.metadata.message_id] = self.nodes[message.metadata.dst_node_id](message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [answer for each in message_ids for answer in self._pulled(each)]

    def _pulled(self, message_id: str) -> list[Message]:
        if message_id in self.given:
            # Here, because a data base is imported with it.
            from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message

            return [create_message_error_unavailable_ins_message(message_id, 1)]
        answers = self.answers.pop(message_id, [])
        if answers:
            self.given.add(message_id)
        return answers

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))

    def set_run(self, run: object) -> None:
        raise NotImplementedError

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError


def running(app: ClientApp, node: int, node_config: dict[str, object] | None = None) -> Node:
    """A node that runs a ClientApp, and keeps its context from message to message.

    It computes with one thread, as the simulator does for a device: sums that are cut otherwise differ in their last
    bits, and after some rounds of training by more than a millionth.
    """
    context = Context(run_id=1, node_id=node, node_config=node_config or {}, state=RecordDict(), run_config={})

    def answer(message: Message) -> list[Message]:
        with one_thread(torch.device("cpu")):
            return [app(message, context)]

    return answer


def cell_app(cell: Cell, module: Callable[[], nn.Module], dataset: Dataset, held: Sequence[Indices]) -> ClientApp:
    """Nodes that are the devices of a simulated cell, by their partition-id, and learn from the same batches."""

    def batches(context: Context, work: Work) -> list[tuple[Tensor, Tensor]]:
        rng = stream(work.seed, "batch", work.round, work.device)
        drawn = draw_batches(held[work.device], work.steps, cell.config.batch_size, rng=rng)
        x, y = torch.from_numpy(dataset.train_x), torch.from_numpy(dataset.train_y)
        return [(x[each], y[each]) for each in torch.from_numpy(drawn)]

    def all_batches(context: Context) -> list[tuple[Tensor, Tensor]]:
        own = torch.from_numpy(held[int(context.node_config["partition-id"])])
        x, y = torch.from_numpy(dataset.train_x), torch.from_numpy(dataset.train_y)
        return [(x[each], y[each]) for each in torch.split(own, 1000)]

    return client_app(
        model=lambda _: module(),
        batches=batches,
        resources=partial(cell_resources, cell),
        all_batches=all_batches,
    )
