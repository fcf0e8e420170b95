"""A module whose weights are one flat vector.

Engines run a module in evaluation mode (`own_copy`), also while it trains, because a device's answer must depend on its
job alone, not on who trained before it: no layer draws random numbers and no buffer changes. Layers that would then
silently do something else than their users expect, dropout and batch normalisation, are refused with a word on what to
take instead. Constant buffers and parameters that ask for no gradient stay in the module, the same on every device,
and count neither as weights nor in the size of an update.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm


class FlatModel:
    """Maps between a module's trained parameters and one float32 vector, in the order of `named_parameters()`."""

    def __init__(self, module: nn.Module) -> None:
        _refuse_layers(module)
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
    """A copy of the module for an engine to work in: on its device, in evaluation mode; the caller's is left alone."""
    return FlatModel(copy.deepcopy(module).to(device).eval())


def _refuse_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        where = f"layer '{name}' ({type(layer).__name__})" if name else f"the module ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            raise ValueError(
                f"{where} keeps statistics of the samples beside the weights, which devices do not send and the base "
                "station does not average; use torch.nn.GroupNorm instead"
            )
        if isinstance(layer, _DropoutNd) and layer.p > 0.0:
            raise ValueError(
                f"{where} draws random numbers in training, so that a device's update would depend on who trained "
                "before it; leave the layer out or set its p to 0"
            )


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
