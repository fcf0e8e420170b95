"""Many rounds at once: how many go together, and what is computed of all of them in one go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from flare.scheduling.problem import RoundProblem
from flare.types import Floats
from flare.wireless.rate import bandwidth_for


def batches(problems: Sequence[RoundProblem], max_numbers: int = 1 << 14) -> list[slice]:
    """The problems in batches of consecutive ones: many enough for one array operation to be worth it, and few enough
    for the memory next to the processor. An array with a row for each problem of a batch, as long as its largest cell,
    has at most `max_numbers` entries, unless one problem alone has more."""
    edges, widest = [0], 0
    for at, problem in enumerate(problems):
        widest = max(widest, problem.num_devices)
        if at > edges[-1] and (at + 1 - edges[-1]) * widest > max_numbers:
            edges.append(at)
            widest = problem.num_devices
    return [slice(start, end) for start, end in pairwise([*edges, len(problems)]) if start < end]


def prepare(problems: Sequence[RoundProblem]) -> None:
    """Compute `needed_hz` and `canonical_order` of many problems at once, as each would for itself when asked."""
    new = [problem for problem in problems if not problem.is_prepared]
    if len(new) < 2:
        return
    counts = [problem.num_devices for problem in new]

    def together(name: str) -> Floats:
        return np.concatenate([getattr(problem, name) for problem in new])

    if any(problem.due_s is not None for problem in new):
        finish_by = np.concatenate([np.broadcast_to(one.finish_by(one.deadline_s), one.num_devices) for one in new])
    else:
        finish_by = np.repeat([problem.deadline_s for problem in new], counts)
    one_each = [problem.one_payload for problem in new]
    bits = together("payload_bits") if None in one_each else np.repeat(np.array(one_each, dtype=np.float64), counts)
    needed = bandwidth_for(bits, finish_by - together("compute_s"), together("snr_hz"))
    ends = np.cumsum(counts)
    for problem, own in zip(new, np.split(needed, ends[:-1]), strict=True):
        problem.prepare(needed_hz=problem.permitted(own.copy()))  # a view would keep all the others alive
    by_count: dict[int, list[RoundProblem]] = {}
    for problem in new:
        if problem.alike:  # the others sort by more keys, each for itself
            by_count.setdefault(problem.num_devices, []).append(problem)
    for same in by_count.values():
        keys = [np.array([getattr(one, name) for one in same]) for name in ("snr_hz", "compute_s", "needed_hz", "tau")]
        keys[-1] = -keys[-1]
        for problem, order in zip(same, np.lexsort(keys), strict=True):
            problem.prepare(canonical_order=order.copy())
