"""A node that waits before every step for as long as its configuration says: `does="0.3@4e6"` is 0.3 s a step (and
4 Mbit/s when it sends, for which tests/hostile_fleet/node.py waits)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from flwr.app import Context
from torch import Tensor, nn

from flare.flower import Ask, Work, client_app, own_resources

torch.set_num_threads(1)


def model(_: Context) -> nn.Module:
    return nn.Linear(1000, 250, bias=False)


def batches(context: Context, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    step_s = float(str(context.node_config["does"]).partition("@")[0])
    generator = torch.Generator().manual_seed(100 * work.round + work.device)  # Flower sends equal arrays only once
    for _ in range(work.steps):
        time.sleep(step_s)
        yield torch.randn(8, 1000, generator=generator), torch.zeros(8, dtype=torch.long)


def resources(context: Context, ask: Ask) -> dict[str, float]:
    context.node_config["compute-share"] = 0.25  # most of the deadline is for sending
    return own_resources(context, ask)


app = client_app(model=model, batches=batches, resources=resources)
