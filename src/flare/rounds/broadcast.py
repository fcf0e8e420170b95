"""From the base station to the devices: what reaches them of what it broadcasts, where that is coded.

    MODEL             Q(w): where the selected devices start. The base station keeps w, and adds to it what they send
    COMMON_GRADIENT   Q(mean gradient), where the method sends that, too (FedLin)
    COMMON_CONTROL    Q(c), where it sends its control variate (SCAFFOLD); devices step and send by what they received

The codec is that of `wireless.downlink_codec`. It codes the vector itself, not its change: other devices are selected
every round, and what they received last is not known. All selected devices receive the same, so that there is one key
for each part and round. Without a codec everything arrives as it is, whether its time counts or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from flare.learning.job import LocalRule
from flare.rounds.base_station import BaseStation
from flare.rounds.coding import Incoming, Outgoing, control_of, transmit
from flare.rounds.residuals import Part

if TYPE_CHECKING:
    from flare.rounds.plan import Plan

_EVERYBODY = 0  # whom a broadcast is to, where others name a device


def outgoing_model(station: BaseStation, plan: Plan) -> list[Outgoing]:
    """The global weights, where they are coded and somebody is to receive them; otherwise nothing."""
    if not station.codes_broadcast or len(plan.receivers) == 0:
        return []
    return [_outgoing(station, plan.index, Part.MODEL, plan.now.weights)]


def heard_model(station: BaseStation, index: int, weights: Tensor) -> Tensor:
    """The global weights of round `index` as they reach devices: the same whenever they are broadcast in the round."""
    return _heard(station, index, Part.MODEL, weights) if station.codes_broadcast else weights


def with_model(plan: Plan, heard: Sequence[Incoming]) -> Plan:
    """The plan with the weights as they reached the devices."""
    return replace(plan, start=heard[0].vectors[_EVERYBODY]) if heard else plan


def heard_gradient(station: BaseStation, index: int, common: Tensor) -> Tensor:
    """The mean gradient of round `index` as it reaches the devices."""
    if not station.codes_broadcast:
        return common
    return _heard(station, index, Part.COMMON_GRADIENT, common).to(common)


def heard_control(station: BaseStation, index: int, rules: Sequence[LocalRule]) -> list[LocalRule]:
    """The rules of round `index` with the control variate as it reaches the devices, also in their drift."""
    if not (station.codes_broadcast and station.method.sends_control and rules):
        return list(rules)
    control = control_of(station, rules[0])  # the same for all: it is the base station's
    heard = _heard(station, index, Part.COMMON_CONTROL, control)
    return [
        replace(rule, control=heard, drift=None if rule.drift is None else rule.drift + (heard - control))
        for rule in rules
    ]


def _heard(station: BaseStation, index: int, part: Part, vector: Tensor) -> Tensor:
    return transmit([_outgoing(station, index, part, vector)])[0].vectors[_EVERYBODY]


def _outgoing(station: BaseStation, index: int, part: Part, vector: Tensor) -> Outgoing:
    return Outgoing(station, index, part, {_EVERYBODY: vector})
