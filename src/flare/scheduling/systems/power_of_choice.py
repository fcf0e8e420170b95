"""Power of choice: a few devices by lot, and of them those with the greatest losses.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022, section 4:

    1.  d candidates are drawn without replacement, in proportion to p_i = n_i / n
    2.  of them the m of the greatest loss send

d is `num_candidates`, m `num_selected`, n_i `history.num_samples`. The paper has three ways to know the losses, which
the option `losses` names:

    "all"     pow-d: the d candidates evaluate the new model on all their samples, and tell the mean loss
    "batch"   cpow-d: they do so on one batch
    "last"    rpow-d: a candidate's loss is the mean over its local steps when it last sent (`history.last_loss`), and
              that of a device that has not sent counts as infinite. Nobody is asked, and nothing is paid

Asking costs time and energy before the round begins (`flare.rounds.probing`).

Left open, and decided here: candidates are drawn among the devices that can meet the deadline; those of equal loss
(the first rounds of rpow-d) go in the order of the draw; one that does not fit beside those chosen before it is passed
over for the candidate of the next greatest loss.
"""

from __future__ import annotations

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import canonical, drawn
from flare.scheduling.probe import Probe, Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.scheduling.systems.known import LAST, LOSSES, Asked, Candidates, samples, unseen_first
from flare.scheduling.systems.known import num_candidates as checked_number
from flare.types import Floats, Indices


def ask_candidates(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    losses: str,
    num_selected: int,
    num_candidates: int | None,
) -> Probe:
    """The candidates are asked for their present loss."""
    number = checked_number("power-of-choice", num_candidates, num_selected)
    return Probe(_candidates(problem, history, samples(history), rng)[:number], "loss", losses)


@policy("power-of-choice", needs=("losses",), probe=ask_candidates, asks=LOSSES.asks)
def power_of_choice(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    num_candidates: Candidates = None,
    losses: Asked = LAST,
) -> Indices:
    """Power of choice: of some devices drawn in proportion to their samples, those with the greatest losses."""
    number = checked_number("power-of-choice", num_candidates, num_selected)
    if losses == LAST:
        loss = unseen_first(history.last_loss)
        candidates = _candidates(problem, history, loss, rng)[:number]
    else:
        loss, order = probed.loss, canonical(problem, probed.loss)
        candidates = order[~np.isnan(loss[order])]
    return admit(problem, candidates[np.argsort(-loss[candidates], kind="stable")], max_devices=num_selected)


def _candidates(problem: RoundProblem, history: History, told_apart_by: Floats, rng: np.random.Generator) -> Indices:
    """Devices that can meet the deadline in the order of a draw in proportion to their samples."""
    order = canonical(problem, told_apart_by)
    order = problem.able(order)
    return drawn(order, samples(history)[order], rng)
