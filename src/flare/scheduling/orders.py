"""Orders in which policies go through the devices: by a value, at random, or by weighted lot.

None of them depends on how the devices are listed: what is equal, or drawn, goes by the canonical order.
"""

from __future__ import annotations

import numpy as np

from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Memory
from flare.types import Floats, Indices


def remembered(memory: Memory, name: str) -> Floats | None:
    """What a policy remembers under a name, one number for each device; None in the first round."""
    return memory[name].astype(np.float64) if name in memory else None


def by(problem: RoundProblem, value: Floats) -> Indices:
    """The devices by ascending value, equal ones in canonical order."""
    order = problem.canonical_order
    return order[np.argsort(value[order], kind="stable")]


def canonical(problem: RoundProblem, told_apart_by: Floats | None) -> Indices:
    """The canonical order, with a value of the policy's own telling apart devices that are equal otherwise."""
    order = problem.canonical_order
    if told_apart_by is None:
        return order
    rank = np.empty(problem.num_devices, dtype=np.intp)
    known = (problem.tau, problem.compute_s, problem.snr_hz, problem.payload_bits, problem.weight, problem.due_s)
    quantities = [values for values in (*known, problem.coding_noise) if values is not None]
    changes = np.diff(np.stack(quantities)[:, order]) != 0.0
    rank[order] = np.concatenate(([0], np.cumsum(changes.any(axis=0))))  # equal devices: one rank
    return np.lexsort((told_apart_by, rank))


def by_rows(*values: Floats) -> Floats:
    """Numbers that tell devices apart by several values at once, and order them by these."""
    return np.unique(np.stack(values, axis=1), axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


def shuffled(problem: RoundProblem, rng: np.random.Generator, told_apart_by: Floats | None = None) -> Indices:
    """The devices in random order, each order as likely as any other."""
    return canonical(problem, told_apart_by)[rng.permutation(problem.num_devices)]


def drawn(devices: Indices, weight: Floats, rng: np.random.Generator) -> Indices:
    """The devices in the order in which they are drawn without replacement, each time in proportion to their weights
    (>= 0, one for each of `devices`); those of weight 0 come last, in random order.

    The greatest of log(weight) + Gumbel noise is a draw in proportion to the weights, and so is the next greatest among
    the rest: no sum of probabilities is needed, and none can round away from 1.
    """
    noise = rng.gumbel(size=len(devices))
    with np.errstate(divide="ignore"):
        return devices[np.lexsort((-noise, -(np.log(weight) + noise)))]
