"""What the rules of other authors know of devices: from the history, with a stand-in for what it does not know, or from
asking them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

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


def asks_for_norms(options: Mapping[str, Any]) -> bool:
    """Whether devices are asked for the norm of their gradient, by the option `norms`."""
    return bool(options["norms"] != LAST)


def goes_by_last_norms(options: Mapping[str, Any]) -> bool:
    """Whether it goes by the norms of updates that were heard, by the option `norms`."""
    return not asks_for_norms(options)


def needs_norms(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What devices have to tell then (`flare.scheduling.registry.TOLD`)."""
    return ("norms",) if asks_for_norms(options) else ()
