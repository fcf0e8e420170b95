"""Power of choice: a few devices by lot, and of them those with the greatest losses.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022, section 4:

    1.  d candidates are drawn without replacement, in proportion to p_i = n_i / n
    2.  of them the m of the greatest loss send

d is `num_candidates`, m `num_selected`, n_i `history.num_samples`. The paper has three ways to know the losses. Here it
is the third, rpow-d: a device's loss is the mean over its local steps when it last sent (`history.last_loss`), and that
of a device that has not sent counts as infinite. So nobody is probed, and no probing has to be paid for; the other two
(pow-d: every candidate evaluates the new model on all its samples before the selection; cpow-d: on one batch) would
have to be, in time and energy, and are not built.

Left open, and decided here: candidates are drawn among the devices that can meet the deadline; those of equal loss
(the first rounds) go in the order of the draw; one that does not fit beside those chosen before it is passed over for
the candidate of the next greatest loss.
"""

from __future__ import annotations

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import canonical, drawn
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.scheduling.systems.known import Candidates, samples, unseen_first
from flare.scheduling.systems.known import num_candidates as checked_number
from flare.types import Indices


@policy("power-of-choice")
def power_of_choice(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    num_selected: Number = 10,
    num_candidates: Candidates = None,
) -> Indices:
    """Power of choice: of some devices drawn in proportion to their samples, those with the greatest last losses."""
    number = checked_number("power-of-choice", num_candidates, num_selected)
    loss = unseen_first(history.last_loss)
    order = canonical(problem, loss)
    order = order[problem.needed_hz[order] <= problem.capacity_hz]
    candidates = drawn(order, samples(history)[order], rng)[:number]
    return admit(problem, candidates[np.argsort(-loss[candidates], kind="stable")], max_devices=num_selected)
