"""The bounds against measurements: whether they hold, how loose they are, and the speed-up with M.

On quadratics every expectation is exact (`flare.theory.quadratic`); on logistic regression it is the mean over repeated
runs (`flare.theory.logistic`). A bound whose conditions are broken is nan. Arrays only; nothing is drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flare.rng import stream
from flare.theory.bounds import lemma_1, theorem_1, theorem_2
from flare.theory.conditions import Constants, Form, Rates, broken_conditions, rho_limit
from flare.theory.constants import dissimilarity
from flare.theory.logistic import DeviceSamples, Logistic, Way, walk
from flare.theory.quadratic import Moments, Quadratic, approximation_error, flare_round, random_quadratic
from flare.types import Floats


@dataclass(frozen=True, eq=False)
class Comparison:
    """A left-hand side and the bounds on it, round by round."""

    measured: Floats  # (rounds,)
    bounds: dict[Form, Floats]  # (rounds,), nan where a condition is broken

    def holds(self, form: Form, slack: float = 1e-9) -> bool:
        """Whether the measured value nowhere exceeds the bound, where there is one."""
        bound = self.bounds[form]
        known = np.isfinite(bound)
        return bool((self.measured[known] <= bound[known] + slack * np.abs(bound[known])).all())

    def looseness(self, form: Form) -> Floats:
        """Bound over measured, shape (rounds,): 1 is tight. For Lemma 1 read `promised`: both may be negative."""
        return self.bounds[form] / self.measured

    def promised(self, form: Form) -> Floats:
        """Lemma 1: how much of the measured decrease the bound promises, shape (rounds,): 1 is tight, 0 nothing.

        nan where F did not decrease.
        """
        return self.bounds[form] / np.where(self.measured < 0.0, self.measured, math.nan)


@dataclass(frozen=True, eq=False)
class Study:
    """One run against its bounds.

    theorem_1   for each round, on the device whose steps differ most from tau_bar
    lemma_1     for each round, the change of F
    theorem_2   for each R, the mean of E||grad F||^2 over the first R rounds
    """

    rates: Rates
    constants: Constants  # rho is the least of `allowed_rho`
    gap: Floats  # (rounds,), E F(w_r) - F*, before the round
    gradient_sq: Floats  # (rounds,)
    theorem_1: Comparison
    lemma_1: Comparison
    theorem_2: Comparison
    broken: dict[Form, list[str]]


@dataclass(frozen=True, eq=False)
class Run:
    """What was measured of a run, all of shape (rounds,) but `tau`."""

    gap: Floats
    gap_after: Floats
    gradient_sq: Floats
    local_gradient_sq: Floats  # what rho is about
    selection_sq: Floats
    approximation: Floats  # E||w~ - w||^2 of Theorem 1
    steepest_sq: Floats  # its g
    tau: list[Floats]  # of the selected, each round


def as_run(rows: Sequence[Sequence[float]], tau: list[Floats]) -> Run:
    """From rows of the numbers in the order of the fields, one a round."""
    gap, gap_after, gradient_sq, local_sq, selection_sq, approximation, steepest_sq = np.array(rows).T
    return Run(gap, gap_after, gradient_sq, local_sq, selection_sq, approximation, steepest_sq, tau)


def compare(run: Run, rates: Rates, constants: Constants) -> Study:
    """Every bound on a run. Lemma 1 takes the rho and the error of selecting of its round.

    Theorem 2 after R rounds takes the least rho of these; the error of selecting, M and kappa are of the whole run.
    """
    rho = allowed_rho(run, constants)
    worst = replace(constants, rho=float(rho.min()), selection_error=_selection_error(run.selection_sq))
    each = [
        replace(constants, rho=float(rho[r]), selection_error=_selection_error(run.selection_sq[r : r + 1]))
        for r in range(len(rho))
    ]
    lemma = Comparison(run.gap_after - run.gap, {form: _lemma_bounds(run, rates, each, form) for form in Form})
    approximation = {
        form: np.array(
            [theorem_1(rates.local_lr, rates.tau_bar, g, constants.sigma_sq, form).total for g in run.steepest_sq]
        )
        for form in Form
    }
    counts = np.arange(1, len(rho) + 1)
    theorem = Comparison(
        np.cumsum(run.gradient_sq) / counts, {form: _theorem_bounds(run, rates, worst, rho, form) for form in Form}
    )
    broken = {form: broken_conditions(rates, _as_assumed(worst, form), form=form) for form in Form}
    return Study(
        rates, worst, run.gap, run.gradient_sq, Comparison(run.approximation, approximation), lemma, theorem, broken
    )


def allowed_rho(run: Run, constants: Constants) -> Floats:
    """The greatest rho in each round, shape (rounds,), that the paper allows and with which its step (c) holds.

    The paper allows `rho_limit`; step (c) of Appendix B holds up to the rho of the path, ||grad F|| over the norm of
    the mean local gradient, both in root mean square (docs/errata.md, 10).
    """
    limit = np.array([rho_limit(constants, float(gradient_sq)) for gradient_sq in run.gradient_sq])
    allowed: Floats = np.minimum(np.sqrt(run.gradient_sq / run.local_gradient_sq), limit)
    return allowed


def _selection_error(squares: Floats) -> float:
    largest = float(squares.max())
    return math.sqrt(largest) if largest > 1e-24 else 0.0  # all take part: zero but for rounding


def _as_assumed(constants: Constants, form: Form) -> Constants:
    """The paper takes every selection to be like all devices."""
    return replace(constants, selection_error=0.0) if form is Form.PRINTED else constants


def _lemma_bounds(run: Run, rates: Rates, each: Sequence[Constants], form: Form) -> Floats:
    bounds = np.full(len(each), math.nan)
    for r, constants in enumerate(each):
        if not broken_conditions(rates, constants, form=form):
            bounds[r] = lemma_1(rates, run.tau[r], constants, float(run.gradient_sq[r]), form=form).total
    return bounds


def _theorem_bounds(run: Run, rates: Rates, worst: Constants, rho: Floats, form: Form) -> Floats:
    """The bound after 1, 2, ... rounds; nan from where a round has broken a condition."""
    fewest = min(len(tau) for tau in run.tau)
    kappa = rates.tau_bar / min(float(tau.min()) for tau in run.tau)
    bounds = np.full(len(run.gap), math.nan)
    for r, least_rho in enumerate(np.minimum.accumulate(rho)):
        constants = replace(worst, rho=float(least_rho))
        if broken_conditions(rates, constants, form=form):
            break
        bounds[r] = theorem_2(
            rates, constants, gap=float(run.gap[0]), rounds=r + 1, num_selected=fewest, kappa=kappa, form=form
        ).total
    return bounds


def draw_tau(rng: np.random.Generator, num_devices: int, tau_bar: int, tau_mean: float) -> Floats:
    """Steps of the devices in a round: max(1, round(Exp(mean))), at most tau_bar, so that tau_bar is MaS's."""
    drawn: Floats = np.clip(np.rint(rng.exponential(tau_mean, num_devices)), 1.0, float(tau_bar))
    return drawn


def quadratic_study(
    seed: int,
    *,
    num_devices: int = 10,
    num_selected: int | None = None,
    num_weights: int = 6,
    rounds: int = 60,
    tau_bar: int = 8,
    tau_mean: float = 3.0,
    step: float = 0.1,
    global_lr: float = 1.0,
    sigma_sq: float = 1.0,
    spread: float = 1.0,
    problem: Quadratic | None = None,
) -> Study:
    """FLARE on a random quadratic against every bound, all expectations exact.

    `step` is p = L tau_bar eta_l; `num_selected` devices are drawn each round (all, unless given); `spread` is how far
    the devices' minima lie apart.
    """
    problem = problem or random_quadratic(
        seed, num_devices=num_devices, num_weights=num_weights, spread=spread, sigma_sq=sigma_sq
    )
    rates = Rates(step / (problem.smoothness * tau_bar), global_lr, float(tau_bar))
    rng = stream(seed, "quadratic", "rounds")
    at = Moments.at(problem.optimum + 3.0 * rng.standard_normal(problem.num_weights) / math.sqrt(problem.num_weights))
    rows, taus = [], []
    for _ in range(rounds):
        tau = draw_tau(rng, problem.num_devices, tau_bar, tau_mean)
        order = rng.permutation(problem.num_devices)
        selected = np.sort(order[: num_selected or problem.num_devices])
        slowest = int(selected[np.argmin(tau[selected])])
        done = flare_round(problem, rates, tau, selected, at)
        error = approximation_error(problem, slowest, rates, int(tau[slowest]), at.mean)
        row = (problem.gap(at), problem.gap(done.after), problem.gradient_sq(at), done.local_gradient_sq)
        rows.append((*row, done.selection_sq, *error))
        taus.append(tau[selected])
        at = done.after
    g_const, h_const = problem.dissimilarity()
    constants = Constants(problem.smoothness, problem.sigma_sq, g_const, h_const)
    return compare(as_run(rows, taus), rates, constants)


def logistic_study(
    seed: int,
    devices: Sequence[DeviceSamples],
    num_classes: int,
    *,
    num_selected: int | None = None,
    rounds: int = 40,
    chains: int = 16,
    tau_bar: int = 8,
    tau_mean: float = 3.0,
    step: float = 0.03,
    global_lr: float = 1.0,
    batch_size: int = 10,
    ridge: float = 0.01,
    max_samples: int = 200,
) -> Study:
    """FLARE on softmax regression over the devices' own samples and labels; expectations are means over the chains.

    L holds for all weights; sigma^2, G, H and rho are the least that hold at all weights visited.
    """
    problem = Logistic.of(devices, num_classes, ridge=ridge, max_samples=max_samples)
    rates = Rates(step / (problem.smoothness * tau_bar), global_lr, float(tau_bar))
    rng = stream(seed, "logistic")
    at = np.zeros((chains, *problem.shape))
    rows, taus, gradients, variance = [], [], [], 0.0
    for _ in range(rounds):
        tau = draw_tau(rng, problem.num_devices, tau_bar, tau_mean)
        selected = np.sort(rng.permutation(problem.num_devices)[: num_selected or problem.num_devices])
        local = np.stack([problem.gradient(i, at)[0] for i in range(problem.num_devices)])  # (devices, chains, ...)
        ways = {i: walk(problem, i, at, int(tau[i]), _lr(rates, tau[i]), batch_size, rng) for i in selected.tolist()}
        slowest = int(selected[np.argmin(tau[selected])])
        other = walk(problem, slowest, at, tau_bar, rates.local_lr, batch_size, rng)
        after = at + global_lr * np.mean([way.end - at for way in ways.values()], axis=0)
        rows.append(_logistic_row(problem, at, after, local, ways, ways[slowest], other))
        variance = max(variance, other.variance, *(way.variance for way in ways.values()))
        gradients.append(np.swapaxes(local, 0, 1).reshape(chains, problem.num_devices, -1))
        taus.append(tau[selected])
        at = after
    alike = dissimilarity(np.concatenate(gradients))
    constants = Constants(problem.smoothness, variance / batch_size, alike.g_const, alike.h_const)
    return compare(as_run(rows, taus), rates, constants)


def _lr(rates: Rates, tau: float) -> float:
    return rates.local_lr * rates.tau_bar / float(tau)


def _logistic_row(
    problem: Logistic, at: Floats, after: Floats, local: Floats, ways: dict[int, Way], slow: Way, other: Way
) -> tuple[float, ...]:
    """The numbers of a round in the order of `Run`, each a mean over the chains."""
    whole, chosen = local.mean(axis=0), local[list(ways)].mean(axis=0)
    moved = np.mean([way.mean_gradient for way in ways.values()], axis=0)
    squares = [_mean_sq(each) for each in (whole, moved, whole - chosen, slow.end - other.end)]
    gaps = [float(problem.loss(weights).mean()) - problem.least for weights in (at, after)]
    return (*gaps, *squares, max(slow.steepest_sq, other.steepest_sq))


def _mean_sq(each: Floats) -> float:
    return float(np.square(each).sum(axis=(1, 2)).mean())
