"""The features of a sample: what a model's last linear layer is given for it.

The last linear layer is the last `nn.Linear` in the order in which the module's layers are declared
(`nn.Module.named_modules`); of several calls of it the last one counts. One rule for every module: for the models of
this package it is the layer that makes the logits, and its input is what the layers before have found in the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def last_linear(module: nn.Module) -> nn.Linear:
    """The layer whose input is the features; ValueError where the module has none."""
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(module).__name__} has no nn.Linear, and the features that a contrast compares are what the last "
            "one is given: let the model end in an nn.Linear, or take a method without a contrast"
        )
    return linear[-1]


def with_features(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """What `call`, which runs the module, answers for x, and the features, shape (samples, features)."""
    seen: list[Tensor] = []

    def see(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(inputs[0] if inputs else named["input"])

    hook = last_linear(module).register_forward_pre_hook(see, with_kwargs=True)
    try:
        answer = call(x)
    finally:
        hook.remove()
    if not seen:
        raise ValueError(
            f"{type(module).__name__} does not call the last nn.Linear that it declares, and the features that a "
            "contrast compares are what that layer is given: declare the layer that makes the logits last"
        )
    return answer, seen[-1].flatten(1)
