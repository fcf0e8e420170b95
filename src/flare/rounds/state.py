"""Where a run stands: all that it needs to continue, and when it ends. Simulated and real runs share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from flare.config import RunConfig
from flare.learning.job import Score
from flare.learning.methods.base import MethodState
from flare.rounds.asynchrony import Underway
from flare.rounds.memory import PolicyMemory
from flare.rounds.residuals import Residuals
from flare.scheduling.history import History


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
    memory: PolicyMemory
    history: History
    status: RunStatus = RunStatus.RUNNING
    residuals: Residuals = Residuals()  # noqa: RUF009 (they never change)
    underway: Underway | None = None  # what devices compute across rounds; None: nothing, and before the first

    def __post_init__(self) -> None:
        # In one order and layout, whoever kept it: a method may go through it, and shall find it so after a resume.
        kept = {name: self.method[name].contiguous() for name in sorted(self.method)}
        object.__setattr__(self, "method", kept)


def first_state(weights: Tensor, method: MethodState, num_devices: int, *, clock_s: float = 0.0) -> RunState:
    """The state before the first round, which begins at `clock_s`."""
    return RunState(0, clock_s, weights, method, PolicyMemory(), History.empty(num_devices))


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


_HISTORY = tuple(each.name for each in fields(History))


def to_tensors(state: RunState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the numbers of a checkpoint."""
    arrays = state.memory.to_arrays()
    arrays |= {f"history.{name}": each for name in _HISTORY if (each := getattr(state.history, name)) is not None}
    tensors = {"weights": state.weights} | {f"method.{name}": value for name, value in state.method.items()}
    tensors |= {name: torch.from_numpy(each.copy()) for name, each in arrays.items()}
    tensors |= {f"uplink.{name}": each for name, each in state.residuals.to_tensors().items()}
    if state.underway is not None:
        tensors |= {f"underway.{name}": each for name, each in state.underway.to_tensors().items()}
    return tensors, {"clock_s": state.clock_s, "status": state.status.value}


def from_tensors(rounds_done: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> RunState:
    """The state that `to_tensors` took apart; ValueError where a part of it is missing or none of a state."""
    arrays = {name: each for name, each in tensors.items() if name.startswith(("memory", "history."))}
    try:
        return RunState(
            rounds_done=rounds_done,
            clock_s=float(numbers["clock_s"]),
            weights=tensors["weights"],
            method=_below("method", tensors),
            memory=PolicyMemory.from_arrays({name: each.numpy() for name, each in arrays.items()}),
            history=History(**{name: each.numpy() for name, each in _below("history", arrays).items()}),
            status=RunStatus(numbers["status"]),
            residuals=Residuals.from_tensors(_below("uplink", tensors)),
            underway=Underway.from_tensors(_below("underway", tensors)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is no state of a run ({error})") from None


def _below(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name begins with a word and a dot, by the rest of their name."""
    return {name.removeprefix(f"{part}."): each for name, each in tensors.items() if name.startswith(f"{part}.")}
