"""A run as two tables, columns by name: one row a round, and one row a round and device.

Columns are numpy arrays of one length, nan where there is no number; texts are arrays of str objects. Nothing here
needs pandas, so that `flare export` does not either.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.config import OTA
from flare.records.run import RunNumbers
from flare.rounds import RoundRecord
from flare.rounds.record import OF_SELECTED, OF_SENT
from flare.simulation.redraw import Redraw, Redrawn
from flare.text import one_line, printable

Columns = dict[str, NDArray[Any]]

NOT_KNOWN = "not known"
"""Why a device was left out, where the round cannot be drawn again."""
LOST = "its update was lost on the way"
"""Why nothing of a selected device arrived."""
_NOTHING_IF_IDLE = ("bandwidth_hz", "compute_energy_j", "upload_energy_j")


class NotRedrawn(UserWarning):
    """Rounds of a run cannot be drawn again, so that its table of devices has gaps."""


def round_columns(numbers: RunNumbers) -> Columns:
    """One row a round."""
    return {
        "round": np.arange(numbers.num_rounds, dtype=np.int64),
        "status": numbers.schedules,
        "available": numbers.available.astype(np.int64),
        **numbers.of_round,
        "num_selected": numbers.num_selected.astype(np.int64),
        "num_sent": numbers.num_sent.astype(np.int64),
        "mean_tau": numbers.round_mean("tau"),
        "mean_age": numbers.round_mean_age(),
        "energy_j": numbers.round_energy_j(),
        "payload_bits": numbers.round_sent_bits(),  # the public name of the column: control traffic is in it
        "gap": numbers.gap(),
        "num_faults": numbers.num_faults.astype(np.int64),
        "why_nobody": numbers.why_nobody,
    }


def texts(values: Sequence[str]) -> NDArray[Any]:
    """A column of texts."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def device_columns(records: Iterable[RoundRecord], numbers: RunNumbers) -> tuple[Columns, str]:
    """One row a round and device, those that were not selected too; and what is not known, empty where all is."""
    redraw, why_not = _redraw_of(numbers)
    rounds, failed = [], 0
    for record in records:
        redrawn, why = _redrawn(redraw, record)
        failed, why_not = failed + (redrawn is None), why_not or why
        rounds.append(_of_devices(record, numbers.num_devices, redrawn))
        if numbers.config.uplink.air == OTA:  # all send at once, when the slowest has computed
            finished_s = _spread(record.selected, [record.latency_s] * len(record.selected), numbers.num_devices)
            rounds[-1]["finish_s"] = finished_s
    if not rounds:
        empty = RoundRecord(-1, "", 0, [], [], None, [], [], [], [], None, 0.0, None, None, 0.0, [], [], None, None)
        rounds = [{name: column[:0] for name, column in _of_devices(empty, numbers.num_devices, None).items()}]
    untold = f"{failed} of {numbers.num_rounds} rounds cannot be drawn again ({why_not})" if failed else ""
    return stacked(rounds), untold


def _redraw_of(numbers: RunNumbers) -> tuple[Redraw | None, str]:
    """What draws the rounds, or why nothing does: of a fleet, of an older flare, of a method that is not at hand."""
    try:
        return Redraw(numbers.config, numbers.manifest), ""
    except (ValueError, OSError) as error:
        return None, one_line(str(error))


def _redrawn(redraw: Redraw | None, record: RoundRecord) -> tuple[Redrawn | None, str]:
    if redraw is None:
        return None, ""
    try:
        return redraw.round(record), ""
    except ValueError as error:
        return None, one_line(str(error))


def warn_untold(untold: Mapping[str, str]) -> None:
    """A warning for each thing that is not known, with the first of the runs, by name, of which it is not."""
    runs_of: dict[str, list[str]] = {}
    for name, words in untold.items():
        if words:
            runs_of.setdefault(words, []).append(name)
    for words, names in runs_of.items():
        more = f" and {len(names) - 1} more run{'s' if len(names) > 2 else ''}" if len(names) > 1 else ""
        warnings.warn(
            f"{printable(names[0])}{more}: {words}; why their devices were left out is not known",
            NotRedrawn,
            stacklevel=4,
        )


def _of_devices(record: RoundRecord, num_devices: int, redrawn: Redrawn | None) -> Columns:
    """The rows of one round."""
    told = (record.selected, record.sent, record.lost, record.clipped, record.late)
    selected, sent, lost, clipped, late = (np.isin(np.arange(num_devices), each) for each in told)
    of_selected = {name: _spread(record.selected, getattr(record, name), num_devices) for name in OF_SELECTED}
    of_sent = {name: _spread(record.sent, getattr(record, name), num_devices) for name in OF_SENT}
    idle = {name: np.where(selected, of_selected[name], 0.0) for name in _NOTHING_IF_IDLE}
    before, unknown = _energy_before(record, num_devices), np.full(num_devices, np.nan)
    if redrawn is None:
        why = ["" if each else NOT_KNOWN for each in selected]
        change, tau, compute_s = unknown, of_selected["tau"], of_selected["compute_s"]
        gain_db = cpu_hz = power_w = unknown
    else:
        why = [str(each or "") for each in redrawn.detail.why]
        change = redrawn.detail.objective_change
        tau, compute_s = redrawn.problem.tau, np.where(selected, of_selected["compute_s"], redrawn.problem.compute_s)
        gain_db, cpu_hz, power_w = redrawn.cell.gain_db, redrawn.cell.cpu_hz, redrawn.cell.power_w
    why = [LOST if gone else each for each, gone in zip(why, lost, strict=True)]
    if record.cpu_hz:
        cpu_hz = np.where(selected, _spread(record.selected, record.cpu_hz, num_devices), cpu_hz)
    if record.power_w:
        power_w = np.where(selected, _spread(record.selected, record.power_w, num_devices), power_w)
    return {
        "round": np.full(num_devices, record.round, dtype=np.int64),
        "device": np.arange(num_devices, dtype=np.int64),
        "selected": selected,
        "sent": sent,
        "lost": lost,
        "clipped": clipped,
        "late": late,
        "why_left_out": texts(why),
        "objective_change": change,
        "tau": tau,
        "lr": of_selected["lr"],
        **of_sent,
        "update_weight": _of_selected_or_not(record, record.weights, num_devices),
        "error_rate": _of_selected_or_not(record, record.error_rate, num_devices),
        "age": _spread(record.sent, record.age or [0] * len(record.sent), num_devices),
        "broadcast_s": np.where(selected, record.broadcast_s, np.nan),
        "compute_s": compute_s,
        "upload_s": of_selected["upload_s"],
        "finish_s": of_selected["compute_s"] + of_selected["upload_s"],
        **_measured(record, num_devices),
        "bandwidth_hz": idle["bandwidth_hz"],
        "compute_energy_j": idle["compute_energy_j"],
        "upload_energy_j": idle["upload_energy_j"],
        **before,
        "energy_j": idle["compute_energy_j"] + idle["upload_energy_j"] + sum(before.values()),
        "gain_db": gain_db,
        "cpu_hz": cpu_hz,
        "power_w": power_w,
    }


def _measured(record: RoundRecord, num_devices: int) -> Columns:
    """What real devices measured; nan in a simulation."""
    of_sent = {name: getattr(record, name) for name in ("measured_compute_s", "measured_upload_s")}
    of_selected = {name: getattr(record, name) for name in ("samples_per_s", "speed_spread")}
    return {
        **{name: _spread(record.sent if values else (), values, num_devices) for name, values in of_sent.items()},
        **{name: _of_selected_or_not(record, values, num_devices) for name, values in of_selected.items()},
    }


def _of_selected_or_not(record: RoundRecord, values: Sequence[float | None], num_devices: int) -> NDArray[np.float64]:
    """Values of the selected devices over all, where the policy set them; nan otherwise."""
    return _spread(record.selected if values else (), values, num_devices)


def _energy_before(record: RoundRecord, num_devices: int) -> Columns:
    """What each device spent before the selection: on its answer to the policy, and its part of the policy's trials, of
    which only the sum is known."""
    asked_j = np.nan_to_num(_spread(record.probed, record.probe_energy_j, num_devices), nan=0.0)
    return {
        "probe_energy_j": asked_j,
        "pilot_energy_j": np.full(num_devices, record.pilot_energy_j / max(num_devices, 1)),
    }


def _spread(devices: Sequence[int], values: Sequence[float | None], num_devices: int) -> NDArray[np.float64]:
    """Values of some devices over all of them, nan for the others."""
    column = np.full(num_devices, np.nan)
    column[list(devices)] = [np.nan if value is None else value for value in values]
    return column


def stacked(tables: Sequence[Mapping[str, NDArray[Any]]]) -> Columns:
    """Tables of the same columns, one below the other."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def with_constants(constants: Mapping[str, str | int], columns: Columns) -> Columns:
    """A table with columns before its own that have one value in every row."""
    rows = len(next(iter(columns.values())))
    first = {
        name: texts([value] * rows) if isinstance(value, str) else np.full(rows, value, dtype=np.int64)
        for name, value in constants.items()
    }
    return first | columns
