"""The smoothness L of a run's loss at its start, for the settings that go by it: gamma "auto" and tau_bar "safe".

L is that of Assumption 2, the greatest curvature of any device's loss, at the start weights. It is estimated once, and
only where a setting asks for it. The samples and start vectors come from streams of the run's seed, and a CPU works on
it with one thread: the same run finds the same L, alone, in company and when it is resumed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from flare.config import Config
from flare.data.dataset import Dataset
from flare.data.sources import SOURCES
from flare.learning.engine import compute_device
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.threads import one_thread
from flare.learning.flat import own_copy
from flare.learning.methods import Method
from flare.learning.models import MODELS
from flare.rng import stream
from flare.theory.constants import smoothness
from flare.types import Indices

MAX_SAMPLES = 64
"""Samples of a device that the estimate looks at."""
TOLERANCE, MAX_PRODUCTS = 0.01, 30


MAX_ESTIMATES = 2048
"""Estimates that are remembered, the last ones that were asked for: enough for the seeds of a comparison."""
_ESTIMATES: OrderedDict[tuple[object, ...], float] = OrderedDict()  # by all that one depends on


def estimated_smoothness(
    config: Config, method: Method, module: nn.Module, dataset: Dataset, held: Sequence[Indices], *, own: bool = True
) -> float | None:
    """L at the weights of the module, or None where nothing goes by it; ValueError where it is not finite.

    Where neither data nor module are the user's `own`, runs with the same of them share the estimate.
    """
    if not isinstance(config.scheduling.gamma, str) and not method.needs_smoothness:
        return None
    if own:
        return _estimate(config, module, dataset, held)
    learning, num_devices = config.learning, config.wireless.num_devices
    made_of = (SOURCES.find(config.data.name), MODELS.find(learning.model), learning.model_options)
    key = (config.seed, config.data, num_devices, *made_of, compute_device(learning))
    known = _ESTIMATES.pop(key, None)
    _ESTIMATES[key] = _estimate(config, module, dataset, held) if known is None else known
    if len(_ESTIMATES) > MAX_ESTIMATES:
        _ESTIMATES.popitem(last=False)
    return _ESTIMATES[key]


def _estimate(config: Config, module: nn.Module, dataset: Dataset, held: Sequence[Indices]) -> float:
    data = TensorData(dataset, compute_device(config.learning))
    model = own_copy(module, data.device)

    def loss(weights: Tensor, samples: Tensor) -> Tensor:
        x, y = data.batch(samples)
        return functional.cross_entropy(functional_call(model.module, model.views(weights), (x,)), y)

    devices = [data.indices(_some(samples, config.seed, device)) for device, samples in enumerate(held)]
    rng = stream(config.seed, "lipschitz")
    with one_thread(data.device), _same_kernels():
        start = [model.flatten()]
        return smoothness(loss, start, devices, rng=rng, tolerance=TOLERANCE, max_products=MAX_PRODUCTS)


@contextmanager
def _same_kernels() -> Iterator[None]:
    """On a GPU, convolutions by kernels that give the same bits every time."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def _some(samples: Indices, seed: int, device: int) -> Indices:
    if len(samples) <= MAX_SAMPLES:
        return samples
    return stream(seed, "lipschitz", device).choice(samples, MAX_SAMPLES, replace=False)
