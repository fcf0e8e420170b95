"""FLARE: federated learning over wireless networks whose devices differ in data, speed and channel."""

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, Schedule, Status, admit, policy, solve
from flare.scheduling.cells import round_problem
from flare.wireless.cell import CELLS, Cell

__version__ = "0.1.0"

__all__ = [
    "CELLS",
    "POLICIES",
    "Cell",
    "Choice",
    "RoundProblem",
    "Schedule",
    "Status",
    "admit",
    "policy",
    "round_problem",
    "solve",
    "stream",
]
