"""Estimators of the constants against closed forms, on quadratic and logistic problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flare.rng import stream
from flare.theory import Form, Rates
from flare.theory.constants import (
    along,
    device_gradients,
    dissimilarity,
    gradient,
    hessian_product,
    rho,
    sigma_sq,
    smoothness,
    smoothness_at,
)
from flare.theory.quadratic import Quadratic, random_quadratic

DRAW = stream(3, "theory constants")
X = torch.as_tensor(DRAW.standard_normal((40, 5)))
Y = torch.as_tensor(DRAW.integers(0, 3, 40))
DEVICES = [torch.arange(0, 10), torch.arange(10, 40)]


def logistic(weights: Tensor, samples: Tensor) -> Tensor:
    """Softmax regression on three classes."""
    return functional.cross_entropy(X[samples] @ weights.view(5, 3), Y[samples])


def two_class(weights: Tensor, samples: Tensor) -> Tensor:
    signs = 2.0 * (Y[samples] > 0).double() - 1.0
    return functional.softplus(-signs * (X[samples] @ weights)).mean()


def as_loss(problem: Quadratic):  # type: ignore[no-untyped-def]
    """A sample is a device: its loss is that device's quadratic."""
    a, b = torch.as_tensor(problem.hessian), torch.as_tensor(problem.minimum)

    def loss(weights: Tensor, samples: Tensor) -> Tensor:
        away = weights - b[samples]
        return 0.5 * torch.einsum("ni,nij,nj->n", away, a[samples], away).mean()

    return loss, [torch.tensor([i]) for i in range(problem.num_devices)]


@pytest.mark.parametrize("least", [0.2, -0.9])  # convex, and with saddles
def test_l_of_a_quadratic_is_its_greatest_eigenvalue(least: float) -> None:
    problem = random_quadratic(1, num_devices=4, num_weights=5, least=least)
    loss, devices = as_loss(problem)
    found = smoothness(loss, [torch.zeros(5).double()], devices, rng=stream(0, "start"), tolerance=1e-14)
    assert found == pytest.approx(problem.smoothness, rel=1e-9)


def test_the_hessian_times_a_vector_is_the_hessian_times_the_vector() -> None:
    weights, vector = (torch.as_tensor(DRAW.standard_normal(15)) for _ in range(2))
    hessian = torch.autograd.functional.hessian(lambda w: logistic(w, DEVICES[1]), weights)
    assert torch.allclose(hessian_product(logistic, weights, DEVICES[1], vector), hessian @ vector, atol=1e-13)


def test_l_of_softmax_regression_at_zero_is_known() -> None:
    # At w = 0 all classes have probability 1/3: the Hessian is (I/3 - 11^T/9) (x) X^T X / n, and the greatest
    # eigenvalue of the left factor is 1/3.
    expected = max(float(torch.linalg.eigvalsh(X[d].T @ X[d] / len(d))[-1]) / 3.0 for d in DEVICES)
    zero = torch.zeros(15).double()
    assert smoothness(logistic, [zero], DEVICES, rng=stream(0, "start"), tolerance=1e-14) == pytest.approx(
        expected, rel=1e-9
    )


def test_l_of_two_classes_at_zero_is_known_and_greatest_there() -> None:
    # p (1 - p) <= 1/4 with equality at w = 0.
    expected = float(torch.linalg.eigvalsh(X[DEVICES[1]].T @ X[DEVICES[1]] / 30)[-1]) / 4.0
    path = along(torch.ones(5).double(), torch.zeros(5).double(), 4)
    rng = stream(0, "start")
    at = [smoothness(two_class, [point], DEVICES[1:], rng=rng, tolerance=1e-14) for point in path]
    assert at[-1] == pytest.approx(expected, rel=1e-9)
    assert max(at[:-1]) < at[-1]
    whole = smoothness(two_class, path, DEVICES[1:], rng=rng, tolerance=1e-14)
    assert whole == pytest.approx(max(at), rel=1e-9)


def test_the_estimate_never_exceeds_the_greatest_eigenvalue_and_grows_with_the_products() -> None:
    problem = random_quadratic(2, num_devices=1, num_weights=6)
    loss, devices = as_loss(problem)
    start = torch.as_tensor(stream(0, "start").standard_normal(6))
    found = [
        smoothness_at(loss, torch.zeros(6).double(), devices[0], start=start, tolerance=0.0, max_products=n)
        for n in (1, 2, 4, 6)
    ]
    assert found == sorted(found)
    assert found[-1] <= problem.smoothness * (1.0 + 1e-12)


def test_a_linear_loss_has_l_zero() -> None:
    flat = [torch.zeros(5).double()]
    assert smoothness(lambda w, s: (X[s] @ w).mean(), flat, DEVICES, rng=stream(0, "start")) == 0.0


def test_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite at the given weights"):
        smoothness(lambda w, s: (w * w).sum() * math.inf, [torch.ones(2)], DEVICES, rng=stream(0, "start"))


def test_sigma_sq_of_linear_regression_at_zero() -> None:
    # At w = 0 sample n has the gradient -y_n x_n: with x = 1 and y = 0, 2, 4, 6 the variance of one is 5.
    y = torch.tensor([0.0, 2.0, 4.0, 6.0]).double()

    def loss(weights: Tensor, samples: Tensor) -> Tensor:
        return 0.5 * (weights - y[samples]).square().mean()

    points, devices = [torch.zeros(1).double(), torch.ones(1).double()], [torch.arange(4), torch.tensor([0, 1])]
    assert sigma_sq(loss, points, devices, 1) == pytest.approx(5.0, rel=1e-14)
    assert sigma_sq(loss, points, devices, 2) == pytest.approx(2.5, rel=1e-14)
    # Pairs without replacement have means 1, 2, 3, 3, 4, 5: variance 10/6.
    assert sigma_sq(loss, points, devices[:1], 2, replacement=False) == pytest.approx(10.0 / 6.0, rel=1e-14)
    assert sigma_sq(loss, points, devices[:1], 9, replacement=False) == 0.0


def test_sigma_sq_of_softmax_regression_by_hand() -> None:
    # The gradient of sample n is (p_n - e_y) x_n^T: its square is ||p_n - e_y||^2 ||x_n||^2.
    weights = torch.as_tensor(stream(5, "w").standard_normal(15))
    expected = 0.0
    for samples in DEVICES:
        off = torch.softmax(X[samples] @ weights.view(5, 3), dim=1) - functional.one_hot(Y[samples], 3)
        second = (off.square().sum(dim=1) * X[samples].square().sum(dim=1)).mean()
        expected = max(expected, float(second - gradient(logistic, weights, samples).square().sum()) / 8)
    assert sigma_sq(logistic, [weights], DEVICES, 8) == pytest.approx(expected, rel=1e-12)


def test_g_and_h_by_hand() -> None:
    # Gradients 3 and 1 at the first point (F: 2), 1 and -1 at the second (F: 0). H = 1: G^2 = max(9 - 4, 1) = 5.
    # Of all pairs, G^2 + H^2 mean(4, 0) is least at G^2 = 1, H^2 = 2: 1 + 4 = 5 against 5 + 2 = 7.
    gradients = np.array([[[3.0], [1.0]], [[1.0], [-1.0]]])
    assert dissimilarity(gradients, h_const=1.0).g_const == pytest.approx(math.sqrt(5.0), rel=1e-14)
    best = dissimilarity(gradients)
    assert (best.g_const, best.h_const) == pytest.approx((1.0, math.sqrt(2.0)), rel=1e-12)
    # All weight on the first device: F is its loss, and its gradients 3 and 1 bound the others.
    assert dissimilarity(gradients, h_const=1.0, shares=np.array([1.0, 0.0])).g_const == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        dissimilarity(gradients, h_const=0.5)


def test_g_and_h_of_a_quadratic_hold_at_points_and_are_met_where_they_are_worst() -> None:
    problem = random_quadratic(4, num_devices=3, num_weights=2)
    loss, devices = as_loss(problem)
    g_const, h_const = problem.dissimilarity()
    points = [torch.as_tensor(problem.optimum + step * DRAW.standard_normal(2)) for step in np.linspace(0, 3, 800)]
    seen = dissimilarity(device_gradients(loss, points, devices), h_const=h_const)
    assert 0.99 * g_const <= seen.g_const <= g_const * (1.0 + 1e-9)


def test_equal_devices_have_g_zero_and_h_one() -> None:
    same = device_gradients(logistic, [torch.ones(15).double()], [DEVICES[0], DEVICES[0]])
    found = dissimilarity(same)
    assert found.h_const == pytest.approx(1.0, rel=1e-12)
    assert found.g_const == pytest.approx(0.0, abs=1e-7)


def test_rho_by_hand() -> None:
    # f = w^2 / 2 from w = 1, two steps of 1/4: gradients 1 and 3/4, mean 7/8. Printed: the gradient over tau, 1/2.
    problem = Quadratic(np.ones((1, 1, 1)), np.zeros((1, 1)), 0.0)
    loss, devices = as_loss(problem)
    at, rates = [torch.ones(1).double()], Rates(0.25, 1.0, 2.0)
    assert rho(loss, at, devices, rates=rates, tau=[2]) == pytest.approx(8.0 / 7.0, rel=1e-14)
    assert rho(loss, at, devices, rates=rates, tau=[2], form=Form.PRINTED) == pytest.approx(2.0, rel=1e-14)


def test_rho_looks_at_the_selected() -> None:
    problem = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0)  # F = w^2 / 2 + 1/2
    loss, devices = as_loss(problem)
    at, rates = [torch.tensor([2.0]).double()], Rates(1e-9, 1.0, 1.0)
    assert rho(loss, at, devices, rates=rates, tau=[1, 1]) == pytest.approx(1.0, rel=1e-8)
    assert rho(loss, at, devices, rates=rates, tau=[1, 1], selected=[0]) == pytest.approx(2.0, rel=1e-8)
