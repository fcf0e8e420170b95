"""Rounds with choices of bits that the tests schedule: the paper's cell, and random ones on grids."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from flare.scheduling.bits_choice import BitsProblem, coding_noise
from flare.types import Floats
from flare.wireless.rate import bandwidth_for
from tests.cells import paper_cell

BITS = (2, 3, 4, 6, 8, 16)
VARIANCE = (1.73, 0.218, 0.0402, 0.00205, 1.22e-4, 1.9e-9)
"""w of `qsgd` for normal entries."""
WEIGHTS = 312_414


def paper_bits(
    seed: int,
    *,
    num_devices: int = 40,
    num_choices: int = 6,
    deadline_s: float = 0.2,
    gamma: float = 100.0,
    spread: float = 0.0,
) -> BitsProblem:
    """The paper's cell with so many choices of `qsgd`; g_i is 1, or lognormal with a spread."""
    cell = paper_cell(seed, num_devices=num_devices, total_bandwidth_hz=10e6 * num_devices / 40)
    slack_s = deadline_s - cell.compute_s
    needed = [bandwidth_for(float(bits * WEIGHTS), slack_s, cell.snr_hz) for bits in BITS[:num_choices]]
    gradient_sq = np.random.default_rng(seed).lognormal(0.0, spread, num_devices)
    noise = coding_noise(VARIANCE[:num_choices], cell.tau, reach=0.3, gradient_sq=gradient_sq)
    return BitsProblem(1.0 / cell.tau, noise, needed, band_hz=cell.capacity_hz, gamma=gamma)


def whole_hz(seed: int, *, num_devices: int, num_choices: int, band_hz: int, gamma: float) -> BitsProblem:
    """Random devices of few kinds of cost whose bandwidths are whole numbers."""
    rng = np.random.default_rng(seed)
    cost = 1.0 / rng.integers(1, 8, num_devices)
    variance = np.sort(10.0 ** rng.uniform(-4.0, 0.5, num_choices))[::-1]
    noise = variance[:, None] * (rng.choice([np.ones(num_devices), rng.lognormal(0.0, 0.5, num_devices)]) + cost)
    needed = np.ceil(np.sort(rng.uniform(1.0, 8.0, num_choices))[:, None] * rng.uniform(0.5, 4.0, num_devices))
    return BitsProblem(cost, noise, needed, band_hz=band_hz, gamma=gamma)


@st.composite
def random_bits(draw: st.DrawFn) -> BitsProblem:
    """A few devices with values on grids: equal and dominated choices, equal devices and ones that cannot send are
    common; devices that must send or must not, and a limit to their number, in some."""
    devices, choices = draw(st.sampled_from([(1, 4), (2, 4), (3, 3), (4, 4), (5, 3), (6, 2), (6, 3), (8, 1)]))
    grid = draw(st.sampled_from([3, 12, 200]))

    def table(low: int) -> st.SearchStrategy[Floats]:
        row = st.lists(st.integers(low, grid), min_size=devices, max_size=devices)
        return st.lists(row, min_size=choices, max_size=choices).map(lambda rows: np.array(rows, dtype=float))

    needed = draw(table(draw(st.sampled_from([0, 1, 1]))))
    if draw(st.booleans()):
        needed[needed == grid] = np.inf
    if draw(st.booleans()):
        needed.sort(axis=0)
    noise = draw(table(0)) * draw(st.sampled_from([0.01, 0.25, 1e6]))
    cost = 1.0 / np.array(draw(st.lists(st.integers(1, grid), min_size=devices, max_size=devices)))
    listed = draw(st.permutations(range(devices)))
    asked = min(devices, draw(st.sampled_from([0, 0, 0, 1, 2])))
    return BitsProblem(
        cost,
        noise,
        needed,
        band_hz=draw(st.integers(1, 3 * grid)),
        gamma=draw(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 10.0, 1e3, 1e100])),
        must=listed[:asked],
        never=listed[asked : asked + draw(st.sampled_from([0, 0, 1]))],
        max_devices=draw(st.sampled_from([None, None, max(asked, 1), asked + 1])),
    )
