"""What experiments see of a run: a few numbers, its tests, and its training loss in stretches of rounds.

All have seven digits, whether they come from the run folder or from the file that keeps them (`kept_runs.py`), so that
what is concluded from them is the same to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from flare.records.run import RunNumbers
from flare.report.curves import fairness_of
from flare.types import Floats

DIGITS = 7
STRETCHES = 100
"""Stretches of rounds that the training loss is told of, at most."""


@final
@dataclass(frozen=True, eq=False)
class Outcome:
    """A run. Numbers that are not known, or not finite, are nan."""

    status: str
    num_classes: int
    num_rounds: int
    end_s: float  # the simulated time at its end
    mean_devices: float  # that sent in a round, on average
    mean_tau: float  # steps of those that were selected, the mean over the rounds in which somebody was
    mean_gap: float  # of P2's objective above its proven bound, as a share of that, over the rounds that have one
    total_energy_j: float  # of all devices
    fairness: float  # Jain's index of how often devices sent
    end_train_loss: float  # the mean over the last tenth of the rounds, as far as somebody sent
    test_round: Floats  # (tests,) rounds done
    test_s: Floats  # (tests,) simulated time
    test_accuracy: Floats  # (tests,)
    test_loss: Floats  # (tests,)
    loss_round: Floats  # (stretches,) the middle of each
    loss_s: Floats  # (stretches,) the simulated time there
    train_loss: Floats  # (stretches,) the mean over the rounds in which somebody sent

    @property
    def diverged(self) -> bool:
        """Whether the weights stopped being numbers."""
        return self.status == "diverged"


def outcome_of(run: RunNumbers) -> Outcome:
    """A run as experiments see it; ValueError where it does not say how many classes its data have."""
    num_classes = run.manifest.get("num_classes")
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"{run.folder}: its manifest does not say how many classes the data have")
    tests, clock_s, train_loss = run.evaluated, run.of_round["clock_s"], run.of_round["train_loss"]
    loss_round, means = stretches(train_loss)
    return Outcome(
        status=run.status,
        num_classes=num_classes,
        num_rounds=run.num_rounds,
        end_s=short(clock_s[-1] if len(clock_s) else 0.0),
        mean_devices=short(mean_of_known(run.num_senders.astype(np.float64))),
        mean_tau=short(mean_of_known(run.round_mean("tau"))),
        mean_gap=short(gap_of(run.of_round["objective"], run.of_round["lower_bound"])),
        total_energy_j=short(run.round_energy_j().sum()),
        fairness=short(fairness_of(run.participation() * run.num_rounds)),
        end_train_loss=short(mean_of_known(last_tenth(train_loss))),
        test_round=(tests + 1).astype(np.float64),
        test_s=shortened(clock_s[tests]),
        test_accuracy=shortened(run.of_round["test_accuracy"][tests]),
        test_loss=shortened(run.of_round["test_loss"][tests]),
        loss_round=shortened(loss_round),
        loss_s=shortened(np.interp(loss_round, 1.0 + np.arange(len(clock_s)), clock_s) if len(loss_round) else []),
        train_loss=shortened(means),
    )


def stretches(train_loss: Floats) -> tuple[Floats, Floats]:
    """The middle round of each stretch and the mean loss of it, nan where nobody sent; none where nobody ever did."""
    sent = ~np.isnan(train_loss)
    if not sent.any():
        return np.empty(0), np.empty(0)
    number = min(len(train_loss), STRETCHES)
    sizes = np.full(number, len(train_loss) // number)
    sizes[: len(train_loss) % number] += 1
    begins = np.cumsum(sizes) - sizes
    known = np.add.reduceat(sent, begins, dtype=np.float64)
    sums = np.add.reduceat(np.where(sent, train_loss, 0.0), begins)
    return begins + 0.5 * (sizes + 1.0), np.divide(sums, known, out=np.full(number, np.nan), where=known > 0.0)


def last_tenth(of_rounds: Floats) -> Floats:
    """Those of the last tenth of the rounds, of one at least."""
    return of_rounds[-max(1, len(of_rounds) // 10) :]


def mean_of_known(values: Floats) -> float:
    """The mean of what is a number; nan where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def gap_of(objective: Floats, lower_bound: Floats) -> float:
    """How far P2's objective lies above its proven bound, as a share of it, on average; nan where none is known."""
    known = np.isfinite(objective) & np.isfinite(lower_bound)
    return mean_of_known(objective[known] / lower_bound[known] - 1.0)


def short(value: float) -> float:
    """A number with the digits that are kept, nan where it is not finite."""
    return float(shortened([value])[0])


def shortened(values: Floats | list[float]) -> Floats:
    """Numbers with the digits that are kept."""
    kept = np.array([float(f"{value:.{DIGITS}g}") for value in np.asarray(values, dtype=np.float64).tolist()])
    return np.where(np.isfinite(kept), kept, np.nan)
