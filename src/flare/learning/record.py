"""What is written down of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flare.learning.job import Score
from flare.scheduling.problem import RoundProblem
from flare.scheduling.schedule import Schedule, Status
from flare.types import Floats
from flare.wireless.rate import upload_energy_j, upload_s

Record = dict[str, Any]


def round_record(
    round: int,
    problem: RoundProblem,
    schedule: Schedule,
    *,
    lower_bound: float,
    smoothness: float | None,
    power_w: Floats,
    compute_energy_j: Floats,
    tau_bar: float,
    lrs: Sequence[float],
    losses: Sequence[float],
    clock_s: float,
) -> Record:
    """The record of a round without its test scores; lists have one value for each selected device, in their order.

    `power_w` and `compute_energy_j` have shape (devices,); `losses` are of the devices that sent;
    `smoothness` is L where a setting goes by it.
    """
    at = schedule.selected
    upload = upload_s(problem.payload_bits, schedule.bandwidth_hz[at], problem.snr_hz[at])
    return {
        "round": round,
        "status": schedule.status.value,
        "selected": at.tolist(),
        "tau": problem.tau[at].tolist(),
        "tau_bar": number(tau_bar),
        "lr": list(lrs),
        "bandwidth_hz": schedule.bandwidth_hz[at].tolist(),
        "compute_s": problem.compute_s[at].tolist(),
        "upload_s": upload.tolist(),
        "latency_s": number(schedule.latency_s),
        "deadline_s": problem.deadline_s,
        "gamma": problem.gamma,
        "smoothness": smoothness,
        "clock_s": clock_s,
        "compute_energy_j": compute_energy_j[at].tolist(),
        "upload_energy_j": upload_energy_j(power_w[at], upload).tolist(),
        "objective": number(schedule.objective),
        "lower_bound": number(lower_bound),
        "train_loss": number(math.fsum(losses) / len(losses) if losses else math.nan),
        "test_accuracy": None,
        "test_loss": None,
    }


def idle_record(round: int, deadline_s: float, clock_s: float) -> Record:
    """The record of a round in which there was no device to schedule: the same keys, and nobody in the lists."""
    lists = ("selected", "tau", "lr", "bandwidth_hz", "compute_s", "upload_s", "compute_energy_j", "upload_energy_j")
    numbers = (
        "tau_bar",
        "latency_s",
        "gamma",
        "smoothness",
        "objective",
        "lower_bound",
        "train_loss",
        "test_accuracy",
        "test_loss",
    )
    facts = {"round": round, "status": Status.INFEASIBLE.value, "deadline_s": deadline_s, "clock_s": clock_s}
    return facts | {name: [] for name in lists} | dict.fromkeys(numbers)


def write_score(record: Record, score: Score) -> None:
    """Put the test scores into a record."""
    record["test_accuracy"], record["test_loss"] = number(score.accuracy), number(score.loss)


def number(value: float) -> float | None:
    """JSON has no nan and no infinity."""
    return float(value) if math.isfinite(value) else None
