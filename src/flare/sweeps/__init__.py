"""Many runs, each in its folder: carried out in lockstep, by one process or several, and continued where they stopped.

run_tasks(tasks, Place(), callback=..., stopping=...)
"""

from flare.sweeps.batches import expected_rounds
from flare.sweeps.runner import Hire, run_tasks, staying
from flare.sweeps.task import LOCAL, PLACES, RAY, Callback, Own, Place, Task, anywhere, begin, begun, has_ended, listed

__all__ = [
    "LOCAL",
    "PLACES",
    "RAY",
    "Callback",
    "Hire",
    "Own",
    "Place",
    "Task",
    "anywhere",
    "begin",
    "begun",
    "expected_rounds",
    "has_ended",
    "listed",
    "run_tasks",
    "staying",
]
