"""A state read back from a checkpoint, held against the run that it is to continue.

A checksum tells that a file is as it was written, not that flare wrote it: a checkpoint may have been edited and its
checksum put right. What cannot be the state of this run is a ValueError here, which says what, and not an error of
some round later on or a residual that is silently gone. Of a method or policy that is a user's own only what holds for
all of them is known: the shapes of what it keeps are its own affair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flare.learning.job import all_finite
from flare.learning.methods.base import MethodState
from flare.rounds.asynchrony import ARRAYS, FREE, Underway
from flare.rounds.base_station import BaseStation
from flare.rounds.identity import is_own_method, own_code
from flare.rounds.memory import PolicyMemory
from flare.rounds.residuals import Part
from flare.rounds.state import RunState, RunStatus, from_tensors
from flare.scheduling import POLICIES
from flare.scheduling.history import History
from flare.scheduling.registry import OF_DEVICES
from flare.types import Floats, Indices

_LARGEST, _SMALLEST = float(np.finfo(np.float64).max), float(np.finfo(np.float64).tiny)


def restored_state(
    station: BaseStation, rounds_done: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], *, fleet: bool
) -> RunState:
    """The state in a checkpoint; ValueError where it cannot be one of this run.

    `fleet`: devices are nodes, which may become more from round to round and keep themselves what they hold back.
    """
    state = from_tensors(rounds_done, tensors, numbers)
    if not 0.0 <= state.clock_s < math.inf:
        raise ValueError(f"its clock_s is {state.clock_s:g}; it must be a number of seconds")
    _refuse_weights(station, state)
    _refuse_history(station, state.history, tensors, fleet=fleet)
    _refuse_method(station, state.method, state.history.num_devices)
    _refuse_memory(station, state.memory, state.history.num_devices)
    _refuse_residuals(station, state, fleet=fleet)
    _refuse_underway(station, state)
    return state


def _refuse_weights(station: BaseStation, state: RunState) -> None:
    weights = state.weights
    if weights.shape != (station.num_weights,) or not weights.is_floating_point():
        raise ValueError(f"its weights are {_kind(weights)}; the model has {station.num_weights} numbers")
    if state.status is not RunStatus.DIVERGED and not all_finite(weights):
        raise ValueError(f'its weights are not all finite, and its status is "{state.status.value}"')


def _refuse_history(station: BaseStation, history: History, tensors: Mapping[str, Tensor], *, fleet: bool) -> None:
    for name, tensor in tensors.items():
        if name.startswith("history.") and tensor.dtype != torch.float64:
            raise ValueError(f"its {name} is {_kind(tensor)}; it must be of float64")
    num_devices = station.config.wireless.num_devices
    if not fleet and history.num_devices != num_devices:
        raise ValueError(f"its history is of {history.num_devices} devices; the run has {num_devices}")
    for names, least, most, may_be_unknown in _OF_HISTORY:
        for name in names:
            _refuse_numbers(f"history.{name}", getattr(history, name), least, most, may_be_unknown=may_be_unknown)


_OF_HISTORY = (  # names, the least and the greatest that they can be, and whether nan stands for what is not known
    (("times_sent", "energy_j", "age"), 0.0, _LARGEST, False),
    (("rounds_since_sent",), 1.0, math.inf, False),
    (("compute_s", "upload_s", "num_samples"), 0.0, _LARGEST, True),
    (("update_norm", "mean_squared_loss"), 0.0, math.inf, True),  # infinite when the run has diverged
)


def _refuse_numbers(
    name: str, numbers: Floats | Indices, least: float, most: float, *, may_be_unknown: bool = False
) -> None:
    """ValueError where one of the numbers of a state cannot be one of a run."""
    odd = ~((numbers >= least) & (numbers <= most))
    if may_be_unknown:
        odd &= ~np.isnan(numbers)
    if odd.any():
        limits = "greater than 0" if least == _SMALLEST else f"{least:g} or more"
        limits = limits if math.isinf(most) else f"a finite number, {limits}"
        raise ValueError(f"its {name} has {numbers[odd][0]:g}; it must be {limits}")


def _refuse_method(station: BaseStation, state: MethodState, num_devices: int) -> None:
    method = station.method
    if is_own_method(method):
        return
    expected, one_more = (method.start(station.num_weights, few) for few in (0, 1))  # for all it may take much room
    if state.keys() != expected.keys():
        has, must = (", ".join(sorted(each)) or "nothing" for each in (state, expected))
        raise ValueError(f"its method keeps {has}; method '{station.config.learning.method}' keeps {must}")
    for name, none in expected.items():
        shape = [n + num_devices * (m - n) for n, m in zip(none.shape, one_more[name].shape, strict=True)]
        if list(state[name].shape) != shape or state[name].dtype != none.dtype:
            must = f"{_dtype(none)} {tuple(shape)}"
            raise ValueError(f"its method.{name} is {_kind(state[name])}; it must be {must}")


def _refuse_memory(station: BaseStation, memory: PolicyMemory, num_devices: int) -> None:
    plain = not own_code(POLICIES.find(station.config.scheduling.policy).function)
    of_devices = {name for name in memory.arrays if name.startswith(OF_DEVICES)}
    if memory.known.keys() != of_devices:
        odd = ", ".join(sorted(memory.known.keys() ^ of_devices))
        raise ValueError(f"its memory of the policy does not say of which devices it knows {odd}")
    for name, array in memory.arrays.items():
        known = memory.known.get(name)
        if known is not None and (known.dtype != np.bool_ or known.ndim != 1 or not len(known) <= num_devices):
            raise ValueError(f"its memory_known.{name} has shape {known.shape}, and there are {num_devices} devices")
        if known is not None and array.shape[:1] != known.shape:
            raise ValueError(f"its memory.{name} has shape {array.shape}; it must have {len(known)} rows")
        if plain and array.dtype.kind == "f" and array.ndim < 2:
            _refuse_numbers(f"memory.{name}", array[known] if known is not None else array.reshape(-1), 0.0, _LARGEST)
        if plain and array.ndim > 1:
            raise ValueError(f"its memory.{name} has shape {array.shape}, which no policy of flare gives it")


def _refuse_residuals(station: BaseStation, state: RunState, *, fleet: bool) -> None:
    """What devices hold back: of each part that they send with error feedback, of every device that has sent."""
    expected = set()
    if station.codes and station.codec.error_feedback and not fleet:
        expected = {Part.UPDATE, Part.GRADIENT} if station.method.needs_gradients else {Part.UPDATE}
    if not state.residuals.rows.keys() <= expected:
        odd = ", ".join(part.word for part in sorted(state.residuals.rows.keys() - expected))
        raise ValueError(f"it has what devices hold back of {odd}, of which nothing is held back in this run")
    history = state.history
    has_sent = np.flatnonzero((history.times_sent > 0.0) & ~np.isnan(history.update_norm)).tolist()
    for part in sorted(expected):
        rows = state.residuals.of(part)
        _refuse_rows(part, rows, station.num_weights, history.num_devices)
        missing = [device for device in has_sent if device not in rows]
        if missing and state.status is not RunStatus.DIVERGED:  # of what is not finite nothing is held back
            raise ValueError(
                f"it lacks uplink.{part.word} of device {missing[0]}, which has sent: what it held back is lost"
            )


def _refuse_rows(part: Part, rows: Mapping[int, Tensor], num_weights: int, num_devices: int) -> None:
    for device, row in rows.items():
        if not 0 <= device < num_devices:
            raise ValueError(
                f"its uplink.{part.word} is of device {device}; the run has devices 0 to {num_devices - 1}"
            )
        if row.shape != (num_weights,) or row.dtype != torch.float32:
            raise ValueError(f"a row of its uplink.{part.word} is {_kind(row)}; it must be float32 ({num_weights},)")
        if not all_finite(row):
            raise ValueError(f"its uplink.{part.word} of device {device} has numbers that are not finite")


def _refuse_underway(station: BaseStation, state: RunState) -> None:
    """What devices compute across rounds: there where they do, one entry for each device, and no model missing. Before
    the first round, and where no device has been there yet, nobody has begun."""
    underway, num_devices = state.underway, state.history.num_devices
    begun = state.rounds_done > 0 and num_devices > 0
    if underway is None and not begun:
        return
    if (underway is not None) != station.asynchronous:
        does = "compute across rounds" if station.asynchronous else "begin anew every round"
        raise ValueError(f"it has {'something' if underway else 'nothing'} that is under way, and its devices {does}")
    if underway is None:
        return
    like = Underway.nobody(num_devices)
    for name in ARRAYS:
        array, must = getattr(underway, name), getattr(like, name)
        if array.shape != must.shape or array.dtype != must.dtype or not np.isfinite(array).all():
            raise ValueError(f"its underway.{name} is {array.dtype} {array.shape}; it must be finite {must.dtype}")
        _refuse_numbers(f"underway.{name}", array, FREE if name == "began" else 0.0, _LARGEST)
    computing = underway.began != FREE
    for name, least in (("lr", _SMALLEST), ("steps", 1.0), ("tau", _SMALLEST)):
        _refuse_numbers(f"underway.{name}", getattr(underway, name)[computing], least, _LARGEST)
    busy = set(underway.began.tolist()) - {FREE}
    if not busy <= set(range(state.rounds_done)) or (underway.models and busy != underway.models.keys()):
        raise ValueError("its devices compute from models that it does not have")
    _refuse_longer(state, underway, np.flatnonzero(computing))
    for number, model in underway.models.items():
        if model.shape != (station.num_weights,) or model.dtype != torch.float32:
            raise ValueError(f"its underway model of round {number} is {_kind(model)}; it must be float32")


def _refuse_longer(state: RunState, underway: Underway, computing: Indices) -> None:
    """ValueError where a device has more left than it had to compute, or is older than the rounds since it began."""
    if (underway.left_s > underway.compute_s)[computing].any():
        raise ValueError("its underway.left_s is more than underway.compute_s: more is left than there was to compute")
    if (underway.age > state.rounds_done - underway.began)[computing].any():
        raise ValueError("its underway.age is more than the rounds since its device received a model")


def _kind(tensor: Tensor) -> str:
    return f"{_dtype(tensor)} {tuple(tensor.shape)}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
