"""A run as numbers: what its folder says of every round, as arrays. The one reader of run folders."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from flare.config import MODELLED, OTA, Config
from flare.records.folder import RunFolder
from flare.records.old_format import FORMAT_1, completed
from flare.rounds.record import OF_ROUND, OF_SELECTED, RoundRecord
from flare.text import one_line, without_numbers
from flare.types import Floats, Indices

ENDED = ("finished", "reached", "diverged")
"""How a run says that it will not go on; "reached" is its target accuracy."""
MAX_FAULT_KINDS = 50
"""Kinds of fault that are told apart; a fleet can fail in as many words as it likes."""
OTHER_FAULTS = "other faults"
MAX_DEVICES = 10_000_000
"""More than any run has: a higher number in a record is damage."""


@final
@dataclass(frozen=True, eq=False)
class RunNumbers:
    """What one run wrote down.

    folder         where it lies; None: in memory alone
    schedules      the status of each schedule, shape (rounds,), texts
    why_nobody     why nobody was selected, shape (rounds,), texts; "" where somebody was, or it was not written down
    available      how many devices reported, shape (rounds,)
    of_round       each quantity of `OF_ROUND`, shape (rounds,), nan where nothing was recorded
    num_selected   shape (rounds,)
    selected       the devices, shape (selected of all rounds,), round after round
    of_selected    each quantity of `OF_SELECTED`, in the order of `selected`
    num_sent       shape (rounds,): in a simulation all that are selected send, on real devices some may fail
    sent           the devices, shape (sent in all rounds,), round after round
    payload_bits   what each of them sent, in the order of `sent`; nan where it was not recorded
    age            of what each of them sent, in the order of `sent`: steps of the global model since the device
                   received its own; 0 in synchronous runs
    probe_energy_j what all devices spent that were asked before the selection, shape (rounds,)
    num_late       devices that missed a deadline in real time, shape (rounds,)
    num_clipped    updates that were too long, and shortened, shape (rounds,)
    faults         by kind, the round of each fault of a node, counted from 0
    """

    folder: Path | None
    config: Config
    manifest: Mapping[str, Any]
    schedules: NDArray[Any]
    why_nobody: NDArray[Any]
    available: Indices
    of_round: Mapping[str, Floats]
    num_selected: Indices
    selected: Indices
    of_selected: Mapping[str, Floats]
    num_sent: Indices
    sent: Indices
    payload_bits: Floats
    age: Floats
    probe_energy_j: Floats
    num_late: Indices
    num_clipped: Indices
    faults: Mapping[str, Indices] = field(default_factory=dict)

    @property
    def num_rounds(self) -> int:
        """Rounds recorded."""
        return len(self.num_selected)

    @property
    def infeasible(self) -> NDArray[np.bool_]:
        """Whether nobody could send, shape (rounds,)."""
        return np.array(self.schedules == "infeasible", dtype=bool)

    @property
    def without_sender(self) -> NDArray[np.bool_]:
        """Whether nobody sent, shape (rounds,): nobody could, or of those that were selected nothing came."""
        return np.array(self.num_senders == 0, dtype=bool)

    @property
    def num_devices(self) -> int:
        """Devices of the cell; real ones may have joined beyond those of the settings."""
        highest = max(int(devices.max(initial=-1)) for devices in (self.selected, self.sent))
        return max(self.config.wireless.num_devices, highest + 1)

    @property
    def trained(self) -> bool:
        """Whether models were trained; otherwise the rounds were only scheduled."""
        return is_trained(self.manifest)

    @property
    def num_senders(self) -> Indices:
        """How many devices sent in each round; where nothing was trained, would have sent."""
        return self.num_sent if self.trained else self.num_selected

    @property
    def status(self) -> str:
        """How the run ended, in the manifest's word; "diverged" where its last training loss is not a number."""
        sent = np.flatnonzero(self.num_sent)
        known = self.config.data.share_losses or self.manifest.get("driver", "simulation") == "simulation"
        lost = known and len(sent) > 0 and math.isnan(self.of_round["train_loss"][sent[-1]])
        return "diverged" if lost else one_line(str(self.manifest.get("status") or "unknown"))

    @property
    def ended(self) -> bool:
        """Whether the run will not go on."""
        return self.status in ENDED

    @property
    def diverged(self) -> bool:
        """Whether the run ended with weights that are not numbers."""
        return self.status == "diverged"

    @property
    def guess(self) -> float:
        """The accuracy of guessing, once in as many times as there are classes; 0 where the folder does not tell how
        many. A run that diverged has it from where it ended."""
        classes = self.manifest.get("num_classes")
        return 1.0 / classes if isinstance(classes, int) and classes > 0 else 0.0

    @property
    def final_accuracy(self) -> float:
        """Test accuracy at the end: at the last test, or the guess of a run that diverged; nan where there was no
        test."""
        return self.guess if self.diverged else self.accuracy

    @property
    def identity(self) -> dict[str, str]:
        """What the run is made of beside its settings, part by part; parts that the folder does not tell are not in."""
        told = self.manifest.get("identity")
        return {str(part): str(words) for part, words in told.items()} if isinstance(told, dict) else {}

    @property
    def data(self) -> str:
        """The data in words: the name of the data set, or what a program put in its place."""
        return self.identity.get("data", self.config.data.name)

    @property
    def data_by_seed(self) -> bool:
        """Whether the samples were drawn with the seed, so that every seed has others; of folders that do not tell,
        those of data set "synthetic" are known to be."""
        return bool(self.manifest.get("data_by_seed", self.data == "synthetic"))

    @property
    def model(self) -> str:
        """The model in words: its name, or what a program put in its place."""
        return self.identity.get("model", self.config.learning.model)

    @cached_property
    def evaluated(self) -> Indices:
        """The rounds after which the model was tested."""
        return np.flatnonzero(np.isfinite(self.accuracies))

    @cached_property
    def tested_by_nodes(self) -> bool:
        """Whether nodes alone tested the model: then the mean over them stands for its accuracy."""
        at_server, by_nodes = self.of_round["test_accuracy"], self.of_round["node_accuracy_mean"]
        return not np.isfinite(at_server).any() and bool(np.isfinite(by_nodes).any())

    @property
    def accuracies(self) -> Floats:
        """Test accuracy after each round, nan where there was no test: of the server, or, where it never tested, the
        mean over the nodes that did, shape (rounds,)."""
        return self.of_round["node_accuracy_mean" if self.tested_by_nodes else "test_accuracy"]

    @property
    def real_clock(self) -> bool:
        """Whether the clock of the records counts real seconds."""
        return self.on_nodes and self.config.fleet.deadline != MODELLED

    @property
    def on_nodes(self) -> bool:
        """Whether real nodes trained; otherwise the run was simulated."""
        return self.manifest.get("driver") == "flower"

    @property
    def num_faults(self) -> Indices:
        """Faults of nodes in each round, shape (rounds,)."""
        at = [*self.faults.values(), np.zeros(0, dtype=np.intp)]
        return np.bincount(np.concatenate(at), minlength=self.num_rounds)

    @property
    def accuracy(self) -> float:
        """Test accuracy at the last test, from 0 to 1; nan where there was none."""
        return float(self.accuracies[self.evaluated[-1]]) if len(self.evaluated) else math.nan

    @property
    def clock_s(self) -> float:
        """Simulated time, or, where `real_clock`, real time when the last round was over."""
        return float(self.of_round["clock_s"][-1]) if self.num_rounds else 0.0

    def round_mean(self, name: str) -> Floats:
        """The mean over the selected devices of each round, nan where there are none, shape (rounds,)."""
        return self._round_sum(self.of_selected[name]) / np.where(self.num_selected > 0, self.num_selected, np.nan)

    def round_energy_j(self) -> Floats:
        """Energy of all devices in each round, trials and those included that were asked before the selection, shape
        (rounds,)."""
        of_senders = self._round_sum(self.of_selected["compute_energy_j"] + self.of_selected["upload_energy_j"])
        return of_senders + self.of_round["pilot_energy_j"] + self.probe_energy_j

    def round_payload_bits(self) -> Floats:
        """The updates that all devices sent in each round, shape (rounds,); nan where it was not recorded."""
        return self._round_sum(self.payload_bits, self.num_sent)

    def round_sent_bits(self) -> Floats:
        """All that devices sent in each round: updates and, beside them, control traffic (answers to the policy, its
        trials), shape (rounds,); nan where it was not recorded."""
        return self.round_payload_bits() + self.of_round["control_bits"]

    def round_downlink_bits(self) -> Floats:
        """What the base station broadcast in each round, with its question or after it, shape (rounds,)."""
        return self.of_round["downlink_bits"] + self.of_round["question_bits"]

    def round_mean_age(self) -> Floats:
        """The mean age of what was sent in each round, nan where nothing was, shape (rounds,)."""
        return self._round_sum(self.age, self.num_sent) / np.where(self.num_sent > 0, self.num_sent, np.nan)

    def bits_so_far(self) -> Floats:
        """What all devices have sent up to each round, control traffic included, shape (rounds,); nan where it was not
        recorded, and over the air, where symbols are no bits."""
        so_far: Floats = np.cumsum(self.round_sent_bits())
        return np.full_like(so_far, np.nan) if self.config.uplink.air == OTA else so_far

    def _round_sum(self, values: Floats, counts: Indices | None = None) -> Floats:
        """The sum in each round of values of the selected devices, or of as many in each round as `counts` says."""
        total = np.zeros(self.num_rounds)
        counts = self.num_selected if counts is None else counts
        np.add.at(total, np.repeat(np.arange(self.num_rounds), counts), values)
        return total

    def gap(self) -> Floats:
        """How far each round's objective lies above its proven bound, as a share of it; nan where none is known."""
        bound = np.where(self.of_round["lower_bound"] > 0.0, self.of_round["lower_bound"], np.nan)
        return np.where(self.infeasible, np.nan, self.of_round["objective"] / bound - 1.0)

    def participation(self) -> Floats:
        """In which share of the rounds each device sent, shape (devices,)."""
        senders = self.sent if self.trained else self.selected
        return np.bincount(senders, minlength=self.num_devices) / max(1, self.num_rounds)

    def round_split_s(self) -> Floats:
        """Where the time of an average round goes: asking devices, broadcast, computing, upload, waiting, nobody
        feasible; shape (6,)."""
        if self.num_rounds == 0:
            return np.zeros(6)
        some = self.num_selected > 0
        compute_s = np.where(some, self.round_mean("compute_s"), 0.0)
        upload_s = np.where(some, self.round_mean("upload_s"), 0.0)
        waiting_s = np.where(some, np.maximum(0.0, self.of_round["latency_s"] - compute_s - upload_s), 0.0)
        nobody_s = np.where(some, 0.0, self.of_round["deadline_s"])
        asking_s = self.of_round["pilot_s"] + self.of_round["probe_s"]
        sending_s = self.of_round["broadcast_s"] + self.of_round["shared_s"]
        parts = (asking_s, sending_s, compute_s, upload_s, waiting_s, nobody_s)
        return np.array([np.nanmean(each) for each in parts])


def time_in_words(runs: Iterable[RunNumbers]) -> str:
    """What the clock of the runs counts: whatever names it to a reader asks here."""
    real = sorted({run.real_clock for run in runs})
    return {(True,): "real time", (False, True): "simulated or real time"}.get(tuple(real), "simulated time")


def is_trained(manifest: Mapping[str, Any]) -> bool:
    """Whether models are trained in a run; otherwise its rounds are only scheduled."""
    return manifest.get("trained", True) is not False


def read_run(folder: Path) -> RunNumbers:
    """Read a run folder, of format 1 too; ValueError where it is none, or where a file in it is damaged."""
    opened = RunFolder.open(folder)
    return run_of(read_rounds(opened), opened.config, opened.manifest, folder)


def read_rounds(opened: RunFolder) -> Iterator[RoundRecord]:
    """The rounds of a run folder one by one, checked; ValueError where a file in it is damaged."""
    opened.refuse_changed_config()
    for number, told in enumerate(opened.iter_records(), start=1):
        yield round_of(opened, told, number)


def round_of(opened: RunFolder, told: dict[str, Any], number: int) -> RoundRecord:
    """The round that a line of a folder tells, of format 1 too, checked; ValueError says that it is line `number`."""
    try:
        if opened.manifest["format_version"] == FORMAT_1:
            told = completed(told, opened.config.wireless.num_devices)
        record = RoundRecord.from_json(told)
        refuse_odd_devices(record)
    except ValueError as error:
        raise ValueError(f"{opened.path}: round {number} of its records {error}; the run folder is damaged") from None
    return record


def run_of(
    records: Iterable[RoundRecord], config: Config, manifest: Mapping[str, Any], folder: Path | None
) -> RunNumbers:
    """The numbers of rounds: of those that a folder holds, or of those that a program has seen."""
    columns = Columns()
    for record in records:
        columns.add(record)
    return columns.run(folder, config, manifest)


def refuse_odd_devices(record: RoundRecord) -> None:
    """ValueError where a round names a device that no run has: whoever takes in rounds asks this first."""
    devices = (*record.selected, *record.sent, *record.probed, *record.late, *record.tested, *record.clipped)
    for device in (min(devices, default=0), max(devices, default=0)):
        if not 0 <= device < MAX_DEVICES:
            raise ValueError(f"names device {device}; devices are counted from 0, and below {MAX_DEVICES}")


class Columns:
    """Grows the arrays of a run round by round, eight bytes a number."""

    def __init__(self) -> None:
        self._schedules: list[str] = []
        self._why_nobody: list[str] = []
        self._available = array("q")
        self._of_round = {name: array("d") for name in OF_ROUND}
        self._of_selected = {name: array("d") for name in OF_SELECTED}
        self._num_selected, self._selected = array("q"), array("q")
        self._num_sent, self._sent, self._payload_bits = array("q"), array("q"), array("d")
        self._age = array("d")
        self._probe_energy_j = array("d")
        self._num_late = array("q")
        self._num_clipped = array("q")
        self._faults: dict[str, array[int]] = {}

    def add(self, record: RoundRecord) -> None:
        """Take in a round."""
        self._schedules.append(sys.intern(record.status))
        self._why_nobody.append(sys.intern(record.why_nobody))
        self._available.append(record.available)
        for name, column in self._of_round.items():
            column.append(_number(getattr(record, name)))
        for name, column in self._of_selected.items():
            values = getattr(record, name)
            column.extend(map(_number, values) if None in values else values)
        self._num_selected.append(len(record.selected))
        self._selected.extend(record.selected)
        self._num_sent.append(len(record.sent))
        self._sent.extend(record.sent)
        self._payload_bits.extend(map(_number, record.payload_bits))
        self._age.extend(record.age or [0] * len(record.sent))
        self._probe_energy_j.append(math.fsum(record.probe_energy_j))
        self._num_late.append(len(record.late))
        self._num_clipped.append(len(record.clipped))
        for fault in record.faults:
            kind = fault_kind(fault)
            known = kind in self._faults or len(self._faults) < MAX_FAULT_KINDS
            self._faults.setdefault(kind if known else OTHER_FAULTS, array("q")).append(len(self._schedules) - 1)

    def run(self, folder: Path | None, config: Config, manifest: Mapping[str, Any]) -> RunNumbers:
        """All rounds that were taken in."""
        return RunNumbers(
            folder=folder,
            config=config,
            manifest=manifest,
            schedules=np.array(self._schedules, dtype=object),
            why_nobody=np.array(self._why_nobody, dtype=object),
            available=_indices(self._available),
            of_round={name: _floats(column) for name, column in self._of_round.items()},
            num_selected=_indices(self._num_selected),
            selected=_indices(self._selected),
            of_selected={name: _floats(column) for name, column in self._of_selected.items()},
            num_sent=_indices(self._num_sent),
            sent=_indices(self._sent),
            payload_bits=_floats(self._payload_bits),
            age=_floats(self._age),
            probe_energy_j=_floats(self._probe_energy_j),
            num_late=_indices(self._num_late),
            num_clipped=_indices(self._num_clipped),
            faults={kind: _indices(rounds) for kind, rounds in self._faults.items()},
        )


def fault_kind(fault: Mapping[str, Any]) -> str:
    """When a node failed and why, without what differs from time to time."""
    parts = (str(fault.get(name) or "") for name in ("when", "why"))
    return without_numbers(one_line(": ".join(part for part in parts if part))[:200]) or "unknown"


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _indices(values: Iterable[int]) -> Indices:
    return np.array(values, dtype=np.intp)
