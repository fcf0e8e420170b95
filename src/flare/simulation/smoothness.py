"""The smoothness L of a run's loss at its start, for the settings that go by it: gamma "auto" and tau_bar "safe".

L is that of Assumption 2, the greatest curvature of any device's loss, at the start weights. It is estimated once, and
only where a setting asks for it. The samples and start vectors come from streams of the run's seed, and a CPU works on
it with one thread: the same run finds the same L, alone, in company and when it is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from flare.config import Config
from flare.data.dataset import Dataset
from flare.learning.engine import compute_device
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.threads import one_thread
from flare.learning.flat import own_copy
from flare.rng import stream
from flare.theory.conditions import safe_tau_bar
from flare.theory.constants import smoothness
from flare.types import Floats, Indices

MAX_SAMPLES = 64
"""Samples of a device that the estimate looks at."""
TOLERANCE, MAX_PRODUCTS = 0.01, 30


_ESTIMATES: dict[tuple[object, ...], float] = {}  # by all that one depends on: runs of a comparison share them


def estimated_smoothness(
    config: Config, module: nn.Module, dataset: Dataset, held: Sequence[Indices], *, own: bool = True
) -> float | None:
    """L at the weights of the module, or None where no setting asks for it; ValueError where it is not finite.

    Where neither data nor module are the user's `own`, runs with the same of them share the estimate.
    """
    if not isinstance(config.scheduling.gamma, str) and not _is_safe(config):
        return None
    if own:
        return _estimate(config, module, dataset, held)
    learning, num_devices = config.learning, config.wireless.num_devices
    key = (config.seed, config.data, num_devices, learning.model, compute_device(learning))
    if key not in _ESTIMATES:
        _ESTIMATES[key] = _estimate(config, module, dataset, held)
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


def gamma_of(config: Config, smoothness: float | None, tau: Floats) -> float:
    """The weight of participation in a round: as set, eta_g / L, or eta_g / (L eta_l tau_bar).

    The first is the paper's (below Eq. (19)), the second is what makes P2's objective proportional to phi_2 of Lemma 1
    (docs/errata.md, 12). There tau_bar is the most that it can be: that of all devices of the cell, whose steps `tau`
    has, shape (devices,), since the selected are not known yet. ValueError where L is zero.
    """
    gamma = config.scheduling.gamma
    if not isinstance(gamma, str):
        return gamma
    if not smoothness:
        raise ValueError(
            f'scheduling.gamma is "{gamma}", but the loss has no curvature at the start weights (L = 0); set gamma to '
            "a number"
        )
    participation = config.learning.global_lr / smoothness
    if gamma == "auto":
        return participation
    tau_bar = min(float(tau.max()), tau_bar_limit(config, smoothness))
    return participation / (config.learning.local_lr * tau_bar)


def tau_bar_limit(config: Config, smoothness: float | None) -> float:
    """The greatest tau_bar of a round: under `safe` what the condition on the step size allows, else any."""
    if not _is_safe(config) or smoothness is None:
        return math.inf
    return safe_tau_bar(smoothness, config.learning.local_lr)


def _is_safe(config: Config) -> bool:
    return config.learning.method == "flare" and config.learning.tau_bar == "safe"


def _some(samples: Indices, seed: int, device: int) -> Indices:
    if len(samples) <= MAX_SAMPLES:
        return samples
    return stream(seed, "lipschitz", device).choice(samples, MAX_SAMPLES, replace=False)
