"""A module whose weights are one flat vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatModel:
    """Maps between a module's parameters and one float32 vector, in the order of `module.named_parameters()`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [tuple(parameter.shape) for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.num_weights = sum(self.sizes)

    @property
    def num_bits(self) -> int:
        """The size of an update in float32."""
        return 32 * self.num_weights

    def flatten(self) -> Tensor:
        """A copy of the module's parameters, shape (weights,)."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.module.parameters()]).float()

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name as views into `flat`, of shape (..., weights): leading axes are kept."""
        parts = torch.split(flat, self.sizes, dim=-1)
        return {
            name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }
