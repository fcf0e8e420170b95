"""The round loop: one run, or many in lockstep."""

from flare.learning.record import Record
from flare.learning.state import RunState, RunStatus
from flare.simulation.drive import Member, drive, plan_rounds, resume
from flare.simulation.run import Simulation

__all__ = ["Member", "Record", "RunState", "RunStatus", "Simulation", "drive", "plan_rounds", "resume"]
