"""Who sends this round, on how much bandwidth: problem P2, its policies, and their certificates."""

from flare.scheduling import exact, greedy, linear, baselines, systems  # noqa: F401, I001  (they register the policies, so)
from flare.scheduling.admission import admit
from flare.scheduling.bandwidth import Allocation, even_split, optimal_split
from flare.scheduling.baselines import lacks_number, tune_num_selected
from flare.scheduling.bits_choice import coding_noise
from flare.scheduling.bits_schedule import BitsSchedule, solve_with_bits
from flare.scheduling.hardware import Hardware
from flare.scheduling.history import History
from flare.scheduling.probe import Probe, Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import POLICIES, Choice, Memory, Policy, policy
from flare.scheduling.scheduler import solve, solve_many
from flare.scheduling.schedule import Schedule, Status

__all__ = [
    "POLICIES",
    "Allocation",
    "BitsSchedule",
    "Choice",
    "Hardware",
    "History",
    "Memory",
    "Policy",
    "Probe",
    "Probed",
    "RoundProblem",
    "Schedule",
    "Status",
    "admit",
    "coding_noise",
    "even_split",
    "lacks_number",
    "optimal_split",
    "policy",
    "solve",
    "solve_many",
    "solve_with_bits",
    "tune_num_selected",
]
