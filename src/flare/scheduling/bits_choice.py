"""Who sends, and with how many bits: the proven optimum of P2 with a choice for every device.

A device that sends fewer bits a weight needs less of the band and adds more noise to the mean. With c_ib the least
bandwidth of device i for choice b and n_ib what that choice adds in noise (docs/theory.md derives it from Lemma 1),

    minimise    (1/M + gamma/M^2) sum_{i in Q} cost_i + (gamma/M^2) sum_{i in Q} n_{i,b_i}
    over        sets Q of M >= 1 devices, and a choice b_i for each of them
    subject to  sum_{i in Q} c_{i,b_i} <= band.

For a given M this is a knapsack with choices and fixed cardinality, in which (i, b) costs cost_i + theta n_ib with
theta = gamma/(M + gamma): of the choices of a device, one that has no less noise and no less bandwidth than another is
out, whatever M. `bits_search` says how the rest is searched and proven.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.scheduling import checks
from flare.scheduling.bits_search import Devices, Search
from flare.scheduling.checks import ABSURD
from flare.scheduling.objective import p2_objective
from flare.scheduling.schedule import Status
from flare.types import Floats, Indices

NOBODY = -1
"""The choice of a device that does not send."""


def update_growth(reach: float) -> float:
    """(1 + sqrt(2.4) p)^2: how far a device's steps can make its update longer than its first gradient and noise say,
    D_i <= (1 + sqrt(2.4) p)^2 (|grad f_i(w_r)|^2 + sigma^2/tau_i), with p = L tau_bar eta_l (docs/theory.md)."""
    if not 0.0 <= reach <= ABSURD:
        raise ValueError(f"reach is {reach:g}; it is L tau_bar eta_l, at least 0 and finite")
    return (1.0 + math.sqrt(2.4) * reach) ** 2


def coding_noise(variance: ArrayLike, tau: ArrayLike, *, reach: float, gradient_sq: ArrayLike = 1.0) -> Floats:
    """n_ib = w_ib (1 + sqrt(2.4) p)^2 (g_i + 1/tau_i), shape (choices, devices): what a choice costs in the objective.

    Parameters
    ----------
    variance : w of every choice, E|Q(x) - x|^2 = w |x|^2: shape (choices,), or (choices, devices) where it is measured.
    tau : local steps of the devices, shape (devices,).
    reach : p = L tau_bar eta_l, at least 0. The bound behind it asks for at most 0.58.
    gradient_sq : g_i = |grad f_i(w_r)|^2 / sigma^2, one for all or shape (devices,). 1 is a guess, and not a safe one.
    """
    steps = checks.vector("tau", tau, at_least=1.0)
    sizes = checks.numbers("gradient_sq", gradient_sq, (0, 1), at_least=0.0)
    each = checks.numbers("variance", variance, (1, 2), at_least=0.0)
    if each.ndim == 1:
        each = np.broadcast_to(each[:, None], (len(each), len(steps)))
    for name, array in (("variance", each), ("gradient_sq", sizes)):
        if array.ndim and array.shape[-1] != len(steps):
            raise ValueError(f"{name} is of {array.shape[-1]} devices, tau of {len(steps)}: give one value a device")
    noise: Floats = update_growth(reach) * each * (sizes + 1.0 / steps)
    return noise


@dataclass(frozen=True, eq=False)
class BitsProblem:
    """A round in which every sender has a choice; the module says what is minimised.

    Parameters
    ----------
    cost : what a device adds to the sum of the objective, 1/tau_i in the paper, >= 0, shape (devices,).
    noise : n_ib of every choice (`coding_noise`), >= 0, shape (choices, devices).
    needed_hz : c_ib, the least bandwidth of every choice, >= 0 (whole blocks, where bandwidths are), shape (choices,
        devices); infinite where the device cannot send it in time.
    band_hz : what bandwidths may sum to, with its tolerance (`RoundProblem.capacity_hz`).
    gamma : weight of participation, >= 0.
    must, never : devices that have to send, and devices that must not.
    max_devices : how many may send at most. None: as many as fit.
    order : all devices, those first that come first among equals (`RoundProblem.canonical_order`). None: as listed.

    Raises ValueError that says what is wrong.
    """

    cost: Floats
    noise: Floats
    needed_hz: Floats
    band_hz: float
    gamma: float
    must: Indices
    never: Indices
    max_devices: int | None
    order: Indices | None

    def __init__(
        self,
        cost: ArrayLike,
        noise: ArrayLike,
        needed_hz: ArrayLike,
        *,
        band_hz: float,
        gamma: float = 10.0,
        must: Iterable[int] = (),
        never: Iterable[int] = (),
        max_devices: int | None = None,
        order: Indices | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "cost", checks.vector("cost", cost, at_least=0.0))
        put(self, "noise", checks.numbers("noise", noise, (2,), at_least=0.0))
        put(self, "needed_hz", checks.numbers("needed_hz", needed_hz, (2,), at_least=0.0, infinite=True))
        put(self, "band_hz", checks.scalar("band_hz", band_hz))
        put(self, "gamma", checks.scalar("gamma", gamma, zero_allowed=True))
        if not self.noise.shape == self.needed_hz.shape == (len(self.noise), len(self.cost)):
            raise ValueError(
                f"cost is of {len(self.cost)} devices, noise of shape {self.noise.shape} and needed_hz of shape "
                f"{self.needed_hz.shape}: give both one row for each choice and one column for each device"
            )
        put(self, "must", checks.devices("must", must, len(self.cost)))
        put(self, "never", checks.devices("never", never, len(self.cost)))
        put(self, "max_devices", checks.limit(max_devices))
        put(self, "order", order)
        checks.agreeing(self.must, self.never, self.max_devices)

    @property
    def num_devices(self) -> int:
        """K."""
        return len(self.cost)

    def objective(self, selected: Indices, choice: Indices) -> float:
        """What is minimised; `selected` and `choice` of shape (selected,). Infinite where nobody sends."""
        number = len(selected)
        if number == 0:
            return math.inf
        cost, noise = self.cost[selected].tolist(), self.noise[choice, selected].tolist()
        return p2_objective(number, math.fsum(cost), math.fsum(noise), self.gamma)

    def fits(self, selected: Indices, choice: Indices) -> bool:
        """Whether the devices' bandwidths fit the band."""
        return math.fsum(self.needed_hz[choice, selected].tolist()) <= self.band_hz


@dataclass(frozen=True, eq=False)
class BitsAnswer:
    """Who sends what.

    selected        the devices that send, ascending, shape (num_selected,)
    choice          the choice of every device, `NOBODY` where it does not send, shape (devices,)
    objective       what was minimised; infinite if nobody sends
    lower_bound     proven: no selection has a smaller objective; equal to `objective` where that is OPTIMAL, infinite
                    where it is proven that no selection fits
    status          OPTIMAL, FEASIBLE (the time was over before the proof) or INFEASIBLE (nobody sends)
    """

    selected: Indices
    choice: Indices
    objective: float
    lower_bound: float
    status: Status


def best_bits(problem: BitsProblem, *, time_limit_s: float = 10.0) -> BitsAnswer:
    """The devices and choices of the least objective, proven; past `time_limit_s` the best found, with its bound.

    Which of several equally good answers is given depends on what the devices are and not on their order. Objectives
    closer than 1e-12 of them are equal.
    """
    stop_at = time.perf_counter() + time_limit_s
    able = _able(problem)
    choice = np.full(problem.num_devices, NOBODY, dtype=np.intp)
    if able.size == 0 or np.setdiff1d(problem.must, able).size:
        return BitsAnswer(np.zeros(0, dtype=np.intp), choice, math.inf, math.inf, Status.INFEASIBLE)
    devices, order, which = _sorted(problem, able)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = Search(devices).run(stop_at)
    if found.best is None:
        return BitsAnswer(np.zeros(0, dtype=np.intp), choice, math.inf, found.bound, Status.INFEASIBLE)
    choice[order[found.best.devices]] = which[found.best.choice, found.best.devices]
    selected = np.flatnonzero(choice != NOBODY)
    objective = problem.objective(selected, choice[selected])
    bound = objective if found.proven else min(found.bound, objective)
    return BitsAnswer(selected, choice, objective, bound, Status.OPTIMAL if found.proven else Status.FEASIBLE)


def _able(problem: BitsProblem) -> Indices:
    """The devices that may send and can, on the whole band."""
    can: NDArray[np.bool_] = np.any(problem.needed_hz <= problem.band_hz, axis=0)
    can[problem.never] = False
    return np.flatnonzero(can)


def _sorted(problem: BitsProblem, able: Indices) -> tuple[Devices, Indices, Indices]:
    """The devices as the search wants them, which they are, and for each of its choices the number of the choice in the
    problem, shape (choices, devices)."""
    needed, noise = problem.needed_hz[:, able], problem.noise[:, able]
    by_hz = np.lexsort((noise, needed), axis=0)
    needed, noise = np.take_along_axis(needed, by_hz, axis=0), np.take_along_axis(noise, by_hz, axis=0)
    if problem.gamma == 0.0:
        noise = np.zeros_like(noise)  # it does not count
    usable = np.ones(noise.shape, dtype=bool)
    usable[1:] = (noise[1:] < np.minimum.accumulate(noise, axis=0)[:-1]) & (needed[1:] <= problem.band_hz)
    last = np.maximum.accumulate(np.where(usable, np.arange(len(noise))[:, None], 0), axis=0)
    needed, noise = np.take_along_axis(needed, last, axis=0), np.take_along_axis(noise, last, axis=0)
    which = np.take_along_axis(by_hz, last, axis=0)
    cost = problem.cost[able]
    place = np.arange(problem.num_devices) if problem.order is None else np.argsort(problem.order)
    order = np.lexsort((place[able], *noise[::-1], *needed[::-1], cost))
    devices = Devices(
        cost=cost[order],
        noise=noise[:, order],
        needed=needed[:, order],
        usable=usable[:, order],
        must=np.isin(able[order], problem.must),
        gamma=problem.gamma,
        band=problem.band_hz,
        max_devices=len(able) if problem.max_devices is None else problem.max_devices,
    )
    return devices, able[order], which[:, order]
