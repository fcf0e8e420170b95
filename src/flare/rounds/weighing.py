"""How much the update of each device counts, and which updates are lost on the way: what a policy may say of those
that it selected (`flare.scheduling.Choice`).

An update that is lost changes nothing: the device has computed and sent, which took its time and energy, is told that
nothing arrived and drops it, with what it would have held back or kept of it. So nothing of it has to be computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flare.learning.aggregate import Mean, RunningMean, WeightedSum
from flare.learning.methods.base import method_takes_mean
from flare.rng import stream
from flare.rounds.base_station import BaseStation
from flare.scheduling import Schedule
from flare.types import Indices


def mean_of(station: BaseStation, schedule: Schedule, devices: Indices) -> Callable[[], Mean]:
    """What adds up the updates of the selected devices, `devices`: their mean, or the sum with the policy's weights;
    ValueError where the settings do not go with those."""
    _refuse_air(station, schedule)
    if schedule.weights is None:
        return RunningMean
    if not method_takes_mean(station.method):
        raise ValueError(
            f"policy '{schedule.policy}' says how much each update counts, but method "
            f"'{station.config.learning.method}' has a reducer of its own, which takes no mean of the updates that "
            "could be weighed; take another method (flare, fedavg, fednova, ...) or another policy"
        )
    weights = dict(zip(devices.tolist(), schedule.weights.tolist(), strict=True))
    return lambda: WeightedSum(weights, keep_total=schedule.keep_total)


def _refuse_air(station: BaseStation, schedule: Schedule) -> None:
    """ValueError where updates are to be weighed or lost over the air."""
    if station.air is None:
        return
    for given, does, why in (
        (schedule.weights, "says how much each update counts", "the channel adds them all up alike"),
        (schedule.error_rate, "says how likely each update is lost", "there are no packets that could be"),
    ):
        if given is not None:
            raise ValueError(
                f"uplink.air is \"ota\" and policy '{schedule.policy}' {does}: over the air {why}; set uplink.air to "
                '"fdma", or take another policy'
            )


def lost_updates(station: BaseStation, schedule: Schedule, devices: Indices, index: int) -> Indices:
    """Those of the selected devices, `devices`, whose update of the round is lost; each is drawn from a stream of its
    own, so that it does not depend on who else sends."""
    if schedule.error_rate is None:
        return devices[:0]
    seed = station.config.seed
    drawn = [stream(seed, "packet", index, device).random() for device in devices.tolist()]
    return devices[np.array(drawn) < schedule.error_rate]
