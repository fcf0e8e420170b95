"""What follows from tensors that are never written to, kept with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

Made = TypeVar("Made")


@final
class KeptWith(Generic[Made]):
    """Makes something of a tensor for a device, once: it is kept for as long as the tensor lives."""

    def __init__(self, make: Callable[[Tensor, torch.device], Made]) -> None:
        self._make = make
        self._made = WeakIdKeyDictionary()

    def __call__(self, tensor: Tensor, device: torch.device) -> Made:
        """What was made of the tensor for the device, or is now."""
        if tensor not in self._made:
            self._made[tensor] = {}
        of_devices: dict[torch.device, Made] = self._made[tensor]
        if device not in of_devices:
            of_devices[device] = self._make(tensor, device)
        return of_devices[device]
