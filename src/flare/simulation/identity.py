"""What a run is: fingerprints of its data, its model and its trace.

They are written into the run folder. A run can be continued where they come out the same, and nowhere else: settings
alone do not say what a Python program handed to `Simulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor, nn

from flare.data.dataset import Dataset
from flare.rounds.code_text import text_of
from flare.rounds.identity import checksum
from flare.types import Indices
from flare.wireless.trace import Trace


def data_identity(
    dataset: Dataset, held: Sequence[Indices], shared: Indices, name: str, *, own: bool
) -> dict[str, str]:
    """The data in words, with the name of a user's own where it has one; the samples, who holds them, and those that
    all devices share, where they do."""
    named = "" if dataset.name in ("", "own") else f" {dataset.name}"
    sizes = f"{len(dataset.train_y)} samples, {dataset.num_classes} classes"
    return {
        "data": f"own data{named}, {sizes}" if own else name,
        "samples": _samples_checksum(dataset),
        "division": checksum(*held),
        **({"shared": checksum(shared)} if len(shared) else {}),
    }


def model_identity(module: nn.Module, start: Tensor, name: str, *, own: bool) -> dict[str, str]:
    """The model in words, its layers (with the text of those that are not torch's), and its start weights."""
    classes = sorted({type(each) for each in module.modules()}, key=lambda each: each.__qualname__)
    sources = [text_of(each) for each in classes if not each.__module__.startswith(("torch.", "flare."))]
    buffers = [each.detach().cpu().numpy() for _, each in sorted(module.named_buffers())]
    return {
        "model": f"own model {type(module).__name__}, {len(start)} weights" if own else name,
        "layers": checksum(*(np.frombuffer(text.encode(), np.uint8) for text in (str(module), *sources))),
        "start": checksum(start.cpu().numpy(), *buffers),
    }


def trace_identity(trace: Trace | None) -> dict[str, str]:
    """The recorded channels, speeds and steps that the rounds go by, where they do."""
    if trace is None:
        return {}
    names = sorted(trace.values)
    return {"trace": checksum(np.frombuffer(" ".join(names).encode(), np.uint8), *(trace.values[n] for n in names))}


@lru_cache(maxsize=4)
def _samples_checksum(dataset: Dataset) -> str:
    return checksum(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
