"""Lemma 1 with coded updates against exact expectations on random quadratics: a violation is a violation."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling.bits_choice import coding_noise
from flare.theory import Bound, Constants, Form, Rates, coded_lemma_1, p2_weights, update_sq
from flare.theory.quadratic import Quadratic, flare_round, local_maps
from flare.types import Floats, Indices
from tests.property.test_bounds_properties import SLACK, any_quadratic, constants_of, known_start, part_of

TRIALS = 300


class Trial(NamedTuple):
    """A round with coded updates: what the codecs add to F, all that F rises, and what the analysis says."""

    added: float
    measured: float
    bound: Bound
    sizes: Floats  # D_i of the selected
    size_bounds: Floats

    @property
    def rounding(self) -> float:
        terms = (self.bound.descent, self.bound.phi_1, self.bound.phi_2, self.bound.selection, self.bound.coding)
        return SLACK * sum(map(abs, terms)) + 1e-24


def update_sizes(problem: Quadratic, rates: Rates, tau: Floats, weights: Floats) -> Floats:
    """E||Delta_i||^2 / (eta_l tau_bar)^2 of every device, exactly."""
    maps = local_maps(problem, rates, tau)
    mean = np.einsum("kij,kj->ki", maps.change, weights - problem.minimum)
    spread = np.trace(maps.noise, axis1=1, axis2=2)
    sizes: Floats = (np.sum(mean**2, axis=1) + spread) / (rates.local_lr * rates.tau_bar) ** 2
    return sizes


def drawn(seed: int, *, own_gradients: bool) -> Trial:
    """Any quadratic, any selection, rates up to the conditions, and codecs that reach their variance, all of it in the
    direction in which F is steepest: the worst that there is."""
    rng = stream(seed, "coded")
    problem = any_quadratic(seed, rng)
    number = problem.num_devices
    selected: Indices = np.sort(rng.permutation(number)[: rng.integers(1, number + 1)])
    everyone = selected.size == number
    before = known_start(problem, rng, [0.0, 0.1, 3.0, 30.0])
    p = part_of(min(0.58, 1.0 / (math.sqrt(2.4 if everyone else 4.8) * problem.dissimilarity()[1])), rng)
    tau_bar, tau = float(rng.uniform(0.3, 12.0)), rng.integers(1, 13, number).astype(np.float64)
    rates = Rates(p / (problem.smoothness * tau_bar), part_of(1.0, rng) / p, tau_bar)
    variance = 10.0 ** rng.uniform(-3.0, 1.0, selected.size)
    done = flare_round(problem, rates, tau, selected, before)
    constants = constants_of(problem, selection_sq=0.0 if everyone else done.selection_sq)
    gradients_sq = np.sum(problem.gradients(before.mean)[selected] ** 2, axis=1)
    bound = coded_lemma_1(
        rates,
        tau[selected],
        constants,
        problem.gradient_sq(before),
        variance,
        gradients_sq=gradients_sq if own_gradients else None,
    )
    sizes = update_sizes(problem, rates, tau, before.mean)[selected]
    moved_sq = rates.global_step**2 * float(variance @ sizes) / selected.size**2  # E||c Z||^2
    added = 0.5 * float(np.linalg.eigvalsh(problem.mean_hessian)[-1]) * moved_sq
    measured = problem.gap(done.after) - problem.gap(before) + added
    return Trial(added, measured, bound, sizes, update_sq(rates, constants, tau[selected], gradients_sq))


@cache
def trials_of(*, own_gradients: bool) -> list[Trial]:
    return [drawn(seed, own_gradients=own_gradients) for seed in range(TRIALS)]


@pytest.mark.parametrize("own_gradients", [True, False])
def test_lemma_1_holds_with_coded_updates(own_gradients: bool) -> None:
    trials = trials_of(own_gradients=own_gradients)
    for trial in trials:
        assert trial.measured <= trial.bound.total + trial.rounding
        assert trial.added <= trial.bound.coding * (1.0 + SLACK)
    assert any(trial.measured > trial.bound.total - trial.bound.coding for trial in trials)  # it is needed


def test_updates_are_no_larger_than_proven() -> None:
    trials = trials_of(own_gradients=True)
    ratio = np.concatenate([trial.sizes / np.maximum(trial.size_bounds, 1e-300) for trial in trials])
    assert ratio.max() <= 1.0 + SLACK
    assert ratio.max() > 0.9  # as p becomes small it is an equality


def test_a_device_that_doubles_its_update_shows_that_the_growth_is_needed() -> None:
    """f = -w^2/2 without noise: the further it goes the steeper it is, and Delta exceeds the first gradient."""
    problem = Quadratic(np.array([[[-1.0]]]), np.array([[0.0]]), 0.0)
    rates, tau = Rates(0.58 / 12, 1.0, 12.0), np.array([12.0])
    size = update_sizes(problem, rates, tau, np.array([1.0]))[0]
    constants = Constants(smoothness=1.0, sigma_sq=0.0, g_const=0.0)
    assert 1.7 < size < update_sq(rates, constants, tau, [1.0])[0]


@pytest.mark.parametrize(
    ("form", "selection_error"), [(form, 0.0) for form in Form] + [(Form.PRINTED, 0.3), (Form.PROVEN, 0.3)]
)
def test_p2_with_these_weights_is_phi_2_with_the_coding_term(form: Form, selection_error: float) -> None:
    rates = Rates(local_lr=0.01, global_lr=1.3, tau_bar=6.0)
    constants = Constants(2.0, 3.0, 1.0, 1.2, selection_error=selection_error)
    tau, variance, gradients_sq = np.array([2.0, 5.0, 9.0]), np.array([1.7, 0.2, 0.04]), np.array([0.5, 2.0, 7.0])
    bound = coded_lemma_1(rates, tau, constants, 0.5, variance, gradients_sq=gradients_sq, form=form)
    weights = p2_weights(rates, constants, form)
    noise = coding_noise(
        variance[None] * np.ones((3, 1)), tau, reach=2.0 * 6.0 * 0.01, gradient_sq=gradients_sq / constants.sigma_sq
    )[0]
    objective = (1 / 3 + weights.gamma / 9) * np.sum(1 / tau) + weights.gamma / 9 * weights.coding * noise.sum()
    assert math.isclose(weights.scale * objective, bound.phi_2 + bound.coding, rel_tol=1e-12)
    assert bound.coding > 0.0


def test_what_is_wrong_is_said() -> None:
    rates, constants = Rates(0.01, 1.0, 6.0), Constants(2.0, 3.0, 1.0)
    with pytest.raises(ValueError, match="variance must be 2 finite numbers"):
        coded_lemma_1(rates, [1, 2], constants, 0.5, [1.0])
    with pytest.raises(ValueError, match="gradients_sq must be 2 finite numbers"):
        coded_lemma_1(rates, [1, 2], constants, 0.5, [1.0, 1.0], gradients_sq=[-1.0, 1.0])
    with pytest.raises(ValueError, match=r"more than 0\.58"):
        update_sq(Rates(1.0, 1.0, 6.0), constants, [1.0], [1.0])
    with pytest.raises(ValueError, match="not less than 1"):
        p2_weights(Rates(0.04, 3.0, 6.0), constants)
    with pytest.raises(ValueError, match="gamma would be infinite"):
        p2_weights(rates, Constants(0.0, 1.0, 1.0))
