"""Corollary 1's speed-up with the number of devices, measured: the error after R rounds against M."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from flare.rng import stream
from flare.theory.bounds import corollary_1, corollary_rates
from flare.theory.conditions import Constants, Form, broken_conditions
from flare.theory.measure import draw_tau
from flare.theory.quadratic import Moments, Quadratic, random_quadratic, sampled_round
from flare.types import Floats


@dataclass(frozen=True, eq=False)
class SpeedUp:
    """Corollary 1's error after R rounds against M.

    slopes    of log error over log M, for each seed; Corollary 1, an upper bound, has -1/2
    slope, low, high    their mean and its 95 % interval (t)
    """

    num_selected: Floats  # (counts,)
    errors: Floats  # (seeds, counts), mean over the rounds of E||grad F||^2
    bounds: Floats  # (seeds, counts), as proven; nan where a condition is broken or the devices differ
    slopes: Floats  # (seeds,)
    slope: float
    low: float
    high: float


def speedup_study(
    seeds: Sequence[int] = range(8),
    *,
    counts: Sequence[int] = (1, 2, 4, 8, 16, 32),
    num_devices: int = 32,
    num_weights: int = 6,
    rounds: int = 1000,
    tau_bar: int = 4,
    tau_mean: float = 3.0,
    sigma_sq: float = 20.0,
    spread: float | None = None,
) -> SpeedUp:
    """The error at the rates of Corollary 1 against M, for M devices drawn at random each round from the same cell.

    L is 1 and all expectations are exact, that over the draw of the devices included. The devices have the same loss,
    or, where `spread` is given, losses of their own whose minima lie that far apart.
    """
    if len(seeds) < 2 or len(counts) < 2 or max(counts) > num_devices:
        raise ValueError(
            f"{len(seeds)} seeds and counts {list(counts)} of {num_devices} devices: a slope needs at least two of "
            "each, none greater than num_devices"
        )
    errors, bounds = np.zeros((len(seeds), len(counts))), np.full((len(seeds), len(counts)), math.nan)
    for s, seed in enumerate(seeds):
        problem = random_quadratic(
            seed,
            num_devices=1 if spread is None else num_devices,
            num_weights=num_weights,
            spread=spread or 0.0,
            sigma_sq=sigma_sq,
        )
        if spread is None:
            problem = replace(
                problem,
                hessian=np.repeat(problem.hessian, num_devices, axis=0),
                minimum=np.repeat(problem.minimum, num_devices, axis=0),
            )
        for m, count in enumerate(counts):
            errors[s, m], bounds[s, m] = _corollary_error(problem, seed, count, rounds, tau_bar, tau_mean)
    slopes = np.polyfit(np.log(counts), np.log(errors).T, 1)[0]
    half = float(stdtrit(len(seeds) - 1, 0.975) * slopes.std(ddof=1) / math.sqrt(len(seeds)))
    slope = float(slopes.mean())
    return SpeedUp(np.array(counts, dtype=np.float64), errors, bounds, slopes, slope, slope - half, slope + half)


def _corollary_error(
    problem: Quadratic, seed: int, num_selected: int, rounds: int, tau_bar: int, tau_mean: float
) -> tuple[float, float]:
    """The mean over the rounds of E||grad F||^2, and its bound where the selected are like all."""
    rates = corollary_rates(float(tau_bar), num_selected, rounds)
    rng = stream(seed, "speed-up")
    tau = draw_tau(rng, problem.num_devices, tau_bar, tau_mean)
    at = Moments.at(problem.optimum + rng.standard_normal(problem.num_weights))
    gap, total = problem.gap(at), 0.0
    step = sampled_round(problem, rates, tau, num_selected)
    for _ in range(rounds):
        total += problem.gradient_sq(at)
        at = step(at)
    return total / rounds, _bound(problem, gap, num_selected, rounds, tau_bar, tau_bar / float(tau.min()))


def _bound(problem: Quadratic, gap: float, num_selected: int, rounds: int, tau_bar: int, kappa: float) -> float:
    if np.ptp(problem.minimum, axis=0).any() or np.ptp(problem.hessian, axis=0).any():
        return math.nan  # the selected are not like all
    constants = Constants(problem.smoothness, problem.sigma_sq, *problem.dissimilarity())
    if broken_conditions(corollary_rates(float(tau_bar), num_selected, rounds), constants, form=Form.PROVEN):
        return math.nan
    return corollary_1(
        constants,
        tau_bar=float(tau_bar),
        num_selected=num_selected,
        rounds=rounds,
        gap=gap,
        kappa=kappa,
        form=Form.PROVEN,
    ).bound.total
