"""FedCS by hand, against its plain twin, and where uploads in turn and side by side differ."""

from __future__ import annotations

import numpy as np

from flare.rng import stream
from flare.scheduling import RoundProblem, solve
from flare.scheduling.systems.fedcs import in_turn
from tests.cells import alone_s, changed, network_cell, paper_cell


def cell(upload_s: list[float], compute_s: list[float], deadline_s: float, snr: float = 1.0) -> RoundProblem:
    """Devices that send in the given times on the whole band of 1 MHz: the rate is 1e6 log2(1 + snr) bit/s."""
    bits = np.array(upload_s) * 1e6 * np.log2(1.0 + snr)
    number = len(upload_s)
    return RoundProblem(np.ones(number), compute_s, np.full(number, snr * 1e6), bits, 1e6, deadline_s)


def literally(problem: RoundProblem) -> list[int]:
    """Algorithm 3, line by line, for devices without ties; those that must send come first."""
    upload_s = alone_s(problem) - problem.compute_s
    due_s = np.broadcast_to(problem.finish_by(problem.deadline_s), problem.num_devices)
    candidates, selected, theta = set(problem.reachable_in_order.tolist()), [], 0.0
    while candidates:
        longer = {k: float(upload_s[k] + max(0.0, problem.compute_s[k] - theta)) for k in candidates}
        x = min(candidates & set(problem.must) or candidates, key=lambda k: longer[k])
        candidates.remove(x)
        if x in problem.must or theta + longer[x] < due_s[x]:
            theta += longer[x]
            selected.append(x)
    return selected


def test_the_order_of_uploads_by_hand() -> None:
    # Theta 0: 1 + 4.5, 2, 3: device 1, Theta 2. Then 1 + 2.5 and 3: device 2, Theta 5. Then device 0, done at 6.
    assert in_turn(cell([1.0, 2.0, 3.0], [4.5, 0.0, 0.0], 7.0)).tolist() == [1, 2, 0]
    assert in_turn(cell([1.0, 2.0, 3.0], [4.5, 0.0, 0.0], 5.9)).tolist() == [1, 2]


def test_a_device_that_would_be_late_is_dropped_and_the_next_is_tried() -> None:
    due = changed(cell([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], 7.0), due_s=np.array([7.0, 2.5, 7.0]))
    assert in_turn(due).tolist() == [0, 2]  # the second would be done at 3 s, after its own 2.5 s; the third is at 4


def test_those_who_must_send_upload_first() -> None:
    assert in_turn(changed(cell([1.0, 2.0, 3.0], [0.0] * 3, 5.5), must=[2])).tolist() == [2, 0]


def test_it_is_algorithm_3_in_cells_of_the_paper() -> None:
    sizes = []
    for seed in range(20):
        problem = paper_cell(seed, deadline_s=0.8, whole_taus=False)
        expected = literally(problem)
        assert in_turn(problem).tolist() == expected
        sizes.append(len(expected))
    assert max(sizes) > 3


def test_it_is_algorithm_3_where_devices_have_deadlines_of_their_own() -> None:
    dropped = 0
    for seed in range(60):
        plain = network_cell(seed, num_devices=30)
        draw = stream(seed, "due")
        due_s = plain.deadline_s * draw.uniform(0.3, 1.2, plain.num_devices)
        problem = changed(plain, due_s=due_s, block_hz=None, max_devices=None)
        expected = literally(problem)
        assert in_turn(problem).tolist() == expected
        dropped += len(expected) < len(literally(changed(problem, due_s=None)))
    assert dropped > 10


def test_what_goes_in_turn_may_not_fit_side_by_side() -> None:
    # One sends until 5 s, the other computes until then and sends until 10 s. Side by side the second needs the whole
    # band, as it has no more than 5 s, and nothing is left for the first.
    problem = cell([5.0, 5.0], [0.0, 5.0], 10.0, snr=1e6)
    assert in_turn(problem).tolist() == [0, 1]
    assert solve(problem, "fedcs").selected.tolist() == [0]


def test_what_goes_in_turn_mostly_ends_sooner_side_by_side() -> None:
    # Both may send from the start: in turn they are done at 2 s. Side by side each has the rate 0.5e6 log2(1 + 2).
    answer = solve(cell([1.0, 1.0], [0.0, 0.0], 3.0), "fedcs")
    assert answer.selected.tolist() == [0, 1]
    np.testing.assert_allclose(answer.latency_s, 1e6 / (0.5e6 * np.log2(3.0)), rtol=1e-9)
