"""DivFL: the devices whose gradients stand for those of all.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes, "Diverse Client Selection for Federated Learning via Submodular
Maximization", ICLR 2022. The mean gradient of a few devices is near that of all where every device has one among them
whose gradient is near its own. So the devices A are chosen, one after another, that lower

    G(A)  =  sum_k  min_{i in A} ||g_k - g_i||            (a facility-location problem)

most. m is `num_selected`; the sum is over the devices that can meet the deadline. The option `gradients` says where the
g_i are from:

    "all", "batch"    everybody computes its gradient at the new model, on all samples or on a batch, and sends it: the
                      paper's ideal version. It costs a round of whole gradients before the round
                      (`flare.rounds.probing`), and `data.share_gradients` has to allow it
    "last"            without overhead, as the paper's practical version: g_i is what the base station last heard,
                      update / (rate x steps). It keeps a short sketch of each, from which distances follow to a few
                      percent (`history.sketch`). Nobody is asked, and nothing more is told

Left open, and decided here: devices that were never heard come first, by lot (the authors' code asks everybody in the
first round). A device that does not fit beside those chosen before it is passed over for the next best. The mean of the
updates is that of the method; the authors weigh by samples.
"""

from __future__ import annotations

import math

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import canonical
from flare.scheduling.probe import GRADIENT, Probe, Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.scheduling.systems.known import GRADIENTS, LAST, Asked
from flare.types import Floats, Indices

_MAX_HEARD = 20_000  # whose distances take 3.2 GB
_ROWS_AT_ONCE = 256  # of distances that are copied


def ask_for_gradients(problem: RoundProblem, *, gradients: str) -> Probe:
    """Whoever can meet the deadline is asked for its gradient."""
    return Probe(problem.reachable, GRADIENT, gradients, distances=True)


@policy(
    "divfl",
    needs=GRADIENTS.needs,
    probe=ask_for_gradients,
    asks=GRADIENTS.asks,
    sketches=GRADIENTS.goes_by_last,
)
def divfl(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    gradients: Asked = LAST,
) -> Indices:
    """DivFL: devices whose gradients are near those of all the others."""
    unknown = np.full((problem.num_devices, 1), np.nan)
    sketch = unknown if history.sketch is None else history.sketch
    norm = unknown[:, 0] if probed.distances is None else probed.norm
    length = np.sqrt((sketch**2).sum(axis=1)) if gradients == LAST else norm  # nan: it was not heard
    order = canonical(problem, length)
    order = problem.able(order)
    heard, unheard = order[~np.isnan(length[order])], order[np.isnan(length[order])]
    taken = admit(problem, unheard[rng.permutation(unheard.size)], max_devices=num_selected)
    if heard.size > _MAX_HEARD:
        raise ValueError(
            f"policy 'divfl' compares every two of the {heard.size:,} devices that were heard and can meet the "
            f"deadline; {_MAX_HEARD:,} are the limit: take another policy, or fewer devices"
        )
    if gradients == LAST or probed.distances is None:  # then nobody was heard, or of each a sketch is known
        apart = _apart(sketch[heard])
    else:
        apart = probed.distances[np.ix_(heard, heard)]
    return represent(problem, taken, heard, apart, num_selected)


def represent(problem: RoundProblem, taken: Indices, devices: Indices, apart: Floats, num_selected: int) -> Indices:
    """The devices taken already, and with them, one after another while they fit, up to a number in all, those of
    `devices` that lower the sum of the distances to the nearest one taken most; of equal ones the first.

    `apart` is the distance between each two of `devices`, shape (devices, devices).
    """
    group, limit = taken.tolist(), min(num_selected, problem.device_limit)
    nearest = np.full(
        devices.size, 2.0 * apart.max(initial=0.0) + 1.0
    )  # farther than any, so that the first one counts
    gain = np.full(devices.size, np.inf)  # at most what each lowers the sum by
    for at in np.flatnonzero(np.isin(devices, taken)).tolist():
        nearest, gain[at] = np.minimum(nearest, apart[at]), -np.inf
    needed_hz = problem.needed_hz[devices]
    while len(group) < limit:
        # Who does not fit now will not either when more are taken.
        gain[needed_hz > problem.capacity_hz - math.fsum(problem.needed_hz[group])] = -np.inf
        at = _most(gain, nearest, apart)
        if at < 0:
            break
        gain[at] = -np.inf
        if problem.fits(np.array([*group, devices[at]])):
            group.append(int(devices[at]))
            nearest = np.minimum(nearest, apart[at])
    return np.array(group, dtype=np.intp)


def _most(gain: Floats, nearest: Floats, apart: Floats) -> int:
    """The device that lowers the sum most, of those whose gain is not -inf; -1 where there is none.

    What a device lowers the sum by never grows as others are taken: `gain`, which is brought up to date on the way, is
    a bound, and who is bounded below the best one found need not be looked at.
    """
    best, most = -1, -np.inf
    if np.isposinf(gain).any():
        unknown = np.flatnonzero(np.isposinf(gain))
        for some in np.array_split(unknown, -(-len(unknown) // _ROWS_AT_ONCE)):
            gain[some] = np.maximum(nearest - apart[some], 0.0).sum(axis=1)
    for at in np.argsort(-gain, kind="stable").tolist():
        if gain[at] < most or gain[at] == -np.inf:
            break
        gain[at] = np.maximum(nearest - apart[at], 0.0).sum()
        if gain[at] > most or (gain[at] == most and at < best):
            best, most = at, float(gain[at])
    return best


def _apart(rows: Floats) -> Floats:
    """The distance between each two rows, shape (rows, rows)."""
    squares = (rows**2).sum(axis=1)
    apart: Floats = rows @ rows.T
    apart *= -2.0
    apart += squares[:, None]
    apart += squares
    np.sqrt(np.maximum(apart, 0.0, out=apart), out=apart)
    np.fill_diagonal(apart, 0.0)
    return apart
