"""Run folders as numbers: a folder becomes a run, runs that differ only in their seed become a group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.config import Config
from flare.records import RunFolder
from flare.report.group_labels import labels_of
from flare.types import Floats, Indices

OF_ROUND = (
    "clock_s", "latency_s", "deadline_s", "tau_bar", "objective", "lower_bound",
    "train_loss", "test_accuracy", "test_loss",
)  # fmt: skip
OF_SENDER = ("tau", "lr", "compute_s", "upload_s", "compute_energy_j", "upload_energy_j")


@dataclass(frozen=True, eq=False)
class Run:
    """What one run wrote down.

    infeasible    whether nobody could send, shape (rounds,)
    of_round      each quantity of `OF_ROUND`, shape (rounds,), nan where nothing was recorded
    num_senders   shape (rounds,)
    senders       who sent, shape (senders of all rounds,), round after round
    of_sender     each quantity of `OF_SENDER`, in the order of `senders`
    """

    folder: Path
    config: Config
    manifest: Mapping[str, Any]
    infeasible: NDArray[np.bool_]
    of_round: Mapping[str, Floats]
    num_senders: Indices
    senders: Indices
    of_sender: Mapping[str, Floats]

    @property
    def num_rounds(self) -> int:
        """Rounds recorded."""
        return len(self.num_senders)

    @property
    def status(self) -> str:
        """How the run ended, in the manifest's word; "diverged" where its last training loss is not a number."""
        sent = np.flatnonzero(self.num_senders)
        lost = len(sent) > 0 and math.isnan(self.of_round["train_loss"][sent[-1]])
        return "diverged" if lost else str(self.manifest.get("status") or "unknown")

    @property
    def diverged(self) -> bool:
        """Whether the run ended with weights that are not numbers."""
        return self.status == "diverged"

    @cached_property
    def evaluated(self) -> Indices:
        """The rounds after which the model was tested."""
        return np.flatnonzero(np.isfinite(self.of_round["test_accuracy"]))

    def round_mean(self, name: str) -> Floats:
        """The mean over the senders of each round, nan where nobody sent, shape (rounds,)."""
        return self._round_sum(self.of_sender[name]) / np.where(self.num_senders > 0, self.num_senders, np.nan)

    def round_energy_j(self) -> Floats:
        """Energy of all devices in each round, shape (rounds,)."""
        return self._round_sum(self.of_sender["compute_energy_j"] + self.of_sender["upload_energy_j"])

    def _round_sum(self, values: Floats) -> Floats:
        total = np.zeros(self.num_rounds)
        np.add.at(total, np.repeat(np.arange(self.num_rounds), self.num_senders), values)
        return total

    def gap(self) -> Floats:
        """How far each round's objective lies above its proven bound, as a share of it; nan where none is known."""
        bound = np.where(self.of_round["lower_bound"] > 0.0, self.of_round["lower_bound"], np.nan)
        return np.where(self.infeasible, np.nan, self.of_round["objective"] / bound - 1.0)

    def participation(self) -> Floats:
        """In which share of the rounds each device sent, shape (devices,)."""
        times = np.bincount(self.senders, minlength=self.config.wireless.num_devices)
        return times / max(1, self.num_rounds)

    def round_split_s(self) -> Floats:
        """Where the time of an average round goes: computing, upload, waiting, nobody feasible; shape (4,)."""
        if self.num_rounds == 0:
            return np.zeros(4)
        sent = self.num_senders > 0
        compute_s = np.where(sent, self.round_mean("compute_s"), 0.0)
        upload_s = np.where(sent, self.round_mean("upload_s"), 0.0)
        waiting_s = np.where(sent, np.maximum(0.0, self.of_round["latency_s"] - compute_s - upload_s), 0.0)
        nobody_s = np.where(sent, 0.0, self.of_round["deadline_s"])
        return np.array([np.nanmean(each) for each in (compute_s, upload_s, waiting_s, nobody_s)])


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed, the smallest seed first, and what sets them apart from other groups."""

    label: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        """The configuration of the first seed."""
        return self.runs[0].config


def read_run(folder: Path) -> Run:
    """Read a run folder; ValueError where it is none, or where a file in it is damaged."""
    run = RunFolder.open(folder)
    records = run.records()
    for number, record in enumerate(records, start=1):
        fault = _fault(record)
        if fault:
            raise ValueError(f"{folder}: round {number} of its records {fault}; the run folder is damaged")
    return _run(folder, run.config, run.manifest, records)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[Run]]:
    """Groups with their labels, in the order of their first run; and the runs left out.

    Two folders with one configuration and one seed hold one run: the longer record counts, the other is left out, or
    the seeds would look more alike than they are.
    """
    by_config: dict[Config, dict[int, Run]] = {}
    left_out = []
    for run in runs:
        seeds = by_config.setdefault(replace(run.config, seed=0), {})
        kept = seeds.setdefault(run.config.seed, run)
        if kept is not run:
            seeds[run.config.seed], other = (run, kept) if run.num_rounds > kept.num_rounds else (kept, run)
            left_out.append(other)
    labels = labels_of(list(by_config))
    groups = [
        Group(label, tuple(seeds[seed] for seed in sorted(seeds)))
        for label, seeds in zip(labels, by_config.values(), strict=True)
    ]
    return groups, left_out


def _fault(record: Mapping[str, Any]) -> str:
    """What is wrong with a record, if anything."""
    absent = [name for name in ("status", "selected", *OF_ROUND, *OF_SENDER) if name not in record]
    if absent:
        return f"has no {absent[0]}"
    if not isinstance(record["selected"], list):
        return "has no list of selected devices"
    unlisted = [name for name in OF_SENDER if not isinstance(record[name], list)]
    if unlisted:
        return f"has no list of {unlisted[0]}"
    senders = len(record["selected"])
    wrong = [name for name in OF_SENDER if len(record[name]) != senders]
    return f"has {len(record[wrong[0]])} values of {wrong[0]} for {senders} selected devices" if wrong else ""


def _run(folder: Path, config: Config, manifest: Mapping[str, Any], records: list[dict[str, Any]]) -> Run:
    def every(values: Iterator[Any]) -> Floats:
        return np.array([math.nan if value is None else value for value in values], dtype=float)

    return Run(
        folder=folder,
        config=config,
        manifest=manifest,
        infeasible=np.array([record["status"] == "infeasible" for record in records], dtype=bool),
        of_round={name: every(record[name] for record in records) for name in OF_ROUND},
        num_senders=np.array([len(record["selected"]) for record in records], dtype=np.intp),
        senders=np.array([device for record in records for device in record["selected"]], dtype=np.intp),
        of_sender={name: every(value for record in records for value in record[name]) for name in OF_SENDER},
    )
