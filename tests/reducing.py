"""A round of a method without a base station around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from flare.learning.aggregate import mean
from flare.learning.job import LocalRule, Update
from flare.learning.methods import Method, MethodState, Round


def common(gradients: Sequence[Tensor]) -> Tensor | None:
    """The mean gradient, where the method asked for gradients."""
    return mean(gradients) if gradients else None


def resolved(rule: LocalRule, own: Tensor | None) -> LocalRule:
    """The rule as a device follows it: its own gradient taken from the drift."""
    if not rule.subtract_own_gradient:
        return rule
    return replace(rule, drift=(rule.drift - own).float(), subtract_own_gradient=False)


def reduced(
    method: Method, state: MethodState, now: Round, rules: Sequence[LocalRule], updates: Sequence[Update]
) -> tuple[Tensor, MethodState]:
    """The new weights and state."""
    reducer = method.reducer(state, now)
    for device, rule, update in zip(now.selected.tolist(), rules, updates, strict=True):
        reducer.add(device, rule, update)
    return reducer.end()
