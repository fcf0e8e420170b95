"""How what the base station knows of each device grows with every round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flare.config import DataConfig
from flare.rounds.observation import Observation
from flare.scheduling.history import History
from flare.types import Floats, Indices


class Told(NamedTuple):
    """What the base station knows of an update, which is kept when the update itself is forgotten."""

    loss: float = math.nan
    squared_loss: float = math.nan
    norm: float = math.nan
    sketch: Floats | None = None


def known_of(data: DataConfig, sent: Mapping[int, Told]) -> dict[int, Told]:
    """What the base station may know of the updates that arrived: their losses only where devices share them. The norm
    it computes itself, of what it decoded."""
    if data.share_losses:
        return dict(sent)
    return {device: Told(norm=each.norm, sketch=each.sketch) for device, each in sent.items()}


def informed(history: History, seen: Observation) -> History:
    """The history of all devices, newcomers included, with what the present ones say of their data."""
    if history.num_devices < seen.num_devices:
        empty, known = History.empty(seen.num_devices), history.num_devices
        grown = {name: np.append(getattr(history, name), getattr(empty, name)[known:]) for name in _BY_DEVICE}
        history = history.with_rows(**grown, sketch=_grown(history.sketch, seen))
    if seen.label_counts is None and history.num_samples.tobytes() == seen.num_samples.tobytes():
        return history  # all are there, and nothing is new
    num_samples, told = history.num_samples.copy(), ~np.isnan(seen.num_samples)
    num_samples[seen.devices[told]] = seen.num_samples[told]
    return history.with_rows(num_samples=num_samples, label_counts=_labels(history.label_counts, seen))


def after_round(
    history: History, sent: Mapping[int, Told], *, compute_s: Floats, upload_s: Floats, energy_j: Floats
) -> History:
    """The history when the devices in `sent` have sent; times and energy of theirs, in the order of `sent`."""
    if not sent:
        return history.with_rows(rounds_since_sent=history.rounds_since_sent + 1.0)
    new = {name: getattr(history, name).copy() for name in _BY_UPDATE}
    new["rounds_since_sent"] += 1.0
    devices, updates = np.array(list(sent)), list(sent.values())
    new["times_sent"][devices] += 1.0
    new["rounds_since_sent"][devices] = 1.0
    new["last_loss"][devices] = [each.loss for each in updates]
    new["mean_squared_loss"][devices] = [each.squared_loss for each in updates]
    new["update_norm"][devices] = [each.norm for each in updates]
    new["compute_s"][devices] = compute_s
    new["upload_s"][devices] = upload_s
    new["energy_j"][devices] += energy_j
    new |= _sketches(history, devices, [each.sketch for each in updates])
    return history.with_rows(**new)


def with_energy(history: History, devices: Indices, energy_j: Floats) -> History:
    """The history when devices have spent energy, and nothing of theirs has arrived."""
    if len(devices) == 0:
        return history
    spent_j = history.energy_j.copy()
    spent_j[devices] += energy_j
    return history.with_rows(energy_j=spent_j)


_BY_UPDATE = (
    "times_sent", "rounds_since_sent", "last_loss", "mean_squared_loss", "update_norm", "compute_s", "upload_s",
    "energy_j",
)  # fmt: skip
_BY_DEVICE = (*_BY_UPDATE, "num_samples", "age")


def _sketches(history: History, devices: Indices, heard: list[Floats | None]) -> dict[str, Floats]:
    """The sketches of all devices with those of the ones that were heard, where the base station makes some."""
    made = [each for each in heard if each is not None]
    if not made:
        return {}
    empty = np.full((history.num_devices, len(made[0])), np.nan)
    table = empty if history.sketch is None else history.sketch.copy()
    table[devices] = made
    return {"sketch": table}


def _grown(table: Floats | None, seen: Observation) -> Floats | None:
    """A table with rows of nan for newcomers."""
    if table is None:
        return None
    new = np.full((seen.num_devices - len(table), table.shape[1]), np.nan)
    return np.concatenate((table, new))


def _labels(known: Floats | None, seen: Observation) -> Floats | None:
    """The counts of the labels, where the devices share them; 0 of one that has never been there."""
    told = known if seen.label_counts is None else seen.label_counts
    if told is None:
        return None
    labels = told.shape[1] if known is None else max(known.shape[1], told.shape[1])  # one may be new to all
    counts = np.zeros((seen.num_devices, labels))
    if known is not None:
        counts[: len(known), : known.shape[1]] = known
    if seen.label_counts is not None:
        counts[seen.devices] = 0.0
        counts[seen.devices, : told.shape[1]] = seen.label_counts
    held = np.flatnonzero(counts.any(axis=0))
    return counts[:, : held[-1] + 1] if len(held) else counts  # labels that nobody holds any more, at the end, go
