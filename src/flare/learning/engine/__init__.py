"""Engines by name: what computes a round."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from flare.config import LearningConfig
from flare.data.dataset import Dataset
from flare.learning.engine.base import Engine
from flare.learning.engine.batched import BatchedEngine
from flare.learning.engine.kernel_program import has_kernels
from flare.learning.engine.reference import ReferenceEngine
from flare.learning.engine.sequential import SequentialEngine
from flare.learning.engine.tensor_data import TensorData


def compute_device(config: LearningConfig) -> str:
    """Where the settings compute: a GPU if there is one, unless they say otherwise."""
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError('learning.device is "cuda", but no GPU can be used here; set it to "cpu" or "auto"')
    return config.device


def prepare_gpu() -> None:
    """What takes a process a second or so before its first engine on a GPU."""
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    if has_kernels(device):
        import_module("flare.learning.engine.between")
        import_module("flare.learning.engine.rows")


def make_engine(module: nn.Module, dataset: Dataset | TensorData, config: LearningConfig) -> Engine:
    """The engine that the settings name, for one model and one data set, which may lie on its device; "auto" is batched
    on a GPU."""
    device = compute_device(config)
    name = config.engine
    if name == "auto":
        name = "batched" if device == "cuda" else "sequential"
    if name == "reference":
        return ReferenceEngine(module, dataset, device=device)
    if name == "sequential":
        return SequentialEngine(module, dataset, device=device)
    return BatchedEngine(module, dataset, device=device, tf32=config.precision == "tf32")


def make_engines(
    module: nn.Module, dataset: Dataset, config: LearningConfig, number: int, *, shares_gpu: bool = False
) -> list[Engine]:
    """So many engines, each of which a GPU can be at work for while the others are asked for something; the data are on
    it once. `shares_gpu`: other processes keep it busy, too."""
    data = TensorData(dataset, compute_device(config))
    engines = [make_engine(module, data, config) for _ in range(number)]
    batched = [each for each in engines if isinstance(each, BatchedEngine)]
    for engine in batched:
        engine.lanes, engine.beside = number, [each for each in batched if each is not engine]
        engine.shares_gpu = shares_gpu
    return engines


__all__ = [
    "BatchedEngine",
    "Engine",
    "ReferenceEngine",
    "SequentialEngine",
    "compute_device",
    "make_engine",
    "make_engines",
    "prepare_gpu",
]
