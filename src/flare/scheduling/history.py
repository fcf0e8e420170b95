"""What a base station has learned of its devices from the rounds before: policies may ask for it by name."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flare.types import Floats, Indices


@dataclass(frozen=True, eq=False)
class History:
    """One row for each device; all arrays are float64 of shape (devices,), but for `label_counts` and `sketch`.

    times_sent          in how many rounds its update has arrived; 0 at first
    rounds_since_sent   how many rounds ago the last one was (1: in the round before this one); infinite: never
    last_loss           its mean training loss when it last sent; nan: it has not sent, or the run does not share losses
    mean_squared_loss   the mean over its steps then of the squared loss of the batch; nan: not known
    update_norm         the length of its last update as it was decoded, sqrt(sum of squares); nan: it has not sent, or
                        updates are added over the air, where only their sum is heard
    num_samples         training samples that it holds; nan: not known
    compute_s           how long it last computed, as measured, or as planned where nobody measures; nan: not known
    upload_s            how long it last sent, likewise; nan: not known
    energy_j            what it has spent so far on computing and sending; 0 at first
    label_counts        samples that it holds of each class, shape (devices, classes); None where the run does not
                        share them
    age                 in runs whose devices compute across rounds: how many steps the global model has made since the
                        device received the one that it computes from; 0: it is fresh, as in all other runs
    sketch              a short image of the mean gradient of its last update, from which the distances between those of
                        two devices follow, shape (devices, numbers); nan: it has not sent. None where the policy does
                        not ask for it, nobody has sent, or updates are added over the air
    """

    times_sent: Floats
    rounds_since_sent: Floats
    last_loss: Floats
    mean_squared_loss: Floats
    update_norm: Floats
    num_samples: Floats
    compute_s: Floats
    upload_s: Floats
    energy_j: Floats
    label_counts: Floats | None = None
    age: Floats = field(default_factory=lambda: np.zeros(0))  # empty: 0 of all devices
    sketch: Floats | None = None

    def __post_init__(self) -> None:
        if np.size(self.age) == 0:
            object.__setattr__(self, "age", np.zeros(np.size(self.times_sent)))
        for name in _ROWS:
            array = _numbers(name, getattr(self, name))
            if array.ndim != 1:
                raise ValueError(f"{name} has shape {array.shape}; a history has one number for each device")
            if len(array) != len(self.times_sent):
                raise ValueError(f"{name} has {len(array)} devices, times_sent has {len(self.times_sent)}")
            if name == "num_samples":
                _refuse_counts(name, array, known=~np.isnan(array))
            object.__setattr__(self, name, array)
        for name, what in _TABLES.items():
            if getattr(self, name) is None:
                continue
            table = _numbers(name, getattr(self, name))
            if table.ndim != 2 or len(table) != self.num_devices:
                raise ValueError(
                    f"{name} has shape {table.shape}; it must be ({self.num_devices}, {what}), one row for each "
                    "device, or None"
                )
            if name == "label_counts":
                _refuse_counts(name, table, known=np.full(table.shape, True))
            object.__setattr__(self, name, table)

    @classmethod
    def empty(
        cls, num_devices: int, *, num_samples: ArrayLike | None = None, label_counts: ArrayLike | None = None
    ) -> Self:
        """The history before the first round, with what is known of the devices' data."""
        zero, unknown = np.zeros(num_devices), np.full(num_devices, np.nan)
        return cls(
            times_sent=zero,
            rounds_since_sent=np.full(num_devices, np.inf),
            last_loss=unknown,
            mean_squared_loss=unknown,
            update_norm=unknown,
            num_samples=unknown if num_samples is None else _numbers("num_samples", num_samples),
            compute_s=unknown,
            upload_s=unknown,
            energy_j=zero,
            label_counts=None if label_counts is None else _numbers("label_counts", label_counts),
        )

    @property
    def num_devices(self) -> int:
        """How many devices the history has a row for."""
        return len(self.times_sent)

    def of(self, devices: Indices) -> Self:
        """The rows of these devices, in this order."""
        return self.with_rows(**{name: None if (of := getattr(self, name)) is None else of[devices] for name in _ALL})

    def with_rows(self, **new: Floats | None) -> Self:
        """The same history with other arrays, by name, of the shapes and the type that it says: they are neither
        checked nor copied, which would take longer than a round is scheduled, and nobody else may write to them."""
        made = object.__new__(type(self))
        made.__dict__.update({**self.__dict__, **new})
        return made


_MOST_SAMPLES = 1e150  # so that sums and squares of them are numbers, too
_TABLES = {"label_counts": "classes", "sketch": "numbers"}
_ALL = tuple(each.name for each in fields(History))
_ROWS = tuple(name for name in _ALL if name not in _TABLES)


def _refuse_counts(name: str, counts: Floats, *, known: NDArray[np.bool_]) -> None:
    """ValueError where numbers of samples are negative, or more than there can be."""
    wrong = known & ~((counts >= 0.0) & (counts <= _MOST_SAMPLES))
    if wrong.any():
        raise ValueError(
            f"{name} of device {int(np.argwhere(wrong)[0][0])} is {float(counts[wrong][0]):g}; a number of samples is "
            f"from 0 to {_MOST_SAMPLES:g}"
        )


def _numbers(name: str, values: ArrayLike) -> Floats:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} of a history must be numbers: {error}") from None
