"""How much the update of each device counts, and which updates are lost on the way: what a policy may say of those
that it selected (`flare.scheduling.Choice`).

An update that is lost changes nothing: the device has computed and sent, which took its time and energy, is told that
nothing arrived and drops it, with what it would have held back or kept of it. So nothing of it has to be computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flare.learning.aggregate import Mean, RunningMean, WeightedSum
from flare.rng import streams
from flare.rounds.air import WEIGHING, not_over_the_air
from flare.rounds.base_station import BaseStation, refuse_weighing
from flare.rounds.robust import robust_mean, weights_refused
from flare.scheduling import Schedule
from flare.types import Indices


def mean_of(station: BaseStation, schedule: Schedule, devices: Indices) -> Callable[[], Mean]:
    """What adds up the updates of the selected devices, `devices`: their mean, the robust one of the settings, or the
    sum with the policy's weights; ValueError where the settings do not go with those."""
    _refuse_air(station, schedule)
    robust = robust_mean(station.config.learning)
    if schedule.weights is None:
        return robust or RunningMean
    if robust is not None:
        raise weights_refused(station.config)
    refuse_weighing(station.config, station.method)  # a policy that does not say that it weighs
    weights = dict(zip(devices.tolist(), schedule.weights.tolist(), strict=True))
    return lambda: WeightedSum(weights, keep_total=schedule.keep_total)


def _refuse_air(station: BaseStation, schedule: Schedule) -> None:
    """ValueError where updates are to be weighed or lost over the air."""
    if station.air is None:
        return
    for says, does, why in (
        (schedule.weights is not None, *WEIGHING),
        (schedule.error_rate is not None, "says how likely each update is lost", "there are no packets that could be"),
        (schedule.own_division, "divides the band", "all have the whole band"),
    ):
        if says:
            raise not_over_the_air(schedule.policy, does, why)


def lost_updates(station: BaseStation, schedule: Schedule, devices: Indices, index: int) -> Indices:
    """Those of the selected devices, `devices`, whose update of the round is lost; each is drawn from a stream of its
    own, so that it does not depend on who else sends."""
    if schedule.error_rate is None:
        return devices[:0]
    seed = station.config.seed
    drawn = [each.random() for each in streams(seed, "packet", index, numbers=devices.tolist())]
    return devices[np.array(drawn) < schedule.error_rate]
