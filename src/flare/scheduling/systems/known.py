"""What the rules of other authors know of devices: from the history, with a stand-in for what it does not know, or from
asking them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, final

import numpy as np

from flare.config.option import Limits
from flare.scheduling.history import History
from flare.scheduling.probe import ALL, BATCH
from flare.types import Floats

Candidates = Annotated[
    int | None,
    "how many devices are looked at, at least num_selected; none: twice num_selected",
    Limits(at_least=1.0, finite=False),
]
LAST = "last"
Asked = Annotated[
    str,
    "what it goes by: what was heard last, or what devices are asked before the selection, on all samples or a batch",
    Limits(choices=(LAST, ALL, BATCH)),
]
"""An option of policies that can ask devices, or do without."""


def samples(history: History) -> Floats:
    """n_i, the samples of each device, shape (devices,): the mean of the others for one that does not tell, 1 where
    nobody does."""
    told = np.isfinite(history.num_samples)
    stand_in = float(history.num_samples[told].mean()) if told.any() else 1.0
    return np.where(told, history.num_samples, stand_in)


def unseen_first(value: Floats) -> Floats:
    """The values with infinity for a device of which none is known (nan): it is taken first, and then it is known."""
    return np.where(np.isnan(value), np.inf, value)


def num_candidates(policy: str, wanted: int | None, num_selected: int) -> int:
    """How many devices are looked at; ValueError where fewer than are to send."""
    if wanted is None:
        return 2 * num_selected
    if wanted < num_selected:
        raise ValueError(
            f"policy '{policy}' is to choose num_selected = {num_selected} devices of num_candidates = {wanted}; "
            "raise num_candidates, or leave it out for twice num_selected"
        )
    return wanted


@final
@dataclass(frozen=True)
class UnlessLast:
    """What follows from an option of the type `Asked`, by its name: devices are asked unless it says "last".

    The option is called as what devices tell then (`flare.scheduling.registry.TOLD`).
    """

    option: str

    def asks(self, options: Mapping[str, Any]) -> bool:
        """Whether devices are asked."""
        return bool(options[self.option] != LAST)

    def goes_by_last(self, options: Mapping[str, Any]) -> bool:
        """Whether it goes by what was heard last."""
        return not self.asks(options)

    def needs(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What devices have to tell."""
        return (self.option,) if self.asks(options) else ()


NORMS, LOSSES, GRADIENTS = UnlessLast("norms"), UnlessLast("losses"), UnlessLast("gradients")
