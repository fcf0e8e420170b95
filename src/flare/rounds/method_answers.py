"""What a method answered in a round, checked: a method may be a user's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flare.learning.job import LocalRule
from flare.types import Floats


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
