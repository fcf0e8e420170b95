"""Simulated runs: one, or many in lockstep."""

from flare.rounds import RoundRecord, RunState, RunStatus
from flare.simulation.drive import drive, plan_rounds, resume
from flare.simulation.member import Member
from flare.simulation.run import Simulation

__all__ = ["Member", "RoundRecord", "RunState", "RunStatus", "Simulation", "drive", "plan_rounds", "resume"]
