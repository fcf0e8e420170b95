"""A module whose weights are one flat vector.

Engines run a module in evaluation mode (`own_copy`), also while it trains, because a device's answer must depend on its
job alone, not on who trained before it: no layer draws random numbers and no buffer changes. Layers that would then
silently do something else than their users expect, dropout and batch normalisation, are refused with a word on what to
take instead. A node of a fleet trains by itself, in training mode and by whole batches (`on_node`): there only layers
are refused that keep something beside the weights, which no mean of weights carries. Constant buffers and parameters
that ask for no gradient stay in the module, the same on every device, and count neither as weights nor in the size of
an update.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm


class FlatModel:
    """Maps between a module's trained parameters and one float32 vector, in the order of `named_parameters()`."""

    def __init__(self, module: nn.Module, *, on_node: bool = False) -> None:
        _refuse_statistics(module)
        if not on_node:
            _refuse_in_engines(module)
        self.module = module
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        _refuse_parameters(module, trained)
        self.parameters = list(trained.values())
        self.names = list(trained)
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.num_weights = sum(self.sizes)

    def flatten(self) -> Tensor:
        """A copy of the module's parameters, shape (weights,)."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name as views into `flat`, of shape (..., weights): leading axes are kept."""
        parts = torch.split(flat, self.sizes, dim=-1)
        leading = flat.shape[:-1]
        return {
            name: part.view((*leading, *shape))
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }


def update_bits(num_weights: int) -> int:
    """The size of an update in float32."""
    return 32 * num_weights


def own_copy(module: nn.Module, device: str | torch.device) -> FlatModel:
    """A copy of the module for an engine to work in: on its device, in evaluation mode; the caller's is left alone.

    Samples are shared by all devices and runs, so a module that might change them in place is given a copy of them.
    """
    own = copy.deepcopy(module).to(device).eval()
    if not _surely_leaves_samples(own):
        own.register_forward_pre_hook(_with_a_copy)
    return FlatModel(own)


def _surely_leaves_samples(module: nn.Module) -> bool:
    """Whether the first that is done with samples is to compute something new from them."""
    layers = list(module) if type(module) is nn.Sequential else []
    first = next((layer for layer in layers if type(layer) is not nn.Flatten), None)
    return type(first) in (nn.Linear, nn.Conv2d)


def _with_a_copy(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0].clone(),)


def _refuse_statistics(module: nn.Module) -> None:
    """ValueError where a layer keeps running statistics."""
    for where, layer in _layers(module):
        if isinstance(layer, _BatchNorm | _InstanceNorm) and layer.track_running_stats:
            raise ValueError(
                f"{where} keeps statistics of the samples beside the weights, which devices do not send and the base "
                "station does not average; use torch.nn.GroupNorm instead (the nodes of a fleet may also have it with "
                "track_running_stats=False: it then normalises by the batch at hand, in tests too)"
            )


def _refuse_in_engines(module: nn.Module) -> None:
    """ValueError where a layer makes what a device computes depend on more than its samples one by one."""
    for where, layer in _layers(module):
        if isinstance(layer, _BatchNorm):
            raise ValueError(
                f"{where} normalises by the batch at hand, and the simulator takes batches apart and puts those of "
                "devices together; use torch.nn.GroupNorm instead (the nodes of a fleet may have it: docs/flower.md)"
            )
        if isinstance(layer, _DropoutNd) and layer.p > 0.0:
            raise ValueError(
                f"{where} draws random numbers in training, so that a device's update would depend on who trained "
                "before it; leave the layer out or set its p to 0 (the nodes of a fleet may have it: docs/flower.md)"
            )


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every layer, with what it is called in a message."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        yield (f"layer '{name}' ({kind})" if name else f"the module ({kind})"), layer


def _refuse_parameters(module: nn.Module, trained: dict[str, nn.Parameter]) -> None:
    if not trained:
        raise ValueError(f"{type(module).__name__} has no parameter that asks for a gradient: nothing to train")
    for name, parameter in trained.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter '{name}' has no shape yet (a lazy layer): pass one batch through the module")
        if parameter.dtype != torch.float32:
            raise ValueError(
                f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}; every parameter that is trained "
                "must be float32: call .float() on the module"
            )
