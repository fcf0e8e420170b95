"""The training of a node of the testbed."""

from __future__ import annotations

import torch
from flwr.clientapp import ClientApp

from flare.config import Config
from flare.flower import client_app
from flare.testbed import task


def training_app(config: Config) -> ClientApp:
    """A ClientApp that trains with one thread: the nodes share a machine."""
    torch.set_num_threads(1)
    return client_app(
        model=lambda _: task.model_of(config),
        batches=lambda _, work: task.batches(config, work.round, work.device, work.steps),
    )
