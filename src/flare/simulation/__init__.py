"""The round loop: one run, or many in lockstep."""

from flare.simulation.drive import Member, drive, plan_rounds, resume
from flare.simulation.run import Record, RunState, RunStatus, Simulation

__all__ = ["Member", "Record", "RunState", "RunStatus", "Simulation", "drive", "plan_rounds", "resume"]
