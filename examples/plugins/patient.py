"""A policy of your own: one function.

flare run --plugin examples/plugins/patient.py --set scheduling.policy=patient
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import flare
from flare.config import Limits
from flare.scheduling import History


@flare.policy("patient")
def patient(
    problem: flare.RoundProblem,
    *,
    history: History,
    patience: Annotated[float, "rounds of waiting that count as much as one local step", Limits(above=0.0)] = 2.0,
) -> NDArray[np.float64]:
    """Many steps and a long wait: one number for each device, its utility; the best set that fits is found for you."""
    waited = np.minimum(history.rounds_since_sent, 100.0)  # infinite for a device that never sent
    return problem.tau + waited / patience
