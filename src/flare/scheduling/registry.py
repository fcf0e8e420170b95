"""Policies by name.

A policy is a function from a problem to the devices that shall send:

    @policy("strongest")
    def strongest(problem):
        best_first = np.argsort(-problem.snr_hz)
        return admit(problem, best_first)

It may also take, by these names, `rng` (a random generator), `memory` (what it returned last round, one number a
device, None at first) and options with default values, which the caller of `solve` sets by keyword. It returns the
indices of the devices, or a `Choice` where it has more to say. Dividing the band, checking the deadline and computing
the objective are not its business: `solve` does that the same way for all.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike

from flare.types import Floats


@dataclass(frozen=True)
class Choice:
    """What a policy answers when the devices are not all it has to say.

    `lower_bound` is a proven bound on P2's objective; `proven` says that it is reached. `memory` is handed to the
    policy's next round.
    """

    selected: ArrayLike
    lower_bound: float = math.nan
    proven: bool = False
    memory: Floats | None = None


PolicyFunction = Callable[..., "ArrayLike | Choice"]


@dataclass(frozen=True)
class Policy:
    """A registered policy: its function, its name, what it takes and how it divides the band."""

    name: str
    function: PolicyFunction
    split_evenly: bool
    summary: str
    takes: frozenset[str]
    options: tuple[str, ...]

    @property
    def draws(self) -> bool:
        """Whether the policy draws random numbers."""
        return "rng" in self.takes

    @property
    def remembers(self) -> bool:
        """Whether the policy hands a memory from round to round."""
        return "memory" in self.takes


POLICIES: dict[str, Policy] = {}
"""Every registered policy by name, in the order of registration."""


def policy(name: str, *, split_evenly: bool = False) -> Callable[[PolicyFunction], PolicyFunction]:
    """Register the decorated function as the policy `name`. `split_evenly` divides the band evenly, not by P3."""

    def register(function: PolicyFunction) -> PolicyFunction:
        if name in POLICIES:
            raise ValueError(f"there is already a policy '{name}'; choose another name")
        parameters = list(inspect.signature(function).parameters)[1:]
        POLICIES[name] = Policy(
            name=name,
            function=function,
            split_evenly=split_evenly,
            summary=(inspect.getdoc(function) or "").split("\n")[0],
            takes=frozenset(parameters),
            options=tuple(p for p in parameters if p not in ("rng", "memory")),
        )
        return function

    return register


def get_policy(name: str) -> Policy:
    """The policy of that name; ValueError with the nearest name and the whole list where there is none."""
    if name in POLICIES:
        return POLICIES[name]
    near = difflib.get_close_matches(str(name), POLICIES, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    raise ValueError(f"there is no policy '{name}'{hint} Policies: {', '.join(POLICIES)}")
