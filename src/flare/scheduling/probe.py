"""A question that is put to devices before anybody is selected, and what they answer.

Some rules go by what devices know of the new global model: the loss of their samples under it, or the gradient there. A
policy says whom it wants to ask and what, by a function that its decorator names:

    def everybody(problem, *, samples):
        return Probe(problem.reachable, "loss", samples)

    @policy("worst-first", probe=everybody, needs=("losses",))
    def worst_first(problem, *, probed, samples="batch"): ...

The function takes the problem, and by name `history`, `rng` (a stream of its own) and those options of the policy that
it wants, with their defaults; it answers None where nobody is to be asked. Asking is paid for: the devices asked are
sent the model, compute and answer, all before the round's deadline begins (`flare.rounds.probing`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from flare.types import Floats, Indices

if TYPE_CHECKING:
    from flare.scheduling.history import History
    from flare.scheduling.problem import RoundProblem

ProbeFunction = Callable[..., "Probe | None"]
LOSS, GRADIENT = "loss", "gradient"
"""What is asked for: the mean loss under the global model, or the gradient there."""
ALL, BATCH = "all", "batch"
"""On which samples: on all that the device holds, or on one batch that it draws."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What is asked of whom.

    devices     those that are asked, as the problem of the round counts them
    kind        "loss": each tells its loss; "gradient": each computes its gradient and tells the length of it
    samples     "all" that it holds, or a "batch" of them
    distances   with "gradient", each sends the gradient itself, so that the base station knows the distances between
                them: a whole vector on the air in the place of one number
    """

    devices: Indices
    kind: str = LOSS
    samples: str = ALL
    distances: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", np.sort(_whole_numbers(self.devices)))
        if self.kind not in (LOSS, GRADIENT) or self.samples not in (ALL, BATCH):
            raise ValueError(
                f"a probe is of kind {self.kind!r:.40} on samples {self.samples!r:.40}; the kind must be "
                f'"{LOSS}" or "{GRADIENT}", the samples "{ALL}" or "{BATCH}"'
            )
        if self.distances and self.kind != GRADIENT:
            raise ValueError('a probe asks for distances, which are those between gradients: its kind is "gradient"')
        if self.devices.ndim != 1 or (self.devices[1:] == self.devices[:-1]).any():
            raise ValueError("a probe names its devices in a list, each of them once")

    @property
    def tells(self) -> str:
        """What the answers are, as `needs` of a policy calls it."""
        return "losses" if self.kind == LOSS else "gradients" if self.distances else "norms"


def _whole_numbers(devices: ArrayLike) -> Indices:
    """The devices as an array; ValueError where they are no whole numbers."""
    given = np.asarray(devices)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"a probe names its devices by whole numbers, counted from 0, and not as {devices!r:.80}")
    return given.astype(np.intp)


@dataclass(frozen=True, eq=False)
class Probed:
    """What devices answered, one row for each device of the round; nan of those that were not asked.

    loss        mean loss under the global model, shape (devices,)
    norm        length of the gradient there, shape (devices,)
    distances   between the gradients of each two devices, shape (devices, devices); None where it was not asked for
    """

    loss: Floats
    norm: Floats
    distances: Floats | None = None

    @classmethod
    def nothing(cls, num_devices: int) -> Self:
        """Nobody was asked."""
        return cls(np.full(num_devices, np.nan), np.full(num_devices, np.nan))

    @property
    def num_devices(self) -> int:
        """How many devices the answers have a row for."""
        return len(self.loss)


def asked_by(
    function: ProbeFunction,
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    options: Mapping[str, Any],
) -> Probe | None:
    """What the probe of a policy asks for; ValueError where it is no `Probe`, or is put to devices that there are
    not."""
    wanted = inspect.signature(function).parameters
    given = {"history": history, "rng": rng, **options}
    answer: Any = function(problem, **{name: value for name, value in given.items() if name in wanted})
    if answer is None:
        return None
    if not isinstance(answer, Probe):
        raise ValueError(
            f"the probe of a policy answered {answer!r:.80}; it must answer a flare.scheduling.Probe or None"
        )
    if answer.devices.size and not (answer.devices[0] >= 0 and answer.devices[-1] < problem.num_devices):
        raise ValueError(f"the probe of a policy asks a device outside 0 to {problem.num_devices - 1}")
    return answer if answer.devices.size else None
