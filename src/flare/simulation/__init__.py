"""Simulated runs: one, or many in lockstep."""

from flare.rounds import RoundRecord, RunState, RunStatus
from flare.simulation.drive import Member, drive, plan_rounds, resume
from flare.simulation.run import Simulation

__all__ = ["Member", "RoundRecord", "RunState", "RunStatus", "Simulation", "drive", "plan_rounds", "resume"]
