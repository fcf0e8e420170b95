"""What can be drawn of a run, by name: each a number a round; and what it can be drawn against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flare.records.run import RunNumbers, time_in_words
from flare.text import did_you_mean
from flare.types import Floats


@final
@dataclass(frozen=True)
class Quantity:
    """What it is called, its value in every round of a run, shape (rounds,), nan where there is none; and the largest
    value that it can have. None is negative."""

    label: str
    values: Callable[[RunNumbers], Floats]
    is_clock: bool = False
    max_value: float = math.inf

    def label_of(self, runs: Sequence[RunNumbers]) -> str:
        """What an axis says of it where these runs are drawn: a clock is simulated or real."""
        return f"{time_in_words(runs)} (s)" if self.is_clock else self.label


def _recorded(name: str) -> Callable[[RunNumbers], Floats]:
    return lambda run: run.of_round[name]


QUANTITIES: Mapping[str, Quantity] = {
    "accuracy": Quantity("test accuracy", _recorded("test_accuracy"), max_value=1.0),
    "test_loss": Quantity("test loss", _recorded("test_loss")),
    "node_accuracy": Quantity("mean accuracy on nodes", _recorded("node_accuracy_mean"), max_value=1.0),
    "node_accuracy_std": Quantity("spread of it over nodes", _recorded("node_accuracy_std")),
    "train_loss": Quantity("training loss", _recorded("train_loss")),
    "num_selected": Quantity("selected devices", lambda run: run.num_selected.astype(np.float64)),
    "num_sent": Quantity("devices that sent", lambda run: run.num_sent.astype(np.float64)),
    "num_late": Quantity("devices that were late", lambda run: run.num_late.astype(np.float64)),
    "mean_tau": Quantity("mean local steps", lambda run: run.round_mean("tau")),
    "tau_bar": Quantity("τ̄ of the round", _recorded("tau_bar")),
    "mean_age": Quantity("mean age of updates", lambda run: run.round_mean_age()),
    "latency_s": Quantity("latency of the round (s)", _recorded("latency_s")),
    "broadcast_s": Quantity("broadcast of the model (s)", _recorded("broadcast_s")),
    "clock_s": Quantity("time so far (s)", _recorded("clock_s"), is_clock=True),
    "energy_j": Quantity("energy of the round (J)", lambda run: run.round_energy_j()),
    "total_energy_j": Quantity("energy so far (J)", lambda run: np.cumsum(run.round_energy_j())),
    "payload_bits": Quantity("sent in the round (bit)", lambda run: run.round_sent_bits()),
    "total_payload_bits": Quantity("sent so far (bit)", lambda run: np.cumsum(run.round_sent_bits())),
    "control_bits": Quantity("control traffic (bit)", _recorded("control_bits")),
    "noise_std": Quantity("noise in a weight of the mean", _recorded("noise_std")),
    "downlink_bits": Quantity("broadcast in the round (bit)", lambda run: run.round_downlink_bits()),
    "objective": Quantity("objective of the schedule", _recorded("objective")),
    "gap": Quantity("gap to the proven bound", lambda run: run.gap()),
    "num_faults": Quantity("faults of nodes", lambda run: run.num_faults.astype(np.float64)),
}
"""Every quantity by name."""
AXES: Mapping[str, Quantity] = {
    "rounds": Quantity("round", lambda run: np.arange(1, run.num_rounds + 1).astype(np.float64)),
    "time": QUANTITIES["clock_s"],
    "energy": QUANTITIES["total_energy_j"],
    "bits": Quantity("sent so far (bit)", RunNumbers.bits_so_far),
}
"""What a quantity can be drawn against."""


def get_quantity(name: str) -> Quantity:
    """The quantity of that name; ValueError with the nearest name and the whole list where there is none."""
    return _found("quantity", name, QUANTITIES, "Quantities")


def get_axis(name: str) -> Quantity:
    """The axis of that name; ValueError with the nearest name and the whole list where there is none."""
    return _found("x axis", name, AXES, "Axes")


def _found(kind: str, name: str, known: Mapping[str, Quantity], heading: str) -> Quantity:
    if isinstance(name, str) and name in known:
        return known[name]
    hint = did_you_mean(str(name), known)
    raise ValueError(f"there is no {kind} {name!r:.80}{hint} {heading}: {', '.join(known)}")
