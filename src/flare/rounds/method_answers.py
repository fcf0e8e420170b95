"""What a method answered in a round, checked: a method may be a user's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flare.learning.job import LocalRule
from flare.learning.methods.base import Method, MethodState, Reducer, Round
from flare.rounds.identity import is_own_method
from flare.types import Floats


def first_method_state(name: str, method: Method, num_weights: int, num_devices: int) -> MethodState:
    """What a method remembers before the first round; ValueError where that is no dictionary of tensors."""
    return _checked_state(name, "start()", method.start(num_weights, num_devices))


def enrolled(name: str, method: Method, state: MethodState, tau: Floats) -> MethodState:
    """What a method remembers, for as many devices as `tau` has; ValueError likewise."""
    return _checked_state(name, "enrol()", method.enrol(state, tau))


def _checked_state(name: str, by: str, answer: Any) -> MethodState:
    told = _odd_state(answer)
    if told is not None:
        raise ValueError(
            f"method '{name}': its {by} answered {told}; it must answer a dictionary of tensors by name, {{}} where "
            "nothing is remembered"
        )
    return dict(answer)


def checked_steps(method: str, answer: Any, tau: Floats) -> Floats:
    """The steps that a method asks for; ValueError where it answered no number greater than 0 for each device."""
    steps = answer if isinstance(answer, np.ndarray) else None
    if (
        steps is None
        or steps.shape != tau.shape
        or steps.dtype.kind not in "uif"
        or not (np.isfinite(steps) & (steps > 0.0)).all()
    ):
        told = f"an array of shape {steps.shape}" if steps is not None else f"{answer!r:.80}"
        raise ValueError(
            f"method '{method}': its steps() answered {told}; it must answer an array with a number greater than 0 for "
            f"each of the {len(tau)} devices"
        )
    return steps.astype(np.float64, copy=False)


def checked_reference(method: str, answer: Any) -> None:
    """ValueError where the reference number of steps of a method is no number greater than 0."""
    number = isinstance(answer, int | float | np.integer | np.floating) and not isinstance(answer, bool)
    if not number or not 0.0 < answer < math.inf:
        raise ValueError(
            f"method '{method}': its reference_steps() answered {answer!r:.80}; it must answer a finite number greater "
            "than 0, such as the mean of now.tau[now.selected]"
        )


def checked_rules(method: str, answer: Any, number: int) -> list[LocalRule]:
    """The rules that a method gives; ValueError where there is not one for each of so many selected devices,
    or one has a device do no step."""
    if not isinstance(answer, list) or len(answer) != number:
        told = f"{len(answer)} rules" if isinstance(answer, list) else f"{answer!r:.80}"
        raise ValueError(
            f"method '{method}': its rules() answered {told}; it must answer a list with a LocalRule for each of the "
            f"{number} selected devices, in their order"
        )
    for rule in answer:
        if isinstance(rule, LocalRule) and isinstance(rule.steps, int | np.integer) and rule.steps < 1:
            raise ValueError(
                f"method '{method}': its rules() answered one of {rule.steps} steps; a selected device does 1 or more"
            )
    return answer


def checked_reducer(method: str, answer: Any) -> Reducer:
    """What takes in the updates of a method; ValueError where it cannot."""
    for name in ("add", "end"):
        if not callable(getattr(answer, name, None)):
            raise ValueError(
                f"method '{method}': its reducer() answered {answer!r:.80}, which has no {name}(); it must answer an "
                "object with add(device, rule, update) and end(), such as that of flare.learning.methods.PlainMethod"
            )
    reducer: Reducer = answer
    return reducer


def checked_end(method: str, answer: Any, num_weights: int) -> tuple[Tensor, MethodState]:
    """What the reducer of a method ended in; ValueError where that is no pair of weights and a state. Numbers are not
    looked at: a GPU may still be at work on them."""
    told = None
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        told = _told(answer)
    elif not _is_dense(answer[0]) or answer[0].shape != (num_weights,) or not answer[0].is_floating_point():
        told = f"{_told(answer[0])} for the weights"
    elif (odd := _odd_state(answer[1])) is not None:
        told = odd if isinstance(answer[1], Mapping) else f"{odd} for the state"
    if told is not None:
        raise ValueError(
            f"method '{method}': the end() of its reducer answered {told}; it must answer a pair: the new global "
            f"weights, a dense tensor of {num_weights} floating-point numbers, and the new state, a dictionary of "
            "tensors by name, {} where nothing is remembered"
        )
    return answer[0], dict(answer[1])


def as_told(method: Method, now: Round, *, weights: bool = False) -> Round:
    """What a method is told of a round. One of a user's own is given arrays of its own, with `weights` also the
    weights; FLARE's own methods write into none."""
    return now.own(weights=weights) if is_own_method(method) else now


@final
class Asked:
    """A method that is told of a round, and can be asked whether it has written into what it was told. Its state a
    method should not write to; where one of a user's own does, an error leaves its run at the last checkpoint."""

    def __init__(self, name: str, method: Method, now: Round) -> None:
        self.now = as_told(method, now, weights=True)
        self._name = name
        self._before = _num_writes(self.now.weights)

    def refuse_written(self, by: str) -> None:
        """ValueError where the method has written; `by` names what was called."""
        if _num_writes(self.now.weights) != self._before:
            raise ValueError(
                f"method '{self._name}': its {by} wrote into now.weights, which others read; write into a copy, "
                "now.weights.clone()"
            )


def _num_writes(tensor: Tensor) -> int:
    """PyTorch's count of the operations in place on a tensor."""
    return 0 if tensor.is_inference() else tensor._version


def _odd_state(answer: Any) -> str | None:
    """What is wrong with the state that a method answered, in words; None where nothing is."""
    if not isinstance(answer, Mapping):
        return _told(answer)
    odd = next((item for item in answer.items() if not (isinstance(item[0], str) and _is_dense(item[1]))), None)
    return None if odd is None else f"a state with {_told(odd[1])} for {odd[0]!r:.80}"


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _told(value: Any) -> str:
    """What a value is, in words; of a tensor not its numbers, of a list or tuple its length."""
    if isinstance(value, Tensor):
        kind = "" if _is_dense(value) else "meta " if value.is_meta else "sparse "
        return f"a {kind}tensor of {str(value.dtype).removeprefix('torch.')} and shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of shape {value.shape}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else f"{value!r:.80}"
