"""What is written down of a round: one typed description, which every reader of runs goes by."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final


@final
@dataclass(frozen=True)
class RoundRecord:
    """A round of a run. Numbers that there are not are None; devices are counted from 0 over the whole run.

    Lists from `tau` to `upload_energy_j` have a value for each selected device, in their order; `loss`, `update_norm`
    and `payload_bits` one for each device that sent, in the order of `sent`. In a simulation all selected devices send,
    but for those whose update is `lost`. `weights`, `error_rate`, `cpu_hz` and `power_w` have one for each selected
    device where the policy set them, `samples_per_s` and `speed_spread` where devices measured, and are empty
    otherwise. `measured_compute_s` and `measured_upload_s` have one for each device that sent, or none at all.
    `probe_energy_j` has one for each of the devices `probed`, and `node_accuracy` one for each of those `tested`.

    Where devices compute across rounds, `tau` and energy are those of the whole update, `compute_s` is what was left of
    its computing when the round began, and `tau_bar` is that of the selected devices, not of those that received a
    model together. `latency_s` of a policy that is periodic is its period.
    """

    round: int  # counted from 0
    status: str  # of the schedule: optimal, feasible, infeasible
    available: int  # devices that reported
    selected: list[int]
    tau: list[float]
    tau_bar: float | None
    lr: list[float | None]  # None where nothing was trained
    bandwidth_hz: list[float]
    compute_s: list[float]
    upload_s: list[float]
    latency_s: float | None  # until the last selected device has finished, since the model had reached them
    deadline_s: float
    gamma: float | None
    smoothness: float | None  # L, where a setting goes by it
    clock_s: float  # simulated time when the round was over
    compute_energy_j: list[float]
    upload_energy_j: list[float]
    objective: float | None
    lower_bound: float | None
    sent: list[int] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    update_norm: list[float | None] = field(default_factory=list)  # the device's own, before it was coded or added up
    payload_bits: list[float | None] = field(default_factory=list)  # what each sent; None in records of older versions
    noise_std: float | None = None  # of each weight of the mean that was received over the air
    broadcast_s: float = 0.0  # how long the model was broadcast, before the deadline began; 0: not counted
    downlink_bits: float = 0.0  # what was broadcast then
    age: list[int] = field(default_factory=list)  # of what each sent: steps of the model since; empty: all fresh
    weights: list[float] = field(default_factory=list)  # of the selected devices' updates; empty: the mean
    error_rate: list[float] = field(default_factory=list)  # of the selected devices' packets; empty: none is lost
    pilot_s: float = 0.0  # what trials of the policy took before the round; 0: there were none
    pilot_energy_j: float = 0.0  # what all devices together spent in them
    lost: list[int] = field(default_factory=list)  # selected devices whose update was lost on the way
    cpu_hz: list[float] = field(default_factory=list)  # the speed that each selected device computed at
    power_w: list[float] = field(default_factory=list)  # the power that it sent with
    shared_s: float = 0.0  # of the first round: how long data that devices share were sent before it; 0: there are none
    shared_bits: float = 0.0  # what was sent then
    probed: list[int] = field(default_factory=list)  # devices that were asked before the selection
    probe_s: float = 0.0  # how long that took, before the broadcast and the deadline
    probe_energy_j: list[float] = field(default_factory=list)  # what it cost each of them
    question_bits: float = 0.0  # what was broadcast then: the model, where broadcasts count
    control_bits: float | None = 0.0  # what all devices sent in answers and trials; None: an older version did not say
    train_loss: float | None = None  # the mean over those that sent
    test_accuracy: float | None = None
    test_loss: float | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)  # of nodes: which, when, why
    wall_s: float | None = None  # real time that the round took
    why_nobody: str = ""  # why nobody was selected, and what would help; "": somebody was, or it was not written down
    measured_compute_s: list[float | None] = field(default_factory=list)  # of what sent, on real devices
    measured_upload_s: list[float | None] = field(default_factory=list)  # None: too short to be told from the rest
    samples_per_s: list[float | None] = field(default_factory=list)  # the speed that each selected device measured
    speed_spread: list[float | None] = field(default_factory=list)  # standard deviation of its steps over their mean
    real_deadline_s: float | None = None  # after which the round ended in real time, whoever had answered; None: none
    late: list[int] = field(default_factory=list)  # selected devices of whom nothing was there at the real deadline
    came_late: list[dict[str, Any]] = field(default_factory=list)  # updates of earlier rounds, too late: device, round
    tested: list[int] = field(default_factory=list)  # devices that tested the new model on their own data
    node_accuracy: list[float | None] = field(default_factory=list)  # what each of them found
    node_accuracy_mean: float | None = None  # over them
    node_accuracy_std: float | None = None  # how far they are apart, each counting once
    node_loss_mean: float | None = None
    node_loss_std: float | None = None
    clipped: list[int] = field(default_factory=list)  # devices whose update was too long, and shortened
    norm_limit: float | None = None  # the greatest length of an update that was believed; None: any

    def that_took(self, wall_s: float) -> RoundRecord:
        """The record of a round that took so much real time; a copy, since `replace` would check all of it again."""
        timed = copy.copy(self)
        object.__setattr__(timed, "wall_s", wall_s)
        return timed

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> RoundRecord:
        """From a JSON object; ValueError says what is missing or wrong. Unknown keys are left out; what older versions
        did not write is not known, beside what they did not have or count."""
        told = {**_NOT_COUNTED, **told}
        if "payload_bits" not in told and isinstance(told.get("sent"), list):
            told["payload_bits"] = [None] * len(told["sent"])
        if "control_bits" not in told:
            told["control_bits"] = None if told.get("probed") or told["pilot_s"] else 0.0
        for name in _NULL_OF_OLD:
            told.setdefault(name)
        for name in _EMPTY_OF_OLD:
            if name not in told:
                told[name] = []
        told.setdefault("why_nobody", "")
        for name, of_list, types, limit in _CHECKED:
            if name not in told:
                raise ValueError(f"has no {name}")
            value = told[name]
            if of_list:
                if not isinstance(value, list) or not (found := set(map(type, value))) <= types:
                    raise ValueError(f"has {name} = {str(value)[:40]}, which is no {_WORDS[_KINDS[name]]}")
                # Only whole numbers can be too large: of most lists no value need be looked at.
                too_large = int in found and any(type(each) is int and abs(each) >= limit for each in value)
            else:
                if type(value) not in types:
                    raise ValueError(f"has {name} = {str(value)[:40]}, which is no {_WORDS[_KINDS[name]]}")
                too_large = type(value) is int and abs(value) >= limit
            if too_large:
                raise ValueError(f"has {name} = {str(value)[:40]}..., which is too large")
        for names, of, may_be_empty in _OF_DEVICES:
            number = len(told[of])
            for name in names:
                if len(told[name]) != number and (told[name] or not may_be_empty):
                    raise ValueError(f"has {len(told[name])} values of {name} for {number} devices {of}")
        _refuse_odd(told)
        return cls(**{name: told[name] for name in _NAMES})


def _refuse_odd(told: Mapping[str, Any]) -> None:
    """ValueError where something in a record cannot have happened in a round."""
    for name in ("selected", "sent", "tested"):
        if len(set(told[name])) < len(told[name]):
            raise ValueError(f"names a device twice in {name}")
    if told["control_bits"] is not None and not 0.0 <= told["control_bits"] < math.inf:
        raise ValueError(f"has control_bits = {told['control_bits']:g}, which must be finite and not negative")
    for what in ("node_accuracy", "node_loss"):
        mean, std = (told[f"{what}_{part}"] for part in ("mean", "std"))
        if (mean is None) != (std is None):
            raise ValueError(f"has one of {what}_mean and {what}_std, and must have both or none")
        if mean is not None and not told["tested"]:
            raise ValueError(f"has {what}_mean, but nobody in tested")
        if std is not None and std < 0.0:
            raise ValueError(f"has {what}_std = {std:g}, which must not be negative")
    for accuracy in (told["node_accuracy_mean"], *told["node_accuracy"]):
        if accuracy is not None and not 0.0 <= accuracy <= 1.0:
            raise ValueError(f"has an accuracy of {accuracy:g} on nodes, which must be from 0 to 1")


_NOT_COUNTED = dict.fromkeys(
    (
        "broadcast_s",
        "downlink_bits",
        "pilot_s",
        "pilot_energy_j",
        "shared_s",
        "shared_bits",
        "probe_s",
        "question_bits",
    ),
    0.0,
)
"""What records of older versions do not have, as it did not count then."""
_NAMES = tuple(each.name for each in fields(RoundRecord))
OF_SELECTED = ("tau", "lr", "bandwidth_hz", "compute_s", "upload_s", "compute_energy_j", "upload_energy_j")
"""The lists with a value for each selected device."""
OF_SELECTED_OR_EMPTY = ("weights", "error_rate", "cpu_hz", "power_w", "samples_per_s", "speed_spread")
"""The lists with a value for each selected device, or none at all."""
OF_SENT = ("loss", "update_norm", "payload_bits")
"""The lists with a value for each device that sent."""
OF_SENT_OR_EMPTY = ("age", "measured_compute_s", "measured_upload_s")
"""The lists with a value for each device that sent, or none at all."""
OF_NODES = ("node_accuracy_mean", "node_accuracy_std", "node_loss_mean", "node_loss_std")
"""What the nodes found that tested the model, together."""
_KINDS = {each.name: str(each.type) for each in fields(RoundRecord)}
OF_ROUND = tuple(name for name, kind in _KINDS.items() if kind in ("float", "float | None"))
"""The numbers of a round that may have a fraction."""
_WORDS = {
    "int": "whole number",
    "float": "number",
    "float | None": "number or null",
    "str": "text",
    "list[int]": "list of whole numbers",
    "list[float]": "list of numbers",
    "list[float | None]": "list of numbers or nulls",
    "list[dict[str, Any]]": "list of objects",
}
_TYPES: dict[str, frozenset[type]] = {  # of what json reads: bool is no int
    "int": frozenset({int}),
    "float": frozenset({int, float}),
    "float | None": frozenset({int, float, type(None)}),
    "str": frozenset({str}),
    "dict[str, Any]": frozenset({dict}),
}

_TOO_LARGE = {"int": 2**63, "list[int]": 2**63}
_TOO_LARGE_FOR_FLOAT = 2**1023
"""A whole number from here on cannot stand for a number with a fraction."""
_CHECKED = tuple(
    (name, of_list, _TYPES[kind[5:-1] if of_list else kind], _TOO_LARGE.get(kind, _TOO_LARGE_FOR_FLOAT))
    for name, kind in _KINDS.items()
    for of_list in [kind.startswith("list[")]
)
"""Of every field: its name, whether it is a list, the types of its value or values, and which are too large."""
_NULL_OF_OLD = ("noise_std", "real_deadline_s", *OF_NODES, "norm_limit")
_EMPTY_OF_OLD = (
    *("lost", "late", "came_late", "tested", "node_accuracy", "probed", "probe_energy_j", "clipped"),
    *(OF_SELECTED_OR_EMPTY + OF_SENT_OR_EMPTY),
)
"""What records of older versions do not have: it is null, or a list of nothing."""
_OF_DEVICES = (
    (OF_SELECTED, "selected", False),
    (OF_SELECTED_OR_EMPTY, "selected", True),
    (OF_SENT, "sent", False),
    (OF_SENT_OR_EMPTY, "sent", True),
    (("probe_energy_j",), "probed", False),
    (("node_accuracy",), "tested", False),
)
"""Lists with a value for each device of another list; whether they may be empty."""
