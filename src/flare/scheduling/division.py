"""The division of the band among the devices of a round (P3), in whichever way the round asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flare.scheduling.bandwidth import Allocation, even_split, optimal_split, optimal_splits, split_with_due_times
from flare.scheduling.resource_blocks import even_blocks, split_in_blocks
from flare.types import Floats, Indices

if TYPE_CHECKING:
    from flare.scheduling.problem import RoundProblem


def divide(problem: RoundProblem, selected: Indices, *, evenly: bool = False) -> Allocation:
    """The division of the band among devices, at least one: evenly, or so that the last finish is as early as can be.

    The deadline of the round plays no part. Deadlines of the devices themselves and whole blocks do: where they let no
    division be (`RoundProblem.min_latency` is infinite), do not ask for one.
    """
    compute_s, snr_hz = problem.compute_s[selected], problem.snr_hz[selected]
    if problem.block_hz is not None and problem.num_blocks is not None:
        in_blocks = even_blocks if evenly else split_in_blocks
        due_s = np.full(len(selected), np.inf) if problem.due_s is None else problem.due_s[selected]
        bits = problem.payload_bits[selected]
        # Of equals some get a block more: which, goes by what they are, and not by the order in which they are listed.
        order = np.argsort(np.argsort(problem.canonical_order)[selected])
        given = (compute_s[order], snr_hz[order], bits[order], due_s[order])
        found = in_blocks(*given, problem.block_hz, problem.num_blocks)
        bandwidth_hz = np.empty(len(selected))
        bandwidth_hz[order] = found.bandwidth_hz
        return replace(found, bandwidth_hz=bandwidth_hz)
    if evenly:
        return even_split(compute_s, snr_hz, problem.payload(selected), problem.total_bandwidth_hz)
    if problem.due_s is not None:
        due_s = problem.due_s[selected]
        bits = problem.payload_bits[selected]
        return split_with_due_times(compute_s, snr_hz, bits, due_s, problem.total_bandwidth_hz)
    return optimal_split(compute_s, snr_hz, problem.payload(selected), problem.total_bandwidth_hz)


def divide_many(
    problems: Sequence[RoundProblem], selected: Sequence[Indices], *, evenly: bool = False
) -> list[Allocation | None]:
    """The same for many rounds, sets of one size at once; None where nobody is selected."""
    found: list[Allocation | None] = [None] * len(problems)
    by_size: dict[int, list[int]] = {}
    for at, (problem, devices) in enumerate(zip(problems, selected, strict=True)):
        if evenly or problem.block_hz is not None or problem.due_s is not None:
            found[at] = divide(problem, devices, evenly=evenly) if len(devices) else None
        elif len(devices):
            by_size.setdefault(len(devices), []).append(at)
    for members in by_size.values():
        if len(members) == 1:
            found[members[0]] = divide(problems[members[0]], selected[members[0]])
            continue
        divided = optimal_splits(
            np.array([problems[at].compute_s[selected[at]] for at in members]),
            np.array([problems[at].snr_hz[selected[at]] for at in members]),
            _payloads([problems[at] for at in members], [selected[at] for at in members]),
            np.array([problems[at].total_bandwidth_hz for at in members]),
        )
        for at, allocation in zip(members, divided, strict=True):
            found[at] = allocation
    return found


def _payloads(problems: Sequence[RoundProblem], selected: Sequence[Indices]) -> Floats:
    """The bits of sets of one size, shape (sets, devices of a set); (sets, 1) where all of a set have the same."""
    one_each = [problem.one_payload for problem in problems]
    if None not in one_each:
        return np.array(one_each, dtype=np.float64)[:, None]
    return np.array([problem.payload_bits[at] for problem, at in zip(problems, selected, strict=True)])
