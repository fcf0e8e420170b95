"""Where a run stands: all that it needs to continue, and when it ends. Simulated and real runs share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from flare.config import RunConfig
from flare.learning.job import Score
from flare.learning.methods.base import MethodState


class RunStatus(StrEnum):
    """Why a run goes on or ended."""

    RUNNING = "running"
    FINISHED = "finished"  # its rounds or its simulated seconds are over
    REACHED = "reached"  # the target accuracy
    DIVERGED = "diverged"  # the weights are no longer finite


@dataclass(frozen=True, eq=False)
class RunState:
    """Everything that a run needs to continue: no more, no less."""

    rounds_done: int
    clock_s: float
    weights: Tensor  # (weights,)
    method: MethodState
    memory: dict[str, NDArray[Any]]  # of the policy, arrays by name
    status: RunStatus = RunStatus.RUNNING


def ended(limits: RunConfig, state: RunState) -> RunState:
    """The state, FINISHED where its rounds or seconds are over."""
    over = state.rounds_done >= limits.rounds or 0.0 < limits.seconds <= state.clock_s
    return replace(state, status=RunStatus.FINISHED) if over and state.status is RunStatus.RUNNING else state


def wants_score(limits: RunConfig, state: RunState) -> bool:
    """Whether the weights are to be tested now: every few rounds, and when the run ends other than by diverging."""
    due = state.rounds_done % limits.evaluate_every == 0
    return state.status is not RunStatus.DIVERGED and (due or state.status is not RunStatus.RUNNING)


def scored(limits: RunConfig, state: RunState, score: Score) -> RunState:
    """The state, REACHED where the score is the target."""
    if state.status is not RunStatus.DIVERGED and 0.0 < limits.target_accuracy <= score.accuracy:
        return replace(state, status=RunStatus.REACHED)
    return state


def to_tensors(state: RunState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the numbers of a checkpoint."""
    tensors = {"weights": state.weights} | {f"method.{name}": value for name, value in state.method.items()}
    tensors |= {f"memory.{name}": torch.from_numpy(array.copy()) for name, array in state.memory.items()}
    return tensors, {"clock_s": state.clock_s, "status": state.status.value}


def from_tensors(
    rounds_done: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], *, method: Iterable[str]
) -> RunState:
    """The state that `to_tensors` took apart; `method` names what the method remembers."""
    return RunState(
        rounds_done=rounds_done,
        clock_s=float(numbers["clock_s"]),
        weights=tensors["weights"],
        method={name: tensors[f"method.{name}"] for name in method},
        memory={
            name.removeprefix("memory."): tensor.numpy()
            for name, tensor in tensors.items()
            if name.startswith("memory.")
        },
        status=RunStatus(numbers["status"]),
    )
