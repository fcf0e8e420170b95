"""The state of PyTorch that an engine computes in, whatever others have set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for each operation on a CPU, so that how a sum is cut, and with it its bits, depends on no setting."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def with_gradients(device: torch.device) -> Iterator[None]:
    """`one_thread`, and gradients are taken, also where the caller or code of a user's own has turned that off with
    `torch.no_grad` (what was made under `torch.inference_mode` PyTorch itself does not train)."""
    with one_thread(device), torch.inference_mode(mode=False):
        yield
