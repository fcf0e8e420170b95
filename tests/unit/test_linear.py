from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from flare.scheduling import Status, solve
from flare.scheduling.linear import _relaxation
from tests.cells import hand_cell


@pytest.mark.parametrize("seed", range(5))
def test_the_relaxation_is_a_feasible_point_of_p5(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nu, share = 1.0 / rng.uniform(1.0, 9.0, 12), rng.uniform(0.05, 0.9, 12)
    alpha, theta = _relaxation(nu, share)
    assert alpha.sum() == pytest.approx(1.0, abs=1e-9)
    assert share @ alpha <= theta + 1e-9
    assert ((alpha >= -1e-9) & (alpha <= theta + 1e-9)).all()
    assert nu @ alpha == pytest.approx(nu.min(), rel=1e-9)
    assert theta == pytest.approx(1.0, abs=1e-9)  # all weight on the largest tau: alpha_i = 1 <= theta


def test_lp_passes_over_a_largest_tau_that_misses_the_deadline() -> None:
    assert solve(hand_cell([9.0, 7.0, 5.0], [1.1, 0.9, 0.1], gamma=0.0), "lp").selected.tolist() == [1]


def test_lp_ignores_gamma() -> None:
    # With gamma = 1000 many devices would be far better; P5 does not see it.
    cells = [hand_cell([9.0, 8.0, 8.0], [0.2, 0.2, 0.2], gamma) for gamma in (0.0, 1000.0)]
    assert [solve(one, "lp").selected.tolist() for one in cells] == [[0], [0]]


def test_lp_with_tied_taus_takes_only_the_tied_ones_and_fits() -> None:
    problem = hand_cell([6.0] * 5 + [5.0] * 3, [0.4] * 5 + [0.01] * 3, gamma=0.0)
    schedule = solve(problem, "lp")
    assert 1 <= schedule.num_selected <= 2
    assert schedule.selected.max() <= 4
    assert schedule.objective == pytest.approx(1.0 / 6.0, rel=1e-15)


def test_lp_where_nobody_can_is_infeasible() -> None:
    assert solve(hand_cell([6.0, 5.0], [1.2, 1.5], gamma=0.0), "lp").status is Status.INFEASIBLE


def test_lp_reaches_the_optimum_at_gamma_0() -> None:
    problem = hand_cell([6.0, 5.0, 3.0], [0.9, 0.3, 0.3], gamma=0.0)
    assert solve(problem, "lp").objective == solve(problem, "exact").objective


def test_lp_where_the_solver_gives_up_takes_the_largest_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.linprog", lambda **_: SimpleNamespace(x=None))
    assert solve(hand_cell([5.0, 6.0, 3.0], [0.3, 0.9, 0.3], gamma=0.0), "lp").selected.tolist() == [1]
