"""A thousand random cells, from nobody to everybody: `exact` proves its answer in every one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flare.scheduling import Status, solve
from tests.cells import alone_s, changed, paper_cell

GAMMAS = (0.0, 0.1, 1.0, 10.0, 100.0)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(("num_devices", "num_cells"), [(5, 67), (40, 67), (200, 66)])
def test_exact_proves_optimality_in_random_cells(num_devices: int, num_cells: int, gamma: float) -> None:
    statuses = set()
    for seed in range(num_cells):
        cell = paper_cell(
            seed,
            num_devices=num_devices,
            gamma=gamma,
            whole_taus=seed % 2 == 0,
            total_bandwidth_hz=10e6 * num_devices / 40,
        )
        # From 20 % under the earliest finish of anybody to 20 % over the common finish of everybody.
        earliest_s, last_s = float(alone_s(cell).min()), cell.min_latency(np.arange(num_devices))
        part = (seed + 0.5) / num_cells
        problem = changed(cell, deadline_s=(0.8 * earliest_s) ** (1.0 - part) * (1.2 * last_s) ** part)
        schedule = solve(problem, "exact")
        statuses.add(schedule.status)
        if schedule.status is Status.INFEASIBLE:
            assert problem.deadline_s < earliest_s
            assert schedule.lower_bound == math.inf
        else:
            assert schedule.status is Status.OPTIMAL
            assert schedule.gap < 1e-9
    assert statuses == {Status.INFEASIBLE, Status.OPTIMAL}
