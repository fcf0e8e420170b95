"""FLARE: federated learning over wireless networks whose devices differ in data, speed and channel."""

from flare.scheduling import POLICIES, Choice, RoundProblem, Schedule, Status, admit, policy, solve
from flare.rng import stream

__version__ = "0.1.0"

__all__ = ["POLICIES", "Choice", "RoundProblem", "Schedule", "Status", "admit", "policy", "solve", "stream"]
