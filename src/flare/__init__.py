"""FLARE: federated learning over wireless networks whose devices differ in data, speed and channel."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, Schedule, Status, admit, policy, solve, solve_many
from flare.scheduling.cells import round_problem
from flare.wireless.cell import CELLS, Cell

if TYPE_CHECKING:
    from flare.research import Run, Runs, compare, load, simulate

__version__ = "0.1.0"

__all__ = [
    "CELLS",
    "POLICIES",
    "Cell",
    "Choice",
    "RoundProblem",
    "Run",
    "Runs",
    "Schedule",
    "Status",
    "admit",
    "compare",
    "load",
    "policy",
    "round_problem",
    "simulate",
    "solve",
    "solve_many",
    "stream",
]

_OF_RESEARCH = ("Run", "Runs", "compare", "load", "simulate")


def __getattr__(name: str) -> Any:
    """What trains is imported when it is first asked for: scheduling needs no torch, and does not wait for it."""
    if name in _OF_RESEARCH:
        return getattr(import_module("flare.research"), name)
    raise AttributeError(f"module 'flare' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
